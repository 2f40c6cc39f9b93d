"""Lineage model: the sources of a version, parsed from the properties of its transaction."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from lance_assets.lineage.model import AncestryKind, InputVersion, Origin, VersionName, sources_of
from lance_assets.provenance.properties import INPUTS
from lance_core.format.ids import Version
from lance_core.operations import Append, Clone, Operation, Restore

V7 = Version(7)


def source(uri: str, version: int, bond: AncestryKind = AncestryKind.READ) -> InputVersion:
    return InputVersion(VersionName(uri, version), bond)


@pytest.mark.parametrize(
    ("inputs", "operation", "expected"),
    [
        ({}, None, []),
        ({}, Append(()), []),
        ({"/b": 2, "/a": 1}, Append(()), [source("/a", 1), source("/b", 2)]),
        ({"/a": 1}, Restore(V7), [source("/t", 7, AncestryKind.RESTORED), source("/a", 1)]),
        ({}, Clone(True, None, V7, "/s", None), [source("/s", 7, AncestryKind.FORKED)]),
        ({}, Clone(False, None, V7, "/s", None), [source("/s", 7, AncestryKind.FORKED)]),
        ({}, Clone(True, "dev", V7, "/s/tree/dev", "more"), [source("/s/tree/dev", 7, AncestryKind.FORKED)]),
        ({}, Clone(True, "dev", V7, "/s/tree/dev/", None), [source("/s/tree/dev/", 7, AncestryKind.FORKED)]),
        ({}, Clone(True, "dev", V7, "/s", None), [source("/s/tree/dev", 7, AncestryKind.FORKED)]),
        ({}, Clone(True, "a/b", V7, "s3://lake/s/", None), [source("s3://lake/s/tree/a/b", 7, AncestryKind.FORKED)]),
    ],
)
def test_sources(inputs: Mapping[str, int], operation: Operation | None, expected: list[InputVersion]) -> None:
    properties = {INPUTS: json.dumps(inputs)} if inputs else {}
    assert [*sources_of("/t", properties, operation)] == expected


@pytest.mark.parametrize(
    ("action", "operation", "expected"),
    [
        ("append", "Append", "append"),
        ("upsert", "Update", "upsert (Update)"),
        ("create index", "CreateIndex", "create index"),
        ("", "Clone", "Clone"),
    ],
)
def test_action_is_named_as_its_writer_and_the_format_name_it(action: str, operation: str, expected: str) -> None:
    origin = Origin(VersionName("/t", 7), operation, datetime.now(UTC), 1, 1, 0, 6, 6, (), "u", {}, action=action)
    assert origin.named_action == expected


def test_number_of_sources_is_bounded() -> None:
    inputs = json.dumps({f"/t{number}": 1 for number in range(20_000)})
    assert len(sources_of("/t", {INPUTS: inputs}, None)) == 10_000

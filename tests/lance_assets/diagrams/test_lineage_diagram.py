"""Lineage diagram: its content, and that no lineage makes it large or malformed."""

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_assets.diagrams.lineage_diagram import draw_lineage
from lance_assets.diagrams.svg import text_width
from lance_assets.lineage.model import AncestryKind, InputVersion, Origin, VersionName
from lance_assets.provenance.properties import ASSET_KEY, PARTITION, RUN_ID

SVG = "{http://www.w3.org/2000/svg}"
BYTES_MAX = 10_000


def origin(
    *sources: InputVersion,
    properties: Mapping[str, str] | None = None,
    uri: str = "/lake/features.lance",
    parent: int | None = None,
    over: range = range(0),
) -> Origin:
    return Origin(
        name=VersionName(uri, 17),
        operation="Append",
        timestamp=datetime(2026, 1, 2, tzinfo=UTC),
        rows=1,
        rows_added=1,
        rows_removed=0,
        parent=parent,
        planned_on=parent,
        rebased_over=over,
        uuid=None,
        properties=properties or {},
        sources=sources,
    )


def read(uri: str, version: int = 7, bond: AncestryKind = AncestryKind.READ) -> InputVersion:
    return InputVersion(VersionName(uri, version), bond)


def words(of: Origin) -> list[str]:
    root = ElementTree.fromstring(draw_lineage(of).svg())
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]


def test_content() -> None:
    properties = {ASSET_KEY: "lake/features_append", PARTITION: "2026-01-02", RUN_ID: "3f1c9f0e-1111"}
    texts = words(
        origin(
            read("s3://lake/orders.lance", 42),
            read("/lake/raw.lance/tree/dev", 3),
            read("/lake/features.lance", 5, AncestryKind.RESTORED),
            parent=16,
            over=range(14, 17),
            properties=properties,
        )
    )
    assert texts == [
        "orders.lance", "version 42",
        "raw.lance (dev)", "version 3",
        "features.lance", "version 5, restored",
        "features.lance", "version 16, its parent",
        "features.lance", "version 17: Append", "asset lake/features_append", "partition 2026-01-02", "run 3f1c9f0e",
        "rebased over 14-16",
    ]  # fmt: skip


def test_version_without_inputs() -> None:
    assert words(origin()) == ["features.lance", "version 17: Append"]


def test_many_sources_are_counted() -> None:
    texts = words(origin(*(read(f"/lake/t{number}") for number in range(1000))))
    assert texts[:2] == ["t0", "version 7"]
    assert texts.count("version 7") == 6
    assert "and 994 more" in texts


@pytest.mark.parametrize("sign", ['"', "&", "表", "\U0001f600", "\x00", "x", "\u0301"])
def test_size_is_bounded(sign: str) -> None:
    long = sign * 5000
    properties = {ASSET_KEY: long, PARTITION: long, RUN_ID: long}
    of = origin(
        *(read(f"/lake/{long}", 2**63, AncestryKind.FORKED) for _ in range(100)),
        uri=f"/lake/{long}", parent=2**63, over=range(10, 2**62), properties=properties,
    )  # fmt: skip
    picture = draw_lineage(of)
    assert len(picture.markdown("what version 17 comes from")) <= BYTES_MAX
    root = ElementTree.fromstring(picture.svg())
    assert all(text_width("".join(each.itertext())) <= 280 for each in root.iter(f"{SVG}text"))


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=())), max_size=8), st.text())
def test_any_table_name(names: list[str], asset: str) -> None:
    texts = words(origin(*(read(name) for name in names), uri="".join(names), properties={ASSET_KEY: asset}))
    assert len(texts) >= 2 * min(len(names), 6)


def test_boxes_do_not_overlap_and_lie_inside() -> None:
    for number in range(10):
        picture = draw_lineage(origin(*(read(f"/t{each}") for each in range(number)), parent=1))
        root = ElementTree.fromstring(picture.svg())
        boxes = [
            tuple(float(each.get(key, "0")) for key in ("x", "y", "width", "height"))
            for each in root.iter(f"{SVG}rect")
            if each.get("width") != "100%"
        ]
        assert len(boxes) == min(number, 7) + 2
        for x, y, width, height in boxes:
            assert x >= 0
            assert y >= 0
            assert x + width <= picture.width
            assert y + height <= picture.height
        left = sorted(box[1:] for box in boxes[:-1])
        assert all(one[0] + one[2] < other[0] for one, other in pairwise(left))

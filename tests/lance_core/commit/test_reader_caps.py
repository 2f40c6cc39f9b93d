"""No commit is acknowledged that a reader with the same caps refuses to open."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Table, Unsupported
from lance_core.format.operations import Append, Overwrite
from lance_core.limits import Limit
from lance_core.storage.memory import MemoryStore
from lance_core.versions.snapshot import list_versions
from tests.lance_core.in_memory_table import NEW_TABLE, SCHEMA, InMemoryTable
from tests.torture import limits


def test_a_slice_of_the_sizes_that_are_promised() -> None:
    """`make torture ARGS=limits` runs the sizes themselves."""
    assert limits.run(limits.PR).failures == ()


@pytest.mark.parametrize(
    ("name", "module", "maximum"),
    [
        ("MANIFEST_BYTES", "lance_core.format.manifest_file", 400),
        ("FRAGMENTS", "lance_core.format.manifest", 3),
        ("FIELDS", "lance_core.format.manifest", 0),
        ("FILES_OF_A_FRAGMENT", "lance_core.format.fragment", 0),
        ("SMALL_PARTS", "lance_core.format.size_guard", 8),
        ("TRANSACTION_BYTES", "lance_core.format.transaction", 200),
    ],
)
def test_a_version_above_a_cap_is_not_put(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, maximum: int
) -> None:
    """The error names the cap and the ways out, and the table stays as it was."""
    world = InMemoryTable()
    world.create("a")
    base = world.at()
    unit = getattr(sys.modules[module], name).unit
    monkeypatch.setattr(f"{module}.{name}", Limit(name, maximum, unit))
    with pytest.raises(Unsupported, match=f"not committed, because readers would refuse.*LANCE_ASSETS_{name}_MAX"):
        world.write(Append(world.fragments(*"bcdefgh")), base=base)
    monkeypatch.undo()
    assert list(list_versions(world.location()).numbers) == [1]
    assert world.file_names() == ["a"]


def test_a_first_version_above_a_cap_is_not_put(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InMemoryTable(MemoryStore())
    monkeypatch.setattr("lance_core.format.manifest.FRAGMENTS", Limit("FRAGMENTS", 2, "fragments"))
    with pytest.raises(Unsupported, match=r"this Overwrite is not committed.*compact the table first, or write fewer"):
        world.write(Overwrite(world.fragments(*"abc"), SCHEMA), base=NEW_TABLE)
    assert not list_versions(world.location()).numbers


def test_a_detached_version_above_a_cap_is_not_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(tmp_path / "t", pa.table({"id": [1]}), durable=False)
    monkeypatch.setattr("lance_core.format.manifest.FRAGMENTS", Limit("FRAGMENTS", 1, "fragments"))
    with pytest.raises(Unsupported, match="this Append is not committed"):
        table.append(pa.table({"id": [2]}), audit=lambda *_: None)


@pytest.mark.parametrize(
    ("name", "module", "maximum"),
    [
        ("INTENT_BYTES", "lance_core.coordination.idempotency", 700),
        ("JSON_PARTS", "lance_core.format.size_guard", 18),
    ],
)
def test_an_intent_never_gets_a_record_that_is_not_read(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, maximum: int
) -> None:
    world = InMemoryTable()
    world.create("a")
    monkeypatch.setattr(f"{module}.{name}", Limit(name, maximum, "units"))
    with pytest.raises(Unsupported, match=f"LANCE_ASSETS_{name}_MAX"):
        world.append(*(letter * 30 for letter in "bcdefgh"), intent="i")
    assert world.file_names() == ["a"]
    assert world.append("b", intent="i").snapshot.version == 2

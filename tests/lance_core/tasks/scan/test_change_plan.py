"""Changes in tasks: compared with `Table.changes` and with full reads of both versions by pylance, over random
histories."""

import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.tasks.scan import read as reading
from lance_core.tasks.scan.change_plan import ChangeTask, plan_read_changes
from lance_core.tasks.scan.read import VersionRef

STEPS = 14
LINEAGE = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def rows(ids: list[int], rng: random.Random) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{rng.randrange(100)}" for _ in ids]})


def some(table: Table, rng: random.Random, share: float) -> str:
    """Return a condition for about this share of the ids."""
    ids = table.to_table(columns=["id"])["id"].to_pylist()
    return f"id IN ({', '.join(str(each) for each in ids if rng.random() < share) or -1})"


def upsert(table: Table, rng: random.Random) -> Table:
    ids = rng.sample(range(max(table.to_table(columns=["id"])["id"].to_pylist(), default=0) + 9), 8)
    return table.upsert(rows(ids, rng).select(["id", "v"]), on="id").table


def append(table: Table, rng: random.Random) -> Table:
    return table.append(rows([rng.randrange(10**6) for _ in range(rng.randrange(1, 30))], rng)).table


STEP: Mapping[str, Callable[[Table, random.Random], Table]] = {
    "append": append,
    "update": lambda table, rng: table.update({"v": f"'u{rng.randrange(100)}'"}, some(table, rng, 0.2)).table,
    "delete": lambda table, rng: table.delete(some(table, rng, 0.1)).table,
    "upsert": upsert,
    "compact": lambda table, rng: table.compact(target_rows=rng.choice([20, 1000])).table,
    "restore": lambda table, rng: table.restore(max(1, table.version - rng.randrange(1, 4))).table,
    "overwrite": lambda table, rng: table.overwrite(rows([rng.randrange(99) for _ in range(9)], rng)).table,
    "replace": lambda table, rng: table.overwrite(rows([1, 2], rng), where="id < 3").table,
}
"""Changes of a history, in which each occurs."""
FREQUENT_STEPS = ("append", "update", "delete", "upsert", "compact", "restore")


def random_history(uri: str, rng: random.Random) -> Table:
    table = Table.create(uri, rows(list(range(60)), rng), stable_row_ids=True, max_rows_per_file=20, durable=False)
    steps = [*STEP, *rng.choices(FREQUENT_STEPS, k=STEPS - len(STEP))]
    rng.shuffle(steps)
    for step in steps:
        table = STEP[step](table, rng)
    return table


def in_tasks(uri: str, since: int, until: int | None = None, **options: Any) -> pa.Table:
    """Read changes with pickled tasks, in the order of their partitions."""
    reference = VersionRef(uri, until)
    plan = plan_read_changes(reference.snapshot(), since, transport=lambda arrow: arrow, slots=2, **options)
    task = pickle.loads(pickle.dumps(ChangeTask(plan)))
    numbers = range(len(plan.partitions))
    batches = [batch for number in numbers for batch in task([pa.record_batch({"part": pa.array([number])})])]
    return pa.Table.from_batches(batches, plan.arrow)


def signed(changes: pa.Table) -> pa.Table:
    """Return changes with the types in which they travel."""
    fields = [each.with_type(pa.int64()) if each.type == pa.uint64() else each for each in changes.schema]
    return changes.cast(pa.schema(fields, changes.schema.metadata))


def by_full_reads(uri: str, since: int, until: int) -> set[tuple[object, ...]]:
    """Return the changes that pylance's rows of both versions imply."""

    def read(version: int) -> dict[int, dict[str, object]]:
        data = lance.dataset(uri, version=version).to_table(columns=["id", "v", *LINEAGE])
        return {row["_rowid"]: row for row in data.to_pylist()}

    before, after = read(since), read(until)
    changes = {("insert", *after[each].values()) for each in after.keys() - before.keys()}
    changes |= {("delete", *before[each].values()) for each in before.keys() - after.keys()}
    both, updated = before.keys() & after.keys(), LINEAGE[-1]
    return changes | {
        ("update", *after[each].values()) for each in both if before[each][updated] != after[each][updated]
    }


def pairs_of_versions(table: Table, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Yield pairs of versions: the whole history, none of it, random parts, and every restored version."""
    yield from ((1, table.version), (table.version, table.version))
    for _ in range(6):
        since, until = sorted(rng.sample(range(1, table.version + 1), 2))
        yield since, until
    yield from ((each.version - 1, each.version) for each in table.versions() if each.operation == "Restore")


@pytest.mark.parametrize("seed", range(6))
def test_random_histories(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions of a few rows cut fragments into pieces."""
    monkeypatch.setattr(reading, "PARTITION_ROWS_MIN", 7)
    rng = random.Random(seed)
    table = random_history(str(tmp_path / "t"), rng)
    for since, until in pairs_of_versions(table, rng):
        actual = in_tasks(table.uri, since, until)
        assert actual.equals(signed(table.changes(since, until)))
        assert {tuple(row.values()) for row in actual.to_pylist()} == by_full_reads(table.uri, since, until)
        assert actual.num_rows == len(by_full_reads(table.uri, since, until))
        condition = "id % 2 = 0 AND v < 'v5'"
        mask = [row["id"] % 2 == 0 and row["v"] < "v5" for row in actual.to_pylist()]
        filtered = actual.filter(pa.array(mask, pa.bool_()))
        options: dict[str, Any] = {"columns": ["v"], "filter": condition, "with_row_id": False}
        selected = in_tasks(table.uri, since, until, **options)
        assert selected.equals(signed(table.changes(since, until, **options)))
        assert selected.equals(filtered.select(["_change", "v", *LINEAGE[1:]]))


def test_columns_of_the_later_version(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), {"id": [1, 2, 3]}, stable_row_ids=True, durable=False)
    table = table.add_columns({"twice": "id * 2"}).table.delete("id = 2").table
    actual = in_tasks(table.uri, 1)
    assert actual.equals(signed(table.changes(1)))
    assert actual.column_names == ["_change", "id", "twice", *LINEAGE]
    with pytest.raises(InvalidInput, match="no stable row ids"):
        in_tasks(Table.create(str(tmp_path / "u"), {"id": [1]}, durable=False).uri, 1)

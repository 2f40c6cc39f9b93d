"""Recipes of the golden tables: one function per table, in the API that many releases share.

The module runs inside the environment of the release (`make.py` starts it there), so it imports only that release,
pyarrow and two modules of this package, and it tries newer functions before it relies on them. A step that a release
cannot run is skipped and recorded with the error message of the release.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from tests.golden.columns import columns_of_every_type, columns_of_later_types
from tests.golden.reading import rows_of, schema_of

VERSION = tuple(int(part) for part in lance.__version__.split(".")[:2])


class Notes:
    """Errors of this release, in its own words."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}

    def attempt(self, what: str, step: Callable[..., object], *arguments: object) -> bool:
        try:
            step(*arguments)
        except BaseException as error:  # noqa: BLE001 - a panic of the release is not an Exception
            first_line = (str(error).splitlines() or [""])[0]
            self.refused[what] = f"{type(error).__name__}: {_remove_paths(first_line)}"
            return False
        return True


def _remove_paths(message: str) -> str:
    """Remove paths from the message; releases name files of the machine that built them."""
    words = [word for word in message.split() if "/" not in word]
    return " ".join(words)[:160]


def storages() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the storage versions that this release can write, with the arguments that select them."""
    if VERSION < (0, 11):
        yield "legacy", {}
    elif VERSION < (0, 16):
        yield "legacy", {"use_legacy_format": True}
        yield "2.0", {"use_legacy_format": False}
    else:
        names = ["legacy", "2.0", "2.1", "2.2"] if VERSION >= (1, 0) else ["legacy", "2.0", "2.1"]
        for name in names[: 2 if VERSION < (0, 36) else None]:
            yield name, {"data_storage_version": name}


def people(first: int, count: int) -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"name {number}" for number in ids]})


# Tables. Each recipe takes its directory, the notes, and the arguments that select a storage version.

Recipe = Callable[[str, Notes, dict[str, Any]], None]


def types(place: str, notes: Notes, storage: dict[str, Any]) -> None:
    """Every type of the old releases, in two files of several batches."""
    _two_files(place, notes, storage, columns_of_every_type(10), columns_of_every_type(6))


def later_types(place: str, notes: Notes, storage: dict[str, Any]) -> None:
    """Types that most releases lack."""
    _two_files(place, notes, storage, columns_of_later_types(10), columns_of_later_types(6))


def _two_files(
    place: str, notes: Notes, storage: dict[str, Any], first: dict[str, pa.Array], second: dict[str, pa.Array]
) -> None:
    """Write the columns that the release can both write and read."""
    scratch = place + ".scratch"

    def alone(name: str) -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        lance.write_dataset(pa.table({name: first[name]}), scratch, max_rows_per_group=4, **storage)
        lance.dataset(scratch).to_table()

    readable = [name for name in first if notes.attempt(f"column {name}", alone, name)]
    shutil.rmtree(scratch, ignore_errors=True)
    readable_columns = pa.table({name: first[name] for name in readable})
    lance.write_dataset(readable_columns, place, max_rows_per_group=4, **storage)
    more = pa.table({name: second[name] for name in readable})
    append = lambda: lance.write_dataset(more, place, mode="append", max_rows_per_group=4, **storage)  # noqa: E731
    notes.attempt("append", append)


def history(place: str, notes: Notes, storage: dict[str, Any]) -> None:
    """Appends, deletions, updates, an overwrite, a restore, tags."""
    data = people(0, 12)
    lance.write_dataset(data, place, max_rows_per_file=5, max_rows_per_group=2, **storage)
    lance.write_dataset(people(12, 4), place, mode="append", **storage)
    table = lambda: lance.dataset(place)  # noqa: E731
    notes.attempt("delete", lambda: table().delete("id in (1, 3, 12)"))
    notes.attempt("delete again", lambda: table().delete("id = 4"))
    notes.attempt("delete a whole fragment", lambda: table().delete("id >= 5 AND id < 10"))
    notes.attempt("update", lambda: table().update({"name": "'new'"}, where="id < 3"))
    notes.attempt("update of a nullable column to null", lambda: table().update({"name": "NULL"}, where="id = 10"))
    upsert = lambda: table().merge_insert("id").when_matched_update_all().when_not_matched_insert_all()  # noqa: E731
    notes.attempt("upsert", lambda: upsert().execute(people(13, 5)))
    notes.attempt("tags", lambda: table().tags.create("first", 1))
    lance.write_dataset(pa.table({"other": ["a", "b"]}), place, mode="overwrite", **storage)
    lance.write_dataset(pa.table({"other": ["c"]}), place, mode="append", **storage)
    notes.attempt("restore", lambda: lance.dataset(place, version=3).restore())


def bitmap(place: str, notes: Notes, storage: dict[str, Any]) -> None:
    """Many deleted rows, which the release stores as a bitmap."""
    lance.write_dataset(pa.table({"id": pa.array(range(6200), pa.int16())}), place, **storage)
    lance.dataset(place).delete("id >= 300 AND id < 6000")
    notes.attempt("a second deletion", lambda: lance.dataset(place).delete("id < 100"))


def columns(place: str, notes: Notes, storage: dict[str, Any]) -> None:
    """Columns that are merged, added, renamed, cast and dropped, which gives several files per fragment."""
    nested = pa.array([{"a": n, "b": f"b{n}"} for n in range(6)], pa.struct([("a", pa.int32()), ("b", pa.string())]))
    data = people(0, 6).append_column("point", nested)
    lance.write_dataset(data, place, max_rows_per_file=4, max_rows_per_group=3, **storage)
    table = lambda: lance.dataset(place)  # noqa: E731
    extra = pa.table({"id": pa.array([5, 3, 1, 0, 2, 4], pa.int64()), "extra": pa.array([50, 30, 10, 0, 20, 40])})
    notes.attempt("merge", lambda: table().merge(extra, "id"))
    notes.attempt("add_columns", lambda: table().add_columns({"double": "id * 2", "text": "concat(name, '!')"}))
    notes.attempt("rename", _alter, place, {"path": "name", "name": "title"})
    notes.attempt("rename a nested field", _alter, place, {"path": "point.b", "name": "c"})
    notes.attempt("cast", _alter, place, {"path": "double", "data_type": pa.int32()})
    notes.attempt("drop", lambda: table().drop_columns(["text"]))
    notes.attempt("drop a nested field", lambda: table().drop_columns(["point.a"]))
    notes.attempt("delete", lambda: table().delete("id = 2"))
    notes.attempt("add after drop", lambda: table().add_columns({"late": "id + 1"}))
    notes.attempt("append", lambda: lance.write_dataset(table().to_table(), place, mode="append", **storage))
    field = pa.field("nothing", pa.string())
    notes.attempt("add a column of nulls", lambda: table().add_columns(field))


def _alter(place: str, change: Any) -> None:
    lance.dataset(place).alter_columns(change)


def compaction(place: str, notes: Notes, storage: dict[str, Any]) -> None:
    lance.write_dataset(people(0, 12), place, max_rows_per_file=3, **storage)
    lance.dataset(place).delete("id in (1, 2, 6)")
    notes.attempt("compact", lambda: lance.dataset(place).optimize.compact_files(target_rows_per_fragment=100))
    lance.write_dataset(people(20, 2), place, mode="append", **storage)


def indexed(place: str, notes: Notes, storage: dict[str, Any]) -> None:
    lance.write_dataset(people(0, 20), place, max_rows_per_file=8, **storage)
    notes.attempt("scalar index", lambda: lance.dataset(place).create_scalar_index("id", "BTREE"))
    lance.write_dataset(people(20, 3), place, mode="append", **storage)
    notes.attempt("delete", lambda: lance.dataset(place).delete("id = 9"))
    notes.attempt("optimize", lambda: lance.dataset(place).optimize.optimize_indices())


def row_ids(place: str, notes: Notes, storage: dict[str, Any]) -> None:
    argument = "enable_stable_row_ids" if VERSION >= (0, 33) else "enable_move_stable_row_ids"
    asking: dict[str, Any] = {argument: True}
    create = lambda: lance.write_dataset(people(0, 9), place, max_rows_per_file=4, **asking, **storage)  # noqa: E731
    if not notes.attempt("stable row ids", create):
        shutil.rmtree(place, ignore_errors=True)
        return
    lance.write_dataset(people(9, 3), place, mode="append", **storage)
    notes.attempt("delete", lambda: lance.dataset(place).delete("id = 2 OR id = 7"))
    notes.attempt("update", lambda: lance.dataset(place).update({"name": "'new'"}, where="id % 3 = 0"))
    notes.attempt("compact", lambda: lance.dataset(place).optimize.compact_files(target_rows_per_fragment=100))


def deletions(place: str, notes: Notes, storage: dict[str, Any]) -> None:
    """A table that later releases continue."""
    for first in (0, 4, 8):
        lance.write_dataset(people(first, 4), place, mode="append" if first else "create", **storage)
    lance.dataset(place).delete("id in (1, 2, 6)")


def handed_over(place: str, notes: Notes, storage: dict[str, Any], *, oldest: Path) -> None:
    """A table of the oldest release that this release continues."""
    shutil.copytree(oldest, place)
    rows = lance.dataset(place).to_table().slice(0, 2)
    notes.attempt("append", lambda: lance.write_dataset(rows, place, mode="append"))
    notes.attempt("delete", lambda: lance.dataset(place).delete("id = 4"))
    notes.attempt("update", lambda: lance.dataset(place).update({"name": "'new'"}, where="id = 5"))


def reused_ids(place: str, notes: Notes, storage: dict[str, Any]) -> None:
    """Columns that are dropped and added again; some releases assigned a field id twice."""
    data = pa.table({"x": range(2)})
    lance.write_dataset(data, place, **storage)
    table = lambda: lance.dataset(place)  # noqa: E731
    if not notes.attempt("add_columns", lambda: table().add_columns({"y": "x * 2", "z": "x * 3"})):
        return
    table().add_columns({"a": "-x"})
    more = pa.table({"x": [2, 3], "y": [4, 6], "z": [6, 9], "a": [-2, -3]})
    lance.write_dataset(more, place, mode="append", **storage)
    table().drop_columns(["a", "z"])
    table().add_columns({"b": "x * 4", "c": "x * 5"})


def facets(place: str, notes: Notes, storage: dict[str, Any]) -> None:
    """An empty table with metadata of schema and fields, both naming schemes and config."""
    field = pa.field("id", pa.int64(), nullable=False, metadata={"unit": "pieces"})
    schema = pa.schema([field, pa.field("note", pa.string())], metadata={"owner": "warehouse"})
    empty = pa.RecordBatchReader.from_batches(schema, [])
    v2_names: dict[str, Any] = {"enable_v2_manifest_paths": True} if (0, 17) <= VERSION < (8, 0) else {}
    lance.write_dataset(empty, place, schema=schema, **v2_names, **storage)
    rows = pa.table({"id": [1, 2], "note": ["a", None]}, schema=schema)
    notes.attempt("append to no rows", lambda: lance.write_dataset(rows, place, mode="append", **storage))
    notes.attempt("config", lambda: lance.dataset(place).update_config({"team": "green"}))
    notes.attempt("schema metadata", lambda: lance.dataset(place).replace_schema_metadata({"owner": "shop"}))


BY_STORAGE: tuple[Recipe, ...] = (types, later_types, history, columns)
ONCE: tuple[Recipe, ...] = (deletions, bitmap, compaction, indexed, row_ids, reused_ids, facets)


def write_all(root: Path, oldest: Path | None) -> dict[str, Any]:
    named: list[tuple[str, Recipe, dict[str, Any]]] = []
    for recipe in BY_STORAGE:
        named += [(f"{recipe.__name__}_{label}", recipe, storage) for label, storage in storages()]
    named += [(recipe.__name__, recipe, {}) for recipe in ONCE]
    if oldest:
        named.append(("handed_over", partial(handed_over, oldest=oldest), {}))
    return {name: write(str(root / name), recipe, storage) for name, recipe, storage in named}


def write(place: str, recipe: Recipe, storage: dict[str, Any]) -> dict[str, Any]:
    """Write a table, and return what the release itself reads from each version: null where it cannot read it."""
    notes = Notes()
    whole = notes.attempt("whole recipe", recipe, place, notes, storage)
    if not whole or not Path(place).is_dir():
        shutil.rmtree(place, ignore_errors=True)
        return {"refused": notes.refused, "versions": {}}
    versions: dict[str, Any] = {}
    for version in sorted(entry["version"] for entry in lance.dataset(place).versions()):
        versions[str(version)] = None
        notes.attempt(f"reading version {version}", read_into, versions, place, version)
    return {"refused": notes.refused, "versions": versions}


def read_into(versions: dict[str, Any], place: str, version: int) -> None:
    table = lance.dataset(place, version=version)
    seen = table.to_table()
    versions[str(version)] = {"schema": schema_of(seen.schema), "count": table.count_rows(), "rows": rows_of(seen)}


if __name__ == "__main__":
    root, *oldest_tables = map(Path, sys.argv[1:])
    written = {
        "pylance": lance.__version__,
        "pyarrow": pa.__version__,
        "tables": write_all(root, oldest_tables[0] if oldest_tables else None),
    }
    (root / "expected.json").write_text(json.dumps(written, sort_keys=True))

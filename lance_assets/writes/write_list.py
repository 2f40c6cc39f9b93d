"""Registry of writes by name (`op="append"` in Python, `op: append` in YAML), and the list of writes of one table.

`lance_write` can add writes until the definitions of the table are read: a later one would be missing from what the
project has merged. The decorator is in `decorator.py`, YAML in `lance_assets/components/`.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import overload

from lance_assets.writes.asset_options import REFUSED_BY_WRITES, check_names
from lance_assets.writes.column_writes import SparkMapColumns, SparkMergeColumns
from lance_assets.writes.computed_writes import SparkComputedColumn
from lance_assets.writes.dml_writes import SparkCompact, SparkDelete, SparkUpdate
from lance_assets.writes.index_writes import SparkBuildIndex, SparkOptimizeIndices
from lance_assets.writes.remote_write import RemoteWrite
from lance_assets.writes.row_writes import SparkAppend, SparkIngest, SparkOverwrite, SparkUpsert
from lance_assets.writes.view_writes import SparkRefreshView
from lance_assets.writes.write import Write
from lance_core import InvalidInput

WRITES: Mapping[str, type[Write]] = {
    "append": SparkAppend,
    "build_index": SparkBuildIndex,
    "compact": SparkCompact,
    "compute_column": SparkComputedColumn,
    "delete": SparkDelete,
    "ingest": SparkIngest,
    "map_columns": SparkMapColumns,
    "merge_columns": SparkMergeColumns,
    "optimize_indices": SparkOptimizeIndices,
    "overwrite": SparkOverwrite,
    "refresh_view": SparkRefreshView,
    "remote": RemoteWrite,
    "update": SparkUpdate,
    "upsert": SparkUpsert,
}
"""Write class of each name, in the Python decorator and in YAML."""


class Writes(Sequence[Write]):
    """Writes of one table, in the order of their declaration."""

    def __init__(
        self, label: str, writes: Sequence[Write] = (), *, reserved: Mapping[str, str] | None = None, view: bool = False
    ) -> None:
        """Add `writes`. `reserved` maps names that no write may have to their owners. A `view` accepts no writes."""
        self._label = label
        self._reserved = dict(reserved or {})
        self._writes: list[Write] = []
        self._is_view = view
        self._is_frozen = False
        for write in writes:
            self.add(write)

    def add(self, write: Write) -> None:
        self.check_accepts(write)
        write = write.for_table(self._label.rpartition("/")[2])
        if write.name in self._reserved:
            raise self._duplicate_name(f"{self._reserved[write.name]} and a write", write.name)
        if any(other.name == write.name for other in self._writes):
            raise self._duplicate_name("2 writes", write.name)
        self._check_index(write)
        self._writes.append(write)

    def _check_index(self, write: Write) -> None:
        for other in self._writes:
            if not isinstance(other, SparkBuildIndex) or not isinstance(write, SparkBuildIndex):
                continue
            if (other.index_name, other.branch) == (write.index_name, write.branch):
                raise InvalidInput(
                    f"the Lance table {self._label!r}: {other.name!r} and {write.name!r} both build the index "
                    f"{write.index_name!r}, and each would undo the other; give one of them another name by index="
                )

    def check_accepts(self, write: Write) -> None:
        """Raise `InvalidInput` if no write can be added any more."""
        if self._is_view:
            raise InvalidInput(
                f"the write {write.name!r} of {self._label!r}: declare a write to a branch on its table, with branch="
            )
        if self._is_frozen:
            raise InvalidInput(
                f"the write {write.name!r} of the Lance table {self._label!r} is declared after .defs of the table was "
                "read, so that the definitions lack it; read .defs below all declarations, or in a module that imports "
                "all modules with declarations"
            )

    def freeze(self) -> tuple[Write, ...]:
        """Return all writes and refuse further ones."""
        self._is_frozen = True
        return tuple(self._writes)

    @overload
    def __getitem__(self, index: int) -> Write: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Write]: ...
    def __getitem__(self, index: int | slice) -> Write | Sequence[Write]:
        return self._writes[index]

    def __len__(self) -> int:
        return len(self._writes)

    def __iter__(self) -> Iterator[Write]:
        return iter(self._writes)

    def __repr__(self) -> str:
        return repr(tuple(self._writes))

    def _duplicate_name(self, what: str, name: str) -> InvalidInput:
        return InvalidInput(f"the Lance table {self._label!r}: {what} are called {name!r}; give each its own name")


def write_type_of(name: object, *, what: str) -> type[Write]:
    """Return the write class of a name. `what` is the option that holds the name, for the error."""
    if isinstance(name, str) and name in WRITES:
        return WRITES[name]
    raise InvalidInput(f"{what}={name!r} is not a write; choose one of {', '.join(WRITES)}{did_you_mean(name, WRITES)}")


def create_write(kind: type[Write], options: Mapping[str, object]) -> Write:
    """Create a write from its options by name. Raise `InvalidInput` that names a missing, unknown or refused option."""
    label = f"{kind.__name__}({options.get('name')!r})"
    check_names(options, REFUSED_BY_WRITES, label)
    check_options(kind, options, label=label)
    return kind(**options)  # type: ignore[arg-type]  # the names are checked above, the values by the write


def check_options(kind: type, options: Mapping[str, object], *, label: str) -> None:
    """Raise `InvalidInput` if `options` has a name that the dataclass `kind` lacks, or lacks a required one."""
    known = {field.name: field for field in fields(kind)}
    for name in options:
        if name not in known:
            raise InvalidInput(
                f"{label} has no option {name!r}{did_you_mean(name, known)}; its options are {', '.join(sorted(known))}"
            )
    for name, field in known.items():
        if field.default is MISSING and field.default_factory is MISSING and options.get(name) is None:
            raise InvalidInput(f"{label}: {name}= is missing")


def did_you_mean(name: object, known: Mapping[str, object]) -> str:
    """Return a hint with the most similar known name, or an empty text."""
    matches = difflib.get_close_matches(str(name), known, n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""

"""The writes that a table is declared with, and how one is made from its name in words: `op="append"`, `type: append`.

More may be declared (`lance_write`) until somebody reads the table's definitions: what came later would be missing in
what the project has merged. The decorator is in `decorator.py`, YAML in `lance_assets/components/`.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import overload

from lance_assets.writes.column_writes import SparkMapColumns, SparkMergeColumns
from lance_assets.writes.dml_writes import SparkCompact, SparkDelete, SparkUpdate
from lance_assets.writes.index_writes import SparkBuildIndex, SparkOptimizeIndices
from lance_assets.writes.row_writes import SparkAppend, SparkIngest, SparkOverwrite, SparkUpsert
from lance_assets.writes.write import Write
from lance_core import InvalidInput

WRITES: Mapping[str, type[Write]] = {
    "append": SparkAppend,
    "build_index": SparkBuildIndex,
    "compact": SparkCompact,
    "delete": SparkDelete,
    "ingest": SparkIngest,
    "map_columns": SparkMapColumns,
    "merge_columns": SparkMergeColumns,
    "optimize_indices": SparkOptimizeIndices,
    "overwrite": SparkOverwrite,
    "update": SparkUpdate,
    "upsert": SparkUpsert,
}
"""What each word makes, in Python's decorator and in YAML alike."""


class Writes(Sequence[Write]):
    """In the order in which they were declared."""

    def __init__(
        self, label: str, writes: Sequence[Write] = (), *, reserved: Mapping[str, str] | None = None, view: bool = False
    ) -> None:
        """`reserved` are names that no write may have, and whose they are. A view is declared elsewhere."""
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
        if any(each.name == write.name for each in self._writes):
            raise self._duplicate_name("2 writes", write.name)
        self._check_index(write)
        self._writes.append(write)

    def _check_index(self, write: Write) -> None:
        for each in self._writes:
            if not isinstance(each, SparkBuildIndex) or not isinstance(write, SparkBuildIndex):
                continue
            if (each.index_name, each.branch) == (write.index_name, write.branch):
                raise InvalidInput(
                    f"the Lance table {self._label!r}: {each.name!r} and {write.name!r} both build the index "
                    f"{write.index_name!r}, and each would undo what the other does; give one of them index="
                )

    def check_accepts(self, write: Write) -> None:
        if self._is_view:
            raise InvalidInput(
                f"the write {write.name!r} of {self._label!r}: what writes to a branch is declared with its table, and "
                "says branch= itself"
            )
        if self._is_frozen:
            raise InvalidInput(
                f"the write {write.name!r} of the Lance table {self._label!r} is declared after the definitions of the "
                "table were read, so that they lack it; read .defs where all writes are declared: below them in the "
                "module, or in a module that imports those that declare"
            )

    def freeze(self) -> tuple[Write, ...]:
        """All of them; there can be no more from now on."""
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


def write_type_of(word: object, *, what: str) -> type[Write]:
    if isinstance(word, str) and word in WRITES:
        return WRITES[word]
    raise InvalidInput(f"{what}={word!r}: a write is one of {', '.join(WRITES)}{did_you_mean(word, WRITES)}")


def create_write(kind: type[Write], options: Mapping[str, object]) -> Write:
    """A write out of its options by name; what is missing or unknown is said by name."""
    check_options(kind, options, label=f"{kind.__name__}({options.get('name')!r})")
    return kind(**options)  # type: ignore[arg-type]  # the names are looked at above, the values by the write


def check_options(kind: type, options: Mapping[str, object], *, label: str) -> None:
    known = {field.name: field for field in fields(kind)}
    for name in options:
        if name not in known:
            raise InvalidInput(
                f"{label}: there is no {name!r}{did_you_mean(name, known)}; it has {', '.join(sorted(known))}"
            )
    for name, field in known.items():
        if field.default is MISSING and field.default_factory is MISSING and options.get(name) is None:
            raise InvalidInput(f"{label}: {name}= is missing")


def did_you_mean(word: object, known: Mapping[str, object]) -> str:
    found = difflib.get_close_matches(str(word), known, n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""

"""Table model: the state of a table that the program generator tracks: its columns, keys, names and references.

The model is approximate: a step that both libraries refuse leaves it slightly wrong, and they refuse more steps then.
"""

from dataclasses import dataclass, field
from random import Random

from tests.interop.columns import KEY, cases_for, has_non_null_values
from tests.interop.type_cases import TypeCase

UNKNOWN = ""
"""Spec of a column whose type no case describes any more. Writes omit the column."""
_SIMPLE = ("int32", "int64", "double", "string", "bool", "int8", "date32", "struct", "struct-nested")
_NAMES = ("a", "b", "c", "odd name", "Ünï", "UPPER", "select")


@dataclass
class TableModel:
    random: Random
    storage_version: str
    stable_row_ids: bool
    columns: dict[str, str] = field(default_factory=dict)
    key_count: int = 0
    """Number of keys in use; keys are numbered from 0."""
    name_count: int = 0
    annotated: set[str] = field(default_factory=set)
    """Columns with field metadata."""
    indices: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Column and index type by index name."""
    step: int = 0
    tags: list[str] = field(default_factory=list)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    """Columns by branch."""
    written_columns: list[set[str]] = field(default_factory=list)
    """Columns in the files of each write: no fragment may lose all of them, since pylance cannot read it then
    (test_pylance_defects.py)."""
    past: list[tuple[dict[str, str], list[set[str]]]] = field(default_factory=list)
    """`columns` and `written_columns` after each step."""

    @property
    def key(self) -> str | None:
        """Name of the key column; `None` if the table has none."""
        return next((name for name, spec in self.columns.items() if spec.startswith(KEY)), None)

    @property
    def usable_columns(self) -> dict[str, str]:
        """Columns whose type is known."""
        return {name: spec for name, spec in self.columns.items() if spec != UNKNOWN}

    def columns_without_key(self) -> list[str]:
        return [name for name, spec in self.columns.items() if not spec.startswith(KEY)]

    def save_step(self) -> None:
        self.past.append((dict(self.columns), [set(names) for names in self.written_columns]))

    def go_back(self, step: int) -> None:
        columns, written = self.past[step]
        self.columns, self.written_columns = dict(columns), [set(names) for names in written]

    def add_written_column(self, name: str, spec: str) -> None:
        """Add a column that has a file in every fragment."""
        self.columns[name] = spec
        for names in self.written_columns:
            names.add(name)

    def choose_some(self, names: list[str], count_min: int = 1) -> list[str]:
        """Return a random selection of these names, in their order."""
        count = self.random.randint(min(count_min, len(names)), len(names))
        chosen = set(self.random.sample(names, count))
        return [name for name in names if name in chosen]

    def new_name(self) -> str:
        self.name_count += 1
        if self.random.random() < 0.3:
            free = [name for name in _NAMES if name not in self.columns]
            if free:
                return self.random.choice(free)
        return f"c{self.name_count}"

    def new_spec(self, nullable: bool = False) -> str:
        cases: tuple[TypeCase, ...] = cases_for(self.storage_version)
        name = self.random.choice(_SIMPLE) if self.random.random() < 0.4 else self.random.choice(cases).name
        if name == "struct-packed" and nullable:
            name = "struct"  # the codec cannot write a null packed struct, so neither library can compact one
        case = next(case for case in cases if case.name == name)
        if not case.field.nullable or name == "struct-packed":
            return f"{name}!"
        return f"{name}!" if not nullable and has_non_null_values(name) and self.random.random() < 0.15 else name

    def new_columns(self) -> dict[str, str]:
        columns = {"k": "key!" if self.random.random() < 0.3 else "key"} if self.random.random() < 0.95 else {}
        count = self.random.randint(0 if columns else 1, 5)
        for _ in range(count):
            free = [name for name in _NAMES if name not in columns]
            columns[self.random.choice(free)] = self.new_spec()
        if self.random.random() < 0.3:
            items = list(columns.items())
            self.random.shuffle(items)
            columns = dict(items)
        return columns

    def new_rows(self, columns: dict[str, str], count: int | None = None, metadata: str = "") -> str:
        """Return an expression for rows with new keys."""
        if count is None:
            count = self.random.choice((1, 2, 3, 5, 8, 13))
        first, self.key_count = self.key_count, self.key_count + count
        return self.rows_with_keys(columns, f"range({first}, {first + count})", metadata)

    def rows_with_keys(self, columns: dict[str, str], keys: str, metadata: str = "") -> str:
        metadata_argument = f", {metadata}" if metadata else ""
        return f"make_rows({columns}, {keys}, {self.random.randrange(1000)}{metadata_argument})"

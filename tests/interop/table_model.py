"""What a generator knows of the table while it writes a program: its columns, which keys were given out, which names
are taken. It is a guess: a step that both libraries refuse leaves it a little wrong, and they refuse some more.
"""

from dataclasses import dataclass, field
from random import Random

from tests.interop.columns import KEY, cases_for, may_be_full
from tests.interop.type_cases import TypeCase

UNKNOWN = ""
"""The spec of a column that became something that no case describes. It is left out of what is written."""
_SIMPLE = ("int32", "int64", "double", "string", "bool", "int8", "date32", "struct", "struct-nested")
_NAMES = ("a", "b", "c", "odd name", "Ünï", "UPPER", "select")


@dataclass
class Model:
    random: Random
    storage_version: str
    stable: bool
    columns: dict[str, str] = field(default_factory=dict)
    keys: int = 0
    """How many were given out, from 0 on."""
    names: int = 0
    annotated: set[str] = field(default_factory=set)
    """Columns with metadata of their own."""
    indices: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The column and the kind of each."""
    step: int = 0
    tags: list[str] = field(default_factory=list)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    """Their columns."""
    written: list[set[str]] = field(default_factory=list)
    """Which columns rows came with, of each write: no fragment may lose all that it has in files
    (test_pylance_defects.py)."""
    past: list[tuple[dict[str, str], list[set[str]]]] = field(default_factory=list)
    """The columns, and what was written, after each step."""

    @property
    def key(self) -> str | None:
        return next((name for name, spec in self.columns.items() if spec.startswith(KEY)), None)

    @property
    def known(self) -> dict[str, str]:
        return {name: spec for name, spec in self.columns.items() if spec != UNKNOWN}

    def others(self) -> list[str]:
        """Columns besides the key."""
        return [name for name, spec in self.columns.items() if not spec.startswith(KEY)]

    def remember(self) -> None:
        self.past.append((dict(self.columns), [set(names) for names in self.written]))

    def go_back(self, step: int) -> None:
        columns, written = self.past[step]
        self.columns, self.written = dict(columns), [set(names) for names in written]

    def computed(self, name: str, spec: str) -> None:
        """A column more, with a file in every fragment."""
        self.columns[name] = spec
        for names in self.written:
            names.add(name)

    def some(self, names: list[str], least: int = 1) -> list[str]:
        """Some of them, in their order."""
        count = self.random.randint(min(least, len(names)), len(names))
        chosen = set(self.random.sample(names, count))
        return [name for name in names if name in chosen]

    def new_name(self) -> str:
        self.names += 1
        if self.random.random() < 0.3:
            free = [name for name in _NAMES if name not in self.columns]
            if free:
                return self.random.choice(free)
        return f"c{self.names}"

    def new_spec(self, nullable: bool = False) -> str:
        cases: tuple[TypeCase, ...] = cases_for(self.storage_version)
        name = self.random.choice(_SIMPLE) if self.random.random() < 0.4 else self.random.choice(cases).name
        if name == "struct-packed" and nullable:
            name = "struct"  # the codec writes no null of the other, so neither library compacts one
        case = next(case for case in cases if case.name == name)
        if not case.field.nullable or name == "struct-packed":
            return f"{name}!"
        return f"{name}!" if not nullable and may_be_full(name) and self.random.random() < 0.15 else name

    def new_columns(self) -> dict[str, str]:
        found = {"k": "key!" if self.random.random() < 0.3 else "key"} if self.random.random() < 0.95 else {}
        count = self.random.randint(0 if found else 1, 5)
        for _ in range(count):
            free = [name for name in _NAMES if name not in found]
            found[self.random.choice(free)] = self.new_spec()
        if self.random.random() < 0.3:
            items = list(found.items())
            self.random.shuffle(items)
            found = dict(items)
        return found

    def rows(self, columns: dict[str, str], count: int | None = None, metadata: str = "") -> str:
        """New ones, as the text of a program."""
        if count is None:
            count = self.random.choice((1, 2, 3, 5, 8, 13))
        first, self.keys = self.keys, self.keys + count
        return self.rows_of(columns, f"range({first}, {first + count})", metadata)

    def rows_of(self, columns: dict[str, str], keys: str, metadata: str = "") -> str:
        more = f", {metadata}" if metadata else ""
        return f"rows({columns}, {keys}, {self.random.randrange(1000)}{more})"

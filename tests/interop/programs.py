"""A program: the history of one table, written down as what each library is told to do.

The text of a step is what runs, so what a failure prints is what failed. In the text of ours `table` is the newest
version, opened by us; in that of pylance `dataset` is. `after(3)` is the version after step 3, or after the one before
it where that was left out; `on(branch)` opens a branch.
"""

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import lance
import pyarrow as pa

from lance_core import Table
from tests.interop import columns


@dataclass(frozen=True)
class Step:
    number: int
    """Stays when other steps are left out."""
    kind: str
    ours: str
    theirs: str
    by_us: bool
    """Whose turn it is where turns are mixed."""
    asks: tuple[str, ...] = ()
    """Conditions that both have to answer alike after it, by indices and without."""


@dataclass(frozen=True)
class Program:
    seed: int
    storage_version: str
    stable: bool
    v2_names: bool
    steps: tuple[Step, ...]
    indexed: bool = False
    """Whether some of them are about indices."""

    def without(self, step: Step) -> "Program":
        return replace(self, steps=tuple(each for each in self.steps if each is not step))

    def __str__(self) -> str:
        names = "" if self.v2_names else ", V1 names"
        ids = "stable row ids" if self.stable else "row addresses"
        lines = [f"# Seed {self.seed}: storage version {self.storage_version}, {ids}{names}.", _PRELUDE]
        for whose, opening in (
            ("ours", "table = Table.open(uri, durable=False)"),
            ("theirs", "dataset = lance.dataset(uri)"),
        ):
            lines.append(f'\nuri, after, on = f"{{place}}/{whose}", After(), branch_of_{whose}(f"{{place}}/{whose}")')
            for step in self.steps:
                turn = "ours" if step.by_us else "theirs"
                lines.append(f"# {step.number}. {step.kind} (in mixed turns: {turn})")
                if step.number:
                    lines.append(opening)
                lines.append(step.ours if whose == "ours" else step.theirs)
                lines.append(f"after.ran({step.number}, Table.open(uri).version)")
                lines += [f"ask(uri, {step.asks})"] if step.asks else []
        return "\n".join(lines) + "\n"


_PRELUDE = textwrap.dedent("""\
    import tempfile

    import lance
    import pyarrow as pa
    from lance_core import Table
    from tests.interop.columns import arrow, batch, field, rows, schema
    from tests.interop.query_differential import ask
    from tests.interop.programs import After, branch_of_ours, branch_of_theirs

    place = tempfile.mkdtemp()""")


class After:
    """Which version there was after each step."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}

    def ran(self, step: int, version: int) -> None:
        self._versions[step] = version

    def __call__(self, step: int) -> int:
        return self._versions[max(number for number in self._versions if number <= step)]


def branch_of_ours(uri: str) -> Callable[[str], Table]:
    return lambda branch: Table.open(uri, branch=branch, durable=False)


def branch_of_theirs(uri: str) -> Callable[[str], lance.LanceDataset]:
    return lambda branch: lance.dataset(uri).checkout_version((branch, None))


def run_ours(step: Step, uri: str, after: After) -> None:
    opened = {"table": Table.open(uri, durable=False)} if step.number else {}
    exec(_compiled(step.ours), {**_NAMES, **opened, "uri": uri, "after": after, "on": branch_of_ours(uri)})


def run_theirs(step: Step, uri: str, after: After) -> None:
    opened = {"dataset": lance.dataset(uri)} if step.number else {}
    exec(_compiled(step.theirs), {**_NAMES, **opened, "uri": uri, "after": after, "on": branch_of_theirs(uri)})


def _compiled(text: str) -> Any:
    return compile(text, "<step>", "exec")


_NAMES: Mapping[str, object] = {
    "lance": lance,
    "pa": pa,
    "Table": Table,
    "arrow": columns.arrow,
    "batch": columns.batch,
    "field": columns.field,
    "rows": columns.rows,
    "schema": columns.schema,
}

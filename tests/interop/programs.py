"""Programs: the history of one table as a list of steps, each the Python statement that a library executes.

The text of a step is the code that runs, so the program that a failure prints is the program that failed. In our
statements `table` is the newest version, opened by us; in those of pylance, `dataset` is. `after(3)` is the version
after step 3, or after the last step before it if step 3 was left out; `on(branch)` opens a branch.
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
    """Position in the generated program; it stays the same when other steps are left out."""
    name: str
    ours: str
    theirs: str
    ours_in_mixed: bool
    """True if our library executes the step on the table that both libraries write in turn."""
    conditions: tuple[str, ...] = ()
    """Conditions that both libraries answer after the step, with indices and without; the answers must agree."""


@dataclass(frozen=True)
class Program:
    seed: int
    storage_version: str
    stable_row_ids: bool
    v2_names: bool
    steps: tuple[Step, ...]
    with_indices: bool = False
    """True if the generator could choose steps that change indices."""

    def without(self, step: Step) -> "Program":
        return replace(self, steps=tuple(other for other in self.steps if other is not step))

    def __str__(self) -> str:
        names = "" if self.v2_names else ", V1 names"
        ids = "stable row ids" if self.stable_row_ids else "row addresses"
        lines = [f"# Seed {self.seed}: storage version {self.storage_version}, {ids}{names}.", _PRELUDE]
        for writer, opening in (
            ("ours", "table = Table.open(uri, durable=False)"),
            ("theirs", "dataset = lance.dataset(uri)"),
        ):
            lines.append(f'\nuri, after = f"{{folder}}/{writer}", VersionsAfterSteps()')
            lines.append(f"on = branch_opener_of_{writer}(uri)")
            for step in self.steps:
                mixed = "ours" if step.ours_in_mixed else "theirs"
                lines.append(f"# {step.number}. {step.name} (on the mixed table: {mixed})")
                if step.number:
                    lines.append(opening)
                lines.append(step.ours if writer == "ours" else step.theirs)
                lines.append(f"after.record({step.number}, Table.open(uri).version)")
                lines += [f"assert not find_query_difference(uri, {step.conditions})"] if step.conditions else []
        return "\n".join(lines) + "\n"


_PRELUDE = textwrap.dedent("""\
    import tempfile

    import lance
    import pyarrow as pa
    from lance_core import Table
    from tests.interop.columns import arrow_type, make_batch, make_field, make_rows, make_schema
    from tests.interop.programs import VersionsAfterSteps, branch_opener_of_ours, branch_opener_of_theirs
    from tests.interop.query_differential import find_query_difference

    folder = tempfile.mkdtemp()""")


class VersionsAfterSteps:
    """Function from a step number to the version of the table after that step."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}

    def record(self, step: int, version: int) -> None:
        self._versions[step] = version

    def __call__(self, step: int) -> int:
        return self._versions[max(number for number in self._versions if number <= step)]


def branch_opener_of_ours(uri: str) -> Callable[[str], Table]:
    return lambda branch: Table.open(uri, branch=branch, durable=False)


def branch_opener_of_theirs(uri: str) -> Callable[[str], lance.LanceDataset]:
    return lambda branch: lance.dataset(uri).checkout_version((branch, None))


def run_ours(step: Step, uri: str, after: VersionsAfterSteps) -> None:
    opened = {"table": Table.open(uri, durable=False)} if step.number else {}
    exec(_compile(step.ours), {**_NAMES, **opened, "uri": uri, "after": after, "on": branch_opener_of_ours(uri)})


def run_theirs(step: Step, uri: str, after: VersionsAfterSteps) -> None:
    opened = {"dataset": lance.dataset(uri)} if step.number else {}
    exec(_compile(step.theirs), {**_NAMES, **opened, "uri": uri, "after": after, "on": branch_opener_of_theirs(uri)})


def _compile(text: str) -> Any:
    return compile(text, "<step>", "exec")


_NAMES: Mapping[str, object] = {
    "lance": lance,
    "pa": pa,
    "Table": Table,
    "arrow_type": columns.arrow_type,
    "make_batch": columns.make_batch,
    "make_field": columns.make_field,
    "make_rows": columns.make_rows,
    "make_schema": columns.make_schema,
}

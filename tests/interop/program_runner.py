"""Program runner: executes a program on three tables: one that pylance writes, one that we write, and a mixed one, each
step of which the program assigns to one of the libraries.

pylance runs first. A step that fails in pylance because of a known defect (`known_pylance_defects.py`) is skipped on
all three tables, and counted. Our library must refuse each step that pylance refuses.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lance_core import LanceError, Table
from tests.interop.known_pylance_defects import find_known_defect
from tests.interop.programs import Program, Step, VersionsAfterSteps, run_ours, run_theirs
from tests.interop.query_differential import find_query_difference

WRITERS = ("theirs", "ours", "mixed")


@dataclass
class WrittenTable:
    """One table after the program."""

    writer: str
    uri: str
    version_after: dict[int, int] = field(default_factory=dict)
    """Version of the table after each step that succeeded."""
    errors: dict[int, str] = field(default_factory=dict)
    """Error of each step that the writer refused."""


@dataclass
class ProgramRun:
    program: Program
    tables: dict[str, WrittenTable]
    skipped: dict[int, str] = field(default_factory=dict)
    """Known defect of pylance by the step that shows it."""

    @property
    def completed_steps(self) -> list[Step]:
        return [step for step in self.program.steps if step.number in self.tables["theirs"].version_after]


class LibraryDifference(AssertionError):
    """The two libraries differ; the message names the step after which they do."""

    def __init__(self, message: str, step: Step | None = None) -> None:
        prefix = f"step {step.number} ({step.name}): " if step is not None else ""
        super().__init__(prefix + message)


def run_program(program: Program, folder: Path) -> ProgramRun:
    run = ProgramRun(program, {writer: WrittenTable(writer, str(folder / writer)) for writer in WRITERS})
    for writer in WRITERS:
        table, after = run.tables[writer], VersionsAfterSteps()
        for step in program.steps:
            if step.number in run.skipped:
                continue
            is_ours = writer == "ours" or (writer == "mixed" and step.ours_in_mixed)
            error = _run_step(run_ours if is_ours else run_theirs, step, table.uri, after)
            if writer == "theirs" and error is not None:
                defect = find_known_defect(step, error)
                if defect is not None:
                    run.skipped[step.number] = defect
                    continue
            if error is None:
                table.version_after[step.number] = Table.open(table.uri).version
                after.record(step.number, table.version_after[step.number])
            else:
                table.errors[step.number] = error
            if not table.version_after:
                break
            if writer != "theirs":
                _compare_outcomes(run, step, writer)
            if error is None and step.conditions:
                difference = find_query_difference(table.uri, step.conditions)
                if difference is not None:
                    raise LibraryDifference(f"{writer}: {difference}", step)
    return run


def _compare_outcomes(run: ProgramRun, step: Step, writer: str) -> None:
    their_error, error = run.tables["theirs"].errors.get(step.number), run.tables[writer].errors.get(step.number)
    if their_error is None and error is not None:
        raise LibraryDifference(f"pylance accepts it, {writer} refuses it: {error}", step)
    if their_error is not None and error is None:
        raise LibraryDifference(f"pylance refuses it, {writer} accepts it: {their_error}", step)


def _run_step(
    execute: Callable[[Step, str, VersionsAfterSteps], None], step: Step, uri: str, after: VersionsAfterSteps
) -> str | None:
    """Return the error with which the library refuses the step; `None` if it succeeds.

    Our library refuses with a `LanceError`; any other exception of ours is a defect and propagates.
    """
    try:
        execute(step, uri, after)
    except LanceError as error:
        return f"{type(error).__name__}: {error}"
    except BaseException as error:
        if execute is run_ours or isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"{type(error).__name__}: {error}"
    return None

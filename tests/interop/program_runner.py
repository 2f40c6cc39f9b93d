"""A program run on three tables: all of it by pylance, all of it by us, and in mixed turns, each step by whoever's turn
it is.

pylance goes first. What it cannot do though it should (`known_pylance_defects.py`) is left out for all three, and
counted; what it refuses, we have to refuse too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lance_core import LanceError, Table
from tests.interop.known_pylance_defects import known_fault
from tests.interop.programs import After, Program, Step, run_ours, run_theirs
from tests.interop.query_differential import ask

WHOSE = ("theirs", "ours", "mixed")


@dataclass
class History:
    """One table, after the program."""

    whose: str
    uri: str
    ends: dict[int, int] = field(default_factory=dict)
    """Which version there was after each step that ran."""
    refused: dict[int, str] = field(default_factory=dict)


@dataclass
class Ran:
    program: Program
    histories: dict[str, History]
    left_out: dict[int, str] = field(default_factory=dict)
    """Steps that pylance cannot do, and why."""

    @property
    def done(self) -> list[Step]:
        return [step for step in self.program.steps if step.number in self.histories["theirs"].ends]


class Disagreement(AssertionError):
    """The two libraries differ, with the step that they differ after."""

    def __init__(self, what: str, step: Step | None = None) -> None:
        where = f"step {step.number} ({step.kind}): " if step is not None else ""
        super().__init__(where + what)


def run(program: Program, place: Path) -> Ran:
    ran = Ran(program, {whose: History(whose, str(place / whose)) for whose in WHOSE})
    for whose in WHOSE:
        history, after = ran.histories[whose], After()
        for step in program.steps:
            if step.number in ran.left_out:
                continue
            by_us = whose == "ours" or (whose == "mixed" and step.by_us)
            refusal = _refusal(run_ours if by_us else run_theirs, step, history.uri, after)
            if whose == "theirs" and refusal is not None:
                fault = known_fault(program, step, refusal)
                if fault is not None:
                    ran.left_out[step.number] = fault
                    continue
            if refusal is None:
                history.ends[step.number] = Table.open(history.uri).version
                after.ran(step.number, history.ends[step.number])
            else:
                history.refused[step.number] = refusal
            if not history.ends:
                break
            if whose != "theirs":
                _compare_outcomes(ran, step, whose)
            if refusal is None and step.asks and (wrong := ask(history.uri, step.asks)) is not None:
                raise Disagreement(f"{whose}: {wrong}", step)
    return ran


def _compare_outcomes(ran: Ran, step: Step, whose: str) -> None:
    theirs, other = ran.histories["theirs"].refused.get(step.number), ran.histories[whose].refused.get(step.number)
    if theirs is None and other is not None:
        raise Disagreement(f"pylance does it, {whose} refuses it: {other}", step)
    if theirs is not None and other is None:
        raise Disagreement(f"pylance refuses it, {whose} does it: {theirs}", step)


def _refusal(act: Callable[[Step, str, After], None], step: Step, uri: str, after: After) -> str | None:
    """What a library said no with. Ours says it in its own words; anything else is a fault."""
    try:
        act(step, uri, after)
    except LanceError as error:
        return f"{type(error).__name__}: {error}"
    except BaseException as error:
        if act is run_ours or isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"{type(error).__name__}: {error}"
    return None

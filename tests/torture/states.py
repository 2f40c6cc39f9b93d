"""T-STATE: sequences of all verbs against lists of rows; see `tests/histories/states.py`. What failed is said step by
step, as short as it could be made.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.histories.states import TableAgainstRows
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    histories: int
    steps: int = 50
    """Of each, at most."""
    others: bool = False
    """Other histories each time, or always the same."""


PR = Size(histories=30, steps=30)
NIGHTLY = Size(histories=1700, others=True)


def run(size: Size) -> Report:
    begun = time.perf_counter()
    before = TableAgainstRows.steps
    found: tuple[str, ...] = ()
    try:
        _run(size)
    except Exception as error:  # noqa: BLE001 - whatever a history ends with is what was looked for
        told = "\n".join(getattr(error, "__notes__", ()))
        found = (f"{type(error).__name__}: {error}\n{told}",)
    steps = TableAgainstRows.steps - before
    figures: Mapping[str, str] = {"histories": f"{size.histories:,} of up to {size.steps} steps"}
    return Report("states", steps, time.perf_counter() - begun, found, figures)


def _run(size: Size) -> None:
    run_state_machine_as_test(
        TableAgainstRows,
        settings=settings(
            max_examples=size.histories,
            stateful_step_count=size.steps,
            derandomize=not size.others,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink) if size.others else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )

"""T-STATE, stateful property test: compares sequences of all operations with lists of rows; see
`tests/histories/state_machine.py`. A failure is reported step by step, in its shortest form."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.histories.state_machine import TableStateMachine
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    histories: int
    steps: int = 50
    """Maximum number of steps of a history."""
    random_histories: bool = False
    """`True` runs different histories each time, `False` always the same."""


PR = Size(histories=30, steps=30)
NIGHTLY = Size(histories=1700, random_histories=True)


def run(size: Size) -> Report:
    started = time.perf_counter()
    before = TableStateMachine.steps
    failures: tuple[str, ...] = ()
    try:
        _run(size)
    except Exception as error:  # noqa: BLE001 - every error of a history is a failure
        notes = "\n".join(getattr(error, "__notes__", ()))
        failures = (f"{type(error).__name__}: {error}\n{notes}",)
    steps = TableStateMachine.steps - before
    figures: Mapping[str, str] = {"histories": f"{size.histories:,} of up to {size.steps} steps"}
    return Report("states", steps, time.perf_counter() - started, failures, figures)


def _run(size: Size) -> None:
    run_state_machine_as_test(
        TableStateMachine,
        settings=settings(
            max_examples=size.histories,
            stateful_step_count=size.steps,
            derandomize=not size.random_histories,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink) if size.random_histories else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )

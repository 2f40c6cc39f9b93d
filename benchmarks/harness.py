"""Benchmark harness: runs all systems of a workload in one process, alternately and in rotating order.

    warm-up   one or more turns of each system, not counted
    repeat    `repetitions` times `calls` turns; the time of a repetition is the median of its calls
    compare   after every repetition each system reports its contents; a difference ends the run

The systems alternate call by call, so that a busy minute of the machine affects all of them, and ratios are computed
within one repetition. A system that is not installed is reported as absent. `report.py` turns the times into numbers.
Start reading at `run`.
"""

import enum
import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from benchmarks.report import AbsentSystem, CaseReport, Facts, GrowthPoint, Measurement

Clock: TypeAlias = Callable[[], float]
_WHOLE_CALL = ""
"""Name of the series with the time of the whole call."""


class ResultsDiffer(Exception):
    """Two systems did different work, so their times are not comparable."""


class Scale(enum.Enum):
    SMOKE = "smoke"
    """Takes seconds and only shows that the workload runs."""
    DEFAULT = "default"
    """Takes a minute or two."""
    FULL = "full"
    """Uses the sizes that claims are made about."""


class Runner(Protocol):
    """One system, prepared for its calls."""

    def before(self) -> None:
        """Restore the state in which a call may start. The harness runs this before every call and does not time it."""

    def call(self) -> None:
        """Do the work that is timed."""

    def facts(self) -> Facts:
        """Return the contents of the table. The harness calls this untimed after every repetition; the run fails if
        systems differ."""


@dataclass(frozen=True, slots=True)
class CallFigures:
    """Additional figures of one call."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Additional times within the call, such as the slowest of many appends. Each becomes a separate case."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts that the report adds up and shows, but does not compare."""
    peaks: Mapping[str, int] = field(default_factory=dict)
    """Counts of which the report shows the largest of all calls, such as the requests of one call."""


@runtime_checkable
class ReportsCallFigures(Protocol):
    """Runner that reports more than the time of a call."""

    def call_figures(self) -> CallFigures:
        """Return the figures of the last call."""


class Side(enum.Enum):
    OURS = "ours"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class Entrant:
    """System that may take part. `enter` imports its package and prepares its data; it is not timed."""

    system: str
    side: Side
    enter: Callable[[], Runner]
    needs: tuple[str, ...] = ()
    """Distributions that must be installed; otherwise the system is absent."""


@dataclass(frozen=True, slots=True)
class Case:
    """Unit of work that every entrant does."""

    name: str
    entrants: tuple[Entrant, ...]
    calls: int = 1
    """Timed calls per repetition; more than one for short calls."""
    warm_ups: int = 1
    """Uncounted turns at the start; more where a virtual machine still compiles."""
    point: GrowthPoint | None = None
    """Size at which the case measures a curve; the report fits exponents to the cases of one curve."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Environment in which a workload runs."""

    workspace: Path
    """Empty directory on the measured disk; removed afterwards."""
    input_cache: Path
    """Directory of generated inputs that are expensive to make; it persists between runs."""
    scale: Scale
    log: Callable[[str], None] = field(default=lambda line: None)


class Workload(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str:
        """One line that says what is measured."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts that a reader needs before trusting a ratio."""

    def repetitions(self, scale: Scale) -> int: ...

    def parameters(self, scale: Scale) -> Mapping[str, int]: ...

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        """Yield the cases. The harness runs each one before it requests the next, and closes the generator in any
        case."""


def run(
    cases: Iterable[Case],
    *,
    repetitions: int,
    log: Callable[[str], None],
    clock: Clock = time.perf_counter,
) -> tuple[CaseReport, ...]:
    if repetitions < 1:
        raise ValueError(f"repetitions={repetitions}: at least one repetition is required")
    return tuple(report for case in cases for report in run_case(case, repetitions=repetitions, log=log, clock=clock))


def run_case(case: Case, *, repetitions: int, log: Callable[[str], None], clock: Clock) -> tuple[CaseReport, ...]:
    """Return one report for the whole call, and one for each additional time."""
    absent = tuple(
        AbsentSystem(entrant.system, missing) for entrant in case.entrants if (missing := _describe_missing(entrant))
    )
    present = [entrant for entrant in case.entrants if not _describe_missing(entrant)]
    log(f"{case.name}: preparing {', '.join(entrant.system for entrant in present)}")
    runners = [(entrant.system, entrant.enter()) for entrant in present]
    for turn in range(case.warm_ups):
        _run_turn(_rotate(runners, turn), clock)
    series: dict[str, dict[str, list[float]]] = {}
    counts: dict[str, Counter[str]] = {entrant.system: Counter() for entrant in present}
    facts: Facts = {}
    for repetition in range(repetitions):
        log(f"{case.name}: repetition {repetition + 1} of {repetitions}")
        gc.collect()
        times: dict[str, dict[str, list[float]]] = {}
        for call in range(case.calls):
            for system, seconds, figures in _run_turn(_rotate(runners, repetition * case.calls + call), clock):
                for name, value in {_WHOLE_CALL: seconds, **figures.seconds}.items():
                    times.setdefault(name, {}).setdefault(system, []).append(value)
                counts[system].update(figures.counts)
                for name, number in figures.peaks.items():
                    counts[system][name] = max(counts[system][name], number)
        for name, seconds_by_system in times.items():
            for system, seconds_of_calls in seconds_by_system.items():
                series.setdefault(name, {}).setdefault(system, []).append(statistics.median(seconds_of_calls))
        facts = _check_facts_agree(case, runners)
    return tuple(
        CaseReport(
            name=f"{case.name}: {name}" if name else case.name,
            calls=case.calls,
            measurements=tuple(
                Measurement(
                    entrant.system,
                    entrant.side is Side.OURS,
                    tuple(values[entrant.system]),
                    {} if name else dict(counts[entrant.system]),
                )
                for entrant in present
                if entrant.system in values
            ),
            absent=absent,
            facts={} if name else facts,
            point=None if name else case.point,
        )
        for name, values in series.items()
    )


def _run_turn(runners: Sequence[tuple[str, Runner]], clock: Clock) -> list[tuple[str, float, CallFigures]]:
    results = []
    for system, runner in runners:
        runner.before()
        start = clock()
        runner.call()
        seconds = clock() - start
        results.append(
            (system, seconds, runner.call_figures() if isinstance(runner, ReportsCallFigures) else CallFigures())
        )
    return results


def _rotate(runners: Sequence[tuple[str, Runner]], turn: int) -> list[tuple[str, Runner]]:
    """Rotate the order. The first system of a turn meets the caches as the last one left them, so every system goes
    first in turn."""
    first = turn % len(runners) if runners else 0
    return [*runners[first:], *runners[:first]]


def _check_facts_agree(case: Case, runners: Sequence[tuple[str, Runner]]) -> Facts:
    reports = [(system, runner.facts()) for system, runner in runners]
    for system, facts in reports[1:]:
        if facts != reports[0][1]:
            raise ResultsDiffer(
                f"{case.name}: {system} holds {dict(facts)}, but {reports[0][0]} holds {dict(reports[0][1])}; "
                "their times are not comparable"
            )
    return reports[0][1] if reports else {}


def _describe_missing(entrant: Entrant) -> str:
    absent = [name for name in entrant.needs if not _is_installed(name)]
    return f"{', '.join(absent)} not installed" if absent else ""


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True

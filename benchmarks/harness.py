"""How a workload is run: all systems do the same work in the same process, turn by turn, in rotating order.

    warm-up   a turn or two of each system, not counted
    repeat    `repetitions` times `calls` turns; a repetition's time is the median of its calls
    compare   after every repetition each system says what it now holds: anything unequal ends the run

Systems alternate call by call, so that a busy minute of the machine meets all of them, and ratios are taken
within one repetition. A system that is not installed stays in the report, as absent. What happens to the
numbers is in `report.py`; start reading at `run`.
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

from benchmarks.report import Absent, CaseReport, Facts, Measurement

Clock: TypeAlias = Callable[[], float]
_ALL = ""
"""The time of the whole call, among those that were told of it."""


class ResultsDiffer(Exception):
    """Two systems did not do the same work, so their times must not be compared."""


class Scale(enum.Enum):
    SMOKE = "smoke"
    """Seconds: does it run at all?"""
    DEFAULT = "default"
    """A minute or two."""
    FULL = "full"
    """The sizes that claims are made about."""


class Runner(Protocol):
    """One system, ready to work."""

    def before(self) -> None:
        """Not timed, before every call: back to where the call may start."""

    def call(self) -> None:
        """Timed."""

    def facts(self) -> Facts:
        """Not timed, after every repetition: what is there now. Equal for all systems, or the run fails."""


@dataclass(frozen=True, slots=True)
class Told:
    """What else there is to say of one call."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Other times within it, such as the slowest of many appends. Each becomes a case of its own."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Added up, shown, and not compared."""


@runtime_checkable
class Telling(Protocol):
    """A runner that has more to say than how long it took."""

    def told(self) -> Told:
        """Of the last call."""


class Side(enum.Enum):
    OURS = "ours"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class Entrant:
    """A system that may take part. `enter` is not timed: its package is imported there, its data prepared."""

    system: str
    side: Side
    enter: Callable[[], Runner]
    needs: tuple[str, ...] = ()
    """Distributions without which it is absent."""


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work that all entrants do."""

    name: str
    entrants: tuple[Entrant, ...]
    calls: int = 1
    """Timed calls in a repetition; more for short ones."""
    warm_ups: int = 1
    """Turns before the first that counts; more where a virtual machine is still compiling."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a workload runs."""

    workspace: Path
    """Empty, on the disk that is measured, removed afterwards."""
    kept: Path
    """For inputs that are costly to make; kept from run to run."""
    scale: Scale
    log: Callable[[str], None] = field(default=lambda line: None)


class Workload(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str:
        """One line: what is measured."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know before believing a ratio."""

    def repetitions(self, scale: Scale) -> int: ...

    def parameters(self, scale: Scale) -> Mapping[str, int]: ...

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        """Each is run before the next is asked for. Closed at the end, finished or not."""


def run(
    cases: Iterable[Case],
    *,
    repetitions: int,
    log: Callable[[str], None],
    clock: Clock = time.perf_counter,
) -> tuple[CaseReport, ...]:
    if repetitions < 1:
        raise ValueError(f"repetitions={repetitions}: at least one is needed")
    return tuple(report for case in cases for report in run_case(case, repetitions=repetitions, log=log, clock=clock))


def run_case(case: Case, *, repetitions: int, log: Callable[[str], None], clock: Clock) -> tuple[CaseReport, ...]:
    """One report, and one more for each other time that was told."""
    absent = tuple(Absent(each.system, missing) for each in case.entrants if (missing := _missing(each)))
    present = [each for each in case.entrants if not _missing(each)]
    log(f"{case.name}: preparing {', '.join(each.system for each in present)}")
    runners = [(each.system, each.enter()) for each in present]
    for turn in range(case.warm_ups):
        _turn(_rotated(runners, turn), clock)
    series: dict[str, dict[str, list[float]]] = {}
    counts: dict[str, Counter[str]] = {each.system: Counter() for each in present}
    facts: Facts = {}
    for repetition in range(repetitions):
        log(f"{case.name}: repetition {repetition + 1} of {repetitions}")
        gc.collect()
        times: dict[str, dict[str, list[float]]] = {}
        for call in range(case.calls):
            for system, seconds, told in _turn(_rotated(runners, repetition * case.calls + call), clock):
                for what, value in {_ALL: seconds, **told.seconds}.items():
                    times.setdefault(what, {}).setdefault(system, []).append(value)
                counts[system].update(told.counts)
        for what, of_systems in times.items():
            for system, seconds_of_calls in of_systems.items():
                series.setdefault(what, {}).setdefault(system, []).append(statistics.median(seconds_of_calls))
        facts = _agreed(case, runners)
    return tuple(
        CaseReport(
            name=f"{case.name}: {what}" if what else case.name,
            calls=case.calls,
            measurements=tuple(
                Measurement(
                    each.system,
                    each.side is Side.OURS,
                    tuple(values[each.system]),
                    {} if what else dict(counts[each.system]),
                )
                for each in present
                if each.system in values
            ),
            absent=absent,
            facts={} if what else facts,
        )
        for what, values in series.items()
    )


def _turn(runners: Sequence[tuple[str, Runner]], clock: Clock) -> list[tuple[str, float, Told]]:
    taken = []
    for system, runner in runners:
        runner.before()
        start = clock()
        runner.call()
        seconds = clock() - start
        taken.append((system, seconds, runner.told() if isinstance(runner, Telling) else Told()))
    return taken


def _rotated(runners: Sequence[tuple[str, Runner]], turn: int) -> list[tuple[str, Runner]]:
    """Whoever comes first finds the caches as the last one left them, so everybody does in turn."""
    first = turn % len(runners) if runners else 0
    return [*runners[first:], *runners[:first]]


def _agreed(case: Case, runners: Sequence[tuple[str, Runner]]) -> Facts:
    found = [(system, runner.facts()) for system, runner in runners]
    for system, facts in found[1:]:
        if facts != found[0][1]:
            raise ResultsDiffer(
                f"{case.name}: {system} holds {dict(facts)}, but {found[0][0]} holds {dict(found[0][1])}; "
                "their times say nothing about each other"
            )
    return found[0][1] if found else {}


def _missing(entrant: Entrant) -> str:
    absent = [name for name in entrant.needs if not _installed(name)]
    return f"{', '.join(absent)} not installed" if absent else ""


def _installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True

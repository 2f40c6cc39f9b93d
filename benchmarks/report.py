"""Times as values: medians, spreads, and the ratios that are the numbers to read; and all of it as JSON.

A ratio is the median of the ratios taken within one repetition, so it need not be the quotient of two
medians. Nothing here measures or prints. Start at `CaseReport`.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

FORMAT = 1
"""Of the JSON files; goes up when a field changes its meaning."""

Facts: TypeAlias = Mapping[str, int | str]
Json: TypeAlias = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one number a repetition."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        return cls(statistics.median(values), min(values), max(values))

    def as_json(self) -> Json:
        return {"median": self.median, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One system in one case."""

    system: str
    is_ours: bool
    seconds: tuple[float, ...]
    """One a repetition, in order."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What else happened, all repetitions together: failures, say. Not compared."""

    @property
    def summary(self) -> Summary:
        return Summary.of(self.seconds)

    def against(self, other: "Measurement") -> Summary:
        """How many times as long as the other this one takes; below 1 it is faster."""
        return Summary.of([mine / its for mine, its in zip(self.seconds, other.seconds, strict=True)])


@dataclass(frozen=True, slots=True)
class Absent:
    """A system that could not take part."""

    system: str
    why: str


@dataclass(frozen=True, slots=True)
class CaseReport:
    name: str
    calls: int
    measurements: tuple[Measurement, ...]
    absent: tuple[Absent, ...]
    facts: Facts
    """What every system held at the end."""

    @property
    def peers(self) -> tuple[Measurement, ...]:
        return tuple(each for each in self.measurements if not each.is_ours)

    def as_json(self) -> Json:
        measured: list[Json] = [
            {
                "system": each.system,
                "ours": each.is_ours,
                "status": "measured",
                "seconds": list(each.seconds),
                "summary": each.summary.as_json(),
                "counts": dict(each.counts),
                "ratio_to": {peer.system: each.against(peer).as_json() for peer in self.peers if peer is not each},
            }
            for each in self.measurements
        ]
        absent: list[Json] = [{"system": each.system, "status": "absent", "why": each.why} for each in self.absent]
        return {
            "case": self.name,
            "calls": self.calls,
            "systems": measured + absent,
            "facts": dict(self.facts),
        }


@dataclass(frozen=True, slots=True)
class Machine:
    """What it ran on: enough to doubt a number, nothing that names the place."""

    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str
    packages: Mapping[str, str]
    fsync_ms: float
    """Median of a 4 kB write made durable, in the directory that the workload used."""

    def as_json(self) -> Json:
        return {
            "processor": self.processor,
            "cores": self.cores,
            "memory_gib": self.memory_gib,
            "system": self.system,
            "python": self.python,
            "packages": dict(self.packages),
            "fsync_ms": self.fsync_ms,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """One run of one workload."""

    workload: str
    summary: str
    notes: tuple[str, ...]
    scale: str
    repetitions: int
    parameters: Mapping[str, int]
    started: str
    """UTC, ISO 8601."""
    machine: Machine
    load_before: float
    """Load average of the last minute; above the number of cores, doubt the absolute times."""
    load_after: float
    cases: tuple[CaseReport, ...]

    def as_json(self) -> Json:
        return {
            "workload": self.workload,
            "summary": self.summary,
            "notes": list(self.notes),
            "scale": self.scale,
            "repetitions": self.repetitions,
            "parameters": dict(self.parameters),
            "started": self.started,
            "machine": self.machine.as_json(),
            "load": {"before": self.load_before, "after": self.load_after},
            "cases": [case.as_json() for case in self.cases],
        }


def document(reports: Sequence[Report]) -> Json:
    return {"format": FORMAT, "reports": [report.as_json() for report in reports]}

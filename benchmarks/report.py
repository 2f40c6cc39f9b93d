"""Benchmark report: medians, spreads and ratios of the measured times, and their JSON form.

A ratio is the median of the ratios within one repetition, so it can differ from the quotient of two medians. This
module neither measures nor prints. Start reading at `CaseReport`.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

FORMAT = 1
"""Format version of the JSON files. Increase it when a field changes its meaning."""

Facts: TypeAlias = Mapping[str, int | str]
Json: TypeAlias = Mapping[str, "Json"] | Sequence["Json"] | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a series with one number per repetition."""

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
    """Time of each repetition, in order."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Additional events of all repetitions together, such as failures, and peaks of single calls. Not compared."""

    @property
    def summary(self) -> Summary:
        return Summary.of(self.seconds)

    def ratio_to(self, other: "Measurement") -> Summary:
        """Return the time relative to the other system; below 1 this system is faster."""
        return Summary.of([own / peer for own, peer in zip(self.seconds, other.seconds, strict=True)])


@dataclass(frozen=True, slots=True)
class AbsentSystem:
    """System that could not take part."""

    system: str
    why: str


@dataclass(frozen=True, slots=True)
class GrowthPoint:
    """One size of a curve, such as 1,000 columns of the curve "columns: append"."""

    curve: str
    size: int


@dataclass(frozen=True, slots=True)
class GrowthFit:
    """Growth of the time of one system: the exponent `e` of `time = c * size ** e`."""

    curve: str
    system: str
    exponent: float
    """Exponent over all sizes, by least squares of the logarithms. Constant costs lower it where sizes are small."""
    last_exponent: float
    """Exponent between the two largest sizes."""
    size_max: int
    seconds_at_max: float

    def as_json(self) -> Json:
        return {
            "curve": self.curve,
            "system": self.system,
            "exponent": self.exponent,
            "last_exponent": self.last_exponent,
            "size_max": self.size_max,
            "seconds_at_max": self.seconds_at_max,
        }


@dataclass(frozen=True, slots=True)
class CaseReport:
    name: str
    calls: int
    measurements: tuple[Measurement, ...]
    absent: tuple[AbsentSystem, ...]
    facts: Facts
    """Contents that every system reported at the end."""
    point: GrowthPoint | None = None

    @property
    def peers(self) -> tuple[Measurement, ...]:
        return tuple(measurement for measurement in self.measurements if not measurement.is_ours)

    def as_json(self) -> Json:
        measured: list[Json] = [
            {
                "system": measurement.system,
                "ours": measurement.is_ours,
                "status": "measured",
                "seconds": list(measurement.seconds),
                "summary": measurement.summary.as_json(),
                "counts": dict(measurement.counts),
                "ratio_to": {
                    peer.system: measurement.ratio_to(peer).as_json() for peer in self.peers if peer is not measurement
                },
            }
            for measurement in self.measurements
        ]
        absent: list[Json] = [
            {"system": system.system, "status": "absent", "why": system.why} for system in self.absent
        ]
        return {
            "case": self.name,
            "calls": self.calls,
            "systems": measured + absent,
            "facts": dict(self.facts),
        }


@dataclass(frozen=True, slots=True)
class Machine:
    """Description of the machine, with nothing that identifies it."""

    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str
    packages: Mapping[str, str]
    fsync_ms: float
    """Median time of a durable 4 kB write in the directory of the workload."""

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
    """Load average of the last minute. Above the number of cores, absolute times are unreliable."""
    load_after: float
    cases: tuple[CaseReport, ...]

    @property
    def growth(self) -> tuple[GrowthFit, ...]:
        """Fits of all curves that were measured at two sizes or more."""
        return fit_growth(self.cases)

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
            "growth": [fit.as_json() for fit in self.growth],
        }


def fit_growth(cases: Sequence[CaseReport]) -> tuple[GrowthFit, ...]:
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for case in cases:
        for measurement in case.measurements if case.point else ():
            assert case.point is not None
            points = curves.setdefault((case.point.curve, measurement.system), [])
            points.append((case.point.size, measurement.summary.median))
    return tuple(_fit(*key, sorted(points)) for key, points in curves.items() if len(points) > 1)


def _fit(curve: str, system: str, points: Sequence[tuple[int, float]]) -> GrowthFit:
    sizes, seconds = ([math.log(value) for value in values] for values in zip(*points, strict=True))
    slope = statistics.linear_regression(sizes, seconds).slope
    last = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    return GrowthFit(curve, system, slope, last, *points[-1])


def build_document(reports: Sequence[Report]) -> Json:
    return {"format": FORMAT, "reports": [report.as_json() for report in reports]}

"""Tests of the harness with a toy workload whose clock is a counter: turn order, ratios, and rejected input."""

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.cli import measure
from benchmarks.harness import CallFigures, Case, Entrant, ResultsDiffer, Scale, Side, Stage, run
from benchmarks.memory import PeakMemory
from benchmarks.report import CaseReport, Facts, GrowthPoint, Measurement, build_document, fit_growth
from benchmarks.text import render


@dataclass
class Clock:
    """Clock that advances only when a toy works."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Toy:
    """Runner that takes the configured seconds call by call, repeating the last ones, and logs each call."""

    name: str
    clock: Clock
    call_log: list[str]
    seconds: tuple[float, ...]
    rows: int = 0
    rows_per_call: int = 1
    calls: list[float] = field(default_factory=list)

    def before(self) -> None:
        self.call_log.append(f"before {self.name}")

    def call(self) -> None:
        self.call_log.append(self.name)
        self.clock.now += self.seconds[min(len(self.calls), len(self.seconds) - 1)]
        self.calls.append(self.clock.now)
        self.rows += self.rows_per_call

    def facts(self) -> Facts:
        return {"rows": self.rows}


def run_toys(
    ours: tuple[float, ...],
    peer: tuple[float, ...],
    *,
    repetitions: int,
    calls: int = 1,
    rows_per_call: int = 1,
    needs: tuple[str, ...] = (),
) -> tuple[CaseReport, list[str]]:
    clock, call_log = Clock(), list[str]()
    own, peer_toy = Toy("ours", clock, call_log, ours), Toy("peer", clock, call_log, peer, rows_per_call=rows_per_call)
    case = Case(
        "toy",
        (Entrant("ours", Side.OURS, lambda: own), Entrant("peer", Side.PEER, lambda: peer_toy, needs=needs)),
        calls=calls,
    )
    (report,) = run([case], repetitions=repetitions, log=call_log.append, clock=clock)
    return report, [line for line in call_log if line in ("ours", "peer")]


def test_the_first_turn_is_not_counted() -> None:
    report, _ = run_toys((100.0, 2.0), (100.0, 4.0), repetitions=3)
    assert [each.seconds for each in report.measurements] == [(2.0, 2.0, 2.0), (4.0, 4.0, 4.0)]


def test_systems_alternate_and_the_first_place_goes_round() -> None:
    _, order = run_toys((1.0,), (1.0,), repetitions=3)
    warm_up, turns = order[:2], order[2:]
    assert warm_up == ["ours", "peer"]
    assert turns == ["ours", "peer", "peer", "ours", "ours", "peer"]


def test_calls_alternate_within_a_repetition() -> None:
    _, order = run_toys((1.0,), (1.0,), repetitions=1, calls=2)
    assert order[2:] == ["ours", "peer", "peer", "ours"]


def test_the_time_of_a_repetition_is_the_median_of_its_calls() -> None:
    report, _ = run_toys((0.0, 1.0, 9.0, 2.0), (1.0,), repetitions=1, calls=3)
    assert report.measurements[0].seconds == (2.0,)


def test_a_ratio_is_the_median_of_ratios_not_the_ratio_of_medians() -> None:
    report, _ = run_toys((0.0, 1.0, 2.0, 30.0), (0.0, 2.0, 8.0, 10.0), repetitions=3)
    ours, peer = report.measurements
    ratio = ours.ratio_to(peer)
    assert (ratio.median, ratio.low, ratio.high) == (0.5, 0.25, 3.0)
    assert ours.summary.median / peer.summary.median == 0.25


@dataclass
class ToyWithFigures(Toy):
    """Toy that also reports its number of runs, a peak, and half of its time as its slowest step."""

    def call_figures(self) -> CallFigures:
        last = self.seconds[min(len(self.calls) - 1, len(self.seconds) - 1)]
        return CallFigures(seconds={"slowest": last / 2}, counts={"runs": 1}, peaks={"calls": len(self.calls) % 3})


def test_what_else_a_system_tells_is_shown_and_not_compared() -> None:
    clock = Clock()
    own = ToyWithFigures("ours", clock, [], (100.0, 2.0, 4.0))
    peer_toy = ToyWithFigures("peer", clock, [], (100.0, 8.0))
    case = Case("toy", (Entrant("ours", Side.OURS, lambda: own), Entrant("peer", Side.PEER, lambda: peer_toy)))
    whole, slowest = run([case], repetitions=2, log=lambda line: None, clock=clock)
    assert (whole.name, slowest.name) == ("toy", "toy: slowest")
    assert [each.counts for each in whole.measurements] == [{"runs": 2, "calls": 2}, {"runs": 2, "calls": 2}]
    assert [each.seconds for each in slowest.measurements] == [(1.0, 2.0), (4.0, 4.0)]
    assert slowest.measurements[0].ratio_to(slowest.measurements[1]).median == 0.375


def test_unequal_results_end_the_run() -> None:
    with pytest.raises(ResultsDiffer, match=r"toy: peer holds \{'rows': 4\}, but ours holds \{'rows': 2\}"):
        run_toys((1.0,), (1.0,), repetitions=2, rows_per_call=2)


def test_a_system_that_is_not_installed_is_reported_absent() -> None:
    report, order = run_toys((1.0,), (1.0,), repetitions=2, needs=("no-such-distribution",))
    assert [(each.system, each.why) for each in report.absent] == [("peer", "no-such-distribution not installed")]
    assert [each.system for each in report.measurements] == ["ours"]
    assert "peer" not in order


def test_no_repetitions_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        run_toys((1.0,), (1.0,), repetitions=0)


class ToyWorkload:
    name = "toy"
    summary = "nothing, twice"
    notes = ("a toy",)

    def __init__(self) -> None:
        self.closed = False
        self.workspace: Path | None = None

    def repetitions(self, scale: Scale) -> int:
        return 2

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": 1}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        self.workspace = stage.workspace
        clock, call_log = Clock(), list[str]()

        def entrant(name: str, side: Side, needs: tuple[str, ...] = ()) -> Entrant:
            enter: Callable[[], Toy] = lambda: Toy(name, clock, call_log, (1.0,))  # noqa: E731
            return Entrant(name, side, enter, needs)

        try:
            yield Case(
                "only",
                (
                    entrant("ours", Side.OURS),
                    entrant("peer", Side.PEER),
                    entrant("gone", Side.PEER, ("no-such-distribution",)),
                ),
            )
        finally:
            self.closed = True


def test_a_workload_is_closed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    workload = ToyWorkload()
    report = measure(workload, scale=Scale.SMOKE, repetitions=None, results=tmp_path)
    assert workload.closed
    assert workload.workspace is not None
    assert not workload.workspace.exists()
    assert report.repetitions == 2
    assert [each.system for each in report.cases[0].measurements] == ["ours", "peer"]


def test_the_numbers_as_json(tmp_path: Path) -> None:
    report = measure(ToyWorkload(), scale=Scale.SMOKE, repetitions=1, results=tmp_path)
    written = json.loads(json.dumps(build_document([report])))
    assert written["format"] == 1
    (run_,) = written["reports"]
    assert set(run_) == {
        "workload", "summary", "notes", "scale", "repetitions", "parameters", "started", "machine", "load", "cases",
        "growth",
    }  # fmt: skip
    assert set(run_["machine"]) == {
        "processor", "cores", "memory_gib", "system", "python", "packages", "fsync_ms",
    }  # fmt: skip
    (case,) = run_["cases"]
    ours, peer, gone = case["systems"]
    assert set(ours) == {"system", "ours", "status", "seconds", "summary", "counts", "ratio_to"}
    assert set(ours["summary"]) == {"median", "low", "high"} == set(ours["ratio_to"]["peer"])
    assert peer["ratio_to"] == {}
    assert gone == {"system": "gone", "status": "absent", "why": "no-such-distribution not installed"}
    assert str(tmp_path) not in json.dumps(written)


def test_the_numbers_as_text(tmp_path: Path) -> None:
    text = render(measure(ToyWorkload(), scale=Scale.SMOKE, repetitions=1, results=tmp_path))
    for expected in ("toy: nothing, twice", "x peer", "gone  absent: no-such-distribution not installed", "- a toy"):
        assert expected in text


def test_a_ratio_needs_as_many_repetitions_of_both() -> None:
    with pytest.raises(ValueError, match="zip"):
        Measurement("ours", True, (1.0, 2.0)).ratio_to(Measurement("peer", False, (1.0,)))


def test_exponents_are_fitted_to_the_cases_of_a_curve() -> None:
    def report(size: int, ours: float, peer: float) -> CaseReport:
        measured = (Measurement("ours", True, (ours, ours)), Measurement("peer", False, (peer, peer)))
        return CaseReport(f"size {size}", 1, measured, (), {}, GrowthPoint("size: read", size))

    other = CaseReport("other", 1, (Measurement("ours", True, (9.0,)),), (), {})
    cases = [report(10, 1.0, 5.0), other, report(100, 10.0, 5.0), report(1_000, 1_000.0, 5.0)]
    ours, peer = fit_growth(cases)
    assert (ours.curve, ours.system, ours.size_max, ours.seconds_at_max) == ("size: read", "ours", 1_000, 1_000.0)
    assert [ours.exponent, ours.last_exponent] == pytest.approx([1.5, 2.0])
    assert peer.system == "peer"
    assert peer.exponent == pytest.approx(0.0)
    assert fit_growth(cases[:2]) == ()


def test_peak_memory_of_a_call_is_what_it_adds() -> None:
    memory = PeakMemory()
    memory.begin_call()
    bytearray(200_000_000)
    figures = memory.end_call()
    assert figures == {} or 150 < figures["peak MB"] < 400
    memory.begin_call()
    assert memory.end_call().get("peak MB", 0) < 50

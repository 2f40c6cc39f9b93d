"""A report as text: one block a case, one line a system, one column of ratios a peer."""

from collections.abc import Iterator, Sequence

from benchmarks.report import CaseReport, Machine, Measurement, Report, Summary

_MILLISECONDS_BELOW = 1.0


def render(report: Report) -> str:
    lines = [
        f"{report.workload}: {report.summary}",
        f"scale {report.scale}, {report.repetitions} times, load {report.load_before} to {report.load_after}",
        *_machine(report.machine),
    ]
    for case in report.cases:
        lines += ["", *_case(case)]
    lines += [
        "",
        "x NAME: times as long as NAME takes, median of the ratios within a repetition (lowest .. highest)",
    ]
    lines += [f"- {note}" for note in report.notes]
    return "\n".join(lines)


def _machine(machine: Machine) -> Iterator[str]:
    yield f"{machine.cores} x {machine.processor}, {machine.memory_gib} GiB, {machine.system}"
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    yield f"python {machine.python}, {packages}; fsync {machine.fsync_ms} ms"


def _case(case: CaseReport) -> Iterator[str]:
    calls = f", {case.calls} calls a repetition" if case.calls > 1 else ""
    facts = ", ".join(f"{name} {value}" for name, value in case.facts.items())
    yield f"{case.name}{calls}" + (f" (all hold: {facts})" if facts else "")
    counted = tuple(dict.fromkeys(name for each in case.measurements for name in each.counts))
    header = ("system", "median", "spread", *counted, *(f"x {peer.system}" for peer in case.peers))
    yield from _aligned([header, *(_row(each, counted, case.peers) for each in case.measurements)])
    yield from (f"  {each.system}  absent: {each.why}" for each in case.absent)


def _row(measurement: Measurement, counted: Sequence[str], peers: Sequence[Measurement]) -> tuple[str, ...]:
    return (
        measurement.system,
        _seconds(measurement.summary.median),
        f"{_seconds(measurement.summary.low)} .. {_seconds(measurement.summary.high)}",
        *(str(measurement.counts.get(name, "")) for name in counted),
        *("" if peer is measurement else _ratio(measurement.against(peer)) for peer in peers),
    )


def _ratio(ratio: Summary) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} .. {ratio.high:.2f})"


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < _MILLISECONDS_BELOW else f"{value:.3g} s"


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        yield ("  " + "  ".join(cells)).rstrip()

"""Text form of a report: one block per case, one line per system, one column of ratios per peer."""

from collections.abc import Iterator, Sequence

from benchmarks.report import CaseReport, GrowthFit, Machine, Measurement, Report, Summary

_MILLISECONDS_BELOW = 1.0


def render(report: Report) -> str:
    lines = [
        f"{report.workload}: {report.summary}",
        f"scale {report.scale}, {report.repetitions} repetitions, load {report.load_before} to {report.load_after}",
        *_machine_lines(report.machine),
    ]
    for case in report.cases:
        lines += ["", *_case_lines(case)]
    if report.growth:
        lines += [
            "",
            "exponent of the time by size: over all sizes (between the two largest)",
            *_growth_lines(report.growth),
        ]
    lines += [
        "",
        "x NAME: time relative to NAME, the median of the ratios within a repetition (lowest .. highest)",
    ]
    lines += [f"- {note}" for note in report.notes]
    return "\n".join(lines)


def _machine_lines(machine: Machine) -> Iterator[str]:
    yield f"{machine.cores} x {machine.processor}, {machine.memory_gib} GiB, {machine.system}"
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    yield f"python {machine.python}, {packages}; fsync {machine.fsync_ms} ms"


def _case_lines(case: CaseReport) -> Iterator[str]:
    calls = f", {case.calls} calls per repetition" if case.calls > 1 else ""
    facts = ", ".join(f"{name} {value}" for name, value in case.facts.items())
    yield f"{case.name}{calls}" + (f" (contents of each system: {facts})" if facts else "")
    count_names = tuple(dict.fromkeys(name for measurement in case.measurements for name in measurement.counts))
    header = ("system", "median", "spread", *count_names, *(f"x {peer.system}" for peer in case.peers))
    yield from _align_columns([header, *(_table_row(each, count_names, case.peers) for each in case.measurements)])
    yield from (f"  {system.system}  absent: {system.why}" for system in case.absent)


def _table_row(measurement: Measurement, count_names: Sequence[str], peers: Sequence[Measurement]) -> tuple[str, ...]:
    return (
        measurement.system,
        _format_seconds(measurement.summary.median),
        f"{_format_seconds(measurement.summary.low)} .. {_format_seconds(measurement.summary.high)}",
        *(str(measurement.counts.get(name, "")) for name in count_names),
        *("" if peer is measurement else _format_ratio(measurement.ratio_to(peer)) for peer in peers),
    )


def _growth_lines(fits: Sequence[GrowthFit]) -> Iterator[str]:
    curves: dict[str, list[GrowthFit]] = {}
    for fit in fits:
        curves.setdefault(fit.curve, []).append(fit)
    rows = [
        (
            curve,
            *(f"{fit.system} {fit.exponent:.2f} ({fit.last_exponent:.2f})" for fit in systems),
            f"at {systems[0].size_max:,}: " + ", ".join(_format_seconds(fit.seconds_at_max) for fit in systems),
        )
        for curve, systems in curves.items()
    ]
    columns_max = max(map(len, rows))
    yield from _align_columns([(*row[:-1], *[""] * (columns_max - len(row)), row[-1]) for row in rows])


def _format_ratio(ratio: Summary) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} .. {ratio.high:.2f})"


def _format_seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < _MILLISECONDS_BELOW else f"{value:.3g} s"


def _align_columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        yield ("  " + "  ".join(cells)).rstrip()

"""Report of a harness of `make torture`. Every harness has a function `run(size) -> Report`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Report:
    harness: str
    case_count: int
    """Number of schedules, crash points or inputs, depending on the harness."""
    seconds: float
    failures: tuple[str, ...] = ()
    """Failures; each text says how to reproduce it."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """Additional figures for the printed report."""


def merge_reports(splits: Sequence[Report], seconds: float) -> Report:
    """Merge the reports of the splits of one harness."""
    merged: dict[str, list[str]] = {}
    for split in splits:
        for name, figure in split.figures.items():
            merged.setdefault(name, []).append(figure)
    return Report(
        splits[0].harness,
        sum(split.case_count for split in splits),
        seconds,
        tuple(failure for split in splits for failure in split.failures),
        {name: _combine_figures(figures) for name, figures in merged.items()},
    )


def _combine_figures(figures: Sequence[str]) -> str:
    plain = [figure.replace(",", "") for figure in figures]
    return f"{sum(map(int, plain)):,}" if all(map(str.isdigit, plain)) else " + ".join(dict.fromkeys(figures))


def format_table(reports: Sequence[Report]) -> str:
    """Return one line per harness, followed by the figures and the failures."""
    width = max(len("harness"), *(len(report.harness) for report in reports))
    lines = [f"{'harness':{width}}  {'cases':>11}  {'seconds':>8}  {'failed':>6}"]
    for report in reports:
        lines.append(
            f"{report.harness:{width}}  {report.case_count:11,}  {report.seconds:8.1f}  {len(report.failures):6}"
        )
    for report in reports:
        lines += [f"{report.harness}: {name}: {figure}" for name, figure in report.figures.items()]
    for report in reports:
        lines += [f"FAILURE in {report.harness}: {failure}" for failure in report.failures]
    return "\n".join(lines)

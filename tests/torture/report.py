"""What a harness of `make torture` says when it is done. Every one of them has a function `run(size) -> Report`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Report:
    harness: str
    tried: int
    """Schedules, crash points, inputs: whatever this harness counts."""
    seconds: float
    found: tuple[str, ...] = ()
    """What failed; each text says how to see it again."""
    told: Mapping[str, str] = field(default_factory=dict)
    """Figures that are worth a line."""


def together(shares: Sequence[Report], seconds: float) -> Report:
    """Of one harness whose work was shared."""
    told: dict[str, list[str]] = {}
    for share in shares:
        for name, figure in share.told.items():
            told.setdefault(name, []).append(figure)
    return Report(
        shares[0].harness,
        sum(share.tried for share in shares),
        seconds,
        tuple(found for share in shares for found in share.found),
        {name: _sum(figures) for name, figures in told.items()},
    )


def _sum(figures: Sequence[str]) -> str:
    plain = [figure.replace(",", "") for figure in figures]
    return f"{sum(map(int, plain)):,}" if all(map(str.isdigit, plain)) else " + ".join(dict.fromkeys(figures))


def table(reports: Sequence[Report]) -> str:
    """One line for each, then what was found and the figures."""
    width = max(len("harness"), *(len(report.harness) for report in reports))
    lines = [f"{'harness':{width}}  {'tried':>11}  {'seconds':>8}  {'found':>5}"]
    for report in reports:
        lines.append(f"{report.harness:{width}}  {report.tried:11,}  {report.seconds:8.1f}  {len(report.found):5}")
    for report in reports:
        lines += [f"{report.harness}: {name}: {figure}" for name, figure in report.told.items()]
    for report in reports:
        lines += [f"FOUND by {report.harness}: {found}" for found in report.found]
    return "\n".join(lines)

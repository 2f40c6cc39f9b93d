"""Request budget: the table of requests in `request_budget.md`, and its comparison with new counts.

An operation exceeds its budget if it sends more requests than the table says, or if the bytes of the bodies grow by
more than a timestamp or an encoding explains. Requests of different kinds may replace each other.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lance_core.storage.request_counts import KINDS, RequestCounts
from tests.request_budget.counting import Measured

PATH = Path(__file__).with_name("request_budget.md")
UPDATE = 'make requests ARGS="--update"'
_KB = 1_000
_BYTES_SLACK, _KB_SLACK = 1.02, 2
_COLUMNS = ("requests", *KINDS, "KB read", "KB written")
_INTRODUCTION = f"""\
# Request budget

Requests and bytes of each operation on an S3 emulator, which counts them: first ours, then pylance's. `make test`
compares a small set, `make requests` all of them. An operation that sends more requests than its row says fails; after
one sends fewer, `{UPDATE}` writes the new numbers. The operations are defined in
`operations.py`, their tables in `tables.py`. An operation opens its table first unless its name says otherwise. Records
of intents, which pylance does not have, are extra.

"""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Numbers of one operation in the table, in the order of `_COLUMNS`."""

    numbers: tuple[int, ...]

    @classmethod
    def of(cls, counts: RequestCounts) -> "Allowance":
        kilobytes = (math.ceil(size / _KB) for size in (counts.bytes_read, counts.bytes_written))
        return cls((counts.total, *counts.by_kind, *kilobytes))

    @property
    def requests(self) -> int:
        return self.numbers[0]

    def describe_excess(self, counts: RequestCounts, variation: int = 0) -> str:
        """Return what exceeds the allowance by more than `variation` requests, or an empty text."""
        actual = Allowance.of(counts)
        if actual.requests > self.requests + variation:
            return f"{actual.requests} requests instead of {self.requests}: {_describe_kinds(self, actual)}"
        for name, allowed, size in zip(_COLUMNS[-2:], self.numbers[-2:], actual.numbers[-2:], strict=True):
            if size > allowed * _BYTES_SLACK + _KB_SLACK:
                return f"{size} {name} instead of {allowed}"
        return ""


@dataclass(frozen=True, slots=True)
class BudgetRow:
    ours: Allowance
    pylance: Allowance | None


Budget = Mapping[str, BudgetRow]


def read_budget(path: Path = PATH) -> dict[str, BudgetRow]:
    rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return dict(_parse(line) for line in rows[2:])


def write_budget(budget: Budget, path: Path = PATH) -> None:
    path.write_text(format_budget(budget), encoding="utf-8")


def row_of(measured: Measured) -> BudgetRow:
    return BudgetRow(Allowance.of(measured.ours), None if measured.pylance is None else Allowance.of(measured.pylance))


def format_budget(budget: Budget) -> str:
    header = ("operation", *(f"ours: {_COLUMNS[0]}", *_COLUMNS[1:]), *(f"pylance: {_COLUMNS[0]}", *_COLUMNS[1:]))
    cells = [header, *((name, *_cells(row.ours), *_cells(row.pylance)) for name, row in budget.items())]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_line(row, widths) for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + (":" if i else "-") for i, width in enumerate(widths)) + "|")
    return _INTRODUCTION + "\n".join(lines) + "\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(aligned)} |"


def _cells(allowance: Allowance | None) -> Iterator[str]:
    yield from ("",) * len(_COLUMNS) if allowance is None else map(str, allowance.numbers)


def _parse(line: str) -> tuple[str, BudgetRow]:
    name, *cells = (cell.strip() for cell in line.strip("| \n").split("|"))
    cells += [""] * (2 * len(_COLUMNS) - len(cells))
    ours, pylance = cells[: len(_COLUMNS)], cells[len(_COLUMNS) :]
    return name, BudgetRow(_allowance(ours), _allowance(pylance) if any(pylance) else None)


def _allowance(cells: Iterable[str]) -> Allowance:
    return Allowance(tuple(map(int, cells)))


def _describe_kinds(allowed: Allowance, actual: Allowance) -> str:
    kinds = zip(KINDS, allowed.numbers[1:], actual.numbers[1:], strict=False)
    return ", ".join(f"{after} {kind} instead of {before}" for kind, before, after in kinds if before != after)

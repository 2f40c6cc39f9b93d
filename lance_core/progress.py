"""Progress: reports the progress of a long operation to a bar, to the log, or to a function of the caller.

An operation opens `reporting`; the loops below it call `report` or `track`, and do not depend on the receiver. The
receiver belongs to the calling thread (a context variable), so that reports of concurrent operations do not mix.
`001-progress-reports.md` (beside this module) explains the choice of the bar. Start with `reporting`.
"""

import importlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from lance_core.errors import InvalidInput

LOG_SECONDS = 5.0
"""Seconds between two lines of one step in a log."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OperationProgress:
    """State of one step of an operation.

    >>> str(OperationProgress("compact", "rewrite groups", 3, 12, "groups"))
    'compact: rewrite groups: 3 of 12 groups (25%)'
    """

    operation: str
    """Name of the verb, such as "compact"."""
    step: str
    done: int
    total: int
    unit: str
    """Plural noun for the items that `done` and `total` count, such as "files"."""

    @property
    def is_finished(self) -> bool:
        """`True` for the last report of the step."""
        return self.done >= self.total

    def __str__(self) -> str:
        share = self.done / self.total if self.total else 1
        if self.unit == "bytes":
            return f"{self.operation}: {self.step}: {self.done / 1e9:,.2f} of {self.total / 1e9:,.2f} GB ({share:.0%})"
        return f"{self.operation}: {self.step}: {self.done:,} of {self.total:,} {self.unit} ({share:.0%})"


Receiver: TypeAlias = Callable[[OperationProgress], object]
ProgressArgument: TypeAlias = bool | Receiver
"""`True` for a bar in a terminal or notebook and lines in the log elsewhere; a function receives each report."""
Reporter: TypeAlias = Callable[[str, int, int, str], object]
"""Function that reports step, done, total and unit of an operation."""


@dataclass(frozen=True, slots=True)
class _Active:
    operation: str
    receive: Receiver


_active: ContextVar[_Active | None] = ContextVar("lance_core_progress", default=None)


@contextmanager
def reporting(progress: ProgressArgument, operation: str) -> Iterator[None]:
    """Send the reports of the block to `progress`. An exception that the receiver raises ends the operation."""
    if progress is False:
        yield
        return
    if progress is not True and not callable(progress):
        raise InvalidInput(f"progress={progress!r} must be True or a function of one argument")
    with _default_receiver() if progress is True else nullcontext(progress) as receive:
        token = _active.set(_Active(operation, receive))
        try:
            yield
        finally:
            _active.reset(token)


def reporter() -> Reporter | None:
    """Return a function that reports for this operation from any thread; `None` if the operation has no receiver."""
    active = _active.get()
    if active is None:
        return None
    operation, receive = active.operation, active.receive

    def send(step: str, done: int, total: int, unit: str) -> None:
        token = _active.set(None)  # operations that the receiver calls do not report to it
        try:
            receive(OperationProgress(operation, step, done, total, unit))
        finally:
            _active.reset(token)

    return send


def report(step: str, done: int, total: int, unit: str) -> None:
    """Report the state of a step, if the operation has a receiver."""
    if (send := reporter()) is not None:
        send(step, done, total, unit)


def track(items: Sequence[T], step: str, unit: str) -> Iterator[T]:
    """Yield the items, and report each as done when the next one is requested."""
    report(step, 0, len(items), unit)
    for number, item in enumerate(items, 1):
        yield item
        report(step, number, len(items), unit)


def log_reports(write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> Receiver:
    """Return a receiver that writes lines: the end of each step, and its state at most every `LOG_SECONDS`."""
    last_written: dict[str, float] = {}

    def receive(state: OperationProgress) -> None:
        now = clock()
        is_due = now - last_written.setdefault(state.step, now) >= LOG_SECONDS
        if (is_due or state.is_finished) and state.total:
            last_written[state.step] = now
            write(str(state))

    return receive


def _default_receiver() -> AbstractContextManager[Receiver]:
    """Return bars in a terminal or notebook, or lines on stderr if tqdm is not installed, and log lines elsewhere."""
    if _is_interactive():
        try:
            return _Bars(importlib.import_module("tqdm.auto").tqdm)
        except ImportError:
            return nullcontext(log_reports(_print_line))
    return nullcontext(log_reports(_log.info))


def _is_interactive() -> bool:
    return sys.stderr.isatty() or _runs_in_notebook()


def _runs_in_notebook() -> bool:
    """Return whether the shell of this process is the kernel of a notebook. An imported ipykernel does not prove it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Bars:
    """Bars of tqdm, one for each step."""

    def __init__(self, bar_class: Any) -> None:
        self._bar_class = bar_class
        self._bars: dict[str, Any] = {}

    def __enter__(self) -> "_Bars":
        return self

    def __exit__(self, *_error: object) -> None:
        for bar in self._bars.values():
            bar.close()

    def __call__(self, state: OperationProgress) -> None:
        bar = self._bars.get(state.step)
        if bar is None:
            is_bytes = state.unit == "bytes"
            unit = "B" if is_bytes else f" {state.unit}"
            bar = self._bar_class(
                total=state.total, desc=f"{state.operation}: {state.step}", unit=unit, unit_scale=is_bytes
            )
            self._bars[state.step] = bar
        bar.total = state.total
        bar.update(state.done - bar.n)

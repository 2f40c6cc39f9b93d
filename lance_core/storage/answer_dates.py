"""Answer dates: the clock of an object store, as the `Date` headers of its answers show it."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

JUMP_NS = 20 * 10**9
"""Change of the clock between two answers that counts as a jump. A date has a resolution of a second, an answer may be
delayed, and a cleanup removes nothing that is younger than three times as long."""


class AnswerDates:
    """Dates of the answers of one store to this process. Thread-safe."""

    def __init__(self, elapsed_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._elapsed_ns = elapsed_ns
        self._lock = threading.Lock()
        self._offset_ns: int | None = None
        self.jumps = 0
        """Number of times that the clock of the store went back or ahead between two answers."""

    def record_header(self, date: str | None) -> None:
        """Record the `Date` header of an answer. One that is missing or invalid shows nothing."""
        try:
            parsed = parsedate_to_datetime(date or "")
        except ValueError:
            return
        self.record(parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC))

    def record(self, date: datetime) -> None:
        offset_ns = int(date.timestamp() * 1e9) - self._elapsed_ns()
        with self._lock:
            if self._offset_ns is not None and abs(offset_ns - self._offset_ns) > JUMP_NS:
                self.jumps += 1
            self._offset_ns = offset_ns

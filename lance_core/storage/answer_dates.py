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
        self._last_jump_ns: int | None = None
        """Monotonic time of the last answer that showed a jump."""

    def has_jumped_since(self, elapsed_ns: int) -> bool:
        """Return whether an answer since a monotonic time showed that the clock of the store went back or ahead."""
        return self._last_jump_ns is not None and self._last_jump_ns >= elapsed_ns

    def record_header(self, date: str | None) -> None:
        """Record the `Date` header of an answer. One that is missing or invalid shows nothing."""
        try:
            parsed = parsedate_to_datetime(date or "")
        except ValueError:
            return
        self.record(parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC))

    def record(self, date: datetime) -> None:
        now_ns = self._elapsed_ns()
        offset_ns = int(date.timestamp() * 1e9) - now_ns
        with self._lock:
            if self._offset_ns is not None and abs(offset_ns - self._offset_ns) > JUMP_NS:
                self._last_jump_ns = now_ns
            self._offset_ns = offset_ns

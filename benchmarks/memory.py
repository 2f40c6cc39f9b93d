"""Peak memory of single calls: the largest resident memory of the process during a call, above that before it.

Memory that a library has reserved before does not count. Linux only; elsewhere nothing is reported.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_KIB_PER_MB = 1_000_000 / 1_024


@dataclass(slots=True)
class PeakMemory:
    _before: int | None = None

    def begin_call(self) -> None:
        self._before = None
        with suppress(OSError):
            _CLEAR.write_text(_RESET_PEAK)
            self._before = _read_kib("VmRSS")

    def end_call(self) -> Mapping[str, int]:
        """Return the peak in MB as a figure of the report, if the system reports it."""
        if self._before is None:
            return {}
        return {"peak MB": round((_read_kib("VmHWM") - self._before) / _KIB_PER_MB)}


def _read_kib(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert match is not None, f"{_STATUS} has no {name}"
    return int(match[1])

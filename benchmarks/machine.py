"""What a run ran on, as far as it explains a number: cores, memory, versions, the price of an fsync. Never a
host name, a user or a path.
"""

import os
import platform
import statistics
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.report import Machine

PACKAGES = ("deltalake", "lance-assets", "numpy", "protobuf", "pyarrow", "pylance", "pyspark")
ABSENT = "absent"
_FSYNCS = 11
_FSYNC_BYTES = 4096


def describe(directory: Path) -> Machine:
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_gib=_memory_gib(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        packages=versions(PACKAGES),
        fsync_ms=_fsync_ms(directory),
    )


def load() -> float:
    return round(os.getloadavg()[0], 2)


def versions(packages: Iterable[str]) -> dict[str, str]:
    return {package: _version(package) for package in packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ABSENT


def _processor() -> str:
    """Linux tells in a file of its own; elsewhere Python may know."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _fsync_ms(directory: Path) -> float:
    taken = []
    path = directory / "fsync"
    for _ in range(_FSYNCS):
        with open(path, "wb") as file:
            start = time.perf_counter()
            file.write(bytes(_FSYNC_BYTES))
            file.flush()
            os.fsync(file.fileno())
            taken.append((time.perf_counter() - start) * 1000)
    path.unlink()
    return round(statistics.median(taken), 3)

"""Machine description: the facts that explain a number, such as cores, memory, versions and the time of an fsync.

It never contains a host name, a user or a path.
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


def describe_machine(directory: Path) -> Machine:
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_gib=_memory_gib(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        packages=package_versions(PACKAGES),
        fsync_ms=_measure_fsync_ms(directory),
    )


def load_average() -> float:
    return round(os.getloadavg()[0], 2)


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    return {package: _package_version(package) for package in packages}


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ABSENT


def _processor() -> str:
    """Return the processor name from `/proc/cpuinfo` on Linux, and from Python elsewhere."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _measure_fsync_ms(directory: Path) -> float:
    times_ms = []
    path = directory / "fsync"
    for _ in range(_FSYNCS):
        with open(path, "wb") as file:
            start = time.perf_counter()
            file.write(bytes(_FSYNC_BYTES))
            file.flush()
            os.fsync(file.fileno())
            times_ms.append((time.perf_counter() - start) * 1000)
    path.unlink()
    return round(statistics.median(times_ms), 3)

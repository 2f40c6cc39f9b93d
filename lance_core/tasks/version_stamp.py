"""Version stamp: the versions that driver and workers must agree on before a worker touches a file.

This package must have the same version exactly, Python the same minor version, and the packages that read, write and
filter data the same major version. PySpark must have the same minor version, since its driver and its workers are one
program. A package that only one side has is ignored: code that needs it reports that it is missing.
"""

import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from lance_core.errors import InvalidInput
from lance_core.package_version import PACKAGE_VERSION

_SIGNIFICANT_PARTS = {"pyarrow": 1, "pylance": 1, "datafusion": 1, "numpy": 1, "pandas": 1, "pyspark": 2}
"""Number of leading parts of the version that must be equal."""


@dataclass(frozen=True, slots=True)
class VersionStamp:
    """Versions of this package, of Python and of the packages that must agree."""

    lance_assets: str
    python: tuple[int, int]
    packages: tuple[tuple[str, str], ...]

    @classmethod
    def of_this_process(cls) -> "VersionStamp":
        versions = ((name, _installed_version(name)) for name in _SIGNIFICANT_PARTS)
        return cls(
            PACKAGE_VERSION, sys.version_info[:2], tuple((name, installed) for name, installed in versions if installed)
        )

    def __str__(self) -> str:
        python = ".".join(map(str, self.python))
        return ", ".join([f"lance-assets {self.lance_assets}", f"Python {python}", *map(" ".join, self.packages)])

    def check(self) -> None:
        """Raise in a worker whose versions differ from those of the driver that planned the work."""
        current = VersionStamp.of_this_process()
        if current == self:
            return
        planned_packages = dict(self.packages)
        differences = [
            (name, running, planned_packages[name])
            for name, running in current.packages
            if name in planned_packages
            and _significant_parts(name, running) != _significant_parts(name, planned_packages[name])
        ]
        if current.python != self.python:
            running, planned = (".".join(map(str, version_)) for version_ in (current.python, self.python))
            differences.insert(0, ("Python", running, planned))
        if current.lance_assets != self.lance_assets:
            differences.insert(0, ("lance-assets", current.lance_assets, self.lance_assets))
        if differences:
            worker, driver = (
                ", ".join(f"{difference[0]} {difference[side]}" for difference in differences) for side in (1, 2)
            )
            raise InvalidInput(
                f"this worker runs {worker}; the driver planned with {driver}. Give the executors the driver's "
                "environment (the same image, or a packed one)"
            )


def _significant_parts(name: str, version_text: str) -> list[str]:
    return version_text.split(".")[: _SIGNIFICANT_PARTS[name]]


@cache
def _installed_version(name: str) -> str | None:
    """Return the version that the loaded module states, or that its metadata states. Spark's own copy may have no
    metadata."""
    if stated := getattr(sys.modules.get(name), "__version__", None):
        return str(stated)
    try:
        return version(name)
    except PackageNotFoundError:
        return None

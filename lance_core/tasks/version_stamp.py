"""What driver and workers must agree on before a worker touches a file.

This package to the letter, Python to its minor version, and of the packages that decide what is read, written and
matched the major version; of PySpark the minor one too, since its workers and its driver are one program. A package
that only one side has is no matter: who needs it will say so.
"""

import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from lance_core.errors import InvalidInput
from lance_core.package_version import PACKAGE_VERSION

_PARTS = {"pyarrow": 1, "pylance": 1, "datafusion": 1, "numpy": 1, "pandas": 1, "pyspark": 2}
"""How many parts of the version count."""


@dataclass(frozen=True, slots=True)
class VersionStamp:
    lance_assets: str
    python: tuple[int, int]
    packages: tuple[tuple[str, str], ...]

    @classmethod
    def of_this_process(cls) -> "VersionStamp":
        found = ((name, _version(name)) for name in _PARTS)
        return cls(PACKAGE_VERSION, sys.version_info[:2], tuple((name, each) for name, each in found if each))

    def __str__(self) -> str:
        python = ".".join(map(str, self.python))
        return ", ".join([f"lance-assets {self.lance_assets}", f"Python {python}", *map(" ".join, self.packages)])

    def check(self) -> None:
        """In a worker: refuse to work with other code than the driver planned with."""
        here = VersionStamp.of_this_process()
        if here == self:
            return
        theirs = dict(self.packages)
        differ = [
            (name, ours, theirs[name])
            for name, ours in here.packages
            if name in theirs and _counts(name, ours) != _counts(name, theirs[name])
        ]
        if here.python != self.python:
            ours, planned = (".".join(map(str, each)) for each in (here.python, self.python))
            differ.insert(0, ("Python", ours, planned))
        if here.lance_assets != self.lance_assets:
            differ.insert(0, ("lance-assets", here.lance_assets, self.lance_assets))
        if differ:
            worker, driver = (", ".join(f"{each[0]} {each[side]}" for each in differ) for side in (1, 2))
            raise InvalidInput(
                f"this worker runs {worker}; the driver planned with {driver}. Give the executors the driver's "
                "environment (the same image, or a packed one)"
            )


def _counts(name: str, told: str) -> list[str]:
    return told.split(".")[: _PARTS[name]]


@cache
def _version(name: str) -> str | None:
    """Of what is loaded, if it says so: Spark's own may have come without its metadata."""
    if told := getattr(sys.modules.get(name), "__version__", None):
        return str(told)
    try:
        return version(name)
    except PackageNotFoundError:
        return None

"""What driver and workers must agree on before a worker touches a file."""

import sys
from dataclasses import dataclass

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.library_version import PACKAGE_VERSION


@dataclass(frozen=True, slots=True)
class Stamp:
    lance_assets: str
    pyarrow_major: int
    python: tuple[int, int]

    @classmethod
    def of_this_process(cls) -> "Stamp":
        return cls(PACKAGE_VERSION, int(pa.__version__.split(".")[0]), sys.version_info[:2])

    def __str__(self) -> str:
        python = ".".join(map(str, self.python))
        return f"lance-assets {self.lance_assets}, pyarrow {self.pyarrow_major}, Python {python}"

    def check(self) -> None:
        """In a worker: refuse to work with other code than the driver planned with."""
        here = Stamp.of_this_process()
        if here != self:
            raise InvalidInput(
                f"this worker runs {here}; the driver planned with {self}. Give the executors the driver's environment "
                "(the same image, or a packed one)"
            )

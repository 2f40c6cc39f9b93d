"""Reader caps: refuses a commit whose version or transaction readers would refuse by their size caps.

A reader with default caps must be able to open what a writer with default caps has committed (`limits.py`). The
builder of a manifest checks the fragments that it changes; the rest is checked here, right before files are put.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lance_core.errors import Unsupported
from lance_core.format import naming
from lance_core.format.manifest import Manifest
from lance_core.format.operations import Operation, Rewrite
from lance_core.format.transaction import Transaction
from lance_core.limits import CapExceeded
from lance_core.versions.location import Location


def check_caps(manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Check a manifest that is about to be put and the files that are put before it, among them its transaction."""
    manifest.check_caps()
    for path, data in files.items():
        if path.startswith(f"{naming.TRANSACTIONS}/"):
            Transaction.check_caps(data, path=path)


@contextmanager
def refusing_unreadable(location: Location, operation: Operation) -> Iterator[None]:
    """Report an exceeded cap as a version that is not committed."""
    try:
        yield
    except CapExceeded as error:
        advice = ". Otherwise compact the table first, or write fewer and larger fragments"
        raise Unsupported(
            f"{location.uri}: this {operation.name} is not committed, because readers would refuse the version: "
            f"{error}, in every process that reads or writes it{'' if isinstance(operation, Rewrite) else advice}"
        ) from error

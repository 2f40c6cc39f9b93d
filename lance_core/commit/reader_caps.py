"""Reader caps: refuses a commit if its manifest or transaction exceeds a size cap of readers.

A reader with default caps must be able to open what a writer with default caps has committed (`limits.py`). The
builder of a manifest checks the fragments that it changes. This module checks everything else, right before the files
are put.
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
    """Raise `CapExceeded` if a manifest that is about to be put, or the transaction among the `files` that are put
    before it, exceeds a cap."""
    manifest.check_caps()
    for path, data in files.items():
        if path.startswith(f"{naming.TRANSACTIONS}/"):
            Transaction.check_caps(data, path=path)


@contextmanager
def refusing_unreadable(location: Location, operation: Operation) -> Iterator[None]:
    """Turn an exceeded cap into an error which says that the version is not committed, and why."""
    try:
        yield
    except CapExceeded as error:
        advice = ". Otherwise compact the table first, or write fewer and larger fragments"
        raise Unsupported(
            f"{location.uri}: this {operation.name} is not committed, because readers would refuse the version: "
            f"{error}, in every process that reads or writes it{'' if isinstance(operation, Rewrite) else advice}"
        ) from error

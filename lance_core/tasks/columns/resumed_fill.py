"""Resumed fill: the fragments that an earlier run of a job has filled, as far as their files exist.

The worker that fills a fragment records it (`coordination/progress.py`). A record guarantees nothing: the caller
decides whether it fits the table (`dml/column_fill.py`). Start with `load_existing`.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from lance_core.coordination import progress
from lance_core.coordination.leases import Lease, acquire, release
from lance_core.dml.column_fill import FilledFragment
from lance_core.errors import CommitUndecided
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.store import Store

_HEADS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class FileLease:
    """Lease on the files of an earlier run."""

    store: Store
    path: str


class Resumable(Protocol):
    """Run that may hold a lease on the files of an earlier run."""

    lease: FileLease | None


@contextmanager
def releasing_lease(run: Resumable) -> Iterator[None]:
    """Release the lease of a run when it ends, with or without an error. An undecided commit leaves it to expire, since
    its put may still succeed."""
    is_undecided = False
    try:
        yield
    except CommitUndecided:
        is_undecided = True
        raise
    finally:
        if run.lease is not None and not is_undecided:
            release(run.lease.store, run.lease.path)


def record_filled(store: Store, directory: str, filled: FilledFragment, details: bytes | None) -> None:
    """Record a fragment whose file is complete. `details` are what a later run needs beyond the fragment."""
    done = filled.fragment
    if filled.file is not None:
        done = done.with_files([*done.files, filled.file])
    progress.record_fragment(store, directory, done, details)


def load_existing(
    store: Store, directory: str, recorded: Mapping[int, FilledFragment], *, job: str
) -> tuple[dict[int, FilledFragment], FileLease | None]:
    """Return the recorded fragments whose files exist, and the lease that keeps cleanups away from these files. The
    other records are removed. `job` names the job in the lease."""
    paths = tuple(each.file.qualified_path for each in recorded.values() if each.file is not None)
    # The lease comes before the existence of the files is checked.
    lease = FileLease(store, acquire(store, Lease(f"resuming {job}", files=paths), SYSTEM_RUNTIME)) if paths else None
    with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
        complete = list(pool.map(lambda each: _is_file_complete(store, each), recorded.values()))
    existing = {}
    for (number, each), is_complete in zip(recorded.items(), complete, strict=True):
        if is_complete:
            existing[number] = each
        else:
            progress.remove_fragment(store, directory, number)
    return existing, lease


def _is_file_complete(store: Store, filled: FilledFragment) -> bool:
    if filled.file is None:
        return True
    details = store.head(filled.file.qualified_path)
    return details is not None and details.size == filled.file.size

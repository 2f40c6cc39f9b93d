"""Error translation: turns every error of the core into a retry or a failure of the Dagster step.

A retry is safe for every write, since its intent commits at most one version; this module requests one only if another
attempt can succeed. An error of a Spark worker arrives as text inside Spark's own error, and one of a remote process as
`RemoteFailure`; both are translated like the original. A failure names the table and the problem and never contains
storage options, since the messages of the core contain none. Start with `translate_errors`.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, Protocol

import dagster as dg
from pyspark.errors import PythonException

import lance_core
from lance_assets.failures.checks_failed import ChecksFailed
from lance_assets.failures.conflicting_run import run_that_committed
from lance_assets.failures.remote_failure import RemoteFailure
from lance_core import (
    AlreadyExists,
    AuditFailed,
    CommitUndecided,
    ConflictError,
    Corrupt,
    IncompatibleConflict,
    InvalidInput,
    LanceError,
    MissingDependency,
    NotFound,
    RetryableConflict,
    SchemaMismatch,
    StorageError,
    Unsupported,
)

_WORKER_ERROR = re.compile(r"^lance_core\.errors\.(\w+): (.+)$", re.MULTILINE)

RETRY_DELAYS_S = (0, 5, 30)
"""Delay before each retry of a step. The core has made many attempts of its own before the first one."""


class TableLabel(Protocol):
    """Table that a failure names, such as a `Ledger`."""

    @property
    def label(self) -> str: ...
    @property
    def shown_uri(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Treatment:
    """Handling of one error class: whether the step is retried, and the beginning of the failure's description."""

    retry: bool
    title: str


# The first matching class applies, so subclasses come before their base classes.
TREATMENTS: Mapping[type[LanceError], Treatment] = {
    RetryableConflict: Treatment(True, "another writer committed first; the step is retried on the new version"),
    IncompatibleConflict: Treatment(
        False, "another writer committed a change that is incompatible with this one; a user must resolve it"
    ),
    AuditFailed: Treatment(False, "an audit refused the change, and nothing was published"),
    CommitUndecided: Treatment(True, "the store did not confirm the commit; the next attempt checks the history first"),
    StorageError: Treatment(True, "the storage returned an error"),
    SchemaMismatch: Treatment(False, "the rows do not fit the table"),
    InvalidInput: Treatment(False, "the request is not valid"),
    NotFound: Treatment(False, "a requested object does not exist"),
    AlreadyExists: Treatment(False, "an object to be created exists already"),
    Unsupported: Treatment(False, "the table uses a feature that this version does not support"),
    Corrupt: Treatment(False, "the table is damaged"),
    MissingDependency: Treatment(False, "a dependency is missing on this machine"),
    LanceError: Treatment(False, "the operation on the table failed"),
}


@contextmanager
def translate_errors(table: TableLabel, *, retry_number: int) -> Iterator[None]:
    """Translate errors in the body of a step. `retry_number` counts the previous retries of the step."""
    try:
        yield
    except LanceError as error:
        _raise_for_dagster(failure_of(error, table), error, retry_number)
    except RemoteFailure as error:
        _raise_for_dagster(_build_failure(error.error_class, error.message, {}, table), error, retry_number)
    except PythonException as error:
        match = _WORKER_ERROR.search(str(error))
        error_class = getattr(lance_core, match[1], None) if match else None
        if match is None or not (isinstance(error_class, type) and issubclass(error_class, LanceError)):
            raise
        _raise_for_dagster(_build_failure(error_class, match[2], {}, table), error, retry_number)


def _raise_for_dagster(failure: dg.Failure, error: Exception, retry_number: int) -> NoReturn:
    if not failure.allow_retries or retry_number >= len(RETRY_DELAYS_S):
        raise failure from error
    # Dagster shows this failure once the retries are exhausted.
    failure.__cause__ = error
    raise dg.RetryRequested(max_retries=len(RETRY_DELAYS_S), seconds_to_wait=RETRY_DELAYS_S[retry_number]) from failure


def failure_of(error: LanceError, table: TableLabel) -> dg.Failure:
    """Return the Dagster failure for an error, with the run behind a conflict."""
    run = run_that_committed(table, error.version) if isinstance(error, ConflictError) else None
    message = f"{error}. {run.sentence}" if run else str(error)
    return _build_failure(type(error), message, {**_error_metadata(error), **(run.metadata if run else {})}, table)


def _build_failure(
    error_class: type[LanceError], message: str, details: Mapping[str, dg.MetadataValue], table: TableLabel
) -> dg.Failure:
    treatment = next(treatment for known_class, treatment in TREATMENTS.items() if issubclass(error_class, known_class))
    metadata = {"lance/table": table.label, "dagster/uri": table.shown_uri, "lance/error": error_class.__name__}
    return dg.Failure(
        description=f"{table.label}: {treatment.title}. {message}",
        metadata={**metadata, **details},
        allow_retries=treatment.retry,
    )


def _error_metadata(error: LanceError) -> dict[str, dg.MetadataValue]:
    """Return the fields of an error as Dagster metadata."""
    value = dg.MetadataValue
    match error:
        case ConflictError():
            return {
                "lance/version": value.int(error.version),
                "lance/rule": value.text(error.rule),
                "lance/ours": value.text(error.ours),
                "lance/theirs": value.text(error.theirs),
            }
        case AuditFailed():
            check_metadata = error.__cause__.metadata if isinstance(error.__cause__, ChecksFailed) else {}
            number = error.detached_version
            return {
                **check_metadata,
                "lance/detached_version": value.text(str(number)),
                "lance/open": value.text(f"Table.open({error.uri!r}, version={number})"),
                "lance/show": value.text(f"lance-assets show {error.uri}@{number}"),
            }
        case CommitUndecided():
            return {"lance/version": value.int(error.version), "lance/transaction": value.text(error.uuid)}
        case SchemaMismatch():
            return {
                "lance/column": value.text(error.column),
                "lance/expected": value.text(error.expected),
                "lance/got": value.text(error.got),
            }
        case Corrupt():
            return {"lance/file": value.text(error.path), "lance/field": value.text(error.field)}
    return {}

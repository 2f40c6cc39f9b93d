"""What an error of the core becomes in Dagster, decided in this one place: a retry of the step, or a failure.

Retrying is safe for every write, since its intention lands once; it is only done where another try can end otherwise.
An error that a Spark worker met arrives as text inside Spark's own, and is treated as what it was. A failure carries
where and what, never storage options: the messages of the core hold none.
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
"""Before each retry of a step. The core has tried many times before the first."""


class TableLabel(Protocol):
    """The table that was worked on: a `Ledger`, or whatever else knows where it is."""

    @property
    def label(self) -> str: ...
    @property
    def shown_uri(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Treatment:
    retry: bool
    title: str


# The first that fits, so the special stand before the general.
TREATMENTS: Mapping[type[LanceError], Treatment] = {
    RetryableConflict: Treatment(True, "another writer was first; the work is done again on the new version"),
    IncompatibleConflict: Treatment(False, "another writer changed what this was planned for; a person decides"),
    AuditFailed: Treatment(False, "an audit refused what was written, and nothing was published"),
    CommitUndecided: Treatment(True, "the store never said whether the commit landed; the next try looks first"),
    StorageError: Treatment(True, "the store failed"),
    SchemaMismatch: Treatment(False, "the rows do not fit the table"),
    InvalidInput: Treatment(False, "the request makes no sense as given"),
    NotFound: Treatment(False, "something that was asked for is not there"),
    AlreadyExists: Treatment(False, "something is there already"),
    Unsupported: Treatment(False, "the table uses what this version does not know"),
    Corrupt: Treatment(False, "the table is damaged"),
    MissingDependency: Treatment(False, "something is missing on this machine"),
    LanceError: Treatment(False, "the table could not be worked on"),
}


@contextmanager
def translate_errors(table: TableLabel, *, retry_number: int) -> Iterator[None]:
    """Around the body of a step."""
    try:
        yield
    except LanceError as error:
        _raise_for_dagster(failure_of(error, table), error, retry_number)
    except PythonException as error:
        found = _WORKER_ERROR.search(str(error))
        kind = getattr(lance_core, found[1], None) if found else None
        if found is None or not (isinstance(kind, type) and issubclass(kind, LanceError)):
            raise
        _raise_for_dagster(_build_failure(kind, found[2], {}, table), error, retry_number)


def _raise_for_dagster(failure: dg.Failure, error: Exception, retry_number: int) -> NoReturn:
    if not failure.allow_retries or retry_number >= len(RETRY_DELAYS_S):
        raise failure from error
    # Dagster shows the failure when the retries are used up.
    failure.__cause__ = error
    raise dg.RetryRequested(max_retries=len(RETRY_DELAYS_S), seconds_to_wait=RETRY_DELAYS_S[retry_number]) from failure


def failure_of(error: LanceError, table: TableLabel) -> dg.Failure:
    maker = run_that_committed(table, error.version) if isinstance(error, ConflictError) else None
    message = f"{error}. {maker.sentence}" if maker else str(error)
    return _build_failure(type(error), message, {**_error_metadata(error), **(maker.metadata if maker else {})}, table)


def _build_failure(
    kind: type[LanceError], message: str, details: Mapping[str, dg.MetadataValue], table: TableLabel
) -> dg.Failure:
    treatment = next(each for known, each in TREATMENTS.items() if issubclass(kind, known))
    shown = {"lance/table": table.label, "dagster/uri": table.shown_uri, "lance/error": kind.__name__}
    return dg.Failure(
        description=f"{table.label}: {treatment.title}. {message}",
        metadata={**shown, **details},
        allow_retries=treatment.retry,
    )


def _error_metadata(error: LanceError) -> dict[str, dg.MetadataValue]:
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
            found = error.__cause__.metadata if isinstance(error.__cause__, ChecksFailed) else {}
            number = error.detached_version
            return {
                **found,
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

"""Every error a caller can meet, grouped by what the caller does next.

    LanceError
     ├── ConflictError            another writer was first: carries ours, theirs, version, rule
     │   ├── RetryableConflict        run the operation again on the new version
     │   └── IncompatibleConflict     the intention no longer holds; a person decides
     ├── AuditFailed              the caller's own audit refused a change: nothing was published; carries the version
     │                            beside the line that holds it
     ├── CommitUndecided          it may have landed: look before retrying, delete nothing
     ├── Unsupported              a feature, type or encoding we do not know: refused, never guessed
     ├── Corrupt                  bytes contradict the format: carries path and field
     │   └── CorruptHead              the newest version is the damaged one
     ├── NotFound                 no such table, version or file
     ├── AlreadyExists            a table is there already
     ├── StorageError             the store failed; its own error is the cause
     ├── MissingPiece             something this machine needs is absent (Java, a package)
     └── InvalidInput             the request makes no sense as given (also a ValueError)
         └── SchemaMismatch           carries column, expected, got

A message says what happened, to which table, version, column or file, and what to do next. None carries
storage options. Nothing here imports another room.
"""


class LanceError(Exception):
    """The root: catch this to catch everything this package raises on purpose."""


class ConflictError(LanceError):
    def __init__(self, message: str, *, ours: str, theirs: str, version: int, rule: str) -> None:
        super().__init__(message)
        self.ours = ours
        self.theirs = theirs
        self.version = version
        self.rule = rule


class RetryableConflict(ConflictError):
    """Run the operation again on the new version."""


class IncompatibleConflict(ConflictError):
    """The intention no longer holds on what the table has become; a person decides."""


class AuditFailed(LanceError):
    """An audit refused the change. Nothing was published; `detached_version` is what it would have become."""

    def __init__(self, message: str, *, uri: str, detached_version: int, why: str) -> None:
        super().__init__(message)
        self.uri = uri
        self.detached_version = detached_version
        self.why = why


class CommitUndecided(LanceError):
    """The store never said whether the last put landed. Look for `uuid` before retrying; delete nothing."""

    def __init__(self, message: str, *, uuid: str, version: int) -> None:
        super().__init__(message)
        self.uuid = uuid
        self.version = version


class Unsupported(LanceError):
    """A feature flag, type or encoding we do not know. Refused, because a guess could lose rows."""


class Corrupt(LanceError):
    """Bytes contradict the format."""

    def __init__(self, message: str, *, path: str, field: str) -> None:
        super().__init__(f"{path}: {message}")
        self.what = message
        self.path = path
        self.field = field


class CorruptHead(Corrupt):
    """The newest version of a table is damaged. It is never skipped: that would hide acknowledged rows."""


class NotFound(LanceError):
    """No such table, version or file."""


class AlreadyExists(LanceError):
    """There is a table at that place already."""


class StorageError(LanceError):
    """The store failed in a way that is neither 'there' nor 'not there'; the cause is attached."""


class MissingDependency(LanceError):
    """This machine lacks a package or program that the operation needs; the message says how to install it."""


MissingPiece = MissingDependency
"""The name of `MissingDependency` before version 0.2.0. Deprecated; removed in 0.3.0."""


class InvalidInput(LanceError, ValueError):
    """The request makes no sense as given."""


class SchemaMismatch(InvalidInput):
    def __init__(self, message: str, *, column: str, expected: str, got: str) -> None:
        super().__init__(message)
        self.column = column
        self.expected = expected
        self.got = got


class IndexIgnored(UserWarning):
    """An index cannot be read: what it covers was scanned, with the same result in more time."""

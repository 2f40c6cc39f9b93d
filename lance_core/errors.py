"""Error tree: every error that this package raises on purpose, grouped by what the caller does next.

    LanceError
     ├── ConflictError            another writer committed first; carries ours, theirs, version and rule
     │   ├── RetryableConflict        run the operation again on the new version
     │   └── IncompatibleConflict     the change contradicts what was committed; a person decides what to do
     ├── AuditFailed              the caller's audit rejected the change, and nothing was published; inspect the
     │                            detached version that holds it, then correct the data or the audit
     ├── CommitUndecided          the commit may have succeeded: search the history for the uuid before retrying, and
     │                            delete no files
     ├── Unsupported              a feature flag, type or encoding that this version does not know; upgrade, or do
     │                            what the message says
     ├── Corrupt                  bytes contradict the format; carries path and field; run fsck on the table
     │   └── CorruptHead              the newest version is damaged; repair it with fsck or restore an older version
     ├── NotFound                 the table, version or file does not exist; correct the name, or create it
     ├── AlreadyExists            a table already exists at the location; open it, or choose another location
     ├── StorageError             the store failed, and its own error is the cause; fix the access, or try again
     ├── MissingDependency        a package or program is missing on this machine; the message says how to install it
     └── InvalidInput             an argument is invalid; the message names it and says what is accepted; also a
         │                        ValueError
         └── SchemaMismatch           a column has another type than expected; carries column, expected and got

A message says what happened, to which table, version, column or file, and what to do next. No message contains
storage options or another secret. This module imports no other module of the package.
"""


class LanceError(Exception):
    """Root of the tree. Catching it catches every error that this package raises on purpose."""


class ConflictError(LanceError):
    """Another writer committed a change first that `ours` conflicts with. `rule` names the conflict rule."""

    def __init__(self, message: str, *, ours: str, theirs: str, version: int, rule: str) -> None:
        super().__init__(message)
        self.ours = ours
        self.theirs = theirs
        self.version = version
        self.rule = rule


class RetryableConflict(ConflictError):
    """A conflict that a retry resolves: run the operation again on the new version."""


class IncompatibleConflict(ConflictError):
    """A conflict that no retry resolves: the change contradicts what was committed, and a person decides what to do."""


class AuditFailed(LanceError):
    """An audit rejected the change, and nothing was published. `detached_version` holds the rejected table."""

    def __init__(self, message: str, *, uri: str, detached_version: int, why: str) -> None:
        super().__init__(message)
        self.uri = uri
        self.detached_version = detached_version
        self.why = why


class CommitUndecided(LanceError):
    """The store never answered whether the commit succeeded. Before retrying, search the history of the table for
    `uuid`. Delete no files: the commit may refer to them.
    """

    def __init__(self, message: str, *, uuid: str, version: int) -> None:
        super().__init__(message)
        self.uuid = uuid
        self.version = version


class Unsupported(LanceError):
    """A feature flag, type or encoding is unknown. The operation is refused, because a guess could lose rows."""


class Corrupt(LanceError):
    """Bytes contradict the format. `path` is the file, `field` the part of it that is wrong; fsck checks the table."""

    def __init__(self, message: str, *, path: str, field: str) -> None:
        super().__init__(f"{path}: {message}")
        self.what = message
        self.path = path
        self.field = field


class CorruptHead(Corrupt):
    """The newest version of a table is damaged. No reader skips it, because that would hide acknowledged rows."""


class NotFound(LanceError):
    """The table, version or file does not exist. Correct the name, or create it."""


class AlreadyExists(LanceError):
    """A table already exists at the location. Open it, or choose another location."""


class StorageError(LanceError):
    """A store or a worker failed. The store's own error is attached as the cause; fix the access, or try again."""


class MissingDependency(LanceError):
    """A package or program that the operation needs is missing on this machine. The message says how to install it."""


MissingPiece = MissingDependency
"""Name of `MissingDependency` before version 0.2.0. Deprecated; removed in 0.3.0."""


class InvalidInput(LanceError, ValueError):
    """An argument is invalid. The message names it and says what is accepted."""


class SchemaMismatch(InvalidInput):
    """A column of the input does not have the type that the table expects. Cast `column` from `got` to `expected`."""

    def __init__(self, message: str, *, column: str, expected: str, got: str) -> None:
        super().__init__(message)
        self.column = column
        self.expected = expected
        self.got = got


class IndexIgnored(UserWarning):
    """An index could not be read or built, so its fragments are scanned: the result is the same and takes longer."""

"""Base of the parts of `Table`: the snapshot they read, the options of a write and of a new table, the result of a
write, and the function that writes.

Each part is a mixin with one idea (reading, rows, schema, indices, upkeep, references). A part knows this base and the
packages below, and no other part. Public methods keep the options of a write as keywords in their signatures and pass
them on as `WriteOptions`, so that a new option is added in one place.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

from lance_core import validation
from lance_core.commit.audit import AuditFunction
from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import Change, Plan, WriteResult, commit_with_retry
from lance_core.errors import InvalidInput
from lance_core.expressions.arrow_filters import Condition, to_sql
from lance_core.format.fragment import StorageVersion
from lance_core.format.ids import Version
from lance_core.format.operations import Append
from lance_core.runtime import SYSTEM_RUNTIME, Runtime
from lance_core.scan.column_resolution import filterable_schema
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

if TYPE_CHECKING:
    from lance_core.table.table import Table

STORAGE_VERSION = "2.2"
"""Version of the data files of a new table."""
Audit = Callable[["Table", "Table | None"], object]
"""Function that receives a change before any reader can see it: the table with the change, and the table it is based on
(`None` for a first version). It refuses the change by raising; nothing is published then (`AuditFailed`)."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of one write, as the caller passed them."""

    intent: str | None = None
    """Idempotency key: all writes with the same intent commit at most one version."""
    properties: Mapping[str, str] | None = None
    """Properties of the transaction."""
    retries: int = ATTEMPTS
    """Number of times the write is planned or committed before it fails."""
    audit: Audit | None = None
    """Check of the change before it is published. Spark runs it on the driver."""

    def check(self) -> Mapping[str, str]:
        """Raise `InvalidInput` if an option is invalid. Return the properties."""
        validation.check_intent_and_retries(intent=self.intent, retries=self.retries)
        return validation.check_properties(self.properties)

    def audit_function(self, table: "type[Table]") -> AuditFunction | None:
        """Return `audit` as a function of snapshots, which is how the commit package calls it."""
        audit = self.audit
        if audit is None:
            return None
        if not callable(audit):
            raise InvalidInput(f"audit= must be a function of two tables, not a {type(audit).__name__}")
        return lambda changed, base: audit(table(changed), None if base is None else table(base))


_SHOWN_ITEMS_MAX = 5


def _shortened(value: object) -> str:
    """Return a value as text, and of a long tuple its ends and its length."""
    if not isinstance(value, tuple) or len(value) <= _SHOWN_ITEMS_MAX:
        return repr(value)
    return f"({value[0]!r}, {value[1]!r}, ..., {value[-1]!r}: {len(value)} in all)"


@dataclass(frozen=True, slots=True)
class NewTableOptions:
    """Options for a table that a write creates. `None` is the default for a new table, and anything for an existing
    one."""

    stable_row_ids: bool | None = None
    storage_version: str | None = None

    def new_table(self) -> NewTable:
        """Return the table to create."""
        stable = self.stable_row_ids
        return NewTable(
            parse_storage_version(STORAGE_VERSION if self.storage_version is None else self.storage_version),
            stable is not None and validation.check_flag(stable, "stable_row_ids"),
        )

    def check_existing(self, base: Snapshot) -> None:
        """Raise `InvalidInput` if the table exists and differs from an explicit request."""
        manifest, address = base.manifest, base.location.address
        validation.check_stable_row_ids_unchanged(self.stable_row_ids, manifest.has_stable_row_ids, table=address)
        if self.storage_version is None:
            return
        requested = parse_storage_version(self.storage_version)
        if requested != manifest.storage_version:
            raise InvalidInput(
                f"{address}: storage_version={str(requested)!r} was requested, but the table has storage version "
                f"{manifest.storage_version}, which never changes; leave out storage_version=, or write a new table"
            )


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of a write."""

    version: Version
    """The version that holds the write."""
    table: "Table"
    """The table at that version."""
    operation: str
    """Name of the format's operation, such as "Append"."""
    rows_added: int
    rows_removed: int
    files: int
    """Number of data and index files written. A file that several appends share counts once for each."""
    bytes: int
    """Size of the files written. The size of a shared file is divided in proportion to the rows."""
    attempts: int
    """Number of puts until one succeeded; 0 if no put was needed."""
    rebased_over: tuple[Version, ...]
    """Versions that other writers committed between planning and commit."""
    already_committed: bool
    """An earlier attempt with the same intent committed this version; this call wrote nothing."""
    uncovered: tuple[str, ...] = ()
    """Names of the indices that cover less after a compaction than before. Queries scan the rows that they lost."""

    def __repr__(self) -> str:
        """Return the fields that say something: of the other ones the value is zero, empty or false."""
        numbers = {
            "rows_added": self.rows_added,
            "rows_removed": self.rows_removed,
            "files": self.files,
            "bytes": self.bytes,
            "rebased_over": tuple(map(int, self.rebased_over)),
            "already_committed": self.already_committed,
            "uncovered": self.uncovered,
        }
        shown = "".join(f", {name}={_shortened(value)}" for name, value in numbers.items() if value)
        return f"Committed(version={self.version}, operation={self.operation!r}{shown})"

    @property
    def landed_before(self) -> bool:
        """The name of `already_committed` before version 0.2.0. Deprecated; removed in 0.3.0."""
        return self.already_committed

    @classmethod
    def of(cls, result: WriteResult, table: "type[Table]") -> "Committed":
        """Return the public form of the result of the write protocol; `table` is the class of the tables in it."""
        summary = result.summary
        return cls(
            version=Version(summary.version),
            table=table(result.snapshot),
            operation=summary.operation,
            rows_added=summary.rows_added,
            rows_removed=summary.rows_removed,
            files=summary.files,
            bytes=summary.bytes,
            attempts=result.attempts,
            rebased_over=result.rebased_over,
            already_committed=result.already_committed,
            uncovered=result.uncovered,
        )

    def followed_by(self, other: "Committed") -> "Committed":
        """Return this write and `other`, which the same call committed after it, as one result."""
        return replace(
            self,
            version=other.version,
            table=other.table,
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            attempts=self.attempts + other.attempts,
            rebased_over=(*self.rebased_over, *other.rebased_over),
        )


CommitListener = Callable[[Committed], object]


class TableBase:
    """One version of a table. It never changes; a writer returns the version after it."""

    runtime: ClassVar[Runtime] = SYSTEM_RUNTIME
    """Clock, uuids, random numbers and sleep of all writers of this class; a simulation overrides it in a subclass."""

    def __init__(self, snapshot: Snapshot, on_commit: CommitListener | None = None) -> None:
        self._snapshot = snapshot
        self._on_commit = on_commit

    @property
    def _location(self) -> Location:
        return self._snapshot.location

    @property
    def _columns(self) -> pa.Schema:
        """Columns of this version. Python values are converted to their types."""
        return self._snapshot.manifest.schema.arrow

    def _at(self, snapshot: Snapshot) -> Self:
        return type(self)(snapshot, self._on_commit)

    def _sql(self, condition: Condition, what: str) -> str:
        """Return a condition as SQL, which the history of the table records."""
        if isinstance(condition, pc.Expression):
            return to_sql(condition, filterable_schema(self._snapshot.manifest), what)
        return condition

    def _write(
        self,
        verb: str,
        plan: Plan,
        options: WriteOptions,
        *,
        operation: str = Append.name,
        can_replan: bool = True,
        files_exist: bool = False,
    ) -> Committed:
        """Plan a change of this version, write its files and commit it, and replan it on the newest version if another
        commit conflicts with it.

        `plan` returns `None` if there is nothing to change; the result then names `operation`. `can_replan` says that
        the change means the same on a newer version, `files_exist` that its files were written before this call."""
        properties = options.check()
        self._snapshot.manifest.check_writable()
        table = cast("type[Table]", type(self))
        change = Change(verb, plan, operation, can_replan, files_exist, audit=options.audit_function(table))
        result = commit_with_retry(
            change,
            self._location,
            self._snapshot,
            intent=options.intent,
            properties=properties,
            retries=options.retries,
            runtime=self.runtime,
        )
        return self._report_commit(Committed.of(result, table))

    def _report_commit(self, committed: Committed) -> Committed:
        """Call the commit listener, which also hears of the writes of the table in the result."""
        if self._on_commit is not None:
            committed.table._on_commit = self._on_commit
            self._on_commit(committed)
        return committed


def parse_storage_version(text: str) -> StorageVersion:
    """Return the storage version that a text names; "stable" is the default."""
    if not isinstance(text, str):
        raise InvalidInput(f"storage_version={text!r}: pass a string such as '2.2'")
    try:
        return StorageVersion.parse(STORAGE_VERSION if text == "stable" else text)
    except ValueError as error:
        raise InvalidInput(str(error)) from error

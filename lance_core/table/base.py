"""Base of the parts of `Table`: the snapshot they read, and the one way in which they write.

Each part is a mixin with one idea (reading, rows, schema, indices, upkeep, references). A part knows this base and the
packages below, and no other part.
"""

from typing import TYPE_CHECKING, ClassVar, Self, cast

from lance_core.commit.audit import AuditFunction
from lance_core.commit.change import Change, Plan, commit_with_retry
from lance_core.errors import InvalidInput
from lance_core.format.operations import Append
from lance_core.runtime import SYSTEM_RUNTIME, Runtime
from lance_core.table.committed import Committed
from lance_core.table.write_options import Audit, WriteOptions
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

if TYPE_CHECKING:
    from lance_core.table.table import Table


class TableBase:
    """One version of a table. It never changes; a writer returns the version after it."""

    _runtime: ClassVar[Runtime] = SYSTEM_RUNTIME

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @property
    def _location(self) -> Location:
        return self._snapshot.location

    @classmethod
    def _audit_function(cls, audit: Audit | None) -> AuditFunction | None:
        """Return `audit` as a function of snapshots, which is how the commit package calls it."""
        if audit is None:
            return None
        if not callable(audit):
            raise InvalidInput(f"audit= must be a function of two tables, not a {type(audit).__name__}")

        def audit_snapshots(changed: Snapshot, base: Snapshot | None) -> object:
            return audit(cls(changed)._as_table(), None if base is None else cls(base)._as_table())

        return audit_snapshots

    def _as_table(self) -> "Table":
        return cast("Table", self)

    def _at(self, snapshot: Snapshot) -> Self:
        return type(self)(snapshot)

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
        audit = self._audit_function(options.audit)
        change = Change(verb, plan, operation, can_replan, files_exist, audit)
        result = commit_with_retry(
            change,
            self._location,
            self._snapshot,
            intent=options.intent,
            properties=properties,
            retries=options.retries,
            runtime=self._runtime,
        )
        return Committed.of(result, self._at(result.snapshot)._as_table())

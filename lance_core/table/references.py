"""References: tags, branches, versions of intents, clones, restored versions, base paths and the names of manifests."""

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self, cast

from lance_core import validation
from lance_core.commit import write_protocol
from lance_core.commit.loop import ATTEMPTS
from lance_core.format.base_path import BasePath
from lance_core.format.operations import Restore, UpdateBases
from lance_core.progress import ProgressArgument, reporting
from lance_core.table.base import Audit, Committed, TableBase, WriteOptions
from lance_core.table.branches import Branches, clone
from lance_core.table.manifest_migration import migrate_manifest_names
from lance_core.versions.refs import Tags
from lance_core.versions.snapshot import load_at, load_latest

if TYPE_CHECKING:
    from lance_core.table.table import Table


class References(TableBase):
    """Part of `Table` that names versions and derives tables from them."""

    @property
    def tags(self) -> Tags:
        """Tags of the table: `create`, `update`, `delete` and `list`."""
        return Tags(self._snapshot, self.runtime)

    @property
    def branches(self) -> Branches[Self]:
        """Branches of the table: `create`, `delete` and `list`."""
        return Branches(self._snapshot, self.runtime, self._at)

    def find_intent(self, intent: str) -> Committed | None:
        """Return the write that was committed with this intent, at any version of this branch; `None` if there is none.

        It begins no write. Raise `CommitUndecided` if a cleanup removed the versions that would decide it.

        >>> _ = table.append({"id": [4]}, intent="monday")
        >>> table.find_intent("monday").version, table.find_intent("tuesday")
        (2, None)
        """
        validation.check_intent_and_retries(intent=intent, retries=1)
        found = write_protocol.find_intent(load_latest(self._location), intent, self.runtime)
        return None if found is None else Committed.of(found, cast("type[Table]", type(self)))

    def restore(
        self,
        version: int,
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        if_newest: bool = False,
    ) -> Committed:
        """Commit a version with the rows, schema, indices and config of an older version of this branch. The versions
        in between stay in the history.

        The content of versions that others commit meanwhile is undone, too. With `if_newest`, `IncompatibleConflict`
        is raised instead, unless the version of this object is still the newest one.

        >>> emptied = table.delete("true").table
        >>> emptied.restore(1).table.count_rows()
        3
        """
        number = validation.check_version_number(version)
        validation.check_flag(if_newest, "if_newest")
        return self._write(
            "restore",
            lambda _base: Restore(load_at(self._location, number).version, undoes_unseen=not if_newest),
            WriteOptions(intent, properties, retries, audit),
            can_replan=False,
        )

    def clone(self, uri: str | os.PathLike[str], shallow: bool = True, *, progress: ProgressArgument = False) -> Self:
        """Create an independent table that starts as this version. A shallow clone reads the files of this table, and
        is opened with `bases=[...]`; `shallow=False` copies the files.

        >>> copy = table.clone(directory + "/copy", shallow=False)
        >>> copy.append({"id": [4]}).table.count_rows(), table.refresh().count_rows()
        (4, 3)
        """
        with reporting(progress, "clone"):
            return self._at(clone(self._snapshot, uri, shallow=shallow, runtime=self.runtime))

    def add_bases(
        self,
        bases: Iterable[BasePath],
        *,
        intent: str | None = None,
        properties: Mapping[str, str] | None = None,
        retries: int = ATTEMPTS,
    ) -> Committed:
        """Add locations, besides the table's own, where its files may be.

        >>> from lance_core.operations import BasePath
        >>> table.add_bases([BasePath("s3://archive/orders")]).version
        2
        """
        paths = validation.check_bases(bases)
        return self._write(
            "add_bases", lambda _base: UpdateBases(paths), WriteOptions(intent, properties, retries), can_replan=False
        )

    def migrate_manifest_names(self) -> Self:
        """Rename the manifests of an old table to the names that sort newest first. No writer may be active; an
        interrupted migration is completed by the next call.

        >>> table.migrate_manifest_names().version
        1
        """
        migrate_manifest_names(self._location)
        return self._at(load_latest(self._location))

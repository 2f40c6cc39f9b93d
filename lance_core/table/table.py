"""`Table`: one version of a Lance table, and the operations on it.

A `Table` never changes. A writer returns the version after it (`Committed.table`). The class is composed of parts, one
module each: `reading.py`, `searches.py`, `frames.py`, `rows.py`, `schema.py`, `indices.py`, `upkeep.py` and
`references.py`; `base.py` holds what they share. This module creates tables and commits operations whose files are
already written.
"""

import os
from collections.abc import Mapping

from lance_core import validation
from lance_core.commit.detached import commit_detached, publish
from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import Change, StartedWrite, commit_with_retry, new_table_config
from lance_core.datafiles.fragment_writer import BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, FileLimits
from lance_core.datafiles.inputs import DeclaredSchema, Rows, as_declared_input
from lance_core.errors import AlreadyExists, InvalidInput
from lance_core.format.operations import Operation, Overwrite, UpdateConfig
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.table.base import STORAGE_VERSION, Audit, Committed, WriteOptions, parse_storage_version
from lance_core.table.frames import TableFrames
from lance_core.table.indices import IndexWrites
from lance_core.table.reading import TableReading
from lance_core.table.references import References
from lance_core.table.rows import RowWrites, overwrite_operation
from lance_core.table.schema import SchemaWrites
from lance_core.table.searches import Searches
from lance_core.table.upkeep import Upkeep
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import locate
from lance_core.versions.snapshot import load_at, table_exists


class Table(TableReading, Searches, TableFrames, RowWrites, SchemaWrites, IndexWrites, Upkeep, References):
    """One version of a Lance table.

    >>> import pyarrow as pa, tempfile
    >>> uri = tempfile.mkdtemp() + "/orders"
    >>> orders = Table.create(uri, pa.table({"id": [1, 2], "city": ["Oslo", "Lima"]}))
    >>> orders = orders.append(pa.table({"id": [3], "city": ["Pune"]})).table
    >>> orders.version, orders.count_rows(), orders.to_table(columns=["city"])["city"].to_pylist()
    (2, 3, ['Oslo', 'Lima', 'Pune'])
    """

    @classmethod
    def create(
        cls,
        uri: str | os.PathLike[str],
        data: Rows | DeclaredSchema,
        *,
        schema: DeclaredSchema | None = None,
        storage_options: Mapping[str, str] | None = None,
        storage_version: str = STORAGE_VERSION,
        stable_row_ids: bool = False,
        config: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        intent: str | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        max_rows_per_file: int = ROWS_PER_FILE_MAX,
        max_bytes_per_file: int = BYTES_PER_FILE_MAX,
        manifest_store: ManifestStore | str | None = None,
        durable: bool = True,
    ) -> "Table":
        """Create a table with these rows, or an empty one if `data` is a schema, and return it at version 1.

        `schema` declares the columns if the types of `data` are not the ones to store: as an Arrow schema, a dataclass
        or a model of pydantic. A field without `None` is not nullable, and `Annotated` names an Arrow type, such as
        `Annotated[list[float], pa.list_(pa.float32(), 128)]` for vectors.

        `storage_version` is "2.0", "2.1", "2.2" or "2.3". Lance does not guarantee yet that later releases read 2.3.
        `manifest_store` names the store in which every writer reserves the versions of the table: `sqlite:///...`,
        `postgresql://...` or `dynamodb://table`. Raise `AlreadyExists` if a table exists at `uri`.

        >>> pages = Table.create(directory + "/pages", {"url": ["/a", "/b"], "hits": [3, 5]})
        >>> pages.version, len(pages)
        (1, 2)
        """
        if isinstance(data, str | os.PathLike):
            raise InvalidInput("the arguments of Table.create are swapped: call Table.create(uri, data)")
        options = WriteOptions(intent, properties, retries, audit)
        properties, config = options.check(), validation.check_config(config)
        location = locate(uri, storage_options=storage_options, durable=durable, manifest_store=manifest_store)
        new_table = NewTable(
            parse_storage_version(storage_version), validation.check_flag(stable_row_ids, "stable_row_ids")
        )

        def create(started: StartedWrite) -> Overwrite:
            if table_exists(location):
                raise AlreadyExists(f"a table already exists at {location.uri}; open it or overwrite it")
            limits = FileLimits(max_rows_per_file, max_bytes_per_file)
            entries, version = new_table_config(started, config), new_table.storage_version
            return overwrite_operation(
                location, *as_declared_input(data, schema), version, limits, entries, cls.runtime
            )

        change = Change("create", plan=None, create=create, can_replan=False, audit=options.audit_function(cls))
        result = commit_with_retry(
            change, location, new_table, intent=intent, properties=properties, retries=retries, runtime=cls.runtime
        )
        return cls(result.snapshot)

    def commit(
        self,
        operation: Operation,
        *,
        read_version: int | None = None,
        properties: Mapping[str, str] | None = None,
        intent: str | None = None,
        retries: int = ATTEMPTS,
        audit: Audit | None = None,
        detached: bool = False,
    ) -> Committed:
        """Commit an operation whose files are already written. `read_version` is the version on which it was planned.
        `detached=True` commits a detached version, outside every branch: only its number finds it, until `publish`
        commits it to its branch.

        >>> from lance_core.operations import Delete
        >>> whole_fragment = Delete(updated=(), removed_ids=(table.fragments[0].id,), predicate="true")
        >>> table.commit(whole_fragment).table.count_rows()
        0
        """
        if not isinstance(operation, Operation):
            raise InvalidInput(
                f"operation must be an operation of lance_core.operations, not a {type(operation).__name__}"
            )
        if isinstance(operation, Overwrite):
            validation.check_config(operation.config_upserts)
        if isinstance(operation, UpdateConfig) and operation.config:
            validation.check_config_keys(operation.config.entries)
        base = self._snapshot
        if read_version is not None and read_version != base.version:
            base = load_at(self._location, validation.check_version_number(read_version))
        if validation.check_flag(detached, "detached"):
            validation.check_intent_and_retries(intent=intent, retries=retries)
            if audit is not None:
                raise InvalidInput("audit= does not apply to a detached version: read the version, then publish it")
            if intent is not None:
                raise InvalidInput("intent= does not apply to a detached version, which publish() commits at most once")
            result = commit_detached(
                base, operation, properties=validation.check_properties(properties), runtime=self.runtime
            )
            return Committed.of(result, type(self))
        return self._at(base)._write(
            f"commit {operation.name}",
            lambda _base: operation,
            WriteOptions(intent, properties, retries, audit),
            can_replan=False,
            files_exist=True,
        )

    def publish(self, detached_version: int, *, retries: int = ATTEMPTS) -> Committed:
        """Commit the transaction of a detached version to its branch. Raise `ConflictError` if a version committed
        since conflicts with it.

        >>> from lance_core.operations import Delete
        >>> staged = table.commit(Delete((), (table.fragments[0].id,), "true"), detached=True)
        >>> table.refresh().count_rows(), table.publish(staged.version).table.count_rows()
        (3, 0)
        """
        version = validation.check_version_number(detached_version)
        result = publish(self._location, version, retries=retries, runtime=self.runtime)
        return self._report_commit(Committed.of(result, type(self)))

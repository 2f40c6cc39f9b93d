"""Data source `lance`: `spark.read.format("lance")` and `df.write.format("lance")` over the plans of `read` and
`append`.

    spark.read.format("lance").option("columns", "id, city").option("filter", "age > 17").load(uri)
    df.write.format("lance").mode("append").save(uri)

Spark calls each method in a separate process, so the values that all of them share travel in pickles: the version that
a DataFrame reads, and the uuid of a write. Spark prunes no columns of a Python data source and returns nothing from a
write; use `read`, `append` and the other functions if that matters. Importing this module is cheap: `pyspark_lance`
imports it, so that Spark finds the format without registration. Start with `LanceDataSource`.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_assets.spark.options import FormatOptions
    from lance_core.tasks.rows.write_handle import WriteHandle
    from lance_core.tasks.scan.read import ReadPlan, ScanPartition

_ASSUMED_SLOTS = 8
"""Assumed number of task slots, since the process that plans does not know the cluster."""


class LanceDataSource(ds.DataSource):
    """Spark data source for reading, writing and streaming Lance tables.

    Options for reads and writes: `branch`, `manifest_store`, `trusted` ("false" decodes files in processes of their
    own), `verify` ("off", "sample" or "read": the files that are compared with their checksums), and `storage.` as the
    prefix of a storage option. A secret is passed by reference (`env:VARIABLE`, `storage.provider`), or with the prefix
    `secret.`, which Spark redacts.

    Options for reads: `version` or `tag`, `columns` (comma-separated), `filter` (Lance SQL, evaluated by the workers),
    `with_row_id`, `with_row_address`, `bases` (comma-separated). Spark evaluates the filters of a query itself.

    Options for writes, with mode "append" or "overwrite": `intent`, `property.` as the prefix of a property of the
    version, `replace_schema`, `create`, `retries`, `max_rows_per_file`, `max_bytes_per_file`. An `audit` is a function
    and cannot be an option; the functions of this package take one. `stable_row_ids` and `storage_version` belong to a
    table that the write creates, also to one that a stream creates; a table that exists and differs is refused.

    Options for streams: `starting_version` (a number, whose rows are included, or "latest") or `starting_timestamp`; by
    default a stream begins with all rows. `max_rows_per_trigger`, `max_files_per_trigger` and
    `max_versions_per_trigger` limit a micro-batch. `on_change` handles versions that change or remove rows: "fail",
    "skip" or "rewritten". `poll_seconds` is the shortest interval between two checks of a bucket for new versions,
    whatever the trigger (1 by default; tables on a local disk are always checked).

    Any other option is refused; the error names the nearest option, or the equivalent of an option of Delta Lake or
    Iceberg.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._pinned: tuple[int, str | None] | None = None

    @classmethod
    def name(cls) -> str:
        return "lance"

    def schema(self) -> StructType:
        from lance_assets.spark.option_names import Use
        from lance_assets.spark.types import spark_schema

        self._format_options().check_names(Use.READ, Use.STREAM_READ)
        return spark_schema(self._plan(None).arrow)

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        from lance_assets.spark.option_names import Use

        self._format_options().check_names(Use.READ)
        return LanceReader(schema, self._plan(schema))

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceArrowWriter:
        from lance_assets.spark.option_names import Use
        from lance_assets.spark.types import stored_schema
        from lance_core import Committed
        from lance_core.tasks.driver import ATTEMPTS
        from lance_core.tasks.rows.write import (
            BYTES_PER_FILE_MAX,
            ROWS_PER_FILE_MAX,
            FileLimits,
            begin_append,
            begin_overwrite,
        )
        from lance_core.tasks.rows.write_handle import WriteHandle

        options = self._format_options()
        options.refuse_audit("append(df, uri, audit=) or overwrite(df, uri, audit=) of lance_assets.spark")
        options.check_names(Use.OVERWRITE if overwrite else Use.APPEND)
        uri, incoming = options.uri, stored_schema(schema)
        limits = FileLimits(
            options.get_number("max_rows_per_file", ROWS_PER_FILE_MAX),
            options.get_number("max_bytes_per_file", BYTES_PER_FILE_MAX),
        )
        intent, branch, store = map(options.get_text, ("intent", "branch", "manifest_store"))
        if overwrite:
            planned = begin_overwrite(
                uri,
                incoming,
                replace_schema=options.get_flag("replace_schema", default=False),
                new_table=options.new_table,
                intent=intent,
                limits=limits,
                storage_options=options.storage,
                manifest_store=store,
                branch=branch,
                verify=options.verify,
                trusted=options.trusted,
            )
        else:
            planned = begin_append(
                uri,
                incoming,
                create=options.get_flag("create", default=True),
                new_table=options.new_table,
                intent=intent,
                limits=limits,
                storage_options=options.storage,
                manifest_store=store,
                branch=branch,
                verify=options.verify,
                trusted=options.trusted,
            )
        handle = None if isinstance(planned, Committed) else WriteHandle.of(planned, manifest_store=store)
        return LanceWriter(handle, options.properties, options.get_number("retries", ATTEMPTS))

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:
        from lance_assets.spark.release import STREAMING_SOURCE_RELEASE, require_release

        remedy = "read the newest version by read(spark, uri) in a scheduled job instead"
        require_release(STREAMING_SOURCE_RELEASE, 'readStream.format("lance")', remedy)
        from lance_assets.spark.streaming import stream_reader

        return stream_reader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamWriter:
        from lance_assets.spark.release import STREAMING_SINK_RELEASE, require_release

        remedy = "call append(batch, uri, intent=...) or upsert_batches(uri, on) of lance_assets.spark in foreachBatch"
        require_release(STREAMING_SINK_RELEASE, 'writeStream.format("lance")', remedy)
        from lance_assets.spark.streaming_sink import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)

    def _plan(self, schema: StructType | None) -> "ReadPlan":
        """Plan a read of the pinned version. The first call pins it, and later copies of this object share it."""
        from lance_assets.spark.types import spark_schema, transport_schema
        from lance_core.tasks.scan.read import VersionRef, plan_read

        options = self._format_options()
        tag, branch, store = map(options.get_text, ("tag", "branch", "manifest_store"))
        version = options.get_number("version", None)
        if self._pinned is not None:
            (version, branch), tag = self._pinned, None
        bases = options.get_names("bases") or ()
        reference = VersionRef(
            options.uri, version, tag, branch, options.storage, store, bases, options.verify, trusted=options.trusted
        )
        base = reference.snapshot()
        self._pinned = (int(base.version), base.manifest.branch)
        plan = plan_read(
            base,
            transport=transport_schema,
            slots=_ASSUMED_SLOTS,
            columns=options.get_names("columns") if schema is None else schema.fieldNames(),
            filter=options.get_text("filter"),
            with_row_id=schema is None and options.get_flag("with_row_id", default=False),
            with_row_address=schema is None and options.get_flag("with_row_address", default=False),
        )
        if schema is not None:
            check_same_types(spark_schema(plan.arrow), schema)
        return plan

    def _format_options(self) -> "FormatOptions":
        from lance_assets.spark.options import FormatOptions

        return FormatOptions(self.options)


class LancePartition(ds.InputPartition):
    """Spark input partition that carries a `ScanPartition`."""

    def __init__(self, scan_partition: "ScanPartition") -> None:
        super().__init__(scan_partition)
        self.scan_partition = scan_partition

    def __repr__(self) -> str:
        return f"LancePartition({len(self.scan_partition.fragments)} fragments)"


class LanceReader(ds.DataSourceReader):
    """Batch reader of the data source. It must not define `pushFilters`; see `001-filter-pushdown.md`."""

    def __init__(self, schema: StructType, plan: "ReadPlan") -> None:
        self._schema = schema
        self._plan = plan

    def partitions(self) -> list[ds.InputPartition]:
        return [LancePartition(scan_partition) for scan_partition in self._plan.partitions]

    def read(self, partition: ds.InputPartition | None) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of a partition. Without partitions Spark still calls this once, with another object."""
        from lance_assets.spark.release import arrow_schema
        from lance_assets.spark.worker_setup import prepare_and_read

        if not isinstance(partition, LancePartition):
            return iter(())
        return prepare_and_read(self._plan.work.read(partition.scan_partition, arrow_schema(self._schema)))

    def __getstate__(self) -> dict[str, object]:
        """Leave the partitions out, since each worker receives its own one separately."""
        return {"_schema": self._schema, "_plan": self._plan.without_partitions()}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True, slots=True)
class LanceMessage(ds.WriterCommitMessage):
    """Encoded result of one write task."""

    encoded_result: bytes = field(repr=False)


class LanceWriter(ds.DataSourceArrowWriter):
    """Batch writer of the data source: workers write files, one process commits them.

    Without a handle the intent was committed before, and nothing is written.
    """

    def __init__(self, handle: "WriteHandle | None", properties: Mapping[str, str], retries: int) -> None:
        self._handle = handle
        self._properties = dict(properties)
        self._retries = retries

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> LanceMessage:
        from lance_assets.spark.worker_setup import prepared_worker

        with prepared_worker():
            return LanceMessage(self._handle.write_batches(iterator) if self._handle else b"")

    def commit(self, messages: list[ds.WriterCommitMessage | None]) -> None:
        from lance_core import StorageError
        from lance_core.tasks.rows.write_handle import combine_results

        if self._handle is None:
            return
        if not all(isinstance(message, LanceMessage) for message in messages):
            raise StorageError(
                f"{self._handle.plan.uri}: Spark returned the results of some tasks only; nothing was committed, so "
                "write again"
            )
        results = [message.encoded_result for message in messages if isinstance(message, LanceMessage)]
        self._handle.to_planned_write().finish(
            combine_results(results), properties=self._properties, retries=self._retries
        )

    def abort(self, messages: list[ds.WriterCommitMessage | None]) -> None:
        """Do nothing. Spark also calls this after a failed commit, which may have succeeded, so its files may be in
        use.

        Cleanup removes files that no version references.
        """


def check_same_types(stored: StructType, requested: StructType) -> None:
    """Raise `InvalidInput` if a schema that the user gave to Spark changes the type of a column.

    Such a schema may select columns by name only.
    """
    from lance_core import InvalidInput

    for stored_field, requested_field in zip(stored, requested, strict=True):
        stored_type, requested_type = stored_field.dataType.simpleString(), requested_field.dataType.simpleString()
        if stored_type != requested_type:
            raise InvalidInput(
                f"column {stored_field.name!r} is requested as {requested_type}, but its type in Spark is "
                f"{stored_type}; request that type and cast the column afterwards"
            )

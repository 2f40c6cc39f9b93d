"""The data source `lance`: `spark.read.format("lance")` and `df.write.format("lance")`, over the same plans as the ops.

    spark.read.format("lance").option("columns", "id, city").option("filter", "age > 17").load(uri)
    df.write.format("lance").mode("append").save(uri)

Spark calls each method in a process of its own, so what must be the same for all travels in pickles: the version that
a DataFrame reads, and the uuid of a write. It prunes no columns by itself and gives nothing back: where that matters
use `read`, `append` and the other functions. Importing this module is cheap; `pyspark_lance` does, so that Spark finds
the format without being told. Start with `LanceDataSource`.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_assets.spark.options import FormatOptions
    from lance_core.tasks.read import ReadPlan, ScanPartition
    from lance_core.tasks.write_handle import WriteHandle

_ASSUMED_SLOTS = 8
"""How many tasks run at once is not known where Spark plans."""


class LanceDataSource(ds.DataSource):
    """Options of both directions: `branch`, `manifest_store`, and `storage.` before the name of a storage option. What
    is secret is named (`env:VARIABLE`, `storage.provider`), or has `secret.` before its name, which Spark hides.

    Reading: `version` or `tag`, `columns` (names with commas between), `filter` (Lance's SQL, evaluated by the
    workers), `with_row_id`, `with_row_address`, `bases` (with commas). Spark's own filters are Spark's to evaluate.

    Writing, with mode "append" or "overwrite": `intent`, `property.` before the name of a property of the version,
    `replace_schema`, `create`, `max_rows_per_file`, `max_bytes_per_file`. An `audit` is a function, and no option
    can be one: the functions of this package take it.

    Streams: where one begins, `starting_version` (a number, whose rows are sent too, or "latest") or
    `starting_timestamp`; else with all rows. How much at once: `max_rows_per_trigger`, `max_files_per_trigger`,
    `max_versions_per_trigger`. What of versions that change or remove rows: `on_change`, "fail", "skip" or "rewritten".
    How often a bucket is asked for new versions at most, whatever the trigger: `poll_seconds` (1; on a disk always).
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._pinned: tuple[int, str | None] | None = None

    @classmethod
    def name(cls) -> str:
        return "lance"

    def schema(self) -> StructType:
        from lance_assets.spark.types import spark_schema

        return spark_schema(self._plan(None).arrow)

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        return LanceReader(schema, self._plan(schema))

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceArrowWriter:
        from lance_assets.spark.types import stored_schema
        from lance_core import Committed
        from lance_core.tasks.write import (
            BYTES_PER_FILE_MAX,
            ROWS_PER_FILE_MAX,
            FileLimits,
            begin_append,
            begin_overwrite,
        )
        from lance_core.tasks.write_handle import WriteHandle

        said = self._format_options()
        said.refuse_audit("append(df, uri, audit=) or overwrite(df, uri, audit=) of lance_assets.spark")
        uri, incoming = said.uri, stored_schema(schema)
        limits = FileLimits(
            said.get_number("max_rows_per_file", ROWS_PER_FILE_MAX),
            said.get_number("max_bytes_per_file", BYTES_PER_FILE_MAX),
        )
        intent, branch, store = map(said.get_text, ("intent", "branch", "manifest_store"))
        if overwrite:
            planned = begin_overwrite(
                uri,
                incoming,
                replace_schema=said.get_flag("replace_schema", default=False),
                intent=intent,
                limits=limits,
                storage_options=said.storage,
                manifest_store=store,
                branch=branch,
            )
        else:
            planned = begin_append(
                uri,
                incoming,
                create=said.get_flag("create", default=True),
                intent=intent,
                limits=limits,
                storage_options=said.storage,
                manifest_store=store,
                branch=branch,
            )
        handed = None if isinstance(planned, Committed) else WriteHandle.of(planned, manifest_store=store)
        return LanceWriter(handed, said.properties)

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:
        from lance_assets.spark.streaming import stream_reader

        return stream_reader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamWriter:
        from lance_assets.spark.streaming_sink import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)

    def _plan(self, schema: StructType | None) -> "ReadPlan":
        """Of the version that this was first asked for; all copies made since agree on it."""
        from lance_assets.spark.types import spark_schema, transport_schema
        from lance_core.tasks.read import VersionRef, plan_read

        said = self._format_options()
        tag, branch, store = map(said.get_text, ("tag", "branch", "manifest_store"))
        version = said.get_number("version", None)
        if self._pinned is not None:
            (version, branch), tag = self._pinned, None
        bases = said.get_names("bases") or ()
        base = VersionRef(said.uri, version, tag, branch, said.storage, store, bases).snapshot()
        self._pinned = (int(base.version), base.manifest.branch)
        plan = plan_read(
            base,
            transport=transport_schema,
            slots=_ASSUMED_SLOTS,
            columns=said.get_names("columns") if schema is None else schema.fieldNames(),
            filter=said.get_text("filter"),
            with_row_id=schema is None and said.get_flag("with_row_id", default=False),
            with_row_address=schema is None and said.get_flag("with_row_address", default=False),
        )
        if schema is not None:
            check_same_types(spark_schema(plan.arrow), schema)
        return plan

    def _format_options(self) -> "FormatOptions":
        from lance_assets.spark.options import FormatOptions

        return FormatOptions(self.options)


class LancePartition(ds.InputPartition):
    def __init__(self, part: "ScanPartition") -> None:
        super().__init__(part)
        self.part = part

    def __repr__(self) -> str:
        return f"LancePartition({len(self.part.fragments)} fragments)"


class LanceReader(ds.DataSourceReader):
    """It must not have `pushFilters`; why is told in decision 1 of this package."""

    def __init__(self, schema: StructType, plan: "ReadPlan") -> None:
        self._schema = schema
        self._plan = plan

    def partitions(self) -> list[ds.InputPartition]:
        return [LancePartition(part) for part in self._plan.partitions]

    def read(self, partition: ds.InputPartition | None) -> "Iterator[pa.RecordBatch]":
        """Where there is nothing to read, Spark asks for one partition all the same."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from lance_assets.spark.worker_setup import set_up_worker

        if not isinstance(partition, LancePartition):
            return iter(())
        set_up_worker()
        return self._plan.work.read(partition.part, to_arrow_schema(self._schema, timezone="UTC"))

    def __getstate__(self) -> dict[str, object]:
        """Workers are given their parts one by one."""
        return {"_schema": self._schema, "_plan": self._plan.without_partitions()}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True, slots=True)
class LanceMessage(ds.WriterCommitMessage):
    encoded_result: bytes = field(repr=False)


class LanceWriter(ds.DataSourceArrowWriter):
    """Workers write files, one process commits them. Where the same intent has landed before, nothing is written."""

    def __init__(self, handed: "WriteHandle | None", properties: Mapping[str, str]) -> None:
        self._handed = handed
        self._properties = dict(properties)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> LanceMessage:
        from lance_assets.spark.worker_setup import set_up_worker

        set_up_worker()
        return LanceMessage(self._handed.write_batches(iterator) if self._handed else b"")

    def commit(self, messages: list[ds.WriterCommitMessage | None]) -> None:
        from lance_core import StorageError
        from lance_core.tasks.write_handle import combine_results

        if self._handed is None:
            return
        if not all(isinstance(message, LanceMessage) for message in messages):
            raise StorageError(f"{self._handed.plan.uri}: Spark gave back less than its tasks wrote; write again")
        written = [message.encoded_result for message in messages if isinstance(message, LanceMessage)]
        self._handed.to_planned_write().finish(combine_results(written), properties=self._properties)

    def abort(self, messages: list[ds.WriterCommitMessage | None]) -> None:
        """Nothing. Spark asks for it after a commit that failed too, which may have landed: its files may be in use.
        What no version names is cleaned up later."""


def check_same_types(stored: StructType, asked: StructType) -> None:
    """Of a schema that Spark was given for the columns: their names choose, their types must be what they are."""
    from lance_core import InvalidInput

    for ours, theirs in zip(stored, asked, strict=True):
        if ours.dataType.simpleString() != theirs.dataType.simpleString():
            raise InvalidInput(
                f"column {ours.name!r} is asked for as {theirs.dataType.simpleString()}, and it is "
                f"{ours.dataType.simpleString()} to Spark; ask for that, and cast it afterwards"
            )

"""`LanceIOManager`: stores the data frame that an asset returns as a Lance table, one version per materialization.

    returned frame -> Arrow -> overwrite (of the rows of its partitions, if the asset has any) or append -> one version
    annotated type <- Arrow <- the newest version, or the version that the input names

Frames of pyarrow, pandas and polars pass through this process, so they must fit into its memory; the rows of Spark
DataFrames stay in Spark. Declare a table with several writers, or with data that does not fit into memory, with
`lance_table` instead. `frames.py` converts the frames and `partition_predicates.py` maps partitions to rows. Each
version records its run, asset, partition and inputs (`provenance/run_provenance.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import dagster as dg
import pyarrow as pa
from pydantic import Field
from pyspark.sql import SparkSession

from lance_assets.failures.error_translation import translate_errors
from lance_assets.io_manager.frames import (
    Rows,
    Scan,
    frame_type_for,
    frame_type_of,
    is_spark_frame,
    is_spark_frame_type,
)
from lance_assets.io_manager.partition_predicates import PARTITION_EXPR, partition_predicate, replace_predicate
from lance_assets.io_manager.run_partitions import input_keys, output_keys, shown_keys
from lance_assets.ledger.ledger import BRANCH
from lance_assets.ledger.partition_keys import is_version_key, version_of
from lance_assets.ledger.version_metadata import committed_facts, metadata_of, metadata_of_retired
from lance_assets.lineage.render import without_credentials
from lance_assets.provenance.run_provenance import (
    committed_tag,
    inputs_of_step,
    open_for_run,
    properties_of_run,
    run_intent,
)
from lance_assets.resources.lance import Access, Creation, LanceResource, creation_of
from lance_assets.resources.literal_secrets import check_arguments
from lance_assets.resources.spark import SparkSessionResource, session_of
from lance_assets.spark import append, overwrite, read
from lance_assets.spark.types import stored_schema
from lance_core import Committed, InvalidInput, NotFound, Table
from lance_core.tasks.driver import NewTableOptions, TableRef, WriteOptions
from lance_core.tasks.partitioning import LocalRunner
from lance_core.tasks.rows.replace_where import overwrite_slice
from lance_core.tasks.rows.write import FileLimits, append_rows, overwrite_rows, stage_locally

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OVERWRITE, APPEND = "overwrite", "append"
URI, STORAGE_KIND = "dagster/uri", "dagster/storage_kind"
_MODES = (OVERWRITE, APPEND)


class LanceIOManager(dg.ConfigurableIOManager):
    """I/O manager that stores assets as Lance tables.

    >>> manager = LanceIOManager(storage=LanceResource(root="s3://lake"))
    >>> manager.uri_of(dg.AssetKey(["shop", "orders"]))
    's3://lake/shop/orders.lance'

    The metadata of an asset can set `partition_expr`, the column of its partitions; `mode`, "overwrite" or "append";
    `uri`, another location; `replace_schema`, whether an overwrite of the whole table takes the schema of the frame,
    which is the default except for DataFrames of Spark. The metadata of an input can set `columns`, `version` or `tag`,
    and `filter`: `AssetIn(metadata={"columns": ["id"], "version": 3})`. A table that `lance_table` declares is loaded
    from its own location. If the input's partition mapping is `LastPartitionMapping`, or an asset without partitions
    names no mapping, its newest version is loaded, whatever the ledger shows; otherwise the newest of the versions that
    the mapping selects.
    """

    storage: LanceResource | None = Field(default=None, description="Location of the tables and access to them.")
    mode: str = Field(default=OVERWRITE, description="Effect of a materialization: overwrite or append.")
    spark: SparkSessionResource | None = Field(
        default=None, description="Spark session for inputs that are DataFrames of Spark."
    )
    stable_row_ids: bool = Field(
        default=True, description="Give new tables stable row ids; an existing table keeps its kind of row ids."
    )
    storage_version: str | None = Field(
        default=None, description="Storage version of new tables, such as 2.1; 2.2 by default."
    )

    def __init__(self, **data: object) -> None:
        check_arguments("LanceIOManager", type(self).model_fields, data)
        super().__init__(**data)
        _check_mode(self.mode, "LanceIOManager")
        NewTableOptions(self.stable_row_ids, self.storage_version).new_table()

    def uri_of(self, key: dg.AssetKey) -> str:
        """Return the URI of an asset's table."""
        return self._resource.resolve_uri("/".join(key.path) + ".lance")

    @property
    def _resource(self) -> LanceResource:
        return self.storage or LanceResource()

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        target = self._target(context)
        with translate_errors(target, retry_number=context.step_context.previous_attempt_count):
            committed = _Output(self, context, target).write(obj)
        if retired := metadata_of_retired(committed):
            context.log.warning(f"{target.label}: {retired['lance/gone'].value}")
            context.add_output_metadata(retired)
            return
        step, branch = context.step_context, target.access["branch"]
        step.instance.add_run_tags(step.run_id, committed_tag(committed.table, branch, committed.version))
        facts = committed_facts(committed, incarnation=1)
        run_is_known = context.step_context.instance.has_run(facts.run_id) if facts.run_id else False
        metadata = metadata_of(facts, run_is_known=run_is_known, with_diagram=True)
        already_committed = dg.MetadataValue.bool(committed.already_committed)
        context.add_output_metadata({**metadata, "lance/landed_before": already_committed})

    def load_input(self, context: dg.InputContext) -> object:
        target = self._target(context)
        with translate_errors(target, retry_number=context.step_context.previous_attempt_count):
            scan = self._scan(context, target)
            step = context.step_context
            inputs_of_step(step.run_id, step.step.key).add((scan.table.uri, scan.table.version))
            # Dagster attaches metadata to an input of one partition, and raises for any other number.
            if not context.has_asset_partitions or len(context.asset_partition_keys) == 1:
                context.add_input_metadata({"lance/version": scan.table.version})
            else:
                context.log.info(f"{target.label}: the input {context.name!r} is version {scan.table.version}")
            annotation = context.dagster_type.typing_type
            if is_spark_frame_type(annotation):
                return self._spark_frame(scan, target)
            frame_type = frame_type_for(annotation)
            if frame_type is None and annotation not in (Any, type(None)):
                raise InvalidInput(
                    f"{target.label}: an input is annotated as {annotation}; annotate it as pyarrow.Table, "
                    "RecordBatchReader or RecordBatch, as a DataFrame of pandas, polars or Spark, as polars.LazyFrame, "
                    "or as lance_core.Table, which reads no rows yet"
                )
            return frame_type.from_scan(scan) if frame_type else scan.to_table()

    def _scan(self, context: dg.InputContext, target: "Target") -> Scan:
        metadata = context.definition_metadata or {}
        unknown = sorted(
            name for name in metadata if name not in ("columns", "version", "tag", "filter") and "/" not in name
        )
        if unknown:
            raise InvalidInput(
                f"{target.label}: the metadata of the input {context.name!r} has the unknown key {unknown[0]!r}; an "
                "input may set columns, version, tag and filter"
            )
        version, tag, condition = metadata.get("version"), metadata.get("tag"), metadata.get("filter")
        keys = input_keys(context) if context.has_asset_partitions else []
        if target.is_ledger and version is None and tag is None:
            table = self._open_version(context, target, keys)
        else:
            table = Table.open(target.uri, version=version, tag=tag, **target.access)
        if context.has_asset_partitions and not target.is_ledger:
            partition = _partition_predicate(
                target, context.asset_partitions_def, keys, table.schema, context.step_context.instance
            )
            condition = partition if condition is None else f"({partition}) and ({condition})"
        columns = metadata.get("columns")
        return Scan(table, None if columns is None else list(columns), condition)

    def _open_version(self, context: dg.InputContext, target: "Target", keys: Sequence[str]) -> Table:
        """Open a table of `lance_table` at the newest of the versions that the input selects.

        An input that selects no version by its key gets the newest version of the table, which the ledger may not show
        yet. Later inputs of the same run get the same version, or one that the run has committed since.
        """
        if keys and not _selects_newest(context):
            return target.open(version_of(max(filter(is_version_key, keys), default=max(keys))))
        step = context.step_context
        return open_for_run(step.instance, step.run_id, target.open(), target.open, branch=target.access["branch"])

    def _target(self, context: dg.OutputContext | dg.InputContext) -> "Target":
        if not context.has_asset_key:
            raise InvalidInput(
                "LanceIOManager stores assets, but this is an output of an op; return it from an asset, or use another "
                "I/O manager for the op"
            )
        output = context if isinstance(context, dg.OutputContext) else context.upstream_output
        metadata = (output.definition_metadata if output else None) or {}
        is_ledger = isinstance(context, dg.InputContext) and metadata.get(STORAGE_KIND) == "lance"
        uri = metadata.get(URI) if is_ledger else metadata.get("uri")
        return Target(
            label="/".join(context.asset_key.path),
            key=context.asset_key,
            uri=self._resource.resolve_uri(str(uri)) if uri else self.uri_of(context.asset_key),
            access=self._resource.access(metadata.get(BRANCH) if is_ledger else None),
            mode=_check_mode(str(metadata.get("mode", self.mode)), f"the asset {context.asset_key.to_user_string()}"),
            partition_columns=metadata.get(PARTITION_EXPR),
            replace_schema=metadata.get("replace_schema"),
            is_ledger=is_ledger,
        )

    def _spark_frame(self, scan: Scan, target: "Target") -> "DataFrame":
        session = session_of(self.spark) if self.spark else SparkSession.getActiveSession()
        if session is None:
            raise InvalidInput(
                f"{target.label}: an input is a DataFrame of Spark, but this process has no Spark session; give this "
                "I/O manager a resource that opens one: LanceIOManager(spark=SparkSessionResource())"
            )
        return read(
            session, target.uri, columns=scan.columns, filter=scan.filter, version=scan.table.version, **target.access
        )


@dataclass(frozen=True, slots=True)
class Target:
    """Table of an asset, with the options from the asset's metadata."""

    label: str
    key: dg.AssetKey
    uri: str
    access: Access = field(repr=False)
    mode: str
    partition_columns: Any = None
    """Column of the partitions, or a mapping with one column for each dimension."""
    replace_schema: object = None
    is_ledger: bool = False
    """True if `lance_table` declares the table: its partitions are then versions, not rows."""

    @property
    def shown_uri(self) -> str:
        return without_credentials(self.uri)

    def open(self, version: int | None = None) -> Table:
        return Table.open(self.uri, version=version, **self.access)


@dataclass(frozen=True, slots=True)
class _Output:
    """Write of one output."""

    manager: LanceIOManager
    context: dg.OutputContext
    target: Target

    def write(self, frame: object) -> Committed:
        """Commit the frame as a version of the target."""
        step = self.context.step_context
        if step.has_asset_partitions_for_output(self.context.name) and not self.context.has_asset_partitions:
            raise InvalidInput(
                f"the asset {self.target.label} has partitions, but this run names none, so its rows would replace "
                "those of every partition; launch it for a partition with a key that is not empty. Nothing was written"
            )
        if is_spark_frame(frame):
            return self._write_with_spark(frame)  # type: ignore[arg-type]
        frame_type = frame_type_of(frame)
        if frame_type is None:
            raise InvalidInput(
                f"the asset {self.target.label} returned a {type(frame).__name__}; return a pyarrow.Table, "
                "RecordBatchReader or RecordBatch, or a DataFrame of pandas, polars or Spark. An asset that writes its "
                "table itself must return a MaterializeResult and be annotated with it"
            )
        return self._write_locally(frame_type.to_arrow(frame))

    def _write_locally(self, rows: Rows) -> Committed:
        target = self.target
        table, stage = TableRef(target.uri, **target.access), stage_locally(rows)
        new_table = NewTableOptions(**self._creation())
        limits, options = FileLimits(), WriteOptions(**self._options())
        if target.mode == APPEND:
            return append_rows(table, rows.schema, stage, new_table=new_table, limits=limits, options=options)
        only = self._replace_predicate(rows.schema)
        if only is not None:
            return overwrite_slice(
                table,
                rows.schema,
                stage,
                only,
                new_table=new_table,
                limits=limits,
                options=options,
                runner=LocalRunner(),
            )
        replaces = target.replace_schema is not False
        return overwrite_rows(
            table,
            rows.schema,
            stage,
            replace_schema=replaces,
            new_table=new_table,
            limits=limits,
            options=options,
        )

    def _write_with_spark(self, frame: "DataFrame") -> Committed:
        target, creation = self.target, self._creation()
        if target.mode == APPEND:
            return append(frame, target.uri, **creation, **target.access, **self._options())
        only = self._replace_predicate(stored_schema(frame.schema))
        replaces = only is None and target.replace_schema is True
        return overwrite(
            frame,
            target.uri,
            where=only,
            replace_schema=replaces,
            **creation,
            **target.access,
            **self._options(),
        )

    def _creation(self) -> Creation:
        manager = self.manager
        declared = Creation(stable_row_ids=manager.stable_row_ids, storage_version=manager.storage_version)
        return creation_of(self.target.uri, self.target.access, declared)

    def _replace_predicate(self, incoming: pa.Schema) -> str | None:
        """Return the condition for the rows that this materialization replaces; `None` means all rows.

        Partition keys are parsed as the types of the table, or of the frame if the table does not exist yet.
        """
        if not self.context.has_asset_partitions:
            return None
        try:
            schema = Table.open(self.target.uri, **self.target.access).schema
        except NotFound:
            schema = incoming
        keys, instance = output_keys(self.context), self.context.step_context.instance
        return _partition_predicate(
            self.target, self.context.asset_partitions_def, keys, schema, instance, build=replace_predicate
        )

    def _options(self) -> "_OutputOptions":
        step, key = self.context.step_context, self.target.key
        partition = self._partition()
        intent = run_intent(step.instance, step.dagster_run, key, partition)
        inputs = inputs_of_step(step.run_id, step.step.key)
        return _OutputOptions(
            intent=intent, properties=properties_of_run(step.dagster_run, key, partition, intent, inputs)
        )

    def _partition(self) -> str | None:
        if not self.context.has_asset_partitions:
            return None
        return shown_keys(output_keys(self.context))


class _OutputOptions(TypedDict):
    intent: str
    properties: Mapping[str, str]


def _selects_newest(context: dg.InputContext) -> bool:
    """Return whether the input depends on the newest version, and not on the partitions that its keys name.

    Without a mapping, an asset without partitions depends on all versions, of which a frame can show only one.
    """
    definition = context.step_context.assets_def
    mapping = definition.get_partition_mapping(context.asset_key) if definition else None
    if mapping is None and definition is not None:
        return definition.partitions_def is None
    return isinstance(mapping, dg.LastPartitionMapping)


def _partition_predicate(
    target: Target,
    partitions: dg.PartitionsDefinition[str],
    keys: Sequence[str],
    schema: pa.Schema,
    instance: dg.DagsterInstance,
    *,
    build: Callable[..., str] = partition_predicate,
) -> str:
    if target.partition_columns is None:
        raise InvalidInput(
            f"the asset {target.label} has partitions but does not name their column; set "
            f"metadata={{{PARTITION_EXPR!r}: 'column'}}, so that a partition replaces only its own rows, or use the "
            "mode 'append'"
        )
    return build(
        partitions,
        keys,
        target.partition_columns,
        schema,
        subject=f"the asset {target.label}",
        list_keys=lambda definition: definition.get_partition_keys(dynamic_partitions_store=instance),
    )


def _check_mode(mode: str, subject: str) -> str:
    if mode not in _MODES:
        raise InvalidInput(f"{subject}: mode is {' or '.join(map(repr, _MODES))}, not {mode!r}")
    return mode

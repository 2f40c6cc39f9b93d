"""For assets that just return a frame: each is a Lance table, and each materialization one version of it.

    returned frame -> Arrow -> overwritten (its own slice, where the asset has partitions), or appended -> one version
    annotated type <- Arrow <- the newest version, or the one that the input names

Frames of pyarrow, pandas and polars pass through this process, and are for what fits into it; Spark's rows stay with
Spark. Tables with several writers, or rows that a machine cannot hold, are declared with `lance_table`. What a frame is
says `frames.py`, which rows are a partition's `slices.py`; the version notes run, asset, partition and inputs like any
other (`provenance/run_properties.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import dagster as dg
import pyarrow as pa
from pydantic import Field, PrivateAttr
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
from lance_assets.io_manager.partition_predicates import PARTITION_EXPR, partition_predicate
from lance_assets.ledger.partition_keys import version_of
from lance_assets.ledger.version_metadata import committed_facts, metadata_of, metadata_of_retired
from lance_assets.lineage.render import without_credentials
from lance_assets.provenance.run_intents import run_intent
from lance_assets.provenance.run_properties import properties_of_run
from lance_assets.resources.lance import Access, LanceResource
from lance_assets.resources.spark import SparkSessionResource, session_of
from lance_assets.spark import append, overwrite, read
from lance_assets.spark.types import stored_schema
from lance_core import Committed, InvalidInput, NotFound, Table
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.partitioning import LocalRunner
from lance_core.tasks.replace_where import overwrite_slice
from lance_core.tasks.write import FileLimits, append_rows, overwrite_rows, stage_locally

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OVERWRITE, APPEND = "overwrite", "append"
URI, STORAGE_KIND = "dagster/uri", "dagster/storage_kind"
_MODES = (OVERWRITE, APPEND)
_STEPS_CACHED_MAX = 100


class LanceIOManager(dg.ConfigurableIOManager):
    """
    >>> manager = LanceIOManager(storage=LanceResource(root="s3://lake"))
    >>> manager.place(dg.AssetKey(["shop", "orders"]))
    's3://lake/shop/orders.lance'

    An asset says in its metadata what is special about it: `partition_expr`, the column that its partitions are of;
    `mode`, "overwrite" or "append"; `uri`, another place; `replace_schema`, whether an overwrite of everything takes
    the schema of the frame, which it does unless that is Spark's. An input says `columns`, `version` or `tag`, and
    `filter`: `AssetIn(metadata={"columns": ["id"], "version": 3})`. A table that `lance_table` declares is loaded from
    where it is, at the newest of the versions that the input's partition mapping gives.
    """

    storage: LanceResource | None = Field(default=None, description="Where tables are, and how they are reached.")
    mode: str = Field(default=OVERWRITE, description="What a materialization does: overwrite, or append.")
    spark: SparkSessionResource | None = Field(default=None, description="For inputs that are DataFrames of Spark.")

    _inputs_read: dict[tuple[str, str], set[tuple[str, int]]] = PrivateAttr(default_factory=dict)
    """By run and step: the tables that were loaded, and their versions."""

    def __init__(self, **data: object) -> None:
        super().__init__(**data)
        _check_mode(self.mode, "LanceIOManager")

    def uri_of(self, key: dg.AssetKey) -> str:
        return self._resource.resolve_uri("/".join(key.path) + ".lance")

    @property
    def _resource(self) -> LanceResource:
        return self.storage or LanceResource()

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        target = self._target(context)
        with translate_errors(target, retry_number=context.step_context.previous_attempt_count):
            committed = _Output(self, context, target).write(obj)
        if gone := metadata_of_retired(committed):
            context.log.warning(f"{target.label}: {gone['lance/gone'].value}")
            context.add_output_metadata(gone)
            return
        facts = committed_facts(committed, incarnation=1)
        known = context.step_context.instance.has_run(facts.run_id) if facts.run_id else False
        landed = {"lance/landed_before": dg.MetadataValue.bool(committed.already_committed)}
        context.add_output_metadata({**metadata_of(facts, run_is_known=known, with_diagram=True), **landed})

    def load_input(self, context: dg.InputContext) -> object:
        target = self._target(context)
        with translate_errors(target, retry_number=context.step_context.previous_attempt_count):
            scan = self._scan(context, target)
            step = (context.step_context.run_id, context.step_context.step.key)
            self.inputs_read_by(*step).add((scan.table.uri, scan.table.version))
            context.add_input_metadata({"lance/version": scan.table.version})
            wanted = context.dagster_type.typing_type
            if is_spark_frame_type(wanted):
                return self._spark_frame(scan, target)
            kind = frame_type_for(wanted)
            if kind is None and wanted not in (Any, type(None)):
                raise InvalidInput(
                    f"{target.label}: an input is annotated as {wanted}; a Lance table is loaded as pyarrow.Table, "
                    "RecordBatchReader or RecordBatch, a DataFrame of pandas, polars or Spark, polars.LazyFrame, or as "
                    "lance_core.Table, which reads nothing yet"
                )
            return kind.from_scan(scan) if kind else scan.to_table()

    def _scan(self, context: dg.InputContext, target: "Target") -> Scan:
        asked = context.definition_metadata or {}
        unknown = sorted(
            name for name in asked if name not in ("columns", "version", "tag", "filter") and "/" not in name
        )
        if unknown:
            raise InvalidInput(
                f"{target.label}: the metadata of the input {context.name!r} has {unknown[0]!r}; an input may say "
                "columns, version, tag and filter"
            )
        version, tag, condition = asked.get("version"), asked.get("tag"), asked.get("filter")
        keys = list(context.asset_partition_keys) if context.has_asset_partitions else []
        if target.is_ledger and keys and version is None and tag is None:
            version = version_of(max(keys))
        table = Table.open(target.uri, version=version, tag=tag, **target.access)
        if context.has_asset_partitions and not target.is_ledger:
            rows = _partition_predicate(target, context.asset_partitions_def, keys, table.schema)
            condition = rows if condition is None else f"({rows}) and ({condition})"
        columns = asked.get("columns")
        return Scan(table, None if columns is None else list(columns), condition)

    def _target(self, context: dg.OutputContext | dg.InputContext) -> "Target":
        if not context.has_asset_key:
            raise InvalidInput(
                "LanceIOManager keeps assets, and this is an output of an op; return it from an asset, or give the op "
                "another io manager"
            )
        output = context if isinstance(context, dg.OutputContext) else context.upstream_output
        about = (output.definition_metadata if output else None) or {}
        is_ledger = isinstance(context, dg.InputContext) and about.get(STORAGE_KIND) == "lance"
        where = about.get(URI) if is_ledger else about.get("uri")
        return Target(
            label="/".join(context.asset_key.path),
            key=context.asset_key,
            uri=self._resource.resolve_uri(str(where)) if where else self.uri_of(context.asset_key),
            access=self._resource.access(),
            mode=_check_mode(str(about.get("mode", self.mode)), f"the asset {context.asset_key.to_user_string()}"),
            partition_columns=about.get(PARTITION_EXPR),
            replace_schema=about.get("replace_schema"),
            is_ledger=is_ledger,
        )

    def inputs_read_by(self, run_id: str, step: str) -> set[tuple[str, int]]:
        """What a step has loaded so far."""
        while len(self._inputs_read) > _STEPS_CACHED_MAX:
            del self._inputs_read[next(iter(self._inputs_read))]
        return self._inputs_read.setdefault((run_id, step), set())

    def _spark_frame(self, scan: Scan, target: "Target") -> "DataFrame":
        session = session_of(self.spark) if self.spark else SparkSession.getActiveSession()
        if session is None:
            raise InvalidInput(
                f"{target.label}: an input is a DataFrame of Spark, and nobody has opened a session in this process; "
                "give this io manager the resource that does: LanceIOManager(spark=SparkSessionResource())"
            )
        return read(
            session, target.uri, columns=scan.columns, filter=scan.filter, version=scan.table.version, **target.access
        )


@dataclass(frozen=True, slots=True)
class Target:
    """The table of an asset."""

    label: str
    key: dg.AssetKey
    uri: str
    access: Access = field(repr=False)
    mode: str
    partition_columns: Any = None
    """The column that partitions are of, or one for each dimension."""
    replace_schema: object = None
    is_ledger: bool = False
    """Declared by `lance_table`, so that its partitions are versions and not rows."""

    @property
    def shown_uri(self) -> str:
        return without_credentials(self.uri)

    def open(self, version: int | None = None) -> Table:
        return Table.open(self.uri, version=version, **self.access)


@dataclass(frozen=True, slots=True)
class _Output:
    manager: LanceIOManager
    context: dg.OutputContext
    target: Target

    def write(self, frame: object) -> Committed:
        if is_spark_frame(frame):
            return self._write_with_spark(frame)  # type: ignore[arg-type]
        kind = frame_type_of(frame)
        if kind is None:
            raise InvalidInput(
                f"the asset {self.target.label} returned a {type(frame).__name__}; return a pyarrow.Table, "
                "RecordBatchReader or RecordBatch, or a DataFrame of pandas, polars or Spark. An asset that writes by "
                "itself returns a MaterializeResult, and is annotated so"
            )
        return self._write_locally(kind.to_arrow(frame))

    def _write_locally(self, rows: Rows) -> Committed:
        target = self.target
        table, stage = TableRef(target.uri, **target.access), stage_locally(rows)
        limits, options = FileLimits(), WriteOptions(**self._options())
        if target.mode == APPEND:
            return append_rows(table, rows.schema, stage, limits=limits, options=options)
        only = self._replace_predicate(rows.schema)
        if only is not None:
            return overwrite_slice(
                table, rows.schema, stage, only, limits=limits, options=options, runner=LocalRunner()
            )
        replaces = target.replace_schema is not False
        return overwrite_rows(table, rows.schema, stage, replace_schema=replaces, limits=limits, options=options)

    def _write_with_spark(self, frame: "DataFrame") -> Committed:
        target = self.target
        if target.mode == APPEND:
            return append(frame, target.uri, **target.access, **self._options())
        only = self._replace_predicate(stored_schema(frame.schema))
        replaces = only is None and target.replace_schema is True
        return overwrite(frame, target.uri, where=only, replace_schema=replaces, **target.access, **self._options())

    def _replace_predicate(self, incoming: pa.Schema) -> str | None:
        """The rows that are this materialization's alone. The table's types count; a new one will have those that
        come."""
        if not self.context.has_asset_partitions:
            return None
        try:
            schema = Table.open(self.target.uri, **self.target.access).schema
        except NotFound:
            schema = incoming
        return _partition_predicate(
            self.target, self.context.asset_partitions_def, list(self.context.asset_partition_keys), schema
        )

    def _options(self) -> "_OutputOptions":
        step, key = self.context.step_context, self.target.key
        partition = self._partition()
        intent = run_intent(step.instance, step.dagster_run, key, partition)
        inputs = self.manager.inputs_read_by(step.run_id, step.step.key)
        return _OutputOptions(
            intent=intent, properties=properties_of_run(step.dagster_run, key, partition, intent, inputs)
        )

    def _partition(self) -> str | None:
        if not self.context.has_asset_partitions:
            return None
        keys = self.context.asset_partition_keys
        return keys[0] if len(keys) == 1 else f"{keys[0]}...{keys[-1]}"


class _OutputOptions(TypedDict):
    intent: str
    properties: Mapping[str, str]


def _partition_predicate(
    target: Target, partitions: dg.PartitionsDefinition[str], keys: Sequence[str], schema: pa.Schema
) -> str:
    if target.partition_columns is None:
        raise InvalidInput(
            f"the asset {target.label} has partitions, and does not say which column they are of; give it "
            f"metadata={{{PARTITION_EXPR!r}: 'column'}}, so that a partition replaces its own rows and no others, or "
            "mode 'append'"
        )
    return partition_predicate(partitions, keys, target.partition_columns, schema, subject=f"the asset {target.label}")


def _check_mode(mode: str, what: str) -> str:
    if mode not in _MODES:
        raise InvalidInput(f"{what}: mode is {' or '.join(map(repr, _MODES))}, not {mode!r}")
    return mode

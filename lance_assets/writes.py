"""Write assets: a function that makes a Spark DataFrame, and what becomes of it, from intention to recorded version.

    intent -> fn(spark, ctx) -> append -> record on the ledger -> result

The function only says what the rows are. Committing, recording and retrying are here, so that no asset can forget the
properties that tie a version to its run. Start at `SparkAppend`, then `append_asset`.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import dagster as dg

from lance_assets.epochs import epoch_of
from lance_assets.failures import lance_errors
from lance_assets.intents import partition_intent, run_intent
from lance_assets.ledger import Ledger, check_word
from lance_assets.metadata import (
    ASSET_KEY,
    CODE_LOCATION,
    INPUTS,
    INTENT,
    PARTITION,
    RUN_ID,
    committed_facts,
    metadata_of,
)
from lance_assets.recording import Standing, record_in_run
from lance_assets.resources import SPARK, session_of
from lance_assets.spark import append, read
from lance_core import Committed, InvalidInput, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOCATION_TAG = "dagster/code_location"
"""On runs that a webserver or the daemon launched."""


class TableReference(Protocol):
    """A table to read from: a `LanceTable`."""

    @property
    def uri(self) -> str: ...
    def options(self) -> Mapping[str, str]: ...


@dataclass(slots=True)
class WriteContext:
    """What a write's function gets to know, and its way to read other tables."""

    spark: "SparkSession"
    dagster: dg.AssetExecutionContext
    partition_key: str | None
    inputs: dict[str, int] = field(default_factory=dict)
    """The tables read so far and their versions; they are noted in the transaction."""

    @property
    def log(self) -> dg.DagsterLogManager:
        return self.dagster.log

    def read(
        self, table: TableReference | str, version: int | None = None, *, columns: Sequence[str] | None = None
    ) -> "DataFrame":
        """One version of a Lance table: the one named, else the newest, which then stays the same for this write."""
        uri, options = (table, {}) if isinstance(table, str) else (table.uri, table.options())
        wanted = version or self.inputs.get(Table.open(uri, storage_options=options).uri)
        opened = Table.open(uri, version=wanted, storage_options=options)
        if self.inputs.setdefault(opened.uri, opened.version) != opened.version:
            raise InvalidInput(
                f"this write has read version {self.inputs[opened.uri]} of {opened.uri} already and now asks for "
                f"version {opened.version}; read one version of a table in one write, so that its inputs are clear"
            )
        return read(self.spark, uri, columns=columns, version=opened.version, storage_options=options)


@dataclass(frozen=True, slots=True)
class SparkAppend:
    """Append what `fn` returns, as one version.

    `once_per="run"`: a retried run, or one executed again because it had failed, does not append again; a deliberate
    new one does. `once_per="partition"`: the rows of a partition land once, ever; materialising it again reports the
    version that holds them.
    """

    name: str
    fn: "Callable[[SparkSession, WriteContext], DataFrame]"
    deps: Iterable[dg.AssetKey | dg.AssetDep | dg.AssetSpec | dg.AssetsDefinition | str | Sequence[str]] = ()
    partitions: dg.PartitionsDefinition[str] | None = None
    once_per: Literal["run", "partition"] = "run"
    description: str | None = None
    code_version: str | None = None
    tags: Mapping[str, str] | None = None
    retry_policy: dg.RetryPolicy | None = None
    """For errors of `fn` and of Spark; conflicts are retried without it."""

    def __post_init__(self) -> None:
        check_word(self.name, what="a write's name")
        if not callable(self.fn):
            raise InvalidInput(f"SparkAppend({self.name!r}): fn must be a function (spark, ctx) -> Spark DataFrame")
        if self.once_per not in ("run", "partition"):
            raise InvalidInput(f"SparkAppend({self.name!r}): once_per is 'run' or 'partition', not {self.once_per!r}")
        if self.once_per == "partition" and self.partitions is None:
            raise InvalidInput(f"SparkAppend({self.name!r}): once_per='partition' needs partitions=")


def write_key(ledger: Ledger, write: SparkAppend) -> dg.AssetKey:
    return dg.AssetKey([*ledger.prefix, write.name])


def append_asset(ledger: Ledger, write: SparkAppend, *, group: str) -> dg.AssetsDefinition:
    @dg.asset(
        key=write_key(ledger, write),
        deps=write.deps,
        partitions_def=write.partitions,
        group_name=group,
        kinds={"spark", "lance"},
        tags=write.tags,
        description=write.description or f"Appends rows to the Lance table {ledger.label}.",
        code_version=write.code_version,
        retry_policy=write.retry_policy,
        required_resource_keys={SPARK},
        pool=ledger.pool,
    )
    def asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        with lance_errors(ledger, retry_number=context.retry_number):
            committed = _append(context, ledger, write)
            return _recorded(context, ledger, committed)

    return asset


def _append(context: dg.AssetExecutionContext, ledger: Ledger, write: SparkAppend) -> Committed:
    partition = _partition(context, write)
    key = write_key(ledger, write)
    if write.once_per == "partition" and partition is not None:
        intent = partition_intent(key, partition)
    else:
        intent = run_intent(context.instance, context.run, key, partition)
    writing = WriteContext(session_of(getattr(context.resources, SPARK)), context, partition)
    frame = _checked(write.fn(writing.spark, writing), write)
    return append(
        frame,
        ledger.uri,
        intent=intent,
        properties=_properties(context, key, partition, intent, writing.inputs),
        storage_options=ledger.options(),
    )


def _recorded(context: dg.AssetExecutionContext, ledger: Ledger, committed: Committed) -> dg.MaterializeResult[None]:
    if committed.operation == "Append" and committed.files == 0:
        context.log.info(f"{ledger.label}: no rows, so there is no new version; it stays at {committed.version}")
        nothing = {
            "lance/rows_added": dg.MetadataValue.int(0),
            "lance/version": dg.MetadataValue.int(committed.version),
        }
        return dg.MaterializeResult(metadata=nothing)
    if committed.table.version != committed.version:
        context.log.warning(
            f"{ledger.label}: these rows landed as version {committed.version}, which cleanup has retired since; "
            "nothing was written now, and there is no partition to record"
        )
        retired = {
            "lance/version": dg.MetadataValue.int(committed.version),
            "lance/landed_before": dg.MetadataValue.bool(True),
        }
        return dg.MaterializeResult(metadata=retired)
    facts = committed_facts(committed, epoch_of(context.instance, ledger, committed.table.id))
    known = facts.run_id is not None and context.instance.has_run(facts.run_id)
    stood = record_in_run(context, ledger, facts)
    # Where the partition holds another version, this one has none.
    where = {} if stood is Standing.TAKEN else {"lance/partition": dg.MetadataValue.text(facts.partition)}
    if committed.landed_before:
        context.log.info(
            f"{ledger.label}: these rows landed before, as version {facts.version}; nothing was written now"
        )
    return dg.MaterializeResult(
        metadata={
            **metadata_of(facts, run_is_known=known),
            **where,
            "lance/landed_before": dg.MetadataValue.bool(committed.landed_before),
        },
        data_version=dg.DataVersion(facts.data_version),
    )


def _partition(context: dg.AssetExecutionContext, write: SparkAppend) -> str | None:
    if write.partitions is None:
        return None
    if not context.has_partition_key:
        raise InvalidInput(
            f"{write.name} makes one version for one partition, and this run names none, or a range of them; "
            "launch it for one partition, or as a backfill with one run a partition"
        )
    return str(context.partition_key)


def _properties(
    context: dg.AssetExecutionContext,
    key: dg.AssetKey,
    partition: str | None,
    intent: str,
    inputs: Mapping[str, int],
) -> dict[str, str]:
    properties = {RUN_ID: context.run.run_id, ASSET_KEY: key.to_user_string(), INTENT: intent}
    if partition is not None:
        properties[PARTITION] = partition
    if location := context.run.tags.get(_LOCATION_TAG):
        properties[CODE_LOCATION] = location
    if inputs:
        properties[INPUTS] = json.dumps(inputs, sort_keys=True)
    return properties


def _checked(frame: object, write: SparkAppend) -> "DataFrame":
    """Classic and Spark Connect frames alike."""
    if not (hasattr(frame, "mapInArrow") and hasattr(frame, "schema")):
        raise InvalidInput(f"the function of {write.name} must return a Spark DataFrame, not {type(frame).__name__}")
    return frame  # type: ignore[return-value]

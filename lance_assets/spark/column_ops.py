"""New columns for Lance tables: computed by a function in the workers, or taken from a DataFrame.

No file that is there is touched: each fragment gets one more, with the new columns alone, and all of them are seen in
one version. A function is given rows that never were in the JVM; a DataFrame's are sorted and joined by it, and written
as they come. What is checked, written and committed is decided in `lance_core.tasks`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lance_assets.spark.arrow_bridge import map_in_arrow
from lance_assets.spark.jobs import (
    FRAGMENT_RESULT_SCHEMA,
    PARTITION_RESULT_SCHEMA,
    SparkRunner,
    count_task_slots,
    partition_numbers,
)
from lance_assets.spark.session import classic_context
from lance_assets.spark.types import spark_schema, stored_schema, transport_schema
from lance_assets.spark.worker_setup import WorkerTask
from lance_core import Committed, InvalidInput
from lance_core.tasks import map_columns as mapping
from lance_core.tasks import merge_columns as merging
from lance_core.tasks import remote_errors
from lance_core.tasks.driver import ATTEMPTS, Audit, ManifestStore, TableRef, WriteOptions
from lance_core.tasks.fill_by_address import FillTask, KeysTask, runs
from lance_core.tasks.partitioning import Task
from lance_core.tasks.write import WriteTask

NewSchema: TypeAlias = pa.Schema | T.StructType
_ADDRESS = "_rowaddr"
_RUNS_MAX = 100
_UNKNOWN_BYTES = 2**62
"""Where Spark knows nothing it says a number near the largest."""
_FRAGMENT_BITS = 32
_COUNT, _TWICE = "rows_with_this_key", "key that is there twice: "


def map_columns(
    spark: SparkSession,
    uri: str,
    fn: Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table],
    *,
    read_columns: Sequence[str] | None,
    schema: NewSchema,
    resume_key: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
) -> Committed:
    """Columns of `schema` that `fn` computes: it is given Arrow batches of `read_columns` (None: of all), and returns
    one with a row for each, in their order. It runs in the workers, one task a fragment; deleted rows are not shown.

    With a `resume_key` each finished fragment is noted, and the same key again does only what is left: fragments whose
    files or read columns have changed since are done again. A key lands once, like an intent, and is one if none is
    given. Others may append, delete, update or compact meanwhile: what is new to the table is filled before the
    commit. `progress` is told how many fragments are done, and of how many, from a thread of its own.
    """
    return mapping.map_columns(
        TableRef(uri, branch, storage_options, manifest_store),
        mapping.Computation(fn, read_columns, _as_arrow_schema(schema)),
        resume_key=resume_key,
        progress=progress,
        how=WriteOptions(intent, properties, retries, audit),
        runner=SparkRunner(spark),
    )


def merge_columns(
    df: DataFrame,
    uri: str,
    *,
    on: str | Sequence[str] = _ADDRESS,
    schema: NewSchema | None = None,
    missing: str | None = None,
    version: int | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
) -> Committed:
    """All columns of `df` but those of `on` become columns of the table, in the types of `schema` where it is given:
    Spark knows no fixed sizes. A column of vectors may be binary, the bytes of its numbers; lists are slower.

    On `_rowaddr`, a value for every row of the version that the addresses are of (`version`; the newest if not given):
    a row without one is an error, or null with `missing="null"`. Addresses that are doubled, of deleted rows or of
    another version are errors, and so are rows that others added, moved or compacted meanwhile.

    On keys, rows of the table without a partner are null, and null keys have none. A key of the table that `df` has
    twice is an error. `df` is computed once more for rows that others add meanwhile.
    """
    return merging.merge_columns(
        TableRef(uri, branch, storage_options, manifest_store),
        _SparkSource(df),
        merging.MergeRequest.of(on, None if schema is None else _as_arrow_schema(schema), missing, version),
        how=WriteOptions(intent, properties, retries, audit),
    )


@dataclass(frozen=True, slots=True)
class _SparkSource:
    df: DataFrame

    @property
    def schema(self) -> pa.Schema:
        return stored_schema(self.df.schema)

    @property
    def slots(self) -> int:
        return count_task_slots(self.df.sparkSession)

    def transport(self, schema: pa.Schema) -> pa.Schema:
        return transport_schema(schema)

    def run(self, task: Task, parts: int) -> pa.Table:
        return SparkRunner(self.df.sparkSession).run(task, parts)

    def estimated_bytes(self) -> int | None:
        """Spark Connect tells nothing."""
        if classic_context(self.df.sparkSession) is None:
            return None
        told = int(str(self.df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
        return told if told < _UNKNOWN_BYTES else None

    def stage(self, keys: Sequence[str], values: Sequence[str], task: WriteTask) -> pa.Table:
        names = task.plan.schema.arrow.names
        columns = [_column_named(name).alias(as_) for name, as_ in zip([*keys, *values], names, strict=True)]
        return map_in_arrow(self.df.select(*columns), task, FRAGMENT_RESULT_SCHEMA)

    def by_address(self, values: Sequence[str], task: FillTask) -> pa.Table:
        rows = self.df.select(_column_named(_ADDRESS).cast("bigint").alias(_ADDRESS), *map(_column_named, values))
        return _fill_fragments(rows, task)

    def by_key(self, keys: Sequence[str], values: Sequence[str], there: KeysTask, task: FillTask) -> pa.Table:
        parts = partition_numbers(self.df.sparkSession, len(there.parts), there.memory_bytes)
        found = parts.mapInArrow(WorkerTask(there), spark_schema(there.schema))
        ours = found.toDF(*(f"table_{place}" for place in range(len(keys))), _ADDRESS)
        kinds = [there.transport.field(place).type for place in range(len(keys))]
        ours = ours.withColumns(
            {f"table_{at}": _normalized_key(F.col(f"table_{at}"), kind) for at, kind in enumerate(kinds)}
        )
        theirs = self.df.select(
            *(
                _normalized_key(_column_named(name), kind).alias(f"key_{at}")
                for at, (name, kind) in enumerate(zip(keys, kinds, strict=True))
            ),
            *(_column_named(name).alias(f"value_{at}") for at, name in enumerate(values)),
        )
        equal = [ours[f"table_{at}"] == theirs[f"key_{at}"] for at in range(len(keys))]
        joined = ours.join(_with_unique_keys(theirs, keys), equal, "inner")
        try:
            return _fill_fragments(joined.select(_ADDRESS, *(f"value_{at}" for at in range(len(values)))), task)
        except PySparkException as error:
            if refused := remote_errors.error_in_traceback(str(error)):
                raise refused from None
            if (key := _duplicate_key_in(error)) is None:
                raise
            raise InvalidInput(
                f"{there.whole.uri}: the data has the key {key} more than once. Which of its rows is meant cannot be "
                "told; keep one of each"
            ) from None


def _fill_fragments(rows: DataFrame, task: FillTask) -> pa.Table:
    """All rows of a fragment in one partition, and by number where Spark's hash would put some together."""
    fragments = sorted(task.fragments)
    fragment = F.shiftrightunsigned(F.col(_ADDRESS), _FRAGMENT_BITS)
    place = fragment
    steps = runs(fragments)
    if len(steps) <= _RUNS_MAX:
        for first, last, before in steps:
            place = F.when(fragment.between(first, last), fragment - (first - before)).otherwise(place)
    partition = F.coalesce(F.pmod(place, F.lit(len(fragments))), F.lit(0)).cast("int")
    ordered = rows.repartitionById(len(fragments), partition).sortWithinPartitions(_ADDRESS)
    return map_in_arrow(ordered, task, PARTITION_RESULT_SCHEMA)


def _normalized_key(key: Column, kind: pa.DataType) -> Column:
    """What counts as equal is what Lance counts: to Spark the two zeros of floating point are one key."""
    return key.cast("double").cast("string") if pa.types.is_floating(kind) else key


def _with_unique_keys(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The rows that have a key; the job fails where two have the same one, whether the table has it or not. The join
    wants them spread and sorted in the same way, so that this costs it no shuffle more."""
    columns = [F.col(f"key_{at}") for at in range(len(keys))]
    named = F.concat_ws(
        " and ", *(F.concat(F.lit(f"{name} = "), key.cast("string")) for name, key in zip(keys, columns, strict=True))
    )
    count = F.count(F.lit(1)).over(Window.partitionBy(*columns))
    once = F.when(F.col(_COUNT) > 1, F.raise_error(F.concat(F.lit(_TWICE), named)).cast("boolean")).otherwise(True)
    return rows.dropna(subset=[f"key_{at}" for at in range(len(keys))]).withColumn(_COUNT, count).where(once)


def _duplicate_key_in(error: PySparkException) -> str | None:
    """The key that a job failed about."""
    if error.getCondition() != "USER_RAISED_EXCEPTION":
        return None
    told = (error.getMessageParameters() or {}).get("errorMessage", "")
    return told.removeprefix(_TWICE) if told.startswith(_TWICE) else None


def _column_named(name: str) -> Column:
    """A column of this name, dots and all."""
    return F.col(f"`{name.replace('`', '``')}`")


def _as_arrow_schema(schema: NewSchema) -> pa.Schema:
    return stored_schema(schema) if isinstance(schema, T.StructType) else schema

"""Column operations: add columns to Lance tables, computed by a function in the workers or taken from a DataFrame.

Existing data files stay unchanged: each fragment gets one more file with the new columns, and one version publishes all
of them. The rows that a function receives never pass through the JVM. The rows of a DataFrame are sorted and joined by
Spark and then written by the workers. `lance_core.tasks` decides about checks, files and the commit. Start with
`map_columns`, then `merge_columns`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lance_assets.spark.arguments import check_frame_call, check_session_call
from lance_assets.spark.arrow_bridge import map_in_arrow
from lance_assets.spark.jobs import (
    FRAGMENT_RESULT_SCHEMA,
    PARTITION_RESULT_SCHEMA,
    SparkRunner,
    count_task_slots,
    partition_numbers,
)
from lance_assets.spark.release import error_condition, repartition_by_id
from lance_assets.spark.session import classic_context
from lance_assets.spark.stage_progress import report_stages
from lance_assets.spark.types import spark_schema, stored_schema, transport_schema
from lance_assets.spark.worker_setup import WorkerTask
from lance_core import Committed, InvalidInput
from lance_core.progress import ProgressArgument, reporting
from lance_core.tasks import remote_errors
from lance_core.tasks.columns import map_columns as mapping
from lance_core.tasks.columns import merge_columns as merging
from lance_core.tasks.columns.fill_by_address import FillTask, KeysTask, consecutive_runs
from lance_core.tasks.driver import ATTEMPTS, Audit, ManifestStore, TableRef, WriteOptions
from lance_core.tasks.partitioning import Task
from lance_core.tasks.rows.write import WriteTask

NewSchema: TypeAlias = pa.Schema | T.StructType
_ADDRESS = "_rowaddr"
_RUNS_MAX = 100
_UNKNOWN_BYTES = 2**62
"""Spark's size estimate is close to the largest integer if it knows nothing about a plan."""
_FRAGMENT_BITS = 32
_KEY_COUNT = "rows_with_this_key"
_DUPLICATE_KEY = "duplicate key: "
"""Prefix of the error that a job raises for a duplicate key."""


def map_columns(
    spark: SparkSession,
    uri: str,
    fn: Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table],
    *,
    read_columns: Sequence[str] | None,
    schema: NewSchema,
    resume_key: str | None = None,
    progress: ProgressArgument | Callable[[int, int], None] | None = False,
    mode: mapping.Mode = "add",
    where: str | pc.Expression | None = None,
    code_version: str | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    verify: str = "off",
    trusted: bool = True,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
) -> Committed:
    """Add the columns of `schema`, computed by `fn`, or compute them again.

    `fn` receives Arrow batches of `read_columns` (`None` means all columns) and returns a batch with one row for each
    row, in the same order. It runs in the workers, one task per fragment, and does not receive deleted rows.

    `mode="add"` refuses columns that exist. `"recompute"` replaces their values in all rows, and `"fill"` computes only
    rows in which one of them is null, and keeps all other values; columns that do not exist yet are added. `where`
    restricts each mode to the rows that match: the others keep their values, or have null in new columns. Rows never
    move. A fragment in which no value changes gets no file and keeps the coverage of its indices; if there is no other
    fragment, no version is committed. Types stay as they are stored. `code_version` names the version of `fn`: the
    version of the table records it, and a `resume_key` belongs to one code version.

    With a `resume_key`, each finished fragment is recorded, and a call with the same key computes the missing
    fragments only. Fragments whose files or read columns have changed since are computed again. A key commits at most
    one version, like an intent, and serves as the intent if none is given. Other writers may append, delete, update
    or compact meanwhile: fragments that are new to the table are filled before the commit.

    `progress=True` shows a bar or writes to the log, by stage; a function receives each report. A function of two
    arguments is called from a separate thread with the number of finished fragments and their total.
    """
    check_session_call("map_columns", spark, uri, storage_options, manifest_store, more=", fn")
    receive, count_fragments = _progress_forms(progress)
    with reporting(receive, "map_columns"):
        return mapping.map_columns(
            TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted),
            mapping.Computation(fn, read_columns, _as_arrow_schema(schema), mode, where, code_version),
            resume_key=resume_key,
            progress=count_fragments,
            options=WriteOptions(intent, properties, retries, audit),
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
    replace: bool = False,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    verify: str = "off",
    trusted: bool = True,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    progress: ProgressArgument = False,
) -> Committed:
    """Add the columns of `df`, except those of `on`, to the table by joining on `on`.

    `schema` gives the types of the new columns; it is needed for types that Spark lacks, such as fixed sizes. A vector
    column may be binary in `df`, with the bytes of its numbers; lists are slower.

    `on="_rowaddr"` joins by row address. `df` needs a value for every row of the version that the addresses belong to
    (`version`; by default the newest). A missing row is an error, or null with `missing="null"`. Duplicate addresses
    and addresses of deleted rows or of another version are errors, and so are rows that other writers added, moved or
    compacted meanwhile.

    Any other `on` joins by key columns. Rows of the table without a match get nulls, and null keys match nothing. A
    key of the table that occurs twice in `df` is an error. `df` is computed again for rows that other writers add
    meanwhile.

    With `replace=True`, columns that exist get the values of `df` in the rows with a match, and all other rows keep
    theirs; new columns are null in them. Rows never move, and types stay as they are stored. By row address, `df` then
    needs no value for every row, and only concurrent changes that move rows with a value are errors.

    `progress=True` shows a bar or writes to the log, by stage; a function receives each report.
    """
    check_frame_call("merge_columns", df, uri, storage_options, manifest_store)
    with reporting(progress, "merge_columns"):
        return merging.merge_columns(
            TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted),
            _SparkSource(df),
            merging.MergeRequest.of(
                on, None if schema is None else _as_arrow_schema(schema), missing, version, replace=replace
            ),
            options=WriteOptions(intent, properties, retries, audit),
        )


def _progress_forms(
    progress: ProgressArgument | Callable[[int, int], None] | None,
) -> tuple[ProgressArgument, Callable[[int, int], None] | None]:
    """Return the receiver of reports by stage, and the function that is called with numbers of fragments."""
    if progress is None or isinstance(progress, bool) or not _takes_two(progress):
        return cast("ProgressArgument", progress or False), None
    return False, cast("Callable[[int, int], None]", progress)


def _takes_two(function: Callable[..., object]) -> bool:
    """Return whether a function needs two arguments; a function whose arguments are unknown does not."""
    try:
        parameters = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    return _accepts(parameters, 2) and not _accepts(parameters, 1)


def _accepts(parameters: inspect.Signature, count: int) -> bool:
    try:
        parameters.bind(*range(count))
    except TypeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _SparkSource:
    """`SourceFrame` over a DataFrame, sorted and joined by Spark."""

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
        """Return Spark's estimate for the plan; `None` if it has none. Spark Connect exposes no estimate."""
        if classic_context(self.df.sparkSession) is None:
            return None
        estimate = int(str(self.df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
        return estimate if estimate < _UNKNOWN_BYTES else None

    def stage(self, keys: Sequence[str], values: Sequence[str], task: WriteTask) -> pa.Table:
        names = task.plan.schema.arrow.names
        columns = [_column_named(name).alias(as_) for name, as_ in zip([*keys, *values], names, strict=True)]
        with report_stages(self.df.sparkSession):
            return map_in_arrow(self.df.select(*columns), task, FRAGMENT_RESULT_SCHEMA)

    def fill_by_address(self, values: Sequence[str], task: FillTask) -> pa.Table:
        rows = self.df.select(_column_named(_ADDRESS).cast("bigint").alias(_ADDRESS), *map(_column_named, values))
        return _fill_fragments(rows, task)

    def fill_by_key(self, keys: Sequence[str], values: Sequence[str], key_task: KeysTask, task: FillTask) -> pa.Table:
        numbers = partition_numbers(self.df.sparkSession, len(key_task.partitions), key_task.memory_bytes)
        table_keys = numbers.mapInArrow(WorkerTask(key_task), spark_schema(key_task.schema))
        table_rows = table_keys.toDF(*(f"table_{at}" for at in range(len(keys))), _ADDRESS)
        types = [key_task.transport.field(at).type for at in range(len(keys))]
        table_rows = table_rows.withColumns(
            {f"table_{at}": _normalized_key(F.col(f"table_{at}"), type_) for at, type_ in enumerate(types)}
        )
        source_rows = self.df.select(
            *(
                _normalized_key(_column_named(name), type_).alias(f"key_{at}")
                for at, (name, type_) in enumerate(zip(keys, types, strict=True))
            ),
            *(_column_named(name).alias(f"value_{at}") for at, name in enumerate(values)),
        )
        are_equal = [table_rows[f"table_{at}"] == source_rows[f"key_{at}"] for at in range(len(keys))]
        joined = table_rows.join(_with_unique_keys(source_rows, keys), are_equal, "inner")
        try:
            return _fill_fragments(joined.select(_ADDRESS, *(f"value_{at}" for at in range(len(values)))), task)
        except PySparkException as error:
            if worker_error := remote_errors.error_in_traceback(str(error)):
                raise worker_error from None
            if (key := _duplicate_key_in(error)) is None:
                raise
            raise InvalidInput(
                f"{key_task.header.uri}: the data has the key {key} more than once, so the row to use is ambiguous; "
                "keep one row per key"
            ) from None


def _fill_fragments(rows: DataFrame, task: FillTask) -> pa.Table:
    """Run `task` with all rows of a fragment in one Spark partition, sorted by row address.

    Rows are partitioned by the position of their fragment in the list, since Spark's hash would put several fragments
    into one partition.
    """
    fragments = sorted(task.fragments)
    fragment = F.shiftrightunsigned(F.col(_ADDRESS), _FRAGMENT_BITS)
    position = fragment
    runs = consecutive_runs(fragments)
    if len(runs) <= _RUNS_MAX:
        for first, last, before in runs:
            position = F.when(fragment.between(first, last), fragment - (first - before)).otherwise(position)
    partition = F.coalesce(F.pmod(position, F.lit(len(fragments))), F.lit(0)).cast("int")
    ordered = repartition_by_id(rows, len(fragments), partition).sortWithinPartitions(_ADDRESS)
    with report_stages(rows.sparkSession):
        return map_in_arrow(ordered, task, PARTITION_RESULT_SCHEMA)


def _normalized_key(key: Column, data_type: pa.DataType) -> Column:
    """Return the key in a form that Spark compares as Lance does: to Spark 0.0 and -0.0 are one key, to Lance two."""
    return key.cast("double").cast("string") if pa.types.is_floating(data_type) else key


def _with_unique_keys(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the rows that have a key; the job fails on a duplicate key, whether or not the table contains it.

    The check adds no shuffle: the join needs the rows partitioned and sorted in the same way.
    """
    columns = [F.col(f"key_{at}") for at in range(len(keys))]
    key_text = F.concat_ws(
        " and ", *(F.concat(F.lit(f"{name} = "), key.cast("string")) for name, key in zip(keys, columns, strict=True))
    )
    count = F.count(F.lit(1)).over(Window.partitionBy(*columns))
    fail = F.raise_error(F.concat(F.lit(_DUPLICATE_KEY), key_text)).cast("boolean")
    is_unique = F.when(F.col(_KEY_COUNT) > 1, fail).otherwise(True)
    return rows.dropna(subset=[f"key_{at}" for at in range(len(keys))]).withColumn(_KEY_COUNT, count).where(is_unique)


def _duplicate_key_in(error: PySparkException) -> str | None:
    """Return the duplicate key that a job failed on; `None` if it failed for another reason."""
    if error_condition(error) != "USER_RAISED_EXCEPTION":
        return None
    message = (error.getMessageParameters() or {}).get("errorMessage", "")
    return message.removeprefix(_DUPLICATE_KEY) if message.startswith(_DUPLICATE_KEY) else None


def _column_named(name: str) -> Column:
    """Return the top-level column of this name, which may contain dots."""
    return F.col(f"`{name.replace('`', '``')}`")


def _as_arrow_schema(schema: NewSchema) -> pa.Schema:
    return stored_schema(schema) if isinstance(schema, T.StructType) else schema

"""Arrow bridge: passes the rows of a DataFrame to Python tasks in batches of a size that suits their types.

While Spark fills an Arrow batch it measures the batch after every row, so that a batch of wide rows does not grow too
large. With sixteen columns the measurement takes longer than the filling. If the types bound the size of a batch,
this module sets a row limit and switches the measurement off. `003-arrow-batch-transfer.md` has the measurements and
the conditions. Start with `map_in_arrow`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lance_assets.spark.release import collect_arrow, existing_types
from lance_assets.spark.session import classic_context
from lance_assets.spark.worker_setup import WorkerTask

BATCH_ROWS = 65_536
"""Rows in a batch of fixed-width columns, and in a batch that Spark measures."""
TEXT_BATCH_ROWS = 1024
"""Rows in an unmeasured batch with text columns, since each text may have a megabyte."""
BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
UNLIMITED_BYTES = str(2**31 - 1)
"""Value of `BYTES_SETTING` with which Spark does not measure batches."""
_BATCH_BYTES = 64 * 1024**2
"""Largest unmeasured batch of fixed-width columns, the same as Spark's default limit."""
_SCALAR_BYTES_MAX = 16
"""Size of the widest number or time."""
_FIXED_WIDTH_TYPES: tuple[type[T.DataType], ...] = (
    T.NumericType,
    T.BooleanType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.AnsiIntervalType,
    T.NullType,
    *existing_types("TimeType"),
)
_TEXT_TYPES = (T.StringType, T.CharType, T.VarcharType)
_PYTHON_NODE = re.compile(r"\b\w*(?:Python|Pandas|InArrow)\w* (\w*)")
_OWN_TASK = re.compile(r"(?:Read|Change)Task_of_version_\d+_of_\w*|KeysTask")
"""Names of this project's own tasks in a query plan. Their input is partition numbers only."""


def map_in_arrow(
    df: DataFrame, task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], output_schema: str
) -> pa.Table:
    """Run `task` on each partition of `df` and return all its output rows."""
    with _batch_properties_set(df):
        return collect_arrow(df.mapInArrow(WorkerTask(task), output_schema))


@contextmanager
def _batch_properties_set(df: DataFrame) -> Iterator[None]:
    """Set the batch limits for the jobs of this thread.

    Spark Connect has settings per session only, so nothing is set there.
    """
    context = classic_context(df.sparkSession)
    if context is None or _runs_other_python(df):
        yield
        return
    properties = _batch_properties(df)
    previous = {key: context.getLocalProperty(key) for key in properties}
    _set_local_properties(context, properties)
    try:
        yield
    finally:
        _set_local_properties(context, previous)


def _batch_properties(df: DataFrame) -> Mapping[str, str]:
    """Return the local properties to set. A setting of the user's session takes precedence over them."""
    session = df.sparkSession
    is_set = session._jsparkSession.sessionState().conf().contains
    if is_set(BYTES_SETTING):
        return {}
    rows_max = unmeasured_batch_rows(df.schema)
    if not is_set(ROWS_SETTING):
        return {ROWS_SETTING: str(rows_max or BATCH_ROWS)} | ({BYTES_SETTING: UNLIMITED_BYTES} if rows_max else {})
    return {BYTES_SETTING: UNLIMITED_BYTES} if rows_max and int(session.conf.get(ROWS_SETTING) or 0) <= rows_max else {}


def _set_local_properties(context: SparkContext, properties: Mapping[str, str | None]) -> None:
    for key, value in properties.items():
        context.setLocalProperty(key, value)  # type: ignore[arg-type]  # None removes the property


def unmeasured_batch_rows(schema: T.StructType) -> int | None:
    """Return how many rows of these types may form a batch that Spark does not measure.

    `None` means that a type has no bounded size, so that every batch must be measured.
    """
    types = list(_leaf_types(schema))
    if not all(isinstance(leaf, _FIXED_WIDTH_TYPES + _TEXT_TYPES) for leaf in types):
        return None
    rows_max = TEXT_BATCH_ROWS if any(isinstance(leaf, _TEXT_TYPES) for leaf in types) else BATCH_ROWS
    return max(1, min(rows_max, _BATCH_BYTES // (_SCALAR_BYTES_MAX * max(1, len(types)))))


def _leaf_types(data_type: T.DataType) -> Iterator[T.DataType]:
    if isinstance(data_type, T.StructType):
        for field in data_type.fields:
            yield from _leaf_types(field.dataType)
    else:
        yield data_type


def _runs_other_python(df: DataFrame) -> bool:
    """Return whether the plan passes rows to Python code other than the tasks of this project.

    The batch limits would apply to that code too, and its batch size is not this package's decision.
    """
    plan = df._jdf.queryExecution().optimizedPlan().toString()
    return not all(_OWN_TASK.fullmatch(task) for task in _PYTHON_NODE.findall(plan))

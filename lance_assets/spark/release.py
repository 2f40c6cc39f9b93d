"""Spark release: replaces interfaces that the installed release of PySpark lacks, or refuses the feature.

This is the only module of the package that depends on the release. Other modules call its functions, which use the
newest interface that the installed release has. The functions of `lance_assets.spark` work from Spark 3.5 on. The
format `lance` needs Spark 4.0, its streaming sink 4.1 and its streaming source 4.2, the releases in which Spark got
these interfaces. This module never opens a session. Start with `require_release`.
"""

import functools
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, cast

import pyarrow as pa
import pyspark
import pyspark.errors
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from lance_core import MissingDependency, Unsupported

_major, _minor = pyspark.__version__.split(".")[:2]
RELEASE = int(_major), int(_minor)
"""Release of PySpark as major and minor version. The server of a Spark Connect session may have another one."""
OLDEST_RELEASE = (3, 5)
DATA_SOURCE_RELEASE = (4, 0)
STREAMING_SINK_RELEASE = (4, 1)
STREAMING_SOURCE_RELEASE = (4, 2)
RESOURCE_PROFILE_RELEASE = (4, 0)
"""Spark 3.5 has profiles for RDDs only."""
_UNIX_SOCKET_RELEASE = (4, 2)
"""Spark 4.1 has Unix domain sockets too, but loses the socket of a worker while a streaming query runs."""

NEWEST_JAVA = 17 if RELEASE < (4, 0) else None
"""Newest major version of Java that the release runs on; `None` means no limit. Arrow in Spark 3.5 fails on Java 21."""
_DISTUTILS_BEFORE_RELEASE = (4, 0)
"""Older releases import `distutils`, which Python has up to 3.11 and setuptools contains after that."""
_NUMPY_2 = (2,)
_PANDAS_FOR_NUMPY_2 = (2, 2, 2)
"""Older releases of pandas raise an error of their native code when they are imported beside numpy 2."""
_NEWEST_PYTHON = {(3, 5): (3, 12), (4, 0): (3, 13)}

# Older releases raise an ordinary ImportError if a package of Spark Connect is missing or too old.
MissingPackageError: type[Exception] = getattr(pyspark.errors, "PySparkImportError", ImportError)


def require_release(release: tuple[int, ...], feature: str, remedy: str) -> None:
    """Raise `Unsupported` if the installed PySpark is older than a feature needs. `remedy` replaces the feature."""
    if release > RELEASE:
        raise Unsupported(
            f"{feature} needs Spark {release[0]}.{release[1]}, and this is PySpark {pyspark.__version__}; {remedy}"
        )


def check_environment() -> None:
    """Raise `Unsupported` if this Python is newer than the release of Spark supports, and `MissingDependency` if a
    module that Spark imports is missing here, or does not load."""
    newest = _NEWEST_PYTHON.get(RELEASE, sys.version_info[:2])
    this = f"this is Python {sys.version_info[0]}.{sys.version_info[1]}"
    if sys.version_info[:2] > newest:
        raise Unsupported(
            f"PySpark {pyspark.__version__} supports Python up to {newest[0]}.{newest[1]}, and {this}; install PySpark "
            "4.1 or newer, or use an older Python"
        )
    if RELEASE < _DISTUTILS_BEFORE_RELEASE and find_spec("distutils") is None:
        raise MissingDependency(
            f"PySpark {pyspark.__version__} needs the module distutils, and {this}, which has none; install it with: "
            "pip install setuptools"
        )
    check_pandas(_installed_version("pandas"), _installed_version("numpy"))


def check_pandas(pandas: str | None, numpy: str | None) -> None:
    """Raise `MissingDependency` if this release of pandas does not load beside this release of numpy, as on platforms
    whose pandas is older than the numpy that this package needs."""
    if pandas and numpy and _release_numbers(numpy) >= _NUMPY_2 and _release_numbers(pandas) < _PANDAS_FOR_NUMPY_2:
        raise MissingDependency(
            f"Spark imports pandas, and pandas {pandas} does not load with numpy {numpy}; install a newer one on the "
            "driver and on the executors with: pip install 'pandas>=2.2.3'"
        )


@functools.cache
def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _release_numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)[:3]))


def has_unix_sockets() -> bool:
    """Return whether Spark can pass rows to Python workers over Unix domain sockets."""
    return RELEASE >= _UNIX_SOCKET_RELEASE


def has_progress_handlers(spark: SparkSession) -> bool:
    """Return whether a session of Spark Connect reports the progress of its stages, as it does from Spark 4.0 on."""
    return hasattr(spark, "registerProgressHandler")


def existing_types(*names: str) -> tuple[type[T.DataType], ...]:
    """Return the Spark types of these names that the installed release has."""
    return tuple(getattr(T, name) for name in names if hasattr(T, name))


def is_frame(value: object) -> bool:
    """Return whether a value is a DataFrame of Spark. Before Spark 4, those of Spark Connect have a class of their
    own."""
    return isinstance(value, DataFrame) or type(value).__module__ == "pyspark.sql.connect.dataframe"


def error_condition(error: PySparkException) -> str | None:
    """Return Spark's name for the condition that raised the error."""
    return error.getCondition() if hasattr(error, "getCondition") else error.getErrorClass()


def collect_arrow(df: DataFrame) -> pa.Table:
    """Return the rows of a DataFrame as an Arrow table."""
    if hasattr(df, "toArrow"):
        return df.toArrow()
    frame = cast(Any, df)
    if hasattr(frame, "_collect_as_arrow"):
        return pa.Table.from_batches(frame._collect_as_arrow(), schema=arrow_schema(df.schema))
    client = frame._session.client
    table, _schema = client.to_table(frame._plan.to_proto(client))
    return table


def create_frame(spark: SparkSession, rows: pa.Table, schema: T.StructType) -> DataFrame:
    """Return a DataFrame of Arrow rows."""
    if RELEASE >= (4, 0):
        return spark.createDataFrame(rows, schema)
    return spark.range(0, 1, 1, 1).mapInArrow(_Rows(rows), schema)


class _Rows:
    """Task that returns fixed rows. Picklable."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from self._rows.to_batches()


def map_with_resources(df: DataFrame, task: Any, schema: str, resources: Mapping[str, float]) -> DataFrame:
    """Return `df.mapInArrow(task, schema)`, each task of which gets these resources. `cpus` is the number of its CPU
    cores; other resources have to be configured for the executors, as `spark.executor.resource.gpu.amount`."""
    if not resources:
        return df.mapInArrow(task, schema)
    require_release(RESOURCE_PROFILE_RELEASE, "resources=", "leave it out and set spark.task.resource.* for all jobs")
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = TaskResourceRequests()
    for name, amount in resources.items():
        if name == "cpus":
            requests = requests.cpus(int(amount))
        else:
            requests = requests.resource(name, float(amount))
    return df.mapInArrow(task, schema, profile=ResourceProfileBuilder().require(requests).build)


def assigned_resources() -> dict[str, tuple[str, ...]]:
    """Return the addresses of the resources that Spark has assigned to the running task, by their names."""
    from pyspark import TaskContext

    context = TaskContext.get()
    resources = {} if context is None else context.resources()
    return {name: tuple(information.addresses) for name, information in resources.items()}


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark exchanges rows of these types with Python, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return cast(Any, to_arrow_schema)(schema)


def repartition_by_id(df: DataFrame, partitions: int, partition_id: Any) -> DataFrame:
    """Return the rows partitioned by a column of partition numbers.

    Rows with equal numbers are in one partition. Before Spark 4.1 several numbers may share a partition, since Spark
    hashes them.
    """
    if hasattr(df, "repartitionById"):
        return df.repartitionById(partitions, partition_id)
    return df.repartition(partitions, partition_id)

"""Java options for tests with Spark: half of the compiler, a serial garbage collector, and loaded classes from a file.

A test runs a few small jobs, for which Java spends most of its time on loading and compiling Spark. `make test` creates
the file of classes once for each PySpark (`python -m tests.cheap_java FILE`); without it, or with another Java than the
one that created it, Java loads the classes as usual.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CLASSES = Path(__file__).parents[1] / ".tools" / "spark-classes.jsa"
_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_PROGRAM = """
from lance_assets.spark import SparkSettings, open_session

def copy(batches):
    yield from batches

session = open_session(SparkSettings(master="local[2]", conf={"spark.sql.shuffle.partitions": 1}, log_level="OFF"))
rows = session.range(0, 10, 1, 2)
rows.mapInArrow(copy, rows.schema).groupBy("id").count().sort("id").collect()
rows.createOrReplaceTempView("rows")
session.sql("SELECT l.id FROM rows l JOIN rows r USING (id) WHERE l.id > 3").toArrow()
"""


def use_for_spark() -> None:
    """Start every Java process of Spark with these options."""
    for variable in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
        os.environ.setdefault(variable, java_options())


def java_options() -> str:
    classes = (
        (f"-XX:SharedArchiveFile={CLASSES}", "-Xlog:disable", "-Xlog:all=error:stderr") if CLASSES.exists() else ()
    )
    return " ".join([*_OPTIONS, f"-Djava.io.tmpdir={tempfile.gettempdir()}", *classes])


def create_classes(file: Path) -> None:
    """Run a small Spark application and store the classes that it loads."""
    incomplete = file.with_suffix(".new")
    options = f"-XX:ArchiveClassesAtExit={incomplete} -Xlog:disable"
    # The output is read to its end, when Java has written the file and ended.
    subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "SPARK_SUBMIT_OPTS": options},
        capture_output=True,
        check=True,
    )
    if incomplete.exists():  # not every Java can store them
        incomplete.replace(file)


if __name__ == "__main__":
    create_classes(Path(sys.argv[1]))

"""Remote process of the tests: writes a table without Spark, in the way that its argument names.

    python -m tests.lance_assets.remote_script commit|unchanged|...

With the variable `MESSAGES_IN_FILES` it sends messages as numbered files, as jobs with a bucket or a volume do.
`test_remote_writes.py` hides Dagster from it, as remote machines have none.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping

import pyarrow as pa
from dagster_pipes import PipesUnityCatalogVolumesMessageWriter

from lance_assets.pipes import PipesWrite, RemoteAudit, open_remote_write
from lance_core import Committed, RetryableConflict, Table

ROWS = 10


def append(write: PipesWrite, audit: Mapping[str, RemoteAudit] | None = None) -> Committed:
    """Append rows as `lance_assets.spark.append` does."""
    rows = pa.table({"id": range(ROWS), "day": [str(write.partition_key)] * ROWS})
    options = write.options(audit=audit)
    if not Table.exists(write.uri):
        Table.create(write.uri, rows.slice(0, 0), stable_row_ids=write.creation["stable_row_ids"])
    table = Table.open(write.uri, storage_options=options["storage_options"])
    return table.append(rows, intent=options["intent"], properties=options["properties"], audit=options["audit"])


def commit(write: PipesWrite) -> None:
    write.progress(1, 2)
    committed = append(write, audit={"ids": lambda table, parent: None})
    write.report_check("size", False, "a little small", severity="WARN", metadata={"rows": ROWS})
    write.report(committed, {"cluster": "local"})


def die_before_commit(write: PipesWrite) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_before_report(write: PipesWrite) -> None:
    append(write)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_and_commit(write: PipesWrite) -> None:
    """Commit after another launch of the same write."""
    while Table.open(write.uri).count_rows() == 0:
        time.sleep(0.05)
    assert append(write).already_committed


def lose_report(write: PipesWrite) -> None:
    append(write)


def refuse(write: PipesWrite) -> None:
    audit: Mapping[str, RemoteAudit] = {
        "ids": lambda table, parent: f"{table.count_rows()} ids",
        "size": lambda table, parent: None,
    }
    write.report(append(write, audit))


def conflict(write: PipesWrite) -> None:
    raise RetryableConflict("another writer was faster", ours="Append", theirs="Overwrite", version=3, rule="any")


def forget_options(write: PipesWrite) -> None:
    write.report(Table.create(write.uri, pa.table({"id": [1]})).append(pa.table({"id": [1]})))


def unchanged(write: PipesWrite) -> None:
    table = Table.open(write.uri)
    properties: Mapping[str, str] = write.options()["properties"]
    write.report(table.delete("false", intent=write.intent, properties=properties))


SCENES: Mapping[str, Callable[[PipesWrite], None]] = {
    scene.__name__: scene
    for scene in (
        commit,
        die_before_commit,
        die_before_report,
        lose_report,
        wait_and_commit,
        refuse,
        conflict,
        forget_options,
        unchanged,
    )
}

if __name__ == "__main__":
    numbered = PipesUnityCatalogVolumesMessageWriter(interval=0) if os.environ.get("MESSAGES_IN_FILES") else None
    with open_remote_write(message_writer=numbered) as write:
        SCENES[sys.argv[1]](write)

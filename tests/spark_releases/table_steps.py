"""Further steps of the Spark matrix: slices, each kind of index, nearest joins, exports, verification and throughput.

Each step compares what Spark does with what one process does. Steps with tables of their own create them beside the
table of the life cycle, whose module `tests/clusters/lifecycle.py` has the others. Start with `STEPS`.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import inputs
from lance_assets.spark import append, build_index, export, nearest_join, overwrite, read, verify_files
from lance_core import Table
from tests.clusters.lifecycle import Step, TablePair, frame, rows

ROWS, DIMENSIONS, NEAREST = 3000, 16, 10
RECALL_MIN = 0.9
SPEED_ROWS, SPEED_REPETITIONS = 200_000, 3
SCALAR_KINDS = (
    ("BTREE", "id", "id = 77 or id between 1000 and 1010"),
    ("BITMAP", "half", "half = 3"),
    ("ZONEMAP", "id", "id between 500 and 700"),
    ("BLOOMFILTER", "id", "id = 1234"),
    ("LABEL_LIST", "tags", "array_has_any(tags, ['t3', 't5'])"),
    ("NGRAM", "text", "contains(text, 'word 12')"),
)
VECTOR_KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("IVF_FLAT", {}),
    ("IVF_PQ", {"num_sub_vectors": 8}),
    ("IVF_SQ", {}),
    ("IVF_RQ", {}),
    ("IVF_HNSW_SQ", {}),
)


def check_slice(tables: TablePair) -> None:
    """Replace the rows that match a condition."""
    where = "id >= 8000 and id < 8300"
    overwrite(frame(tables.spark, 8050, 120), tables.uri, where=where, storage_options=tables.options)
    tables.reference_table().overwrite(rows(8050, 120), where=where)


def check_scalar_index(tables: TablePair, kind: str, column: str, condition: str) -> None:
    """Build an index: it covers the table, and filters with it have the rows of a scan, as in pylance."""
    uri = _indexed_table(tables, kind).uri
    table = build_index(tables.spark, uri, column, kind).table
    assert sorted(table.indices[0].covers or ()) == [each.id for each in table.fragments]
    expected = table.to_table(["id"], filter=condition, use_indices=False)
    assert 0 < expected.num_rows < ROWS
    assert table.to_table(["id"], filter=condition) == expected
    assert lance.dataset(uri).to_table(["id"], filter=condition).sort_by("id") == expected


def check_vector_index(tables: TablePair, kind: str, **parameters: Any) -> None:
    """Build a vector index: its rows are close to the nearest ones, here and in pylance."""
    uri = _indexed_table(tables, kind).uri
    table = build_index(tables.spark, uri, "vec", kind, num_partitions=4, **parameters).table
    queries = _vectors(7)[:20]
    exact = [table.search("vec", query, NEAREST, columns=["id"], exact=True)["id"].to_pylist() for query in queries]
    ours = [table.search("vec", query, NEAREST, columns=["id"], nprobes=4, refine=8) for query in queries]
    nearest = [{"column": "vec", "q": query, "k": NEAREST, "nprobes": 4, "refine_factor": 8} for query in queries]
    theirs = [lance.dataset(uri).to_table(["id"], nearest=each) for each in nearest]
    for found in (ours, theirs):
        hits = sum(len({*rows["id"].to_pylist()} & {*ids}) for rows, ids in zip(found, exact, strict=True))
        assert hits >= RECALL_MIN * NEAREST * len(queries), (kind, hits)


def check_nearest_join(tables: TablePair) -> None:
    """Join a DataFrame with a table by vectors, and compare all pairs with an exact search."""
    table = _indexed_table(tables, "nearest")
    queries = _vectors(7)[:5]
    df = tables.spark.createDataFrame(
        [(at, [float(value) for value in query]) for at, query in enumerate(queries)], "query int, q array<float>"
    )
    joined = nearest_join(df, table.uri, column="vec", vector="q", k=3, columns=["id"], exact=True)
    found = [row["id"] for row in joined.orderBy("query", "_distance").collect()]
    assert found == table.search("vec", queries, 3, columns=["id"], exact=True)["id"].to_pylist()


def check_export(tables: TablePair) -> None:
    """Export some rows as Parquet files, and read them back."""
    target = Path(f"{tables.reference_uri}-exported")
    done = export(
        tables.spark, tables.uri, str(target), columns=["id"], filter="id > 500", storage_options=tables.options
    )
    expected = tables.reference_table().to_table(["id"], filter="id > 500").sort_by("id")
    found = pa.concat_tables(pq.read_table(target / file.name) for file in done.files).sort_by("id")
    assert (done.rows, found["id"].to_pylist()) == (expected.num_rows, expected["id"].to_pylist())


def check_verify_files(tables: TablePair) -> None:
    """Verify the files of a table, change one byte of one, and verify them again."""
    table = _indexed_table(tables, "verified")
    assert verify_files(tables.spark, table.uri).is_clean
    path = next(Path(table.uri, "data").iterdir())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (error,) = verify_files(tables.spark, table.uri).errors
    assert path.name in str(error)


def append_speed(tables: TablePair) -> float:
    """Return the rows that an append of Parquet files writes in a second: the best of some runs."""
    source = tables.spark.read.parquet(str(inputs.lineitem_files(_speed_directory(tables), SPEED_ROWS)))
    uri = _speed_table(tables)
    return _rows_per_second(lambda: append(source, uri))


def read_speed(tables: TablePair) -> float:
    """Return the rows of the table of `append_speed` that Spark reads in a second: the best of some runs."""
    appended = read(tables.spark, _speed_table(tables), version=2)
    assert appended.count() == SPEED_ROWS
    return _rows_per_second(lambda: appended.write.format("noop").mode("overwrite").save())


def _rows_per_second(run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(SPEED_REPETITIONS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return SPEED_ROWS / min(seconds)


def _speed_directory(tables: TablePair) -> Path:
    return Path(tables.reference_uri).parent / "speed"


def _speed_table(tables: TablePair) -> str:
    """Return the location of an empty table with the columns of the source, which is created on first use."""
    uri = str(_speed_directory(tables) / "table")
    if not Table.exists(uri):
        source = inputs.lineitem_files(_speed_directory(tables), SPEED_ROWS)
        Table.create(uri, pq.read_schema(next(source.glob("*.parquet"))))
    return uri


def _indexed_table(tables: TablePair, name: str) -> Table:
    """Create a table with columns for all kinds of index, in four fragments."""
    ids = range(ROWS)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "half": pa.array([each % 7 for each in ids], pa.int32()),
        "tags": [[f"t{each % 11}", f"t{each % 13}"] for each in ids],
        "text": [f"word {each} of a text" for each in ids],
        "vec": pa.FixedSizeListArray.from_arrays(_vectors(1).ravel(), DIMENSIONS),
    }
    uri = f"{tables.reference_uri}-{name}"
    return Table.create(uri, pa.table(columns), max_rows_per_file=ROWS // 4)


def _vectors(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, DIMENSIONS)).astype(np.float32)


STEPS: dict[str, Step] = {
    "slice": check_slice,
    "export": check_export,
    **{
        f"index {kind}": partial(check_scalar_index, kind=kind, column=column, condition=condition)
        for kind, column, condition in SCALAR_KINDS
    },
    **{f"index {kind}": partial(check_vector_index, kind=kind, **parameters) for kind, parameters in VECTOR_KINDS},
    "nearest join": check_nearest_join,
    "verify files": check_verify_files,
}
SPEEDS: dict[str, Callable[[TablePair], float]] = {"append": append_speed, "read": read_speed}

"""Peer engine: a process of one release of pylance that performs the steps it reads, a JSON array on each line.

It runs in the environment of its release (`tests/pylance_releases.py`), so it imports only what that has. Start it with
`python -m tests.fleets.peer`; `engines.py` is the other end.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import lance

from tests.fleets.rows import rows

Ids = list[int]


def create(uri: str, ids: Ids, stable: bool, storage: Any, per_file: int) -> None:
    lance.write_dataset(
        rows(ids), uri, enable_stable_row_ids=stable, data_storage_version=storage, max_rows_per_file=per_file
    )


def append(uri: str, ids: Ids) -> None:
    lance.write_dataset(rows(ids), uri, mode="append")


def delete(uri: str, where: str) -> None:
    lance.dataset(uri).delete(where)


def update(uri: str, values: dict[str, str], where: str) -> None:
    lance.dataset(uri).update(values, where)


def upsert(uri: str, ids: Ids, revision: int) -> None:
    merge = lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(rows(ids, revision))


def compact(uri: str, target_rows: int, deferred: bool) -> None:
    options: dict[str, Any] = {"defer_index_remap": True} if deferred else {}  # unknown to old releases
    lance.dataset(uri).optimize.compact_files(
        target_rows_per_fragment=target_rows, materialize_deletions_threshold=0.01, **options
    )


def index(uri: str, column: str, kind: Any) -> None:
    dataset = lance.dataset(uri)
    if kind.startswith("IVF"):
        dataset.create_index(column, kind, name=f"{column}_idx", num_partitions=2, replace=True)
    else:
        dataset.create_scalar_index(column, kind, name=f"{column}_idx", replace=True)


def optimize(uri: str, merge: bool) -> None:
    lance.dataset(uri).optimize.optimize_indices(**({} if merge else {"num_indices_to_merge": 0}))


def answer_filters(uri: str, filters: Sequence[str]) -> dict[str, Any]:
    """Return the ids of the rows that match each filter, by index and by scan. An error takes the place of ids."""
    dataset = lance.dataset(uri)
    return {
        text: {way: _try_ids(dataset, filter=text, use_scalar_index=way == "index") for way in ("index", "scan")}
        for text in filters
    }


def answer_searches(uri: str, words: Sequence[str], vectors: Sequence[list[float]]) -> dict[str, Any]:
    """Return the ids of the rows that contain a word, and of the three nearest to a vector, by index and by scan."""
    dataset = lance.dataset(uri)
    found = {}
    for word in words:
        texts = dataset.to_table(columns=["id", "words"]).to_pylist()
        found[f"words {word}"] = {
            "index": _try_ids(dataset, full_text_query=word),
            "scan": sorted(row["id"] for row in texts if word in row["words"].split()),
        }
    for vector in vectors:
        query = {"column": "vector", "q": vector, "k": 3, "nprobes": 2}
        found[f"vector {vector}"] = {
            way: _try_ids(dataset, nearest={**query, "use_index": way == "index"}) for way in ("index", "scan")
        }
    return found


def _try_ids(dataset: lance.LanceDataset, **query: Any) -> Any:
    try:
        return sorted(dataset.to_table(columns=["id"], **query)["id"].to_pylist())
    except BaseException as error:  # noqa: BLE001 - a panic of the engine is no Exception
        return f"{type(error).__name__}: {error}"[:300]


STEPS: dict[str, Callable[..., Any]] = {
    step.__name__: step
    for step in (create, append, delete, update, upsert, compact, index, optimize, answer_filters, answer_searches)
}


def main() -> None:
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            reply = {"result": STEPS[name](**arguments)}
        except BaseException as error:  # noqa: BLE001 - a panic of the engine is no Exception
            reply = {"error": f"{type(error).__name__}: {error}"[:600]}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()

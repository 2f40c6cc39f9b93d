"""Random histories of one table with a vector index, changed in turn by this library and by pylance.

Every step is a verb of one of the two. Afterwards both search with as many partitions and candidates as there are, so
that their answers must be the exact ones, which numpy computes from the rows of the table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from lance_core import Table
from lance_core.errors import InvalidInput

KINDS = ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ")
METRICS = ("l2", "cosine", "dot")
SIZE, FIRST_ROWS, K, QUERIES = 8, 300, 5, 20
_PARAMETERS: Mapping[str, Mapping[str, Any]] = {"PQ": {"num_sub_vectors": 4}, "RQ": {"num_bits": 3}}


@dataclass
class VectorHistory:
    """History of one table."""

    path: Path
    seed: int
    stable_row_ids: bool
    steps: list[str] = field(default_factory=list)
    _next_id: int = 0
    _kind: str = "IVF_FLAT"
    _metric: str = "l2"

    def __post_init__(self) -> None:
        self._random, self._draw = Random(self.seed), np.random.default_rng(self.seed)
        rows = self._rows(FIRST_ROWS)
        Table.create(str(self.path), rows, stable_row_ids=self.stable_row_ids, max_rows_per_file=120)
        self._create_index()

    def run(self, steps: int) -> None:
        """Do random steps, and check both libraries after each."""
        self.check()
        verbs: tuple[Callable[[], str], ...] = (
            self._append,
            self._append,
            self._delete,
            self._update,
            self._update_vectors,
            self._upsert,
            self._compact,
            self._optimize,
            self._optimize,
            self._create_index,
            self._restore,
        )
        for _ in range(steps):
            self.steps.append(self._random.choice(verbs)())
            self.check()

    def check(self) -> None:
        """Compare the answers of both libraries with the exact ones."""
        table, dataset = Table.open(str(self.path)), lance.dataset(str(self.path))
        rows = table.to_table(["id", "v"])
        is_valid = np.asarray(rows["v"].is_valid())
        ids = rows["id"].to_numpy()[is_valid]
        vectors = rows["v"].combine_chunks().drop_null().flatten().to_numpy().reshape(-1, SIZE).astype(np.float64)
        for number in range(QUERIES):
            query = self._draw.normal(size=SIZE).astype(np.float32)
            expected = np.sort(_distances(self._metric, vectors, query))[:K]
            refine = len(ids) // K + 1
            ours = table.search("v", query, K, nprobes=1000, refine=refine, ef=len(ids), columns=["id"])
            self._compare("ours", ours, ids, vectors, query, expected)
            if number % 4 == 0:
                nearest: dict[str, Any] = {"column": "v", "q": query, "k": K, "metric": self._metric}
                nearest |= {"nprobes": 1000, "refine_factor": refine, "ef": 2 * K * refine}
                theirs = dataset.to_table(columns=["id", "_distance"], nearest=nearest)
                self._compare("pylance", theirs, ids, vectors, query, expected)
        self._check_files(table)

    def _check_files(self, table: Table) -> None:
        problems = [
            finding
            for finding in table.fsck("head").findings
            if "index" in finding.rule and finding.rule != "index_behind"
        ]
        assert not problems, f"{self}: fsck reports {problems}"

    def _compare(
        self, who: str, found: pa.Table, ids: np.ndarray, vectors: np.ndarray, query: np.ndarray, expected: np.ndarray
    ) -> None:
        answer = found["id"].to_numpy()
        assert len(answer) == len(set(answer.tolist())) == K, f"{self}: {who} found {answer.tolist()}"
        place = {row: number for number, row in enumerate(ids.tolist())}
        assert set(answer.tolist()) <= place.keys(), f"{self}: {who} found rows that do not exist"
        actual = _distances(self._metric, vectors[[place[row] for row in answer.tolist()]], query)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4, err_msg=f"{self}: {who}")
        np.testing.assert_allclose(found["_distance"], expected, rtol=1e-4, atol=1e-4, err_msg=f"{self}: {who}")

    def __str__(self) -> str:
        return f"seed {self.seed}, stable_row_ids={self.stable_row_ids}, {'; '.join(self.steps)}"

    def _rows(self, count: int) -> pa.Table:
        start, self._next_id = self._next_id, self._next_id + count
        return self._rows_with(range(start, start + count))

    def _rows_with(self, ids: Any) -> pa.Table:
        numbers = list(ids)
        points = self._draw.normal(size=(len(numbers), SIZE)).astype(np.float32)
        mask = pa.array([row % 41 == 7 for row in numbers], pa.bool_())
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), SIZE, mask=mask)
        return pa.table(
            {"id": pa.array(numbers, pa.int64()), "c": pa.array([0] * len(numbers), pa.int64()), "v": vectors}
        )

    @property
    def _is_ours(self) -> bool:
        return self._random.random() < 0.5

    def _append(self) -> str:
        rows, ours = self._rows(self._random.randrange(1, 90)), self._is_ours
        if ours:
            Table.open(str(self.path)).append(rows)
        else:
            lance.dataset(str(self.path)).insert(rows)
        return f"{_who(ours)} append of {len(rows)}"

    def _delete(self) -> str:
        condition, ours = f"id % {self._random.randrange(5, 12)} = {self._random.randrange(5)}", self._is_ours
        if ours:
            Table.open(str(self.path)).delete(condition)
        else:
            lance.dataset(str(self.path)).delete(condition)
        return f"{_who(ours)} delete {condition}"

    def _update(self) -> str:
        condition, ours = f"id % {self._random.randrange(6, 12)} = {self._random.randrange(5)}", self._is_ours
        if ours:
            Table.open(str(self.path)).update({"c": "c + 1"}, condition)
        else:
            lance.dataset(str(self.path)).update({"c": "c + 1"}, condition)
        return f"{_who(ours)} update of another column {condition}"

    def _update_vectors(self) -> str:
        return self._merge(inserted=0)

    def _upsert(self) -> str:
        return self._merge(inserted=self._random.randrange(1, 30))

    def _merge(self, inserted: int) -> str:
        existing = Table.open(str(self.path)).to_table(["id"])["id"].to_pylist()
        chosen = self._random.sample(existing, min(len(existing), self._random.randrange(1, 40)))
        rows, ours = pa.concat_tables([self._rows_with(chosen), self._rows(inserted)]), self._is_ours
        if ours:
            Table.open(str(self.path)).upsert(rows, "id")
        else:
            merge = lance.dataset(str(self.path)).merge_insert("id")
            merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)
        return f"{_who(ours)} upsert of {len(chosen)} and {inserted} rows"

    def _compact(self) -> str:
        ours = self._is_ours
        if ours:
            Table.open(str(self.path)).compact(target_rows=200)
        else:
            lance.dataset(str(self.path)).optimize.compact_files(target_rows_per_fragment=200)
        return f"{_who(ours)} compaction"

    def _optimize(self) -> str:
        ours, merge = self._is_ours, self._random.choice(("small", "all", "none"))
        if ours:
            Table.open(str(self.path)).optimize_indices(merge=merge)  # type: ignore[arg-type]
        else:
            lance.dataset(str(self.path)).optimize.optimize_indices(num_indices_to_merge=0 if merge == "none" else 10)
        return f"{_who(ours)} optimization, merge={merge}"

    def _create_index(self) -> str:
        kind, metric, ours = self._random.choice(KINDS), self._random.choice(METRICS), self._is_ours
        parameters = {"num_partitions": self._random.randrange(1, 6), **_PARAMETERS.get(kind.rpartition("_")[2], {})}
        try:
            if ours:
                Table.open(str(self.path)).create_index(
                    "v", kind, name="v_idx", metric=metric, replace=True, **parameters
                )
            else:
                dataset = lance.dataset(str(self.path))
                dataset.create_index("v", kind, name="v_idx", metric=metric, replace=True, **parameters)
        except (InvalidInput, ValueError, OSError, RuntimeError) as error:
            if "256" not in str(error):  # a codebook needs as many vectors
                raise
            return f"{_who(ours)} index {kind} is refused"
        self._kind, self._metric = kind, metric
        return f"{_who(ours)} index {kind} {metric} {parameters}"

    def _restore(self) -> str:
        table = Table.open(str(self.path))
        table.restore(max(2, table.version - 2))
        (index,) = Table.open(str(self.path)).index_statistics()
        details = Table.open(str(self.path)).explain_search("v")
        self._kind = index.kind
        self._metric = next(metric for metric in METRICS if f"by {metric} distance" in details)
        return "restore"


def _who(ours: bool) -> str:
    return "our" if ours else "pylance's"


def _distances(metric: str, vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    wide = query.astype(np.float64)
    if metric == "l2":
        return ((vectors - wide) ** 2).sum(axis=1)
    products = vectors @ wide
    if metric == "dot":
        return 1 - products
    return 1 - products / np.linalg.norm(vectors, axis=1) / np.linalg.norm(wide)

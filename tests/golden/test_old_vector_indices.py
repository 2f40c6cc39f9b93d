"""Vector indices of old releases of pylance are read, or refused by name, and maintained."""

import tarfile
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import IndexIgnored, Table
from lance_core.index.vector import graph_lists, segment
from tests.golden.old_vector_indices import ARCHIVE, RECIPES, ROWS, SIZE, vectors

CASES = [
    (release, f"{kind}-{metric}{'-legacy' if is_legacy else ''}")
    for release, recipes in RECIPES.items()
    for kind, metric, is_legacy in recipes
]
REFUSED = {"0.20.0/IVF_PQ-l2-legacy": "legacy layout of pylance", "4.0.0/IVF_RQ-l2": "estimator 'residual_query'"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("vectors")
    with tarfile.open(ARCHIVE) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11 has it since 3.11.4
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(root)
    return root


def check_nearest(table: Table, metric: Any) -> None:
    """Search for the nearest rows with all partitions and candidates, and compare them with those of numpy."""
    rows = table.to_table(["id", "v"])
    points = np.array(rows["v"].to_pylist())
    for query in np.random.default_rng(1).normal(size=(3, SIZE)):
        products = points @ query
        distances = {
            "l2": ((points - query) ** 2).sum(axis=1),
            "dot": 1 - products,
            "cosine": 1 - products / np.linalg.norm(points, axis=1) / np.linalg.norm(query),
        }[metric]
        found = table.search("v", query, 5, metric=metric, nprobes=50, refine=ROWS, ef=ROWS, columns=["id"])
        assert found["id"].to_pylist() == rows["id"].to_numpy()[np.argsort(distances)[:5]].tolist()


@pytest.mark.parametrize(("release", "name"), CASES)
@pytest.mark.parametrize("follows_graphs", [True, False])
def test_an_old_index_is_searched_and_maintained(
    unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, name: str, follows_graphs: bool
) -> None:
    if follows_graphs:
        if "HNSW" not in name:
            return
        for module in (graph_lists, segment):
            monkeypatch.setattr(module, "GRAPH_ROWS_MIN", 50)
    kind: str
    metric: Any
    kind, metric = name.split("-")[:2]
    table = Table.open(str(_copy(unpacked / release / name, tmp_path / "t")))
    if problem := REFUSED.get(f"{release}/{name}"):
        with pytest.warns(IndexIgnored, match=problem):
            check_nearest(table, metric)
        (finding,) = table.fsck("head").findings
        assert (finding.rule, finding.severity.value) == ("index_unknown", "info")
        assert problem in finding.what
        assert not table.optimize_indices().attempts
        return
    assert table.fsck("head").is_sound
    assert "no fragment" in table.explain_search("v", metric=metric)  # is scanned
    check_nearest(table, metric)
    estimates = table.search("v", vectors()[7], 10, metric=metric, nprobes=2, columns=["id"])
    exact = table.search("v", vectors()[7], 10, metric=metric, exact=True, columns=["id"])
    assert len(set(estimates["id"].to_pylist()) & set(exact["id"].to_pylist())) >= (
        3 if "PQ" in name or "RQ" in name or follows_graphs else 8
    )
    more = pa.FixedSizeListArray.from_arrays(pa.array(-vectors()[:40].ravel()), SIZE)
    table = table.append(pa.table({"id": pa.array(range(ROWS, ROWS + 40), pa.int64()), "v": more})).table
    table = table.delete("id % 7 = 3").table
    check_nearest(table, metric)
    table = table.compact().table.optimize_indices(merge="all").table
    (statistics,) = table.index_statistics()
    assert (statistics.kind, statistics.uncovered_rows) == (kind, 0)
    assert table.fsck("head").is_sound
    check_nearest(table, metric)
    nearest = {"column": "v", "q": vectors()[7], "k": 5, "metric": metric, "nprobes": 50, "refine_factor": 20}
    assert lance.dataset(table.uri).to_table(columns=["id", "_distance"], nearest=nearest).num_rows == 5


def _copy(source: Path, target: Path) -> Path:
    for file in source.rglob("*"):
        if file.is_file():
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    return target

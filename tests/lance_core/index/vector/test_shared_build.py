"""Builds that workers share: pieces of some rows, merged by ranges of partitions, are the segment of one process."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyroaring import BitMap

from lance_core.format.fragment import Fragment
from lance_core.format.index_metadata import IndexMetadata
from lance_core.index import build, registry
from lance_core.index.build import IndexSpec
from lance_core.index.coverage import Coverage
from lance_core.index.index_type import MergeInput
from lance_core.index.row_remap import Unchanged
from lance_core.index.segment_files import read_all_rows
from lance_core.index.vector.build import merge_partitions, write_piece
from lance_core.index.vector.encoding import EncodedRows
from lance_core.index.vector.model import INDEX_FILE, STORAGE_FILE, Model, read_model
from lance_core.index.vector.partitions import sort_by_partition
from lance_core.index.vector.training import draw_sample, plan_training, train
from lance_core.operations import CreateIndex
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.versions.snapshot import Snapshot, load_latest
from tests.lance_core.index.vector.test_vector_build import QUERIES, check_both, write_table

PARTITIONS = 6


def inputs_of(base: Snapshot, pieces: Sequence[IndexMetadata]) -> list[MergeInput]:
    coverage = Coverage(base)
    return [MergeInput(coverage.segment_of(piece), Unchanged()) for piece in pieces]


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_SQ"])
def test_pieces_become_the_segment_of_one_process(tmp_path: Path, kind: str) -> None:
    table = write_table(tmp_path / "t", pa.float32(), ids=True)
    rows = table.to_table(limit=400)
    table = table.append(rows.set_column(0, "id", pc.add(rows["id"], 10_000))).table
    base = load_latest(table._location)
    index_type = registry.by_name(kind)
    parameters: dict[str, Any] = {"num_partitions": PARTITIONS, **({"num_sub_vectors": 4} if kind == "IVF_PQ" else {})}
    chain = build.column_of(base.manifest.schema, "v", uri=table.uri)
    spec = IndexSpec("v_idx", index_type, chain, index_type.parse_options(parameters))
    column = build.arrow_of(base.manifest.schema, chain)
    fragments = base.manifest.fragments
    plan = plan_training(kind, column, spec.options, 1900)  # type: ignore[arg-type]
    vectors = build.read_values(base, chain, fragments, addresses=False)
    model: Model = pickle.loads(pickle.dumps(train(draw_sample(vectors, plan, 1900), plan)))

    def write(function: build.SegmentWriter, covers: BitMap) -> IndexMetadata:
        return build.write_segment(base, spec, function, covers=covers, runtime=SYSTEM_RUNTIME)

    def piece(fragment: Fragment) -> IndexMetadata:
        rows = build.read_values(base, chain, [fragment], addresses=False)
        return write(lambda sink, column, _: write_piece(sink, column, rows, model), BitMap([fragment.id]))

    def merge(
        pieces: Sequence[IndexMetadata], partitions: range, segments: Sequence[IndexMetadata] = ()
    ) -> IndexMetadata:
        covers = BitMap(fragment.id for fragment in fragments)
        inputs, whole = inputs_of(base, pieces), inputs_of(base, segments)
        return write(
            lambda sink, column, _: merge_partitions(sink, column, inputs, model, partitions, segments=whole), covers
        )

    pieces = [piece(fragment) for fragment in fragments]
    assert len(pieces) > 1
    ranges = [merge(pieces, range(2)), merge(pieces, range(2, PARTITIONS))]
    whole = merge([], range(PARTITIONS), ranges)
    alone = table.create_index("v", kind, name="alone", **parameters).table
    files = [Coverage(load_latest(alone._location)).segment_of(each).files for each in (whole, alone.indices[0])]
    stored = [read_model(each.open(INDEX_FILE), each.open(STORAGE_FILE), path="") for each in files]
    np.testing.assert_array_equal(stored[0].partitions.lengths, stored[1].partitions.lengths)
    assert stored[0].model.has_same_parameters(stored[1].model)
    assert read_all_rows(files[0].open(STORAGE_FILE)) == read_all_rows(files[1].open(STORAGE_FILE))
    check_both(table.commit(CreateIndex((whole,))).table, QUERIES[0], recall=0.8)


def test_rows_beyond_the_budget_are_spilled(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    batches = []
    for start in range(0, 1000, 100):
        codes = (draw.integers(0, 256, (100, 3)).astype(np.uint8), draw.random(100).astype(np.float32))
        batches.append(EncodedRows(draw.integers(0, 7, 100), np.arange(start, start + 100, dtype=np.uint64), codes))
    in_memory = sort_by_partition(iter(batches), 7, tmp_path)
    spilled = sort_by_partition(iter(batches), 7, tmp_path, budget=5000)
    assert (len(in_memory), len(list(tmp_path.iterdir()))) == (1, len(spilled) - 1)
    assert len(spilled) > 3
    for number in range(7):
        (expected,) = in_memory[0].read(range(number, number + 1))
        parts = [part for run in spilled for part in run.read(range(number, number + 1))]
        np.testing.assert_array_equal(np.concatenate([part.rows for part in parts]), expected.rows)
        for column in range(2):
            joined = np.concatenate([part.codes[column] for part in parts])
            np.testing.assert_array_equal(joined, expected.codes[column])

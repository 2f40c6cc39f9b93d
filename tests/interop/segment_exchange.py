"""Segment exchange: index segments that one library writes and the other one reads.

`commit_our_segment` lets an index type of ours write files that pylance commits; `query_by_pylance` returns whether
pylance used them and which rows it found. `check_their_segment` lets our reader search a segment that pylance wrote,
and compares the result with a scan.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import lance
import numpy as np
import pyarrow as pa
from lance.dataset import Index

from lance_core.expressions.predicate import Predicate
from lance_core.expressions.tree import Call, Comparison, In, IsNull, Like
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import StorageVersion
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import RowSet
from lance_core.index import registry
from lance_core.index.coverage import Coverage
from lance_core.index.index_type import ROW, VALUE, Certainty, IndexOptions, IndexType, MatchedRows, SegmentBuild
from lance_core.index.segment_files import NewSegment
from lance_core.versions.location import locate
from lance_core.versions.snapshot import load_latest


def commit_our_segment(
    uri: str, column: str, index_type: IndexType, *, fragments: Sequence[int] | None = None, **options: object
) -> None:
    """Write and commit a segment of ours under the name that pylance would give it."""
    dataset = lance.dataset(uri)
    selected = [
        fragment for fragment in dataset.get_fragments() if fragments is None or fragment.fragment_id in fragments
    ]
    files = NewSegment(locate(uri, durable=False), uuid.uuid4(), StorageVersion.parse(dataset.data_storage_version))
    version = index_type.written_version
    field = dataset.schema.field(column)
    rows = _read_values(dataset, selected, column, _stores_addresses(index_type, version))
    details = index_type.write(files, SegmentBuild(field, rows, (), index_type.parse_options(options)))
    index = Index(
        uuid=str(files.segment_uuid),
        name=f"{column}_idx",
        fields=[load_latest(locate(uri, durable=False)).manifest.schema.field(column).id],
        dataset_version=dataset.version,
        fragment_ids={fragment.fragment_id for fragment in selected},  # type: ignore[arg-type]
        index_version=version,
        index_details=(index_type.type_url, details),
    )
    lance.LanceDataset.commit(
        uri,
        lance.LanceOperation.CreateIndex(new_indices=[index], removed_indices=[]),
        read_version=dataset.version,
    )


def _stores_addresses(index_type: IndexType, version: int) -> bool:
    message = table_pb2.IndexMetadata(index_version=version)
    message.index_details.type_url = index_type.type_url
    return IndexMetadata(message).stores_addresses


def _read_values(
    dataset: lance.LanceDataset, fragments: Sequence[lance.LanceFragment], column: str, addresses: bool
) -> Iterator[pa.RecordBatch]:
    if not fragments:
        return
    scanner = dataset.scanner(
        columns=[column], fragments=list(fragments), with_row_id=not addresses, with_row_address=addresses
    )
    for batch in scanner.to_batches():
        rows = batch["_rowaddr" if addresses else "_rowid"]
        yield pa.RecordBatch.from_arrays([batch[column], rows], names=[VALUE, ROW])


@dataclass(frozen=True)
class QueryResult:
    used_index: bool
    rows: list[object]
    expected: list[object]
    """Rows that a scan finds."""


def query_by_pylance(uri: str, condition: str, key: str = "id") -> QueryResult:
    """Return the rows that pylance finds with its indices and without."""
    dataset = lance.dataset(uri)
    plan = dataset.scanner(columns=[key], filter=condition).explain_plan()
    by_index, by_scan = (
        sorted(dataset.to_table(columns=[key], filter=condition, use_scalar_index=use)[key].to_pylist())
        for use in (True, False)
    )
    return QueryResult("ScalarIndexQuery" in plan, by_index, by_scan)


def check_their_segment(uri: str, column: str, conditions: Sequence[str]) -> dict[str, Certainty | None]:
    """Search a segment of pylance for each condition, compare the result with a scan, and return the certainty of our
    reader by condition; `None` if it cannot answer the condition."""
    coverage = Coverage(load_latest(locate(uri, durable=False)))
    (segment_coverage,) = coverage.by_name[f"{column}_idx"]
    index_type = segment_coverage.kind
    assert index_type is not None, segment_coverage.unused_reason
    dataset = lance.dataset(uri)
    field = dataset.schema.field(column)
    segment = coverage.segment_of(segment_coverage.metadata)
    searcher = index_type.open(segment, field)
    examination = index_type.examine(segment, field)
    assert examination.problems == ()
    certainty: dict[str, Certainty | None] = {}
    for condition in conditions:
        leaf = Predicate.parse(condition, dataset.schema).tree
        assert isinstance(leaf, Comparison | In | IsNull | Like | Call), leaf
        matched = searcher.search(leaf)
        expected = index_type.answers(leaf, segment_coverage.metadata)
        assert (matched is None) is (expected is None), condition
        certainty[condition] = None if matched is None else matched.certainty
        if matched is not None:
            assert matched.certainty is expected
            rows = coverage.row_remap(segment_coverage).remap_set(matched.rows)
            _compare_with_scan(dataset, condition, MatchedRows(rows, matched.certainty))
    return certainty


def _compare_with_scan(dataset: lance.LanceDataset, condition: str, matched: MatchedRows) -> None:
    table = dataset.scanner(with_row_address=True).to_table()
    (batch,) = table.combine_chunks().to_batches()
    addresses = batch["_rowaddr"].to_numpy()
    live = RowSet.of(addresses)
    expected = addresses[np.array(Predicate.parse(condition, dataset.schema).mask(batch))]
    actual = set(matched.rows & live)
    assert set(expected.tolist()) <= actual, condition
    if matched.certainty is Certainty.EXACT:
        assert set(expected.tolist()) == actual, condition


def read_index_options(uri: str, column: str) -> IndexOptions:
    """Return the options that a segment of either library records."""
    coverage = Coverage(load_latest(locate(uri, durable=False)))
    (segment_coverage,) = coverage.by_name[f"{column}_idx"]
    assert segment_coverage.kind is registry.by_name(segment_coverage.kind.name if segment_coverage.kind else "")
    return segment_coverage.kind.options_of(coverage.segment_of(segment_coverage.metadata))

"""Segments that one library makes and the other one uses.

`commit_ours` lets a kind of ours write files that pylance commits; `by_plan` says whether pylance used them and what it
found. `check_theirs` asks our reader of a segment that pylance made, beside a look at all rows.
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
from lance_core.index.index_type import ROW, VALUE, Certainty, IndexOptions, IndexType, MatchedRows
from lance_core.index.segment_files import NewSegment
from lance_core.versions.location import locate
from lance_core.versions.snapshot import load_latest


def commit_ours(
    uri: str, column: str, kind: IndexType, *, fragments: Sequence[int] | None = None, **options: object
) -> None:
    """A segment of ours, under the name that pylance would give it."""
    dataset = lance.dataset(uri)
    chosen = [each for each in dataset.get_fragments() if fragments is None or each.fragment_id in fragments]
    files = NewSegment(locate(uri, durable=False), uuid.uuid4(), StorageVersion.parse(dataset.data_storage_version))
    version = kind.written_version
    field = dataset.schema.field(column)
    rows = _rows(dataset, chosen, column, _holds_addresses(kind, version))
    details = kind.write(files, field, rows, (), kind.parse_options(options))
    index = Index(
        uuid=str(files.segment_uuid),
        name=f"{column}_idx",
        fields=[load_latest(locate(uri, durable=False)).manifest.schema.field(column).id],
        dataset_version=dataset.version,
        fragment_ids={each.fragment_id for each in chosen},  # type: ignore[arg-type]
        index_version=version,
        index_details=(kind.type_url, details),
    )
    lance.LanceDataset.commit(
        uri,
        lance.LanceOperation.CreateIndex(new_indices=[index], removed_indices=[]),
        read_version=dataset.version,
    )


def _holds_addresses(kind: IndexType, version: int) -> bool:
    message = table_pb2.IndexMetadata(index_version=version)
    message.index_details.type_url = kind.type_url
    return IndexMetadata(message).stores_addresses


def _rows(
    dataset: lance.LanceDataset, fragments: Sequence[lance.LanceFragment], column: str, addresses: bool
) -> Iterator[pa.RecordBatch]:
    if not fragments:
        return
    found = dataset.scanner(
        columns=[column], fragments=list(fragments), with_row_id=not addresses, with_row_address=addresses
    )
    for batch in found.to_batches():
        number = batch["_rowaddr" if addresses else "_rowid"]
        yield pa.RecordBatch.from_arrays([batch[column], number], names=[VALUE, ROW])


@dataclass(frozen=True)
class Answer:
    used: bool
    rows: list[object]
    expected: list[object]


def by_plan(uri: str, sql: str, key: str = "id") -> Answer:
    """What pylance finds with its indices and without."""
    dataset = lance.dataset(uri)
    plan = dataset.scanner(columns=[key], filter=sql).explain_plan()
    with_it, without = (
        sorted(dataset.to_table(columns=[key], filter=sql, use_scalar_index=use)[key].to_pylist())
        for use in (True, False)
    )
    return Answer("ScalarIndexQuery" in plan, with_it, without)


def check_theirs(uri: str, column: str, sqls: Sequence[str]) -> dict[str, Certainty | None]:
    """By condition: what our reader can say of it; whatever it says is compared with what is there."""
    coverage = Coverage(load_latest(locate(uri, durable=False)))
    (standing,) = coverage.by_name[f"{column}_idx"]
    assert standing.kind is not None, standing.unused_reason
    dataset = lance.dataset(uri)
    field = dataset.schema.field(column)
    segment = coverage.segment_of(standing.metadata)
    searcher = standing.kind.open(segment, field)
    examined = standing.kind.examine(segment, field)
    assert examined.problems == ()
    said: dict[str, Certainty | None] = {}
    for sql in sqls:
        leaf = Predicate.parse(sql, dataset.schema).tree
        assert isinstance(leaf, Comparison | In | IsNull | Like | Call), leaf
        found = searcher.search(leaf)
        expecting = standing.kind.answers(leaf, standing.metadata)
        assert (found is None) is (expecting is None), sql
        said[sql] = None if found is None else found.certainty
        if found is not None:
            assert found.certainty is expecting
            _compare(dataset, sql, MatchedRows(coverage.row_remap(standing).remap_set(found.rows), found.certainty))
    return said


def _compare(dataset: lance.LanceDataset, sql: str, found: MatchedRows) -> None:
    everything = dataset.scanner(with_row_address=True).to_table()
    (batch,) = everything.combine_chunks().to_batches()
    rows = batch["_rowaddr"].to_numpy()
    live = RowSet.of(rows)
    matching = rows[np.array(Predicate.parse(sql, dataset.schema).mask(batch))]
    got = set(found.rows & live)
    assert set(matching.tolist()) <= got, sql
    if found.certainty is Certainty.EXACT:
        assert set(matching.tolist()) == got, sql


def options_of(uri: str, column: str) -> IndexOptions:
    """Those that a segment of either library says it was built with."""
    coverage = Coverage(load_latest(locate(uri, durable=False)))
    (standing,) = coverage.by_name[f"{column}_idx"]
    assert standing.kind is registry.by_name(standing.kind.name if standing.kind else "")
    return standing.kind.options_of(coverage.segment_of(standing.metadata))

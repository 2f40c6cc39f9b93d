"""Sequences of stable row ids and of row versions, as fragments carry them.

What lives here: the ranges that fresh rows get when they are committed. Reading the other segment kinds
belongs here too.
"""

from lance_core.format._pb import rowids_pb2
from lance_core.format.ids import RowId, Version


def encode_range(start: RowId, count: int) -> bytes:
    """A `RowIdSequence` of `count` consecutive ids."""
    return rowids_pb2.RowIdSequence(segments=[_range(start, count)]).SerializeToString()


def encode_one_version(count: int, version: Version) -> bytes:
    """A `RowDatasetVersionSequence`: all of `count` rows are of `version`."""
    run = rowids_pb2.RowDatasetVersionRun(span=_range(0, count), version=version)
    return rowids_pb2.RowDatasetVersionSequence(runs=[run]).SerializeToString()


def _range(start: int, count: int) -> rowids_pb2.U64Segment:
    return rowids_pb2.U64Segment(range=rowids_pb2.U64Segment.Range(start=start, end=start + count))

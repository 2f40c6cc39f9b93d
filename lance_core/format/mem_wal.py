"""MemWAL progress: the entry `__lance_mem_wal` of the index section, which records how far write-ahead logs are
compacted into the table.

Other libraries write such logs and compact them into tables. A commit of this library only has to preserve and
advance the progress: for each shard of a log, the last generation that the table contains. The operations decide when
it advances.
"""

import uuid
from collections.abc import Iterable, Sequence

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt
from lance_core.format._pb import table_pb2
from lance_core.format.ids import Version
from lance_core.format.index_metadata import MEM_WAL, IndexMetadata
from lance_core.format.operations import Progress

_TYPE_URL = "/lance.table.MemWalIndexDetails"


def progress_of(index: IndexMetadata) -> tuple[Progress, ...]:
    """Return the progress that an index entry records; an empty tuple for an entry of another name."""
    if index.name != MEM_WAL:
        return ()
    return tuple(Progress(item.shard_id.uuid, item.generation) for item in _details(index).compacted_sstables)


def with_progress(
    indices: Iterable[IndexMetadata],
    progress: Sequence[Progress],
    *,
    identity: uuid.UUID,
    version: Version,
    created_ms: int,
) -> tuple[IndexMetadata, ...]:
    """Return the indices with an updated progress entry; the other entries are unchanged.

    The progress of a shard never decreases, and unknown shards are added. The entry gets a new uuid, because readers
    cache entries by their uuid.
    """
    existing = tuple(indices)
    if not progress:
        return existing
    old_entry = next((index for index in existing if index.name == MEM_WAL), None)
    details = table_pb2.MemWalIndexDetails() if old_entry is None else _details(old_entry)
    entries = {entry.shard_id.uuid: entry for entry in details.compacted_sstables}
    for shard, generation in ((item.shard, item.generation) for item in progress):
        if shard not in entries:
            entries[shard] = details.compacted_sstables.add(shard_id=table_pb2.UUID(uuid=shard))
        entries[shard].generation = max(entries[shard].generation, generation)
    message = table_pb2.IndexMetadata(name=MEM_WAL, dataset_version=version, index_version=0, created_at=created_ms)
    message.uuid.uuid = identity.bytes
    message.index_details.type_url = _TYPE_URL
    message.index_details.value = details.SerializeToString()
    return (*(index for index in existing if index.name != MEM_WAL), IndexMetadata(message))


def _details(index: IndexMetadata) -> table_pb2.MemWalIndexDetails:
    try:
        return table_pb2.MemWalIndexDetails.FromString(index.message.index_details.value)
    except DecodeError as error:
        raise Corrupt("its MemWAL details do not parse", path=f"index {index.name}", field="index_details") from error

"""How far logs in front of a table are part of it: the entry `__lance_mem_wal` of the index section.

Other libraries keep such logs and compact them into tables; here is only what a commit beside them must know and keep:
for each shard of a log, the last generation that the table contains. When it moves on is the operations' to say.
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
    """What an entry of this name says; nothing for any other index."""
    if index.name != MEM_WAL:
        return ()
    return tuple(Progress(each.shard_id.uuid, each.generation) for each in _details(index).compacted_sstables)


def with_progress(
    indices: Iterable[IndexMetadata],
    progress: Sequence[Progress],
    *,
    identity: uuid.UUID,
    version: Version,
    created_ms: int,
) -> tuple[IndexMetadata, ...]:
    """The entry anew, the others as they are. A shard never goes back; one that was not known joins. The entry gets an
    identity of its own, since readers keep by it what they have read."""
    all_of_them = tuple(indices)
    if not progress:
        return all_of_them
    before = next((index for index in all_of_them if index.name == MEM_WAL), None)
    details = table_pb2.MemWalIndexDetails() if before is None else _details(before)
    reached = {each.shard_id.uuid: each for each in details.compacted_sstables}
    for each in progress:
        if each.shard not in reached:
            reached[each.shard] = details.compacted_sstables.add(shard_id=table_pb2.UUID(uuid=each.shard))
        reached[each.shard].generation = max(reached[each.shard].generation, each.generation)
    message = table_pb2.IndexMetadata(name=MEM_WAL, dataset_version=version, index_version=0, created_at=created_ms)
    message.uuid.uuid = identity.bytes
    message.index_details.type_url = _TYPE_URL
    message.index_details.value = details.SerializeToString()
    return (*(index for index in all_of_them if index.name != MEM_WAL), IndexMetadata(message))


def _details(index: IndexMetadata) -> table_pb2.MemWalIndexDetails:
    try:
        return table_pb2.MemWalIndexDetails.FromString(index.message.index_details.value)
    except DecodeError as error:
        raise Corrupt(
            "does not say how far logs are part of the table", path=f"index {index.name}", field=""
        ) from error

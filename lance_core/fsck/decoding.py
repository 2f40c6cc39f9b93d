"""Decoding check: decodes all rows of a file for which no hash is recorded, in another process, and discards them.

Only a hash detects every change. Decoding detects damage that contradicts the format, and is what remains for files of
other engines until `record_checksums` hashes them. A damaged file cannot end this process: data and index files go
through `IsolatedReader`, and deletion files and files of format 0.1 are decoded in Python with their own checks. Start
with `decode_file`.
"""

import struct

from lance_core.datafiles.codec import BATCH_ROWS, FileReader
from lance_core.datafiles.legacy_codec import LegacyFileReader
from lance_core.errors import NotFound
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import StorageVersion
from lance_core.limits import DELETION_BYTES
from lance_core.storage.store import Store, read_whole
from lance_core.versions.location import Location

_DELETION_DECODERS = {".arrow": DeletionVector.decode_arrow, ".bin": DeletionVector.decode_bitmap}
_READ_BYTES = 64 << 20
"""Approximate size in the file of the rows that are decoded at a time, since they may be larger in memory."""
_VERSION = struct.Struct("<HH4s")
"""End of a file of any format: its version and the magic bytes."""


def decode_file(location: Location, path: str) -> None:
    """Decode a data, deletion or index file, and raise the error that this causes. `location` is untrusted, so that its
    codec decodes in another process."""
    where = f"{location.uri}/{path}"
    for suffix, decode in _DELETION_DECODERS.items():
        if path.endswith(suffix):
            decode(read_whole(location.store, path, DELETION_BYTES), path=where)
            return
    info = location.store.head(path)
    if info is None:
        raise NotFound(f"{where} does not exist")
    if _is_legacy(location.store, path, info.size):
        reader: FileReader = LegacyFileReader.open(location.store, path)
    else:
        reader = location.codec.open(path, size=info.size)
    names, rows = reader.schema.names, reader.row_count
    step = max(1, min(BATCH_ROWS, rows * _READ_BYTES // max(info.size, 1)))
    for start in range(0, rows if names else 0, step):
        for batch in reader.read(names, start, min(step, rows - start)):
            batch.validate()


def _is_legacy(store: Store, path: str, size: int) -> bool:
    end = store.read(path, max(size - _VERSION.size, 0), _VERSION.size)
    if len(end) < _VERSION.size:
        return False
    major, minor, _magic = _VERSION.unpack(end)
    return StorageVersion.of_file(major, minor).is_legacy

"""Overlays by pylance: commits of new values for single cells, which only pylance writes.

pylance reads and writes tables with overlays only while `ALLOWED` is set in the environment.
"""

import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import lance
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import DataFile

ALLOWED = "LANCE_ENABLE_UNSTABLE_DATA_OVERLAY_FILES"
Offsets = list[int] | list[Iterable[int]]


def commit_overlay(
    directory: Path | str, fragment_id: int, values: pa.Table, field_ids: Sequence[int], offsets: Offsets
) -> lance.LanceDataset:
    """Give the cells at these physical offsets the values, and return the new version. `offsets` has a list for each
    field if the fields cover different rows."""
    dataset = lance.dataset(str(directory))
    version = dataset.data_storage_version
    path = f"{directory}/data/{uuid.uuid4().hex}.lance"
    with LanceFileWriter(path, values.schema, version=version) as writer:
        writer.write_batch(values)
    major, minor = map(int, version.split("."))
    file = DataFile(
        path=os.path.basename(path),
        fields=list(field_ids),
        column_indices=list(range(len(field_ids))),
        file_major_version=major,
        file_minor_version=minor,
        file_size_bytes=os.path.getsize(path),
    )
    overlay = lance.LanceOperation.DataOverlayFile(file, offsets)
    group = lance.LanceOperation.DataOverlayGroup(fragment_id, [overlay])
    operation = lance.LanceOperation.DataOverlay([group])
    return lance.LanceDataset.commit(str(directory), operation, read_version=dataset.version)

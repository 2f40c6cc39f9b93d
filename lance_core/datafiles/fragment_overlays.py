"""Fragment overlays: replaces values in the rows of a fragment by those of overlay files (`format/overlay.py`).

An overlay replaces whole values of leaves. Structs are taken apart: a null struct stays null, and a child without new
values keeps its old ones. Lists, maps and packed structs are replaced as a whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.assemble import StoredColumn, assemble_column
from lance_core.datafiles.codec import FileReader
from lance_core.datafiles.column_layout import Path, is_blob
from lance_core.errors import Corrupt, Unsupported
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.overlay import OverlayFile, overlays_of
from lance_core.format.schema import Field

Offsets: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OpenOverlay:
    """An open overlay file, and the paths of the table's fields in it."""

    overlay: OverlayFile
    reader: FileReader
    paths: Mapping[int, Path]
    _coverage: dict[int, Offsets] = field(default_factory=dict)

    def coverage(self, field_id: int) -> Offsets:
        """Return the covered offsets of a field, which are decoded once."""
        if field_id not in self._coverage:
            covered = self.overlay.coverage(field_id)
            if len(covered) > self.reader.row_count:
                raise Corrupt(
                    f"covers {len(covered)} rows, but has values for {self.reader.row_count}",
                    path=self.overlay.file.path,
                    field="coverage",
                )
            self._coverage[field_id] = covered
        return self._coverage[field_id]

    def stored_field(self, node: Field) -> int | None:
        """Return a field id under which the file stores the values of `node`."""
        return next((each.id for each in node.walk() if each.id in self.paths), None)

    def read(self, node: Field, target: pa.DataType, ranks: Offsets) -> pa.Array:
        """Return the values of a field in these rows of the file."""
        ids = {each.id for each in node.walk() if not each.children or each.is_packed}
        if missing := ids - self.paths.keys():
            raise Unsupported(
                f"overlay {self.overlay.file.path} replaces only a part of column {node.name!r}, without field "
                f"{min(missing)}; compact the table with the library that wrote it"
            )
        stored_id = self.stored_field(node)
        assert stored_id is not None, "the caller has checked it"
        depth = len(self.paths[stored_id]) - 1 - _levels_between(node, stored_id)
        batches = list(self.reader.take([self.paths[stored_id][0]], ranks))
        array = pa.concat_arrays([batch.column(0) for batch in batches])
        for name in self.paths[stored_id][1 : depth + 1]:
            array = array.field(name)
        paths = {field_id: path[depth:] for field_id, path in self.paths.items() if field_id in ids | {node.id}}
        return assemble_column(node, target, [StoredColumn(array, paths, self.overlay.file.path)], len(array))


@dataclass(frozen=True, slots=True)
class FragmentOverlays:
    """The overlays of a fragment that have values of the requested columns, oldest first."""

    overlays: Sequence[OpenOverlay]
    fields: Sequence[Field]

    def apply(self, batch: pa.RecordBatch, offsets: Offsets) -> pa.RecordBatch:
        """Return rows with the new values. `offsets` are their physical offsets."""
        if not batch.num_rows:
            return batch
        columns = [self._apply(node, column, offsets) for node, column in zip(self.fields, batch.columns, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _apply(self, node: Field, array: pa.Array, offsets: Offsets) -> pa.Array:
        if all(overlay.stored_field(node) is None for overlay in self.overlays):
            return array
        if _is_divisible(node) and pa.types.is_struct(array.type):
            children = [self._apply(child, array.field(n), offsets) for n, child in enumerate(node.children)]
            mask = array.is_null() if array.null_count else None
            return pa.StructArray.from_arrays(children, fields=list(array.type), mask=mask)
        for overlay in self.overlays:
            if (field_id := overlay.stored_field(node)) is not None:
                array = _replace(array, node, overlay, overlay.coverage(field_id), offsets)
        return array


def open_overlays(
    fragment: Fragment, fields: Sequence[Field], open_file: Callable[[DataFile], tuple[FileReader, Mapping[int, Path]]]
) -> FragmentOverlays | None:
    """Open the overlays that have values of these columns. `open_file` returns a reader with the paths in the file."""
    nodes = [node for top in fields for node in top.walk()]
    ids = {node.id for node in nodes}
    opened = []
    for overlay in overlays_of(fragment):
        if not (live := overlay.live_fields & ids):
            continue
        if blob := next((node for node in nodes if node.id in live and is_blob(node)), None):
            raise Unsupported(
                f"overlay {overlay.file.path} of fragment {fragment.id} replaces blobs of column {blob.name!r}, which "
                "this library cannot read; leave the column out with columns=[...], or compact the table with the "
                "library that wrote it"
            )
        reader, paths = open_file(overlay.file)
        opened.append(OpenOverlay(overlay, reader, {field_id: paths[field_id] for field_id in paths.keys() & live}))
    return FragmentOverlays(opened, fields) if opened else None


def _is_divisible(node: Field) -> bool:
    return node.logical_type == "struct" and bool(node.children) and not node.is_packed


def _levels_between(node: Field, field_id: int) -> int:
    """Return how many levels a descendant is below a field."""
    if node.id == field_id:
        return 0
    child = next(each for each in node.children if any(below.id == field_id for below in each.walk()))
    return 1 + _levels_between(child, field_id)


def _replace(array: pa.Array, node: Field, overlay: OpenOverlay, covered: Offsets, offsets: Offsets) -> pa.Array:
    """Return the values with those of an overlay at the covered offsets."""
    if not len(covered):
        return array
    ranks = np.minimum(np.searchsorted(covered, offsets), len(covered) - 1)
    hits = np.flatnonzero(covered[ranks] == offsets)
    if not len(hits):
        return array
    values = overlay.read(node, array.type, ranks[hits])
    sources = np.arange(len(array))
    sources[hits] = len(array) + np.arange(len(hits))
    return pa.concat_arrays([array, values]).take(pa.array(sources))

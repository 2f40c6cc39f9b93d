"""Arrow expressions: reads a `pyarrow.compute.Expression` as a tree of fields, literals and calls.

pyarrow has no public access to the parts of an expression. Its pickle is a record batch whose schema metadata lists the
parts in prefix order and whose columns hold the literals; the same bytes travel between processes of Dask and Ray.
`003-arrow-expressions.md` says why Substrait and the text of an expression are no alternative. Start with `read_tree`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInput

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FieldNode:
    """Column, or a field inside structs."""

    path: Path


@dataclass(frozen=True, slots=True)
class LiteralNode:
    """Constant."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class CallNode:
    """Call of a compute function."""

    function: str
    arguments: "tuple[ArrowNode, ...]"
    options: dict[str, pa.Scalar]
    """Options by name; empty if the call has none."""


ArrowNode: TypeAlias = FieldNode | LiteralNode | CallNode


def read_tree(expression: pc.Expression) -> ArrowNode:
    """Return the tree of an expression. Raise `InvalidInput` for one that has no serialized form."""
    try:
        _, (data,) = expression.__reduce__()
    except pa.ArrowException as error:
        raise InvalidInput(
            f"the expression {expression} cannot be read: {error}; refer to columns by name, as in field('price')"
        ) from error
    with pa.ipc.open_file(data) as file:
        batch = file.get_batch(0)
    return _TreeReader(batch).read()


def fields_of(node: ArrowNode) -> Iterator[Path]:
    """Yield the path of each field in the tree."""
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, FieldNode):
            yield part.path
        elif isinstance(part, CallNode):
            pending += reversed(part.arguments)


class _TreeReader:
    """Reader of one serialized expression. It keeps the calls whose end it has not reached in a list, since expressions
    can be deeper than the stack of Python."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._entries = iter(_metadata_entries(batch.schema))

    def read(self) -> ArrowNode:
        open_calls: list[tuple[str, list[ArrowNode], dict[str, pa.Scalar]]] = []
        for kind, value in self._entries:
            node: ArrowNode
            if kind == "call":
                open_calls.append((value, [], {}))
                continue
            if kind == "options":
                open_calls[-1][2].update(self._scalar(value).items())
                continue
            if kind == "end":
                function, arguments, options = open_calls.pop()
                node = CallNode(function, tuple(arguments), options)
            elif kind == "literal":
                node = LiteralNode(self._scalar(value))
            else:
                node = self._field(kind, value)
            if not open_calls:
                return node
            open_calls[-1][1].append(node)
        raise InvalidInput("the expression of pyarrow is serialized in an unknown form; write the condition in SQL")

    def _field(self, kind: str, value: str) -> FieldNode:
        if kind == "field_ref":
            return FieldNode((value,))
        if kind == "nested_field_ref":
            names = [next(self._entries) for _ in range(int(value))]
            if all(each == "field_ref" for each, _name in names):
                return FieldNode(tuple(name for _each, name in names))
        raise InvalidInput(f"the expression of pyarrow has a part {kind!r}, which is unknown; write it in SQL")

    def _scalar(self, column: str) -> Any:
        return self._batch.column(int(column))[0]


def _metadata_entries(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield the metadata of a schema in order and with repeated keys, which `Schema.metadata` drops.

    The schema is read in its IPC form: a FlatBuffer whose root is a `Message` with a `Schema` as its header.
    """
    data = pa.ipc.read_message(schema.serialize()).metadata.to_pybytes()
    message = _FlatTable(data, _UINT32.unpack_from(data)[0])
    header = message.child(_MESSAGE_HEADER)
    entries = None if header is None else header.slot(_SCHEMA_METADATA)
    if entries is None:
        return
    start = entries + _UINT32.unpack_from(data, entries)[0]
    (count,) = _UINT32.unpack_from(data, start)
    for position in range(start + 4, start + 4 + 4 * count, 4):
        entry = _FlatTable(data, position + _UINT32.unpack_from(data, position)[0])
        yield entry.text(0), entry.text(1)


_UINT16, _INT32, _UINT32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")
_MESSAGE_HEADER, _SCHEMA_METADATA = 2, 2
"""Numbers of fields in the definitions of Arrow's IPC format."""


@dataclass(frozen=True, slots=True)
class _FlatTable:
    """Table of a FlatBuffer at a position of its bytes."""

    data: bytes
    position: int

    def slot(self, number: int) -> int | None:
        """Return the position of a field; `None` if it has its default value."""
        fields = self.position - int(_INT32.unpack_from(self.data, self.position)[0])
        at = 4 + 2 * number
        if at >= _UINT16.unpack_from(self.data, fields)[0]:
            return None
        return self.position + offset if (offset := int(_UINT16.unpack_from(self.data, fields + at)[0])) else None

    def child(self, number: int) -> "_FlatTable | None":
        """Return the table to which a field refers."""
        slot = self.slot(number)
        return None if slot is None else _FlatTable(self.data, slot + int(_UINT32.unpack_from(self.data, slot)[0]))

    def text(self, number: int) -> str:
        """Return a field with a string; an empty one if it is missing."""
        slot = self.slot(number)
        if slot is None:
            return ""
        start = slot + _UINT32.unpack_from(self.data, slot)[0]
        (length,) = _UINT32.unpack_from(self.data, start)
        return self.data[start + 4 : start + 4 + length].decode()

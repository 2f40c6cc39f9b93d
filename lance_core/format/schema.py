"""Table schema: the tree of fields with their ids, converted to and from protobuf messages and Arrow.

The module defines `TableSchema` and `Field`, assigns ids depth-first, and adds the metadata that Lance derives from a
field. `logical_types.py` maps leaf types; `datafiles/column_layout.py` decides which column of a file stores a field.
Start with `TableSchema.from_arrow`.
"""

import functools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from lance_core.errors import Corrupt, InvalidInput, Unsupported
from lance_core.format import key_metadata, logical_types
from lance_core.format._pb import file_pb2
from lance_core.format.logical_types import EXTENSION_METADATA, EXTENSION_NAME, JSON_EXTENSION, UnknownLogicalType
from lance_core.limits import FIELDS

RESERVED_NAMES = frozenset({"_rowid", "_rowaddr", "_row_created_at_version", "_row_last_updated_at_version"})
_PACKED = (b"lance-encoding:packed", b"packed")
_TOP_LEVEL = -1
_DEPTH_MAX = 100
_ARROW_DEPTH_MAX = 63
"""Arrow passes schemas between libraries only up to this depth. A deeper table could be written, but not opened."""
_SHOWN_MAX = 80
_ARROW_REJECTIONS = (pa.ArrowException, ValueError, TypeError)
"""Errors of Arrow, or of a registered extension type, for parameters that do not match the storage type."""


@dataclass(frozen=True, slots=True)
class Field:
    """One node of the schema. `logical_type` defines its type; children are in order."""

    id: int
    name: str
    logical_type: str
    nullable: bool
    metadata: Mapping[bytes, bytes]
    children: tuple["Field", ...] = ()

    @property
    def is_packed(self) -> bool:
        return self.logical_type == "struct" and any(self.metadata.get(key) == b"true" for key in _PACKED)

    @property
    def is_primary_key(self) -> bool:
        """True if the field is part of the declared primary key, which is not enforced."""
        return key_metadata.is_primary_key(self.metadata)

    def walk(self) -> Iterator["Field"]:
        """Yield this field and all its descendants, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def arrow(self) -> pa.Field:
        metadata = dict(self.metadata)
        if self.logical_type == "json":
            metadata.pop(EXTENSION_NAME, None)
            metadata.pop(EXTENSION_METADATA, None)
        return pa.field(self.name, self._arrow_type(), self.nullable, metadata or None)

    def _arrow_type(self) -> pa.DataType:
        kind, _, rest = self.logical_type.partition(":")
        match kind:
            case "struct":
                return pa.struct([child.arrow() for child in self.children])
            case "list" | "list.struct":
                return pa.list_(self._only_child().arrow())
            case "large_list" | "large_list.struct":
                return pa.large_list(self._only_child().arrow())
            case "map":
                entries = self._only_child()
                if len(entries.children) != 2:
                    raise Unsupported(f"field {self.name!r} is a map without exactly one key and one value")
                key, value = entries.children
                return pa.map_(key.arrow(), value.arrow())
            case "fixed_size_list" if rest.startswith("struct:") and rest.removeprefix("struct:").isdecimal():
                return pa.list_(self._only_child().arrow(), int(rest.removeprefix("struct:")))
        try:
            return logical_types.to_arrow(self.logical_type)
        except UnknownLogicalType as error:
            raise Unsupported(
                f"field {self.name!r} (id {self.id}) has the unknown logical type {self.logical_type[:_SHOWN_MAX]!r}; "
                "a newer version of the library may support it"
            ) from error

    def _only_child(self) -> "Field":
        if len(self.children) != 1:
            raise Unsupported(
                f"field {self.name!r} of type {self.logical_type} has {len(self.children)} children instead of one"
            )
        return self.children[0]


@dataclass(frozen=True)
class TableSchema:
    """The fields of one version, with the Arrow schema metadata."""

    fields: tuple[Field, ...]
    metadata: Mapping[bytes, bytes]

    @classmethod
    def from_arrow(cls, schema: pa.Schema, *, first_id: int = 0, is_stored: bool = False) -> "TableSchema":
        """Convert an Arrow schema, assigning ids depth-first from `first_id`. One error names every unsupported
        column. The result can be converted back to Arrow. `is_stored` marks a schema read from a file, whose names
        may be ones that new columns cannot have."""
        ids = iter(range(first_id, 2**31 - 1))
        problems: list[str] = []
        seen: set[str] = set()
        fields = []
        if not _is_utf8(schema.metadata):
            problems.append("the schema's own metadata is not UTF-8 text")
        for column in schema:
            if column.name in seen:
                problems.append(f"column {column.name!r} appears twice")
            elif column.name in RESERVED_NAMES:
                problems.append(f"column {column.name!r} has a name that Lance reserves; rename it")
            elif "." in column.name or not column.name:
                problems.append(f"column {column.name!r}: a top-level name may not be empty or contain '.'")
            elif "`" in column.name and not is_stored:
                problems.append(f"column {column.name!r}: a top-level name may not contain a back-tick")
            seen.add(column.name)
            try:
                fields.append(_from_arrow(column, ids, column.name, depth=1))
            except UnknownLogicalType as error:
                problems.append(str(error))
            else:
                problems += _primary_key_problems(fields[-1], fields[-1].name)
                problems += [] if is_stored else _unnamed_child_problems(fields[-1])
        if problems:
            raise InvalidInput("this schema cannot be stored in a Lance table: " + "; ".join(problems))
        table_schema = cls(tuple(fields), dict(schema.metadata or {}))
        try:
            table_schema.arrow  # noqa: B018 - raises if the conversion fails, and caches the result
        except Unsupported as error:
            raise InvalidInput(f"this schema cannot be stored in a Lance table: {error}") from error
        return table_schema

    def check_keys(self) -> None:
        """Raise `InvalidInput` if the declared primary key is not valid for a table."""
        if problems := [problem for field in self.fields for problem in _primary_key_problems(field, field.name)]:
            raise InvalidInput("this schema is not valid for a table: " + "; ".join(problems))

    @classmethod
    def decode(
        cls, messages: Collection[file_pb2.Field], metadata: Mapping[str, bytes], *, path: str = "manifest"
    ) -> "TableSchema":
        """Decode the flat, pre-order list of protobuf fields. Versions of a table share their schema."""
        FIELDS.check(len(messages), path=path)
        encoded = file_pb2.Schema(fields=messages, metadata=metadata).SerializeToString(deterministic=True)
        if len(encoded) <= _WIDE_BYTES_MAX:
            with suppress(Corrupt):  # an error names the path
                return (_decode_cached if len(encoded) <= _CACHED_BYTES_MAX else _decode_wide_cached)(encoded)
        return cls._decode(messages, metadata, path)

    @classmethod
    def _decode(cls, messages: Collection[file_pb2.Field], metadata: Mapping[str, bytes], path: str) -> "TableSchema":
        children: dict[int, list[file_pb2.Field]] = {_TOP_LEVEL: []}
        for message in messages:
            if message.id < 0:
                raise Corrupt(
                    f"field {message.name!r} has the id {message.id}, and no field of a schema has a negative id",
                    path=path,
                    field="fields",
                )
            if message.id in children:
                raise Corrupt(f"two fields have the id {message.id}", path=path, field="fields")
            if message.parent_id not in children:
                raise Corrupt(
                    f"field {message.name!r} has the parent {message.parent_id}, which does not precede it",
                    path=path,
                    field="fields",
                )
            children[message.parent_id].append(message)
            children[message.id] = []
        names: set[str] = set()
        for message in children[_TOP_LEVEL]:
            if message.name in names:
                raise Corrupt(f"two columns have the name {message.name!r}", path=path, field="fields")
            names.add(message.name)
        top_level = tuple(_decode(message, children, path, depth=1) for message in children[_TOP_LEVEL])
        return cls(top_level, {key.encode(): value for key, value in metadata.items()})

    def as_file_descriptor(self, rows: int) -> bytes:
        """Return the file descriptor of a data file, which is stored as its global buffer 0."""
        schema = file_pb2.Schema(fields=self.encode())
        return file_pb2.FileDescriptor(schema=schema, length=rows).SerializeToString()

    def encode(self) -> Sequence[file_pb2.Field]:
        """Return the fields as messages, parents before their children. Callers copy them."""
        return self._encoded

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_encoded"}

    @cached_property
    def _encoded(self) -> tuple[file_pb2.Field, ...]:
        return tuple(message for field in self.fields for message in _encode(field, _TOP_LEVEL))

    @cached_property
    def arrow(self) -> pa.Schema:
        try:
            return _round_trip_ipc(self.fields, self.metadata)
        except _ARROW_REJECTIONS as error:
            for field in self.fields:
                _check_field_alone(field)
            raise Unsupported(f"the fields cannot be converted to an Arrow schema: {error}") from error

    def select(self, names: Iterable[str]) -> "TableSchema":
        """Return whole top-level columns. The Arrow fields are reused, because creating them takes as long as finding
        a row."""
        column_names = list(names)
        selected = TableSchema(tuple(map(self.field, column_names)), self.metadata)
        vars(selected)["arrow"] = pa.schema(list(map(self.arrow.field, column_names)), self.arrow.metadata)
        return selected

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(field.name for field in self.fields)

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        """Fields by name, the first one of each."""
        return {field.name: field for field in reversed(self.fields)}

    @cached_property
    def field_ids(self) -> frozenset[int]:
        """The ids of all fields, including nested ones."""
        return frozenset(field.id for top in self.fields for field in top.walk())

    @cached_property
    def field_id_max(self) -> int:
        return max(self.field_ids, default=-1)

    def field(self, name: str) -> Field:
        return self._by_name[name]


_CACHED_SCHEMAS_MAX = 16
_CACHED_BYTES_MAX = 1 << 18
"""Maximum encoded size of a schema that is cached: some eight thousand columns, which take ten megabytes decoded."""
_CACHED_WIDE_SCHEMAS_MAX = 4
_WIDE_BYTES_MAX = 1 << 20
"""Maximum encoded size of the few wider schemas that are cached."""


@functools.lru_cache(maxsize=_CACHED_SCHEMAS_MAX)
def _decode_cached(encoded: bytes) -> TableSchema:
    schema = file_pb2.Schema.FromString(encoded)
    return TableSchema._decode(schema.fields, schema.metadata, "")


_decode_wide_cached = functools.lru_cache(maxsize=_CACHED_WIDE_SCHEMAS_MAX)(_decode_cached.__wrapped__)


def _primary_key_problems(field: Field, path: str, *, in_null: bool = False) -> list[str]:
    """Return a message for each field that cannot be part of a primary key."""
    problems = []
    in_null = in_null or field.nullable
    if field.is_primary_key and field.children:
        problems.append(f"field {path!r} is declared as primary key, but has children")
    elif field.is_primary_key and in_null:
        problems.append(f"field {path!r} is declared as primary key, but it or a parent of it is nullable")
    for child in field.children:
        problems += _primary_key_problems(child, f"{path}.{child.name}", in_null=in_null)
    return problems


def _unnamed_child_problems(column: Field) -> list[str]:
    parents = (field for field in column.walk() if field.logical_type == "struct")
    nameless = [parent.name for parent in parents if any(not child.name for child in parent.children)]
    return [f"column {column.name!r}: a child of the struct {name!r} has no name; give it one" for name in nameless]


def _round_trip_ipc(fields: Iterable[Field], metadata: Mapping[bytes, bytes]) -> pa.Schema:
    """Convert to an Arrow schema. A pass through IPC turns `ARROW:extension:*` metadata into the extension types that
    pyarrow knows."""
    schema = pa.schema([field.arrow() for field in fields], dict(metadata) or None)
    converted = pa.ipc.read_schema(schema.serialize())
    resolved_fields = [
        declared if _changes_storage(declared.type, known.type) else known
        for declared, known in zip(schema, converted, strict=True)
    ]
    return pa.schema(resolved_fields, converted.metadata)


def _changes_storage(declared: pa.DataType, known: pa.DataType) -> bool:
    """Return whether a registered extension type replaces the storage type that the table declares. The extension type
    of pylance 11 for blobs does so."""
    return (
        isinstance(known, pa.BaseExtensionType)
        and not isinstance(declared, pa.BaseExtensionType)
        and known.storage_type != declared
    )


def _check_field_alone(field: Field) -> None:
    """Raise `Unsupported` if this field alone cannot be converted to Arrow."""
    try:
        _round_trip_ipc([field], {})
    except _ARROW_REJECTIONS as error:
        kind = field.metadata.get(EXTENSION_NAME, b"").decode(errors="replace")
        extension = f" and the extension type {kind!r}" if kind else ""
        raise Unsupported(
            f"field {field.name!r} (id {field.id}) has the logical type {field.logical_type[:_SHOWN_MAX]!r}"
            f"{extension}, which do not make a valid Arrow field: {error}"
        ) from error


def _is_utf8(metadata: Mapping[bytes, bytes] | None) -> bool:
    try:
        for key, value in (metadata or {}).items():
            key.decode()
            value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _from_arrow(column: pa.Field, ids: Iterator[int], path: str, *, depth: int) -> Field:
    if depth > _ARROW_DEPTH_MAX:
        top = path.partition(".")[0]
        raise UnknownLogicalType(f"column {top!r} is nested more than {_ARROW_DEPTH_MAX} deep")
    if not _is_utf8(column.metadata):
        raise UnknownLogicalType(f"field {path!r} has metadata that is not UTF-8 text")
    field_id = next(ids, None)
    if field_id is None:
        raise UnknownLogicalType(
            f"field {path!r} would need an id of more than 31 bits: the table has assigned all others"
        )
    metadata = dict(column.metadata or {})
    arrow = column.type
    if logical_types.is_json(arrow):
        metadata |= {EXTENSION_NAME: JSON_EXTENSION.encode(), EXTENSION_METADATA: b""}
    elif isinstance(arrow, pa.BaseExtensionType):
        metadata |= {
            EXTENSION_NAME: arrow.extension_name.encode(),
            EXTENSION_METADATA: _extension_parameters(arrow, path),
        }
        arrow = arrow.storage_type

    def child(field: pa.Field) -> Field:
        return _from_arrow(field, ids, f"{path}.{field.name}", depth=depth + 1)

    children: tuple[Field, ...] = ()
    if pa.types.is_struct(arrow):
        logical = "struct"
        names = [field.name for field in arrow]
        if len(set(names)) != len(names):
            raise UnknownLogicalType(f"field {path!r} is a struct with two children of the same name")
        children = tuple(child(field) for field in arrow)
    elif pa.types.is_map(arrow):
        if arrow.keys_sorted:
            raise UnknownLogicalType(
                f"field {path!r} is a map with sorted keys, which Lance cannot store; use a map without keys_sorted"
            )
        logical = "map"
        entries = pa.field("entries", pa.struct([arrow.key_field, arrow.item_field]), nullable=False)
        children = (child(entries),)
    elif pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        logical = "list" if pa.types.is_list(arrow) else "large_list"
        logical += ".struct" if pa.types.is_struct(arrow.value_type) else ""
        children = (child(arrow.value_field),)
    elif pa.types.is_fixed_size_list(arrow) and pa.types.is_struct(arrow.value_type):
        logical = f"fixed_size_list:struct:{arrow.list_size}"
        children = (child(arrow.value_field),)
    else:
        try:
            logical = logical_types.from_arrow(arrow)
        except UnknownLogicalType as error:
            raise UnknownLogicalType(f"field {path!r} has the Arrow type {error}, which Lance cannot store") from error
        if depth + logical.count("fixed_size_list:") > _ARROW_DEPTH_MAX:
            raise UnknownLogicalType(f"field {path!r} is nested more than {_ARROW_DEPTH_MAX} deep")
    return Field(field_id, column.name, logical, column.nullable, metadata, children)


def _extension_parameters(arrow: pa.BaseExtensionType, path: str) -> bytes:
    """Return the serialised parameters of an extension type. Pyarrow exposes the serialisation of some types only, so
    the others are serialised here in the same form."""
    if isinstance(arrow, pa.ExtensionType):
        return bytes(arrow.__arrow_ext_serialize__())
    if isinstance(arrow, pa.FixedShapeTensorType):
        parameters = {"shape": arrow.shape, "permutation": arrow.permutation, "dim_names": arrow.dim_names}
    elif isinstance(arrow, pa.OpaqueType):
        parameters = {"type_name": arrow.type_name, "vendor_name": arrow.vendor_name}
    elif isinstance(arrow, pa.UuidType | pa.Bool8Type):
        return b""
    else:
        raise UnknownLogicalType(f"field {path!r} has the Arrow type {arrow}, which Lance cannot store")
    known = {key: value for key, value in parameters.items() if value is not None}
    return json.dumps(known, separators=(",", ":"), ensure_ascii=False).encode()


def _decode(message: file_pb2.Field, children: Mapping[int, list[file_pb2.Field]], path: str, depth: int) -> Field:
    if depth > _DEPTH_MAX:
        raise Corrupt(f"field {message.name!r} is nested more than {_DEPTH_MAX} deep", path=path, field="fields")
    return Field(
        id=message.id,
        name=message.name,
        logical_type=message.logical_type,
        nullable=message.nullable,
        metadata={key.encode(): value for key, value in message.metadata.items()},
        children=tuple(_decode(child, children, path, depth + 1) for child in children[message.id]),
    )


def _encode(field: Field, parent: int) -> Iterator[file_pb2.Field]:
    message = file_pb2.Field(
        name=field.name,
        id=field.id,
        parent_id=parent,
        logical_type=field.logical_type,
        nullable=field.nullable,
        encoding=_encoding(field),
    )
    if field.metadata:
        for key, value in field.metadata.items():
            message.metadata[key.decode()] = value
        message.extension_name = field.metadata.get(EXTENSION_NAME, b"").decode(errors="replace")
        message.unenforced_primary_key = field.is_primary_key
        message.unenforced_primary_key_position = key_metadata.primary_position(field.metadata)
        message.unenforced_clustering_key_position = key_metadata.clustering_position(field.metadata)
    yield message
    for child in field.children:
        yield from _encode(child, field.id)


def _encoding(field: Field) -> file_pb2.Encoding:
    """Return the encoding hint, which only readers of the oldest format use, as Lance writes it."""
    kind = field.logical_type.partition(":")[0]
    if kind in ("struct", "null"):
        return file_pb2.Encoding.NONE
    if kind in ("string", "large_string", "binary", "large_binary", "json"):
        return file_pb2.Encoding.VAR_BINARY
    if kind == "dict":
        return file_pb2.Encoding.DICTIONARY
    return file_pb2.Encoding.PLAIN

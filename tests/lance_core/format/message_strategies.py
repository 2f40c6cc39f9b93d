"""Message strategies: Hypothesis strategies for any message of the format, derived from its declaration, so that later
fields are covered.

Lists of fields form a valid schema, since any other list is rejected first; every other field has any value of its
type, unknown enum values and unknown fields included.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from lance_core.format.message_weight import is_repeated
from lance_core.format.schema import TableSchema

M = TypeVar("M", bound=Message)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
BYTES = st.binary(max_size=12)
_U32, _U64, _I32, _I64 = (1 << 32) - 1, (1 << 64) - 1, 1 << 31, 1 << 63
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_UINT32: st.integers(0, _U32),
    FieldDescriptor.TYPE_UINT64: st.integers(0, _U64),
    FieldDescriptor.TYPE_FIXED64: st.integers(0, _U64),
    FieldDescriptor.TYPE_INT32: st.integers(-_I32, _I32 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-_I64, _I64 - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: TEXT,
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
}
_DEPTH_MAX = 5
_SCHEMA_OF = "lance.file.Field"
UNKNOWN = b"\xc2\x3e\x02\x08\x01"
"""Field 1000, which no message declares."""

_LEAVES = (pa.int64(), pa.string(), pa.bool_(), pa.timestamp("us", "UTC"), pa.decimal128(9, 2), pa.binary(3), pa.null())
_TYPES = st.recursive(
    st.sampled_from(_LEAVES),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda types: pa.struct([(f"f{number}", each) for number, each in enumerate(types)])
        ),
        inner.map(lambda value: pa.map_(pa.string(), value)),
    ),
    max_leaves=4,
)


@st.composite
def schemas(draw: st.DrawFn) -> TableSchema:
    types = draw(st.lists(_TYPES, max_size=3))
    fields = [
        pa.field(f"c{n}", each, pa.types.is_null(each) or draw(st.booleans()), draw(_METADATA))
        for n, each in enumerate(types)
    ]
    return TableSchema.from_arrow(pa.schema(fields, draw(_METADATA)), first_id=draw(st.integers(0, 1000)))


_METADATA = st.one_of(st.none(), st.dictionaries(TEXT.map(lambda text: f"k{text}"), TEXT, max_size=2))


def messages(kind: type[M], *, always: tuple[str, ...] = (), never: tuple[str, ...] = ()) -> st.SearchStrategy[M]:
    """`always` names fields that are set, `never` fields that are not."""
    return cast(st.SearchStrategy[M], _messages(kind, always, never, 0))


@st.composite
def _messages(
    draw: st.DrawFn, kind: type[Message], always: tuple[str, ...], never: tuple[str, ...], depth: int
) -> Message:
    message = kind()
    for field in cast(Descriptor, message.DESCRIPTOR).fields:
        if field.name in never or not (field.name in always or draw(st.booleans())):
            continue
        _put(draw, message, field, depth)
    if draw(st.integers(0, 9)) == 0:
        message.MergeFromString(UNKNOWN)
    return message


def _put(draw: st.DrawFn, message: Message, field: FieldDescriptor, depth: int) -> None:
    inner = field.message_type
    if inner is not None and depth >= _DEPTH_MAX:
        return
    if inner is not None and inner.GetOptions().map_entry:
        _put_map(draw, message, field, depth)
    elif inner is not None and inner.full_name == _SCHEMA_OF:
        getattr(message, field.name).extend(draw(schemas()).encode())
    elif inner is not None:
        created = _messages(cast(Callable[[], Any], inner._concrete_class), (), (), depth + 1)  # type: ignore[arg-type]
        if is_repeated(field):
            getattr(message, field.name).extend(draw(st.lists(created, max_size=2)))
        else:
            getattr(message, field.name).CopyFrom(draw(created))
    elif is_repeated(field):
        getattr(message, field.name).extend(draw(st.lists(_scalar(field), max_size=3)))
    else:
        setattr(message, field.name, draw(_scalar(field)))


def _put_map(draw: st.DrawFn, message: Message, field: FieldDescriptor, depth: int) -> None:
    key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
    entries = getattr(message, field.name)
    for each in draw(st.lists(_scalar(key), max_size=2, unique=True)):
        if value.message_type is None:
            entries[each] = draw(_scalar(value))
        else:
            created = _messages(value.message_type._concrete_class, (), (), depth + 1)
            entries[each].CopyFrom(draw(created))


def _scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.sampled_from([each.number for each in field.enum_type.values])
    return _SCALARS[field.type]

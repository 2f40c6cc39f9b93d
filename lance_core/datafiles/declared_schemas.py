"""Declared schemas: Arrow schemas that are declared as dataclasses or as models of pydantic, and their instances.

    @dataclass
    class Page:
        url: str
        title: str | None
        embedding: Annotated[list[float], pa.list_(pa.float32(), 128)]

A field without `None` among its types is not nullable. `Annotated` names an Arrow type, for sizes and widths that
Python lacks. pydantic need not be installed: a model is recognized by its methods. Start with `declared_schema`.
"""

import dataclasses
import datetime
import enum
import types
import typing
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from lance_core.errors import InvalidInput

_TYPES: dict[object, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us"),
    datetime.date: pa.date32(),
    datetime.time: pa.time64("us"),
    datetime.timedelta: pa.duration("us"),
}
_LISTS = (list, tuple, set, frozenset, Sequence)
_MAPS = (dict, Mapping)
_DEPTH_MAX = 32


def is_declaration(value: object) -> bool:
    """Return whether a value is a dataclass or a model of pydantic (the class, not an instance)."""
    return isinstance(value, type) and (dataclasses.is_dataclass(value) or _is_model(value))


def is_record(value: object) -> bool:
    """Return whether a value is an instance of a dataclass or of a model of pydantic."""
    return not isinstance(value, type) and is_declaration(type(value))


def declared_schema(declaration: pa.Schema | type) -> pa.Schema:
    """Return the Arrow schema of a dataclass or model; an Arrow schema is returned unchanged.

    >>> @dataclasses.dataclass
    ... class Order:
    ...     id: int
    ...     city: str | None
    >>> [(field.name, str(field.type), field.nullable) for field in declared_schema(Order)]
    [('id', 'int64', False), ('city', 'string', True)]
    """
    if isinstance(declaration, pa.Schema):
        return declaration
    if not is_declaration(declaration):
        raise InvalidInput(
            "a schema must be a pyarrow Schema, a dataclass or a model of pydantic, not "
            + (f"the class {declaration.__name__}" if isinstance(declaration, type) else repr(declaration))
        )
    return pa.schema(_fields(declaration, declaration.__name__, 0))


def values_of(record: object) -> dict[str, object]:
    """Return the fields of a record by name. Records inside it become dicts, members of enumerations their values."""
    declaration = type(record)
    return {name: _plain(getattr(record, name)) for name in _field_names(declaration)}


def _plain(value: object) -> object:
    if is_record(value):
        return values_of(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value


def _is_model(declaration: type) -> bool:
    return isinstance(getattr(declaration, "model_fields", None), Mapping) and hasattr(declaration, "model_dump")


def _field_names(declaration: type) -> list[str]:
    if dataclasses.is_dataclass(declaration):
        return [field.name for field in dataclasses.fields(declaration)]
    return list(declaration.model_fields)  # type: ignore[attr-defined]  # a model of pydantic


def _fields(declaration: type, what: str, depth: int) -> Iterator[pa.Field]:
    if depth > _DEPTH_MAX:
        raise InvalidInput(f"{what}: the declaration contains itself, or is nested deeper than {_DEPTH_MAX}")
    try:
        hints = typing.get_type_hints(declaration, include_extras=True)
    except NameError as error:
        raise InvalidInput(f"{what}: the type of a field cannot be resolved: {error}") from error
    for name in _field_names(declaration):
        yield _field(name, hints[name], f"{what}.{name}", depth)


def _field(name: str, hint: object, what: str, depth: int) -> pa.Field:
    hint, nullable, arrow = _split(hint, what)
    return pa.field(name, _arrow(hint, what, depth) if arrow is None else arrow, nullable)


def _split(hint: object, what: str) -> tuple[object, bool, pa.DataType | None]:
    """Return a type without `None`, whether it had `None`, and the Arrow type that an annotation names."""
    nullable, arrow = False, None
    while True:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            arrow = next((each for each in arguments[1:] if isinstance(each, pa.DataType)), arrow)
            hint = arguments[0]
        elif origin in (typing.Union, types.UnionType):
            rest = [each for each in arguments if each is not type(None)]
            nullable = nullable or len(rest) < len(arguments)
            if len(rest) != 1:
                if arrow is None:
                    raise InvalidInput(
                        f"{what}: a column has one type, not {hint}; name it by Annotated[..., pa.string()]"
                    )
                return hint, nullable, arrow
            hint = rest[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            return hint, nullable, arrow


def _arrow(hint: object, what: str, depth: int) -> pa.DataType:
    """Return the Arrow type of a type of Python."""
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if (arrow := _TYPES.get(origin)) is not None:
        return arrow
    if origin in _LISTS and arguments and (origin is not tuple or arguments[1:] == (...,)):
        return pa.list_(_field("item", arguments[0], f"{what}[]", depth + 1))
    if origin in _MAPS and len(arguments) == 2:
        key, value = (
            _field(name, each, what, depth + 1) for name, each in zip(("key", "value"), arguments, strict=True)
        )
        return pa.map_(key.with_nullable(False), value)
    if origin is typing.Literal:
        return _common(arguments, hint, what, depth)
    if isinstance(origin, type) and (arrow := _arrow_of_class(origin, what, depth)) is not None:
        return arrow
    raise InvalidInput(
        f"{what}: the type {getattr(hint, '__name__', hint)} has no Arrow type of its own; name one by "
        "Annotated, as in Annotated[Decimal, pa.decimal128(10, 2)]"
    )


def _arrow_of_class(origin: type, what: str, depth: int) -> pa.DataType | None:
    if is_declaration(origin):
        return pa.struct(list(_fields(origin, what, depth + 1)))
    if issubclass(origin, enum.Enum):
        return _common([member.value for member in origin], origin, what, depth)
    return pa.from_numpy_dtype(origin) if issubclass(origin, np.generic) else None


def _common(values: Sequence[object], hint: object, what: str, depth: int) -> pa.DataType:
    """Return the type of the values of a Literal or of an enumeration."""
    kinds = {type(value) for value in values}
    if len(kinds) != 1:
        raise InvalidInput(f"{what}: the values of {hint} have several types; a column has one")
    return _arrow(kinds.pop(), what, depth)

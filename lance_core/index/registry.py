"""Index type registry: finds an index type by the name that users write, or by the type URL that a segment records."""

from collections.abc import Mapping
from functools import cache

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.format.index_metadata import IndexMetadata
from lance_core.index.index_type import IndexType, Segment

_PACKAGES = frozenset({"lance.table", "lance.index.pb"})
"""Protobuf packages of the type URLs: releases of the format moved some index types from one to the other."""
_VECTOR_MESSAGE = "vectorindexdetails"
"""All vector index types have one message, whose fields record which it is."""


@cache
def all_types() -> tuple[IndexType, ...]:
    """Return all index types. Their modules, a fifth of the package, are imported on first use, when a table has an
    index or gets one."""
    from lance_core.index.bitmap import BITMAP
    from lance_core.index.bloomfilter import BLOOMFILTER
    from lance_core.index.btree import BTREE
    from lance_core.index.label_list import LABEL_LIST
    from lance_core.index.ngram import NGRAM
    from lance_core.index.text.inverted import INVERTED
    from lance_core.index.vector.vector_type import BUILT_TYPES
    from lance_core.index.zonemap import ZONEMAP

    return (BTREE, BITMAP, LABEL_LIST, ZONEMAP, BLOOMFILTER, NGRAM, INVERTED, *BUILT_TYPES)


@cache
def _by_name() -> Mapping[str, IndexType]:
    return {kind.name: kind for kind in all_types()}


@cache
def _by_type() -> Mapping[str, IndexType]:
    return {kind.type_url.rpartition(".")[2].lower(): kind for kind in all_types() if not kind.name.startswith("IVF")}


def by_name(text: str) -> IndexType:
    """Return the index type of this name, in any letter case."""
    kind = _by_name().get(str(text).upper())
    if kind is None:
        known = ", ".join(sorted(_by_name()))
        raise InvalidInput(f"kind={text!r} is not an index type; use one of {known}")
    return kind


def by_type_url(metadata: IndexMetadata) -> IndexType | None:
    """Return the index type of a segment; `None` if it is unknown, or if its files have a newer version than can be
    read."""
    url = metadata.message.index_details.type_url.lower()
    if "/" not in url:
        return None
    package, _, message = url.rpartition("/")[2].rpartition(".")
    if message == _VECTOR_MESSAGE and package in _PACKAGES:
        from lance_core.index.vector.vector_type import type_of

        ranked = type_of(metadata)
        return ranked if ranked is not None and metadata.message.index_version <= ranked.max_readable_version else None
    kind = _by_type().get(message) if package in _PACKAGES else None
    return kind if kind is not None and metadata.message.index_version <= kind.max_readable_version else None


def read_type(kind: IndexType, segment: Segment) -> IndexType:
    """Return the index type of a segment, from its files if `kind` does not say which vector index it is."""
    if kind.type_url.rpartition(".")[2].lower() != _VECTOR_MESSAGE:
        return kind
    from lance_core.index.vector.vector_type import UNDECLARED, read_type

    return read_type(segment) if kind is UNDECLARED else kind


def check_supported(kind: IndexType, column: pa.Field, *, path: str, uri: str) -> None:
    """Raise `InvalidInput` if the index type does not support the column."""
    if kind.supports(column):
        return
    supporting = [index_type.name for index_type in all_types() if index_type.supports(column)]
    others = f"index types for this column are {', '.join(supporting)}" if supporting else "no index type supports it"
    raise InvalidInput(
        f"{uri}: a {kind.name} index cannot be built on column {path!r} of type {column.type}; it supports "
        f"{kind.supported_types}, and {others}"
    )


def reason_unknown(metadata: IndexMetadata) -> str:
    """Return why `by_type_url` finds no index type for a segment: the end of a sentence that begins with its name."""
    if not metadata.message.index_details.type_url:
        return "does not record its index type"
    kind = _by_type().get(metadata.kind.lower())
    if metadata.kind.lower() == _VECTOR_MESSAGE:
        return "is a vector index of a type or version that cannot be read"
    if kind is None:
        return f"has an unknown index type ({metadata.kind})"
    if metadata.message.index_version > kind.max_readable_version:
        version, readable = metadata.message.index_version, kind.max_readable_version
        return f"is {kind.name} of version {version}; versions up to {readable} can be read"
    return f"has an unknown index type ({metadata.message.index_details.type_url})"

"""The kinds that there are: by the name that users say, and by the type that a segment says it is of."""

from collections.abc import Mapping
from functools import cache

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.format.index_metadata import IndexMetadata
from lance_core.index.index_type import IndexType

_PACKAGES = frozenset({"lance.table", "lance.index.pb"})
"""A kind is named under either; releases moved some from one to the other."""


@cache
def all_types() -> tuple[IndexType, ...]:
    """Loaded where there is an index, or one is wanted: they are a fifth of all this package."""
    from lance_core.index.bitmap import BITMAP
    from lance_core.index.bloomfilter import BLOOMFILTER
    from lance_core.index.btree import BTREE
    from lance_core.index.label_list import LABEL_LIST
    from lance_core.index.ngram import NGRAM
    from lance_core.index.zonemap import ZONEMAP

    return (BTREE, BITMAP, LABEL_LIST, ZONEMAP, BLOOMFILTER, NGRAM)


@cache
def _by_name() -> Mapping[str, IndexType]:
    return {kind.name: kind for kind in all_types()}


@cache
def _by_type() -> Mapping[str, IndexType]:
    return {kind.type_url.rpartition(".")[2].lower(): kind for kind in all_types()}


def by_name(text: str) -> IndexType:
    """In any case."""
    kind = _by_name().get(str(text).upper())
    if kind is None:
        known = ", ".join(sorted(_by_name()))
        raise InvalidInput(f"kind={text!r}: an index is one of {known}")
    return kind


def by_type_url(metadata: IndexMetadata) -> IndexType | None:
    """None for a kind that is not known, and for files of a newer version than can be read: nobody may guess."""
    url = metadata.message.index_details.type_url.lower()
    if "/" not in url:
        return None
    package, _, message = url.rpartition("/")[2].rpartition(".")
    kind = _by_type().get(message) if package in _PACKAGES else None
    return kind if kind is not None and metadata.message.index_version <= kind.newest else None


def check_supported(kind: IndexType, column: pa.Field, *, path: str, uri: str) -> None:
    if kind.supports(column):
        return
    fitting = [each.name for each in all_types() if each.supports(column)]
    others = f"for it there is {', '.join(fitting)}" if fitting else "no kind of index fits it"
    raise InvalidInput(
        f"{uri}: a {kind.name} index cannot be built on column {path!r}, which is {column.type}; it takes "
        f"{kind.supported_types}, and {others}"
    )


def why_unknown(metadata: IndexMetadata) -> str:
    """Of a segment that `by_type_url` knows no kind for: the end of a sentence that begins with its name."""
    if not metadata.message.index_details.type_url:
        return "does not say of which kind it is"
    kind = _by_type().get(metadata.kind.lower())
    if kind is None:
        return f"is of a kind that is not known here ({metadata.kind})"
    if metadata.message.index_version > kind.newest:
        return (
            f"is {kind.name} of version {metadata.message.index_version}, and up to version {kind.newest} can be read"
        )
    return f"is of a kind that is not known here ({metadata.message.index_details.type_url})"

"""Index definition: plans the creation and the removal of an index: its name, its type and column, and its files.

Each function plans a `CreateIndex` on the version it is given and writes the files of the segment; after a conflict it
is planned and built again. Maintenance of existing indices is in `maintenance/index_maintenance.py`. Start with
`plan_create`.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from lance_core import validation
from lance_core.errors import IndexIgnored, InvalidInput
from lance_core.format import field_paths
from lance_core.format.fragment import Fragment
from lance_core.format.index_metadata import SYSTEM_INDICES, IndexMetadata
from lance_core.format.operations import CreateIndex
from lance_core.format.schema import TableSchema
from lance_core.index import build, registry
from lance_core.index.build import IndexSpec
from lance_core.runtime import Runtime
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """Arguments of `create_index`, not checked against a table yet."""

    column: str
    kind: str
    name: str | None = None
    replace: bool = False
    fragments: tuple[int, ...] | None = None
    params: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validation.check_text(self.column, "column")
        validation.check_flag(self.replace, "replace")
        if self.name is not None:
            check_index_name(self.name)


def plan_create(base: Snapshot, request: IndexRequest, *, runtime: Runtime) -> CreateIndex:
    """Build a segment for all fragments of the version, or for those of the request, and write its files."""
    spec, removed = plan_index(base, request)
    fragments = select_fragments(base, request.fragments)
    covers = BitMap(fragment.id for fragment in fragments)
    segment = build.build_segment(base, spec, fragments, covers=covers, runtime=runtime)
    warn_not_built(base, segment)
    return CreateIndex((segment,), removed)


def warn_not_built(base: Snapshot, segment: IndexMetadata) -> None:
    """Warn if an index is only defined, since the table has too few rows to build it."""
    if segment.is_definition:
        text = (
            f"{base.location.uri}: index {segment.name!r} is defined, but not built, since the table has too few "
            "vectors to train it; searches compare every vector until optimize_indices() builds it from more rows"
        )
        warnings.warn(text, IndexIgnored, stacklevel=2)


def plan_index(base: Snapshot, request: IndexRequest) -> tuple[IndexSpec, tuple[IndexMetadata, ...]]:
    """Check the request, and return the index with the segments that it replaces. Nothing is written."""
    uri, schema = base.location.uri, base.manifest.schema
    kind = registry.by_name(request.kind)
    chain = build.column_of(schema, request.column, uri=uri)
    path = field_paths.format_path(chain)
    registry.check_supported(kind, build.arrow_of(schema, chain), path=path, uri=uri)
    options = kind.parse_options(request.params)
    suffix = "list_element_" if request.params.get("document_granularity") == "list_element" else ""
    name = request.name
    if name is None:
        name = _default_name(base, f"{path}_{suffix}", chain[-1].id, kind.name)
    existing = tuple(index for index in base.manifest.indices if index.name == name)
    if existing and not request.replace:
        raise InvalidInput(
            f"{uri}: an index {name!r} exists already, {describe_segments(schema, existing)}. Replace it with "
            "replace=True, extend its coverage with optimize_indices(), or choose another name="
        )
    if any(index.field_ids != (chain[-1].id,) for index in existing):
        raise InvalidInput(
            f"{uri}: index {name!r} is {describe_segments(schema, existing)}, not on {path!r}, so it is not replaced; "
            "drop it first, or choose another name="
        )
    return IndexSpec(name, kind, chain, options), existing


def plan_drop(base: Snapshot, name: str) -> CreateIndex:
    """Remove all segments of an index. Its files stay for older versions, until a cleanup removes them."""
    check_index_name(name)
    segments = tuple(index for index in base.manifest.indices if index.name == name)
    if not segments:
        names = list(dict.fromkeys(index.name for index in base.manifest.indices if not index.is_system))
        hint = field_paths.suggest_name(name, names) if names else "this version has none"
        raise InvalidInput(f"{base.location.uri}: there is no index {name!r}; {hint}")
    return CreateIndex(removed=segments)


def check_index_name(name: str) -> None:
    validation.check_text(name, "name")
    if not name or name in SYSTEM_INDICES:
        problem = "the name of an index is not empty" if not name else f"the index {name!r} belongs to the library"
        raise InvalidInput(f"name={name!r}: {problem}; choose another name")


def select_fragments(base: Snapshot, numbers: Sequence[int] | None) -> tuple[Fragment, ...]:
    """Return the fragments with these ids, or all, in the order of the table."""
    base.manifest.check_ids()
    if numbers is None:
        return tuple(base.manifest.fragments)
    ids = set(numbers)
    fragments = tuple(fragment for fragment in base.manifest.fragments if fragment.id in ids)
    if missing := sorted(ids - {fragment.id for fragment in fragments}):
        raise InvalidInput(
            f"{base.location.uri}: version {base.version} has no fragment {missing[0]}; pass ids of `t.fragments`, or "
            "none for all fragments"
        )
    return fragments


def describe_segments(schema: TableSchema, segments: Sequence[IndexMetadata]) -> str:
    """Describe an index in a message, such as "a BTREE on column 'id'"."""
    descriptions = []
    for index in segments:
        kind = registry.by_type_url(index)
        chain = build.chain_of(schema, index.field_ids[0]) if index.field_ids else None
        on = "a dropped column" if chain is None else f"column {field_paths.format_path(chain)!r}"
        descriptions.append(f"a {index.kind or 'nameless kind' if kind is None else kind.name} on {on}")
    return " and ".join(dict.fromkeys(descriptions))


def _default_name(base: Snapshot, prefix: str, field_id: int, kind: str) -> str:
    """Return the name that Lance gives: the column's, with a number if another index has that name. An index of the
    same type on the same column is the same index."""
    name, number = f"{prefix}idx", 1
    while True:
        segments = [index for index in base.manifest.indices if index.name == name]
        types = [registry.by_type_url(index) for index in segments]
        if all(index.field_ids == (field_id,) for index in segments) and all(
            index_type is not None and index_type.name == kind for index_type in types
        ):
            return name
        number += 1
        name = f"{prefix}idx_{number}"

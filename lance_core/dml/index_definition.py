"""Create an index, and drop one: which name it gets, whether it fits its column, what it is built from.

Each plans a `CreateIndex` on the version that it is given, and writes the files of the segment; where somebody was in
the way it is planned, and built, once more. Upkeep of indices that are there is in `maintenance/index_maintenance.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from lance_core import validation
from lance_core.errors import InvalidInput
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
    """What `create_index` was asked for, before anybody looked at the table."""

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
    """Of all fragments of the version, or of those that were named. When it returns, the files are written."""
    wanted, removed = plan_index(base, request)
    fragments = select_fragments(base, request.fragments)
    covers = BitMap(fragment.id for fragment in fragments)
    return CreateIndex((build.build_segment(base, wanted, fragments, covers=covers, runtime=runtime),), removed)


def plan_index(base: Snapshot, request: IndexRequest) -> tuple[IndexSpec, tuple[IndexMetadata, ...]]:
    """The index, and the segments that give way to it. Before a byte is written."""
    uri, schema = base.location.uri, base.manifest.schema
    kind = registry.by_name(request.kind)
    chain = build.column_of(schema, request.column, uri=uri)
    path = field_paths.format_path(chain)
    registry.check_supported(kind, build.arrow_of(schema, chain), path=path, uri=uri)
    options = kind.parse_options(request.params)
    name = request.name if request.name is not None else _default_name(base, path, chain[-1].id, kind.name)
    there = tuple(index for index in base.manifest.indices if index.name == name)
    if there and not request.replace:
        raise InvalidInput(
            f"{uri}: there is an index {name!r} already, {describe_segments(schema, there)}. Build it anew with replace=True, "
            "cover what it does not cover yet with optimize_indices(), or give this one another name="
        )
    if any(index.field_ids != (chain[-1].id,) for index in there):
        raise InvalidInput(
            f"{uri}: index {name!r} is {describe_segments(schema, there)}, not on {path!r}, so it is not replaced; drop it "
            "first, or give this one another name="
        )
    return IndexSpec(name, kind, chain, options), there


def plan_drop(base: Snapshot, name: str) -> CreateIndex:
    """All segments of it. Its files stay for older versions, until they are cleaned up."""
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
        what = "an index has a name" if not name else f"the index {name!r} is the library's own"
        raise InvalidInput(f"name={name!r}: {what}; choose another")


def select_fragments(base: Snapshot, numbers: Sequence[int] | None) -> tuple[Fragment, ...]:
    """In the order of the table."""
    base.manifest.check_ids()
    if numbers is None:
        return tuple(base.manifest.fragments)
    wanted = set(numbers)
    found = tuple(fragment for fragment in base.manifest.fragments if fragment.id in wanted)
    if missing := sorted(wanted - {fragment.id for fragment in found}):
        raise InvalidInput(
            f"{base.location.uri}: version {base.version} has no fragment {missing[0]}; give ids of `t.fragments`, or "
            "none for all of them"
        )
    return found


def describe_segments(schema: TableSchema, segments: Sequence[IndexMetadata]) -> str:
    """ "a BTREE on column 'id'", for messages."""
    found = []
    for index in segments:
        kind = registry.by_type_url(index)
        chain = build.chain_of(schema, index.field_ids[0]) if index.field_ids else None
        on = "a column that is gone" if chain is None else f"column {field_paths.format_path(chain)!r}"
        found.append(f"a {index.kind or 'nameless kind' if kind is None else kind.name} on {on}")
    return " and ".join(dict.fromkeys(found))


def _default_name(base: Snapshot, path: str, field_id: int, kind: str) -> str:
    """As Lance names them: after the column, with a number where another index has that name. The same kind on the
    same column is the same index."""
    name, number = f"{path}_idx", 1
    while True:
        there = [index for index in base.manifest.indices if index.name == name]
        known = [registry.by_type_url(index) for index in there]
        if all(index.field_ids == (field_id,) for index in there) and all(
            each is not None and each.name == kind for each in known
        ):
            return name
        number += 1
        name = f"{path}_idx_{number}"

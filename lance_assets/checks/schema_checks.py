"""Schema check: compares the columns of a version with those of its parent."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal, get_args

import dagster as dg

from lance_assets.checks.check import Check, CheckContext, CheckResult
from lance_core import Table
from lance_core.operations import TableSchema

Change = Literal["additions", "drops", "renames", "types", "nullability"]
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class _ColumnSignature:
    """Field id, type and nullability of a column."""

    id: int
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStable(Check):
    """The columns are those of the parent version, except for the allowed kinds of change; by default additions are
    allowed. The order of the columns and their metadata do not count. Fields of structs are columns too
    (`address.city`).

        SchemaStable()
        SchemaStable(allow=["additions", "drops"])
        SchemaStable(allow=[])
    """

    name: str = "schema_stable"
    allow: Sequence[Change] = ("additions",)

    def check(self) -> None:
        changes = get_args(Change)
        if isinstance(self.allow, str) or not set(self.allow) <= set(changes):
            raise self.declaration_error(f"allow= must be a list of {', '.join(changes)}; not {self.allow!r}")

    @property
    def description(self) -> str:
        allowed = f", except for {', '.join(self.allow)}" if self.allow else ""
        return f"The columns are those of the parent version{allowed}."

    def judge(self, context: CheckContext) -> CheckResult:
        if context.parent is None:
            return CheckResult(True, "there is no parent version to compare with")
        changes = list(_schema_changes(context.parent, context.table))
        refused = [sentence for change, sentence in changes if change not in self.allow]
        metadata = {"lance/schema_changes": dg.MetadataValue.int(len(changes))}
        if refused:
            return CheckResult(
                False,
                f"compared with version {context.parent.version}: {_join_limited(refused)}. If readers accept this, "
                f"add it to allow= of the check; otherwise t.restore({context.parent.version}) restores the columns",
                metadata,
            )
        if changes:
            sentences = [sentence for _change, sentence in changes]
            return CheckResult(
                True, f"against version {context.parent.version}, as allowed: {_join_limited(sentences)}", metadata
            )
        return CheckResult(True, f"the same columns as in version {context.parent.version}", metadata)


def _schema_changes(before: Table, after: Table) -> Iterator[tuple[Change, str]]:
    """Yield the changes between two versions. A change of a struct column is not repeated for its fields."""
    old, new = _columns_by_path(before.manifest.schema), _columns_by_path(after.manifest.schema)
    added = _outermost(new.keys() - old.keys())
    removed = _outermost(old.keys() - new.keys())
    added_by_id = {new[path].id: path for path in added}
    for path, column in old.items():
        if path in new:
            current = new[path]
            if current.type != column.type:
                yield "types", f"{path!r} has type {current.type} instead of {column.type}"
            if current.nullable != column.nullable:
                yield "nullability", f"{path!r} {'is now nullable' if current.nullable else 'is no longer nullable'}"
        elif path in removed:
            name = added_by_id.get(column.id)
            if name is not None and new[name].type == column.type:
                added.remove(name)
                yield "renames", f"{path!r} was renamed to {name!r}"
            else:
                yield "drops", f"{path!r} was dropped"
    for path in new:
        if path in added:
            yield "additions", f"{path!r} of type {new[path].type} is new"


def _columns_by_path(schema: TableSchema) -> dict[str, _ColumnSignature]:
    """Return all columns by path, in schema order."""
    columns: dict[str, _ColumnSignature] = {}
    pending = [(field.name, field) for field in reversed(schema.fields)]
    while pending:
        path, field = pending.pop()
        columns[path] = _ColumnSignature(field.id, field.logical_type, field.nullable)
        pending.extend((f"{path}.{child.name}", child) for child in reversed(field.children))
    return columns


def _outermost(paths: Set[str]) -> set[str]:
    """Return the paths that are not below another one of them."""
    return {path for path in paths if not any(parent in paths for parent in _parent_paths(path))}


def _parent_paths(path: str) -> Iterator[str]:
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _join_limited(sentences: Sequence[str]) -> str:
    more = len(sentences) - _SHOWN_MAX
    return "; ".join([*sentences[:_SHOWN_MAX], *([f"and {more} more changes"] if more > 0 else [])])

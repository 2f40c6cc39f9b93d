"""Whether the columns are still those that readers know."""

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
    id: int
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStable(Check):
    """The columns are those of the version before, but for changes that are allowed: additions, unless told otherwise.
    Their order, and metadata, are not looked at; fields of structs are columns too (`address.city`).

        SchemaStable()
        SchemaStable(allow=["additions", "drops"])
        SchemaStable(allow=[])
    """

    name: str = "schema_stable"
    allow: Sequence[Change] = ("additions",)

    def check(self) -> None:
        changes = get_args(Change)
        if isinstance(self.allow, str) or not set(self.allow) <= set(changes):
            raise self.declaration_error(
                f"allow= is a list of what may happen, of {', '.join(changes)}; not {self.allow!r}"
            )

    @property
    def description(self) -> str:
        allowed = f", but for {', '.join(self.allow)}" if self.allow else ""
        return f"The columns are those of the version before{allowed}."

    def judge(self, context: CheckContext) -> CheckResult:
        if context.parent is None:
            return CheckResult(True, "there is no version before it to compare with")
        found = list(_schema_changes(context.parent, context.table))
        refused = [sentence for change, sentence in found if change not in self.allow]
        told = {"lance/schema_changes": dg.MetadataValue.int(len(found))}
        if refused:
            return CheckResult(
                False,
                f"against version {context.parent.version}: {_join_limited(refused)}. If readers can live with it, allow it by "
                f"allow= of this check; if not, t.restore({context.parent.version}) puts the columns back",
                told,
            )
        if found:
            sentences = [sentence for _change, sentence in found]
            return CheckResult(
                True, f"against version {context.parent.version}, as allowed: {_join_limited(sentences)}", told
            )
        return CheckResult(True, f"the same columns as in version {context.parent.version}", told)


def _schema_changes(before: Table, after: Table) -> Iterator[tuple[Change, str]]:
    """What is in a column that came, went or got another name is told with it."""
    old, new = _columns_by_path(before.manifest.schema), _columns_by_path(after.manifest.schema)
    came = _outermost(new.keys() - old.keys())
    went = _outermost(old.keys() - new.keys())
    path_of = {new[path].id: path for path in came}
    for path in old:
        was = old[path]
        if path in new:
            now = new[path]
            if now.type != was.type:
                yield "types", f"{path!r} is of type {now.type}, and was {was.type}"
            if now.nullable != was.nullable:
                yield "nullability", f"{path!r} {'may be null now' if now.nullable else 'may not be null any more'}"
        elif path in went:
            name = path_of.get(was.id)
            if name is not None and new[name].type == was.type:
                came.remove(name)
                yield "renames", f"{path!r} is called {name!r} now"
            else:
                yield "drops", f"{path!r} is gone"
    for path in new:
        if path in came:
            yield "additions", f"{path!r} of type {new[path].type} is new"


def _columns_by_path(schema: TableSchema) -> dict[str, _ColumnSignature]:
    """By path, in their order."""
    found: dict[str, _ColumnSignature] = {}
    waiting = [(field.name, field) for field in reversed(schema.fields)]
    while waiting:
        path, field = waiting.pop()
        found[path] = _ColumnSignature(field.id, field.logical_type, field.nullable)
        waiting.extend((f"{path}.{child.name}", child) for child in reversed(field.children))
    return found


def _outermost(paths: Set[str]) -> set[str]:
    return {path for path in paths if not any(above in paths for above in _parent_paths(path))}


def _parent_paths(path: str) -> Iterator[str]:
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _join_limited(sentences: Sequence[str]) -> str:
    more = len(sentences) - _SHOWN_MAX
    return "; ".join([*sentences[:_SHOWN_MAX], *([f"and {more} more changes"] if more > 0 else [])])

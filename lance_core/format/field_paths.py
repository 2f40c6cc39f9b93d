"""Fields by the path people write (`address.city`, `points.item.x`), and schemas with one of them changed or gone.

Pure, over `TableSchema`. Ids stay what they are: who gets a new one is decided by the verbs (`edit/`), above which
number by `field_ids.py`.
"""

import difflib
from collections.abc import Iterable, Sequence

from lance_core.errors import InvalidInput
from lance_core.format.schema import Field, TableSchema

_SHOWN_MAX = 20

Chain = tuple[Field, ...]
"""A field with all that it is within, from the top."""


def find(schema: TableSchema, path: str) -> Chain:
    """Names may hold dots below the top, so the path is followed, not split."""
    found = _find(schema.fields, path)
    if not found:
        raise InvalidInput(unknown(path, paths(schema)))
    return found


def unknown(name: str, names: Sequence[str]) -> str:
    return f"there is no column {name!r}; {near(name, names)}"


def near(name: str, names: Sequence[str]) -> str:
    """What may have been meant, in large or small letters; else what there is."""
    if close := difflib.get_close_matches(name.lower(), [each.lower() for each in names], n=1):
        match = next(each for each in names if each.lower() == close[0])
        return f"did you mean {match!r}?"
    return f"there are {', '.join(names[:_SHOWN_MAX])}" + (", …" if len(names) > _SHOWN_MAX else "")


def paths(schema: TableSchema) -> list[str]:
    return [path for field in schema.fields for path in _paths(field, "")]


def narrowed(chain: Chain) -> Field:
    """The top-level field with nothing in it but what leads to the last one."""
    field = chain[-1]
    for parent in reversed(chain[:-1]):
        field = with_children(parent, [field])
    return field


def replaced(schema: TableSchema, chain: Chain, by: Field) -> TableSchema:
    """With another field in the place of the chain's last one."""
    field = by
    for parent, old in zip(reversed(chain[:-1]), reversed(chain[1:]), strict=True):
        field = with_children(parent, [field if child.id == old.id else child for child in parent.children])
    return TableSchema(tuple(field if top.id == chain[0].id else top for top in schema.fields), schema.metadata)


def without(schema: TableSchema, field_ids: frozenset[int]) -> TableSchema:
    """Less these fields; a parent of which nothing is left goes with its children."""
    return TableSchema(_without(schema.fields, field_ids), schema.metadata)


def with_children(field: Field, children: Iterable[Field]) -> Field:
    return Field(field.id, field.name, field.logical_type, field.nullable, field.metadata, tuple(children))


def _find(fields: Sequence[Field], path: str) -> Chain:
    for field in fields:
        if field.name == path:
            return (field,)
    for field in fields:
        if path.startswith(f"{field.name}.") and (below := _find(field.children, path[len(field.name) + 1 :])):
            return (field, *below)
    return ()


def _paths(field: Field, above: str) -> list[str]:
    path = above + field.name
    return [path, *(found for child in field.children for found in _paths(child, f"{path}."))]


def _without(fields: Sequence[Field], field_ids: frozenset[int]) -> tuple[Field, ...]:
    kept = []
    for field in fields:
        if field.id in field_ids:
            continue
        children = _without(field.children, field_ids)
        if children != field.children:
            if not children:
                continue
            field = with_children(field, children)
        kept.append(field)
    return tuple(kept)

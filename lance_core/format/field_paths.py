"""Fields by the path people write (`address.city`, `points.item.x`), and schemas with one of them changed or gone.

A dot parts two names, as in Lance. A name with dots stands in back-ticks (s.`a.b`), and a back-tick in it twice; where
what is written leads nowhere otherwise, back-ticks may be left out.

Pure, over `TableSchema`. Ids stay what they are: who gets a new one is decided by the verbs (`edit/`), above which
number by `field_ids.py`.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence

from lance_core.errors import InvalidInput
from lance_core.format.schema import Field, TableSchema

_SHOWN_MAX = 20

FieldPath = tuple[Field, ...]
"""A field with all that it is within, from the top."""


def find_field(schema: TableSchema, path: str, *, can_enter: Callable[[Field], bool] = lambda field: True) -> FieldPath:
    """`can_enter` says of which fields the parts can be meant."""
    for top in schema.fields:
        if top.name == path:
            return (top,)
    routes = list(_matching_paths(schema.fields, path, can_enter))
    meant = [route for route, is_loose in routes if not is_loose] or [route for route, _ in routes]
    if not meant:
        raise InvalidInput(unknown_column_message(path, _suggestions(schema, path, can_enter)))
    if len(meant) > 1:
        raise InvalidInput(
            f"column {path!r} could be either of several; write {' or '.join(map(repr, map(format_path, meant)))}"
        )
    return meant[0]


def format_path(chain: Sequence[Field]) -> str:
    """The path to the last field that can be taken for no other."""
    return ".".join(_quote(field.name) if needs_quotes(field.name) else field.name for field in chain)


def needs_quotes(name: str) -> bool:
    """Whether a name on a path has to stand in back-ticks."""
    return not name or "." in name or "`" in name


def unknown_column_message(name: str, names: Sequence[str]) -> str:
    return f"there is no column {name!r}; {suggest_name(name, names)}"


def suggest_name(name: str, names: Sequence[str]) -> str:
    """What may have been meant, in large or small letters; else what there is."""
    if close := difflib.get_close_matches(name.lower(), [each.lower() for each in names], n=1):
        match = next(each for each in names if each.lower() == close[0])
        return f"did you mean {match!r}?"
    return f"there are {', '.join(names[:_SHOWN_MAX])}" + (", …" if len(names) > _SHOWN_MAX else "")


def narrow_to(chain: FieldPath) -> Field:
    """The top-level field with nothing in it but what leads to the last one."""
    field = chain[-1]
    for parent in reversed(chain[:-1]):
        field = with_children(parent, [field])
    return field


def replace_field(schema: TableSchema, chain: FieldPath, by: Field) -> TableSchema:
    """With another field in the place of the chain's last one."""
    field = by
    for parent, old in zip(reversed(chain[:-1]), reversed(chain[1:]), strict=True):
        field = with_children(parent, [field if child.id == old.id else child for child in parent.children])
    return TableSchema(tuple(field if top.id == chain[0].id else top for top in schema.fields), schema.metadata)


def remove_fields(schema: TableSchema, field_ids: frozenset[int]) -> TableSchema:
    """Less these fields; a parent of which nothing is left goes with its children."""
    return TableSchema(_remove_from(schema.fields, field_ids), schema.metadata)


def with_children(field: Field, children: Iterable[Field]) -> Field:
    return Field(field.id, field.name, field.logical_type, field.nullable, field.metadata, tuple(children))


def _matching_paths(fields: Sequence[Field], path: str, enters: Callable[[Field], bool]) -> Iterator[tuple[FieldPath, bool]]:
    """Every way that leads somewhere, and whether back-ticks that a name on it needs were left out."""
    for field in fields:
        for written in dict.fromkeys((field.name, _quote(field.name))):
            is_loose = written == field.name and needs_quotes(field.name)
            if path == written:
                yield (field,), is_loose
            elif path.startswith(f"{written}.") and enters(field):
                for below, is_below_loose in _matching_paths(field.children, path.removeprefix(f"{written}."), enters):
                    yield (field, *below), is_loose or is_below_loose


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _all_paths(fields: Sequence[Field], enters: Callable[[Field], bool]) -> Iterator[FieldPath]:
    for field in fields:
        yield (field,)
        if enters(field):
            yield from ((field, *below) for below in _all_paths(field.children, enters))


def _suggestions(schema: TableSchema, path: str, enters: Callable[[Field], bool]) -> list[str]:
    """What may have been meant: what is in the column that the path begins with, else any."""
    chains = list(_all_paths(schema.fields, enters))
    begun = [
        chain
        for chain in chains
        if len(chain) > 1 and path.startswith((f"{chain[0].name}.", f"{_quote(chain[0].name)}."))
    ]
    return [format_path(chain) for chain in begun or chains]


def _remove_from(fields: Sequence[Field], field_ids: frozenset[int]) -> tuple[Field, ...]:
    kept = []
    for field in fields:
        if field.id in field_ids:
            continue
        children = _remove_from(field.children, field_ids)
        if children != field.children:
            if not children:
                continue
            field = with_children(field, children)
        kept.append(field)
    return tuple(kept)

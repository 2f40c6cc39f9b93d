"""Field paths: resolves paths such as `address.city` or `points.item.x` to fields, and edits nested schemas.

A dot separates two names, as in Lance. A name that contains a dot is quoted with back-ticks (s.`a.b`), and a
back-tick in a name is doubled. Quotes may be omitted if the path has no other meaning without them.

All functions are pure and work on `TableSchema`; they keep field ids. The verbs in `dml/` decide which fields get new
ids, and `field_ids.py` above which number.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence

from lance_core.errors import InvalidInput
from lance_core.format.schema import Field, TableSchema

_SHOWN_MAX = 20

FieldPath = tuple[Field, ...]
"""A field, preceded by all fields that contain it, from the top."""


def find_field(schema: TableSchema, path: str, *, can_enter: Callable[[Field], bool] = lambda field: True) -> FieldPath:
    """Return the field at a path, with its parents. `can_enter` decides into which fields a path may lead."""
    for top in schema.fields:
        if top.name == path:
            return (top,)
    candidates = list(_matching_paths(schema.fields, path, can_enter))
    matches = [candidate for candidate, is_loose in candidates if not is_loose] or [
        candidate for candidate, _ in candidates
    ]
    if not matches:
        raise InvalidInput(unknown_column_message(path, _suggestions(schema, path, can_enter)))
    if len(matches) > 1:
        raise InvalidInput(f"column {path!r} is ambiguous; write {' or '.join(map(repr, map(format_path, matches)))}")
    return matches[0]


def format_path(field_path: Sequence[Field]) -> str:
    """Return the unambiguous path of the last field."""
    return ".".join(_quote(field.name) if needs_quotes(field.name) else field.name for field in field_path)


def needs_quotes(name: str) -> bool:
    """Return whether a name has to be quoted with back-ticks in a path."""
    return not name or "." in name or "`" in name


def unknown_column_message(name: str, names: Sequence[str]) -> str:
    return f"there is no column {name!r}; {suggest_name(name, names)}"


def suggest_name(name: str, names: Sequence[str]) -> str:
    """Return a hint for an error message: the most similar name, ignoring case, or else the existing names."""
    if close := difflib.get_close_matches(name.lower(), [candidate.lower() for candidate in names], n=1):
        match = next(candidate for candidate in names if candidate.lower() == close[0])
        return f"did you mean {match!r}?"
    return f"available: {', '.join(names[:_SHOWN_MAX])}" + (", …" if len(names) > _SHOWN_MAX else "")


def narrow_to(field_path: FieldPath) -> Field:
    """Return the top-level field, reduced to the path that leads to the last field."""
    field = field_path[-1]
    for parent in reversed(field_path[:-1]):
        field = with_children(parent, [field])
    return field


def replace_field(schema: TableSchema, field_path: FieldPath, by: Field) -> TableSchema:
    """Return the schema with another field in place of the last field of the path."""
    field = by
    for parent, old in zip(reversed(field_path[:-1]), reversed(field_path[1:]), strict=True):
        field = with_children(parent, [field if child.id == old.id else child for child in parent.children])
    return TableSchema(tuple(field if top.id == field_path[0].id else top for top in schema.fields), schema.metadata)


def remove_fields(schema: TableSchema, field_ids: frozenset[int]) -> TableSchema:
    """Return the schema without these fields. A parent that loses all children is removed too."""
    return TableSchema(_remove_from(schema.fields, field_ids), schema.metadata)


def with_children(field: Field, children: Iterable[Field]) -> Field:
    return Field(field.id, field.name, field.logical_type, field.nullable, field.metadata, tuple(children))


def _matching_paths(
    fields: Sequence[Field], path: str, can_enter: Callable[[Field], bool]
) -> Iterator[tuple[FieldPath, bool]]:
    """Yield every field that a path can mean, and whether back-ticks that a name needs were omitted."""
    for field in fields:
        for spelling in dict.fromkeys((field.name, _quote(field.name))):
            is_loose = spelling == field.name and needs_quotes(field.name)
            if path == spelling:
                yield (field,), is_loose
            elif path.startswith(f"{spelling}.") and can_enter(field):
                for below, is_below_loose in _matching_paths(
                    field.children, path.removeprefix(f"{spelling}."), can_enter
                ):
                    yield (field, *below), is_loose or is_below_loose


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _all_paths(fields: Sequence[Field], can_enter: Callable[[Field], bool]) -> Iterator[FieldPath]:
    for field in fields:
        yield (field,)
        if can_enter(field):
            yield from ((field, *below) for below in _all_paths(field.children, can_enter))


def _suggestions(schema: TableSchema, path: str, can_enter: Callable[[Field], bool]) -> list[str]:
    """Return the paths inside the column with which the path begins, or else all paths."""
    paths = list(_all_paths(schema.fields, can_enter))
    inside = [
        candidate
        for candidate in paths
        if len(candidate) > 1 and path.startswith((f"{candidate[0].name}.", f"{_quote(candidate[0].name)}."))
    ]
    return [format_path(candidate) for candidate in inside or paths]


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

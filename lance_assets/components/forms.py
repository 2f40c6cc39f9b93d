"""How an option of Python is written in YAML: a JSON schema, which `dg check yaml` and editors read, and a function
that makes the value, for each annotation. An option that a write gains is in YAML by itself, if its type is here.

What a table is made of is in `table.py`; the forms with an inner life are in `values.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import dagster as dg

from lance_assets.components.source_position import SourcePosition
from lance_assets.writes.write_list import check_options, did_you_mean
from lance_core import InvalidInput

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    schema: Schema
    read: Callable[[object, SourcePosition], object]

    @property
    def schema_or_template(self) -> Schema:
        """What `{{ ... }}` stands for is known when it is loaded."""
        if self.schema.get("type") == "string":
            return self.schema
        return {"if": {"type": "string", "pattern": r"\{\{"}, "else": self.schema}


def scalar(kind: type | tuple[type, ...], expected: str, schema: Schema) -> Form:
    """A value that YAML has itself."""

    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        # True is a number to Python, and to nobody who writes YAML.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise position.error(f"{expected} is expected here, not {_yaml_type(value)}")
        return value

    return Form(schema, read)


TEXT = scalar(str, "a text", {"type": "string"})
INTEGER = scalar(int, "a whole number", {"type": "integer"})
NUMBER = scalar((int, float), "a number", {"type": "number"})
BOOLEAN = scalar(bool, "true or false", {"type": "boolean"})


def optional(form: Form) -> Form:
    def read(raw: object, position: SourcePosition) -> object:
        return None if raw is None else form.read(raw, position)

    return Form({"if": {"type": "null"}, "else": form.schema_or_template}, read)


def choice(values: Sequence[str]) -> Form:
    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        if value not in values:
            raise position.error(
                f"{value!r} is none of {', '.join(values)}{did_you_mean(value, dict.fromkeys(values))}"
            )
        return value

    return Form({"enum": list(values)}, read)


def enum_of(values: Mapping[str, object]) -> Form:
    """A word for each value."""
    words = choice(list(values))
    return Form(words.schema, lambda raw, position: values[str(words.read(raw, position))])


def list_of(form: Form) -> Form:
    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            raise position.error(f"a list is expected here, not {_yaml_type(value)}")
        return [form.read(each, position.child(number)) for number, each in enumerate(value)]

    return Form({"type": "array", "items": form.schema_or_template}, read)


def mapping_of(form: Form) -> Form:
    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        if not isinstance(value, Mapping):
            raise position.error(f"names with their values are expected here, not {_yaml_type(value)}")
        return {str(name): form.read(each, position.child(name)) for name, each in value.items()}

    return Form({"type": "object", "additionalProperties": form.schema_or_template}, read)


def union_of(expected: str, *forms: tuple[type | tuple[type, ...], Form]) -> Form:
    """By what YAML has there."""

    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        for kind, form in forms:
            if isinstance(value, kind):
                return form.read(value, position)
        raise position.error(f"{expected} is expected here, not {_yaml_type(value)}")

    return Form({"anyOf": [form.schema for _, form in forms]}, read)


def record(make: Callable[..., object], forms: Mapping[str, Form], *, required: Sequence[str], what: str) -> Form:
    """An object out of its options, each of them by its form."""

    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        if not isinstance(value, Mapping):
            raise position.error(f"{what} is expected here, with its options by name, not {_yaml_type(value)}")
        for name in value:
            if name is True and "on" in forms:
                raise position.error(f'{what}: YAML takes a bare on for true; write it in quotes, as "on": [...]')
            if name not in forms:
                known = ", ".join(sorted(forms))
                raise position.child(str(name)).error(
                    f"{what} has no {name!r}{did_you_mean(name, forms)}; it has {known}"
                )
        for name in required:
            if value.get(name) is None:
                raise position.error(f"{what}: {name} is missing")
        options = {name: forms[name].read(each, position.child(name)) for name, each in value.items()}
        try:
            return make(**options)
        except (ValueError, dg.DagsterError) as error:  # ours are ValueErrors too
            raise position.error(str(error)) from error

    schema = {
        "type": "object",
        "properties": {name: form.schema_or_template for name, form in forms.items()},
        "required": list(required),
        "additionalProperties": False,
    }
    return Form(schema, read)


def tagged_union(tag: str, forms: Mapping[str, Form], *, what: str) -> Form:
    """The option called `tag` says which of them it is."""

    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        if not isinstance(value, Mapping):
            raise position.error(f"{what} is expected here, with its options by name, not {_yaml_type(value)}")
        if value.get(tag) is None:
            raise position.error(f"{tag} is missing; it says which {what.removeprefix('a ')}: {', '.join(forms)}")
        chosen = position.child(tag).render(value[tag])
        if not isinstance(chosen, str) or chosen not in forms:
            raise position.child(tag).error(f"{chosen!r} is none of {', '.join(forms)}{did_you_mean(chosen, forms)}")
        return forms[chosen].read({name: each for name, each in value.items() if name != tag}, position)

    def with_word(chosen: str, form: Form) -> Schema:
        properties = {tag: {"const": chosen}, **form.schema["properties"]}
        return {**form.schema, "properties": properties, "required": [tag, *form.schema["required"]]}

    cases = [
        {"if": {"properties": {tag: {"const": chosen}}, "required": [tag]}, "then": with_word(chosen, form)}
        for chosen, form in forms.items()
    ]
    schema = {
        "type": "object",
        "properties": {tag: {"enum": list(forms)}},
        "required": [tag],
        "allOf": cases,
    }
    return Form(schema, read)


def dataclass_form(kind: type, known: Mapping[object, Form], *, what: str) -> Form:
    """A dataclass of ours: every option that it has in Python."""
    options = {field.name: field for field in fields(kind)}
    forms = {name: field_form(field, known) for name, field in options.items()}
    required = [name for name, each in options.items() if each.default is MISSING and each.default_factory is MISSING]

    def make(**given: object) -> object:
        check_options(kind, given, label=what)
        return kind(**given)

    return record(make, forms, required=required, what=what)


def field_form(field: "Field[Any]", known: Mapping[object, Form]) -> Form:
    """`known` has forms by the name of an option, and by its annotation."""
    if field.name in known:
        return known[field.name]
    found = _form_of_type(field.type, known)
    if found is None:
        raise InvalidInput(f"the option {field.name!r} has no form in YAML: {field.type}; give it one in {__name__}")
    return found


def _form_of_type(kind: Any, known: Mapping[object, Form]) -> Form | None:
    for each, form in known.items():
        if each == kind:
            return form
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return choice(arguments)
    if origin in (Union, UnionType) and NoneType in arguments:
        rest = tuple(each for each in arguments if each is not NoneType)
        found = _form_of_type(Union[rest], known)  # noqa: UP007  # of what is in a tuple
        return None if found is None else optional(found)
    if origin is Sequence:
        found = _form_of_type(arguments[0], known)
        return None if found is None else list_of(found)
    return None


def _yaml_type(value: object) -> str:
    """What is there, in the words of YAML; not the value, which may be a secret."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case Mapping():
            return "names with values"
        case Sequence():
            return "a list"
        case _:
            return f"a {type(value).__name__}"

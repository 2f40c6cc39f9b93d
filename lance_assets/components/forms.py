"""Forms: how a Python option is written in YAML.

A form is a JSON schema, which `dg check yaml` and editors read, and a function that reads the value. Forms are found
by the annotation of an option, so a new option of a write needs no code here if its type has a form.

`registry.py` lists the options of a table; `values.py` has the forms of compound values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import dagster as dg

from lance_assets.common.code_location import declared_in_yaml
from lance_assets.components.source_position import SourcePosition
from lance_assets.writes.write_list import check_options, did_you_mean
from lance_core import InvalidInput

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """JSON schema of a value, and the function that reads it."""

    schema: Schema
    read: Callable[[object, SourcePosition], object]

    @property
    def schema_or_template(self) -> Schema:
        """Schema that also accepts a template `{{ ... }}`, whose value is known only at load time."""
        if self.schema.get("type") == "string":
            return self.schema
        return {"if": {"type": "string", "pattern": r"\{\{"}, "else": self.schema}


def scalar(kind: type | tuple[type, ...], expected: str, schema: Schema) -> Form:
    """Return the form of a value that YAML can express itself."""

    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        # `bool` is a subclass of `int`, but `true` in YAML is not a number.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise position.error(f"{expected} is expected here, not {_yaml_type(value)}")
        return value

    return Form(schema, read)


TEXT = scalar(str, "a text", {"type": "string"})
INTEGER = scalar(int, "a whole number", {"type": "integer"})
NUMBER = scalar((int, float), "a number", {"type": "number"})
BOOLEAN = scalar(bool, "true or false", {"type": "boolean"})


def optional(form: Form) -> Form:
    """Return a form that also accepts null."""

    def read(raw: object, position: SourcePosition) -> object:
        return None if raw is None else form.read(raw, position)

    return Form({"if": {"type": "null"}, "else": form.schema_or_template}, read)


def choice(values: Sequence[str]) -> Form:
    """Return the form of one of several texts."""

    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        if value not in values:
            raise position.error(
                f"{value!r} is not one of {', '.join(values)}{did_you_mean(value, dict.fromkeys(values))}"
            )
        return value

    return Form({"enum": list(values)}, read)


def enum_of(values: Mapping[str, object]) -> Form:
    """Return the form of a value that is written as its name."""
    names = choice(list(values))
    return Form(names.schema, lambda raw, position: values[str(names.read(raw, position))])


def list_of(form: Form) -> Form:
    """Return the form of a list."""

    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            raise position.error(f"a list is expected here, not {_yaml_type(value)}")
        return [form.read(item, position.child(number)) for number, item in enumerate(value)]

    return Form({"type": "array", "items": form.schema_or_template}, read)


def mapping_of(form: Form) -> Form:
    """Return the form of a mapping from names to values."""

    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        if not isinstance(value, Mapping):
            raise position.error(f"a mapping is expected here, not {_yaml_type(value)}")
        return {str(name): form.read(item, position.child(name)) for name, item in value.items()}

    return Form({"type": "object", "additionalProperties": form.schema_or_template}, read)


def union_of(expected: str, *forms: tuple[type | tuple[type, ...], Form]) -> Form:
    """Return a form that chooses another one by the type of the value."""

    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        for kind, form in forms:
            if isinstance(value, kind):
                return form.read(value, position)
        raise position.error(f"{expected} is expected here, not {_yaml_type(value)}")

    return Form({"anyOf": [form.schema for _, form in forms]}, read)


def record(
    make: Callable[..., object],
    forms: Mapping[str, Form],
    *,
    required: Sequence[str],
    what: str,
    refused: Mapping[str, str] | None = None,
) -> Form:
    """Return the form of an object whose options have forms of their own. `refused` has reasons for names that it does
    not take."""
    reasons = refused or {}

    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        if not isinstance(value, Mapping):
            raise position.error(f"{what} is expected here, as a mapping of options, not {_yaml_type(value)}")
        for name in value:
            if name is True and "on" in forms:
                raise position.error(f'{what}: YAML reads a bare on as true; write it in quotes, as "on": [...]')
            if name in reasons:
                raise position.child(str(name)).error(f"{what} takes no {name}: {reasons[name]}")
            if name not in forms:
                known = ", ".join(sorted(forms))
                raise position.child(str(name)).error(
                    f"{what} has no {name!r}{did_you_mean(name, forms)}; its options are {known}"
                )
        for name in required:
            if value.get(name) is None:
                raise position.error(f"{what}: {name} is missing")
        options = {name: forms[name].read(option, position.child(name)) for name, option in value.items()}
        try:
            with declared_in_yaml(position.location):
                return make(**options)
        except (ValueError, dg.DagsterError) as error:  # `InvalidInput` is a ValueError
            raise position.error(str(error)) from error

    schema = {
        "type": "object",
        "properties": {name: form.schema_or_template for name, form in forms.items()},
        "required": list(required),
        "additionalProperties": False,
    }
    return Form(schema, read)


def tagged_union(tag: str, forms: Mapping[str, Form], *, what: str) -> Form:
    """Return a form that chooses another one by the option `tag`."""

    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        if not isinstance(value, Mapping):
            raise position.error(f"{what} is expected here, as a mapping of options, not {_yaml_type(value)}")
        if value.get(tag) is None:
            raise position.error(f"{tag} is missing; choose one of {', '.join(forms)}")
        chosen = position.child(tag).render(value[tag])
        if not isinstance(chosen, str) or chosen not in forms:
            raise position.child(tag).error(f"{chosen!r} is not one of {', '.join(forms)}{did_you_mean(chosen, forms)}")
        return forms[chosen].read({name: option for name, option in value.items() if name != tag}, position)

    def with_tag(chosen: str, form: Form) -> Schema:
        properties = {tag: {"const": chosen}, **form.schema["properties"]}
        return {**form.schema, "properties": properties, "required": [tag, *form.schema["required"]]}

    cases = [
        {"if": {"properties": {tag: {"const": chosen}}, "required": [tag]}, "then": with_tag(chosen, form)}
        for chosen, form in forms.items()
    ]
    schema = {
        "type": "object",
        "properties": {tag: {"enum": list(forms)}},
        "required": [tag],
        "allOf": cases,
    }
    return Form(schema, read)


def dataclass_form(
    kind: type, known: Mapping[object, Form], *, what: str, refused: Mapping[str, str] | None = None
) -> Form:
    """Return the form of a dataclass: every field is an option."""
    options = {field.name: field for field in fields(kind)}
    forms = {name: field_form(field, known) for name, field in options.items()}
    required = [
        name for name, option in options.items() if option.default is MISSING and option.default_factory is MISSING
    ]

    def make(**values: object) -> object:
        check_options(kind, values, label=what)
        return kind(**values)

    return record(make, forms, required=required, what=what, refused=refused)


def field_form(field: "Field[Any]", known: Mapping[object, Form]) -> Form:
    """Return the form of an option. `known` has forms by option name and by annotation."""
    if field.name in known:
        return known[field.name]
    form = _form_of_type(field.type, known)
    if form is None:
        raise InvalidInput(f"the option {field.name!r} has no YAML form for its type {field.type}; add one to TYPES")
    return form


def _form_of_type(kind: Any, known: Mapping[object, Form]) -> Form | None:
    for annotation, form in known.items():
        if annotation == kind:
            return form
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return choice(arguments)
    if origin in (Union, UnionType) and NoneType in arguments:
        rest = tuple(argument for argument in arguments if argument is not NoneType)
        inner = _form_of_type(Union[rest], known)  # noqa: UP007  # the members are in a tuple
        return None if inner is None else optional(inner)
    if origin is Sequence:
        inner = _form_of_type(arguments[0], known)
        return None if inner is None else list_of(inner)
    return None


def _yaml_type(value: object) -> str:
    """Return the YAML type of a value for a message. The value itself is not shown, since it may be a secret."""
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
            return "a mapping"
        case Sequence():
            return "a list"
        case _:
            return f"a {type(value).__name__}"

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
    def or_template(self) -> Schema:
        """What `{{ ... }}` stands for is known when it is loaded."""
        if self.schema.get("type") == "string":
            return self.schema
        return {"if": {"type": "string", "pattern": r"\{\{"}, "else": self.schema}


def plain(kind: type | tuple[type, ...], words: str, schema: Schema) -> Form:
    """A value that YAML has itself."""

    def read(raw: object, at: SourcePosition) -> object:
        value = at.value(raw)
        # True is a number to Python, and to nobody who writes YAML.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise at.wrong(f"{words} is expected here, not {_kind(value)}")
        return value

    return Form(schema, read)


TEXT = plain(str, "a text", {"type": "string"})
WHOLE = plain(int, "a whole number", {"type": "integer"})
NUMBER = plain((int, float), "a number", {"type": "number"})
TRUTH = plain(bool, "true or false", {"type": "boolean"})


def optional(form: Form) -> Form:
    def read(raw: object, at: SourcePosition) -> object:
        return None if raw is None else form.read(raw, at)

    return Form({"if": {"type": "null"}, "else": form.or_template}, read)


def choice(words: Sequence[str]) -> Form:
    def read(raw: object, at: SourcePosition) -> object:
        value = at.value(raw)
        if value not in words:
            raise at.wrong(f"{value!r} is none of {', '.join(words)}{did_you_mean(value, dict.fromkeys(words))}")
        return value

    return Form({"enum": list(words)}, read)


def worded(meanings: Mapping[str, object]) -> Form:
    """A word for each value."""
    words = choice(list(meanings))
    return Form(words.schema, lambda raw, at: meanings[str(words.read(raw, at))])


def listed(form: Form) -> Form:
    def read(raw: object, at: SourcePosition) -> object:
        value = at.value(raw)
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            raise at.wrong(f"a list is expected here, not {_kind(value)}")
        return [form.read(each, at.below(number)) for number, each in enumerate(value)]

    return Form({"type": "array", "items": form.or_template}, read)


def mapped(form: Form) -> Form:
    def read(raw: object, at: SourcePosition) -> object:
        value = at.value(raw)
        if not isinstance(value, Mapping):
            raise at.wrong(f"names with their values are expected here, not {_kind(value)}")
        return {str(name): form.read(each, at.below(name)) for name, each in value.items()}

    return Form({"type": "object", "additionalProperties": form.or_template}, read)


def either(words: str, *forms: tuple[type | tuple[type, ...], Form]) -> Form:
    """By what YAML has there."""

    def read(raw: object, at: SourcePosition) -> object:
        value = at.value(raw)
        for kind, form in forms:
            if isinstance(value, kind):
                return form.read(value, at)
        raise at.wrong(f"{words} is expected here, not {_kind(value)}")

    return Form({"anyOf": [form.schema for _, form in forms]}, read)


def record(make: Callable[..., object], forms: Mapping[str, Form], *, required: Sequence[str], what: str) -> Form:
    """An object out of its options, each of them by its form."""

    def read(raw: object, at: SourcePosition) -> object:
        value = at.value(raw)
        if not isinstance(value, Mapping):
            raise at.wrong(f"{what} is expected here, with its options by name, not {_kind(value)}")
        for name in value:
            if name is True and "on" in forms:
                raise at.wrong(f'{what}: YAML takes a bare on for true; write it in quotes, as "on": [...]')
            if name not in forms:
                known = ", ".join(sorted(forms))
                raise at.below(str(name)).wrong(f"{what} has no {name!r}{did_you_mean(name, forms)}; it has {known}")
        for name in required:
            if value.get(name) is None:
                raise at.wrong(f"{what}: {name} is missing")
        options = {name: forms[name].read(each, at.below(name)) for name, each in value.items()}
        try:
            return make(**options)
        except (ValueError, dg.DagsterError) as error:  # ours are ValueErrors too
            raise at.wrong(str(error)) from error

    schema = {
        "type": "object",
        "properties": {name: form.or_template for name, form in forms.items()},
        "required": list(required),
        "additionalProperties": False,
    }
    return Form(schema, read)


def one_of(word: str, forms: Mapping[str, Form], *, what: str) -> Form:
    """The option called `word` says which of them it is."""

    def read(raw: object, at: SourcePosition) -> object:
        value = at.value(raw)
        if not isinstance(value, Mapping):
            raise at.wrong(f"{what} is expected here, with its options by name, not {_kind(value)}")
        if value.get(word) is None:
            raise at.wrong(f"{word} is missing; it says which {what.removeprefix('a ')}: {', '.join(forms)}")
        chosen = at.below(word).value(value[word])
        if not isinstance(chosen, str) or chosen not in forms:
            raise at.below(word).wrong(f"{chosen!r} is none of {', '.join(forms)}{did_you_mean(chosen, forms)}")
        return forms[chosen].read({name: each for name, each in value.items() if name != word}, at)

    def with_word(chosen: str, form: Form) -> Schema:
        properties = {word: {"const": chosen}, **form.schema["properties"]}
        return {**form.schema, "properties": properties, "required": [word, *form.schema["required"]]}

    cases = [
        {"if": {"properties": {word: {"const": chosen}}, "required": [word]}, "then": with_word(chosen, form)}
        for chosen, form in forms.items()
    ]
    schema = {
        "type": "object",
        "properties": {word: {"enum": list(forms)}},
        "required": [word],
        "allOf": cases,
    }
    return Form(schema, read)


def of_class(kind: type, known: Mapping[object, Form], *, what: str) -> Form:
    """A dataclass of ours: every option that it has in Python."""
    options = {field.name: field for field in fields(kind)}
    forms = {name: form_of(field, known) for name, field in options.items()}
    required = [name for name, each in options.items() if each.default is MISSING and each.default_factory is MISSING]

    def make(**given: object) -> object:
        check_options(kind, given, label=what)
        return kind(**given)

    return record(make, forms, required=required, what=what)


def form_of(field: "Field[Any]", known: Mapping[object, Form]) -> Form:
    """`known` has forms by the name of an option, and by its annotation."""
    if field.name in known:
        return known[field.name]
    found = _by_type(field.type, known)
    if found is None:
        raise InvalidInput(f"the option {field.name!r} has no form in YAML: {field.type}; give it one in {__name__}")
    return found


def _by_type(kind: Any, known: Mapping[object, Form]) -> Form | None:
    for each, form in known.items():
        if each == kind:
            return form
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return choice(arguments)
    if origin in (Union, UnionType) and NoneType in arguments:
        rest = tuple(each for each in arguments if each is not NoneType)
        found = _by_type(Union[rest], known)  # noqa: UP007  # of what is in a tuple
        return None if found is None else optional(found)
    if origin is Sequence:
        found = _by_type(arguments[0], known)
        return None if found is None else listed(found)
    return None


def _kind(value: object) -> str:
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

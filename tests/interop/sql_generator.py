"""Conditions and values in Lance's SQL, over the columns that a generated table has."""

from tests.interop.columns import KEY
from tests.interop.table_model import UNKNOWN, Model

_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_FLOATS = {"float", "double", "double-not-null"}
_STRINGS = {"string", "string-not-null", "large_string"}
_EXTENSIONS = ("json", "uuid", "bool8", "opaque", "tensor", "list-of-uuid", "struct-of-extensions")
"""What is computed from them pylance stores as what they are made of (test_pylance_defects.py)."""


def quoted(name: str) -> str:
    return name if name.isascii() and name.isidentifier() and name != "select" else f"`{name}`"


def condition(model: Model, depth: int = 0) -> str:
    random = model.random
    kind = random.random()
    if kind < 0.05:
        return "true"
    if kind < 0.08:
        return "false"
    if kind < 0.2 and depth < 2:
        return f"({condition(model, depth + 1)}) {random.choice(('and', 'or'))} ({condition(model, depth + 1)})"
    if kind < 0.25 and depth < 2:
        return f"not ({condition(model, depth + 1)})"
    if model.key is not None and random.random() < 0.7:
        return _of_key(model, model.key)
    names = [name for name, spec in model.columns.items() if spec != UNKNOWN]
    return of_column(model, random.choice(names)) if names else "true"


def _of_key(model: Model, key: str) -> str:
    random, name = model.random, quoted(key)
    some = random.randrange(model.keys + 1)
    return random.choice(
        (
            f"{name} % {random.randint(2, 4)} = {random.randrange(2)}",
            f"{name} < {some}",
            f"{name} >= {some}",
            f"{name} = {some}",
            f"{name} in ({some}, {some + 1}, {some + 5})",
            f"{name} between {some} and {some + 4}",
        )
    )


def of_column(model: Model, column: str) -> str:
    random, name = model.random, quoted(column)
    spec = model.columns[column].rstrip("!")
    found = [f"{name} is null", f"{name} is not null"]
    if spec in _INTEGERS or spec == KEY:
        found += [f"{name} = 1", f"{name} > 0", f"{name} in (0, 1)"]
    elif spec in _FLOATS:
        found += [f"{name} > 0.5", f"{name} <= 0.0", f"isnan({name})"]
    elif spec in _STRINGS:
        found += [f"{name} = 'a'", f"{name} like '%a%'", f"{name} > ''"]
    elif spec == "bool":
        found += [name, f"not {name}"]
    elif spec == "date32":
        found += [f"{name} > date '2000-01-01'"]
    elif spec in ("list", "list-string"):
        item = "1" if spec == "list" else "'a'"
        found += [f"array_has({name}, {item})", f"array_has_any({name}, [{item}])"]
    return random.choice(found)


def value(model: Model, column: str, assigned: list[str]) -> str | None:
    """A new value for that column, from its own and others; None where there is no way to write one. Not from others
    that get one too: of those pylance reads now the old value, now the new one (test_pylance_defects.py)."""
    random, name = model.random, quoted(column)
    spec = model.columns[column]
    case = spec.rstrip("!")
    found = [name]
    if case == spec and spec != UNKNOWN:
        found.append("null")
    if case == KEY:
        return None
    if case in _INTEGERS:
        found += ["7", f"nullif({name}, 1)" if case == spec else "3"]
    elif case in _FLOATS:
        found += ["1.5", "0.25"]
    elif case in _STRINGS:
        found += ["'changed'", f"upper({name})"]
    elif case == "bool":
        found += ["true", f"not {name}"]
    alike = [other for other, theirs in model.columns.items() if theirs == spec and spec != UNKNOWN]
    same = [other for other in alike if other not in assigned]
    found += [quoted(other) for other in same]
    return random.choice(found[1:] or found)


def new_value(model: Model) -> tuple[str, str]:
    """An expression for a new column, and the spec of what it makes."""
    random = model.random
    if model.key is not None and random.random() < 0.6:
        name = quoted(model.key)
        full = "!" if model.columns[model.key].endswith("!") else ""
        return random.choice(
            (
                (f"{name} * 2", f"int64{full}"),
                (f"nullif({name}, 3)", "int64"),
                (f"cast({name} as double) / 2", f"double{full}"),
                (f"cast({name} as string)", f"string{full}"),
                (f"{name} % 2 = 0", f"bool{full}"),
            )
        )
    names = [name for name, spec in model.columns.items() if spec.rstrip("!") not in (UNKNOWN, *_EXTENSIONS)]
    if names and random.random() < 0.6:
        name = random.choice(names)
        return quoted(name), model.columns[name]
    return random.choice((("1", "int64!"), ("'x'", "string!"), ("true", "bool!"), ("1.5", "double!")))

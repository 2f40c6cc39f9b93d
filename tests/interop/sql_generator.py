"""SQL generator: conditions and values in Lance's SQL over the columns of a generated table."""

from tests.interop.columns import KEY
from tests.interop.table_model import UNKNOWN, TableModel

_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_FLOATS = {"float", "double", "double-not-null"}
_STRINGS = {"string", "string-not-null", "large_string"}
_EXTENSIONS = ("json", "uuid", "bool8", "opaque", "tensor", "list-of-uuid", "struct-of-extensions")
"""Extension types; pylance stores a column computed from them as the storage type (test_pylance_defects.py)."""


def quote(name: str) -> str:
    return name if name.isascii() and name.isidentifier() and name != "select" else f"`{name}`"


def generate_condition(model: TableModel, depth: int = 0) -> str:
    random = model.random
    draw = random.random()
    if draw < 0.05:
        return "true"
    if draw < 0.08:
        return "false"
    if draw < 0.2 and depth < 2:
        left, operator = generate_condition(model, depth + 1), random.choice(("and", "or"))
        return f"({left}) {operator} ({generate_condition(model, depth + 1)})"
    if draw < 0.25 and depth < 2:
        return f"not ({generate_condition(model, depth + 1)})"
    if model.key is not None and random.random() < 0.7:
        return _generate_key_condition(model, model.key)
    names = [name for name, spec in model.columns.items() if spec != UNKNOWN]
    return generate_column_condition(model, random.choice(names)) if names else "true"


def _generate_key_condition(model: TableModel, key: str) -> str:
    random, name = model.random, quote(key)
    value = random.randrange(model.key_count + 1)
    return random.choice(
        (
            f"{name} % {random.randint(2, 4)} = {random.randrange(2)}",
            f"{name} < {value}",
            f"{name} >= {value}",
            f"{name} = {value}",
            f"{name} in ({value}, {value + 1}, {value + 5})",
            f"{name} between {value} and {value + 4}",
        )
    )


def generate_column_condition(model: TableModel, column: str) -> str:
    random, name = model.random, quote(column)
    spec = model.columns[column].rstrip("!")
    conditions = [f"{name} is null", f"{name} is not null"]
    if spec in _INTEGERS or spec == KEY:
        conditions += [f"{name} = 1", f"{name} > 0", f"{name} in (0, 1)"]
    elif spec in _FLOATS:
        conditions += [f"{name} > 0.5", f"{name} <= 0.0", f"isnan({name})"]
    elif spec in _STRINGS:
        conditions += [f"{name} = 'a'", f"{name} like '%a%'", f"{name} > ''"]
    elif spec == "bool":
        conditions += [name, f"not {name}"]
    elif spec == "date32":
        conditions += [f"{name} > date '2000-01-01'"]
    elif spec in ("list", "list-string"):
        item = "1" if spec == "list" else "'a'"
        conditions += [f"array_has({name}, {item})", f"array_has_any({name}, [{item}])"]
    return random.choice(conditions)


def generate_value(model: TableModel, column: str, assigned_columns: list[str]) -> str | None:
    """Return an expression for a new value of the column; `None` if SQL cannot express one.

    It reads the column and others, but no column of the same update: pylance may read the old value of such a column or
    the new one (test_pylance_defects.py).
    """
    random, name = model.random, quote(column)
    spec = model.columns[column]
    case = spec.rstrip("!")
    expressions = [name]
    if case == spec and spec != UNKNOWN:
        expressions.append("null")
    if case == KEY:
        return None
    if case in _INTEGERS:
        expressions += ["7", f"nullif({name}, 1)" if case == spec else "3"]
    elif case in _FLOATS:
        expressions += ["1.5", "0.25"]
    elif case in _STRINGS:
        expressions += ["'changed'", f"upper({name})"]
    elif case == "bool":
        expressions += ["true", f"not {name}"]
    same_type = [other for other, other_spec in model.columns.items() if other_spec == spec and spec != UNKNOWN]
    expressions += [quote(other) for other in same_type if other not in assigned_columns]
    return random.choice(expressions[1:] or expressions)


def generate_new_column(model: TableModel) -> tuple[str, str]:
    """Return an expression for a new column, and the spec of that column."""
    random = model.random
    if model.key is not None and random.random() < 0.6:
        name = quote(model.key)
        required = "!" if model.columns[model.key].endswith("!") else ""
        return random.choice(
            (
                (f"{name} * 2", f"int64{required}"),
                (f"nullif({name}, 3)", "int64"),
                (f"cast({name} as double) / 2", f"double{required}"),
                (f"cast({name} as string)", f"string{required}"),
                (f"{name} % 2 = 0", f"bool{required}"),
            )
        )
    names = [name for name, spec in model.columns.items() if spec.rstrip("!") not in (UNKNOWN, *_EXTENSIONS)]
    if names and random.random() < 0.6:
        name = random.choice(names)
        return quote(name), model.columns[name]
    return random.choice((("1", "int64!"), ("'x'", "string!"), ("true", "bool!"), ("1.5", "double!")))

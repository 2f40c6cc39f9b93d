"""What a caller is told when SQL is refused: what is wrong, where, what comes near, what is supported.

DataFusion's words are read here and nowhere else; where they are not recognised they are passed on as they are.
"""

import re
from collections.abc import Callable

import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.expressions.json_functions import FUNCTIONS
from lance_core.format.field_paths import suggest_name

SUPPORTED = (
    "Supported are =, !=, <, <=, >, >=, AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL, CAST, arithmetic and DataFusion's "
    "scalar functions; text in quotes, names with odd characters in back-ticks"
)
_ALTERNATIVES = {
    "is_valid": "write `x IS NOT NULL`",
    "if": "write `CASE WHEN ... THEN ... ELSE ... END`",
    "year": "write `date_part('year', x)`",
}
_SQL_CHARACTERS_MAX = 200


def error_for(what: str, sql: str, said: str, schema: pa.Schema) -> InvalidInput:
    """`said` about `sql`, as an error for the caller; `what` names what the SQL is for."""
    shown = _shorten(sql)
    for pattern, explain in _EXPLANATIONS:
        if found := re.search(pattern, said, flags=re.DOTALL):
            return InvalidInput(f"{what} {shown!r}: {explain(found, sql, schema)}")
    return InvalidInput(f"{what} {shown!r}: {_first_line(said)}. {SUPPORTED}")


def invalid_expression_error(what: str, sql: str, said: str) -> InvalidInput:
    """What this room itself objects to is said in full already."""
    return InvalidInput(f"{what} {_shorten(sql)!r}: {said}")


def evaluation_error(what: str, sql: str, said: str) -> InvalidInput:
    """What went wrong while rows were evaluated: a value, not the SQL, was in the way."""
    return InvalidInput(
        f"{what} {_shorten(sql)!r} failed on a row: {_first_line(said)}; leave such rows out by a condition of "
        "their own, or use try_cast, nullif or CASE"
    )


def _explain_syntax_error(found: re.Match[str], sql: str, schema: pa.Schema) -> str:
    return f"it does not parse: {_lower_first_letter(found[1])}. {SUPPORTED}"


def _explain_recursion_limit(found: re.Match[str], sql: str, schema: pa.Schema) -> str:
    return "it is nested too deeply; take some of the parentheses away"


def _explain_unknown_column(found: re.Match[str], sql: str, schema: pa.Schema) -> str:
    name = found[1].replace('"', "").rstrip(".")
    place = sql.find(name)
    at = f" at character {place + 1}" if place >= 0 else ""
    if "." in name and name.partition(".")[0] in schema.names:
        return f"there is no field {name!r}{at}"
    return f"there is no column {name!r}{at}; {suggest_name(name, schema.names)}"


def _explain_unknown_field(found: re.Match[str], sql: str, schema: pa.Schema) -> str:
    place = sql.find(found[1])
    return f"there is no field {found[1]!r} in that struct{f' at character {place + 1}' if place >= 0 else ''}"


def _explain_unknown_function(found: re.Match[str], sql: str, schema: pa.Schema) -> str:
    name = found[1]
    place = sql.lower().find(name.lower())
    at = f" at character {place + 1}" if place >= 0 else ""
    instead = _ALTERNATIVES.get(name.lower())
    if name.lower().startswith("json_"):
        instead = f"there are {', '.join(FUNCTIONS)}"
    guess = found[2] if found.lastindex and found.lastindex > 1 else None
    hint = instead or (f"did you mean {guess!r}?" if guess else SUPPORTED)
    return f"there is no function {name!r}{at}; {hint}"


def _explain_not_boolean(found: re.Match[str], sql: str, schema: pa.Schema) -> str:
    return f"it is of type {found[1]}, a predicate must be true or false for each row"


def _explain_type_mismatch(found: re.Match[str], sql: str, schema: pa.Schema) -> str:
    if 'Struct("json text"' in found[0]:
        return "a JSON column is not compared or cast; ask for IS NULL or for what it holds: json_get_string(x, 'key')"
    return f"types do not go together: {_first_line(found[0])}; CAST one side"


def _first_line(said: str) -> str:
    """The innermost cause, without the stack of rules that DataFusion went through."""
    last = said.rpartition("caused by\n")[2]
    for prefix in (
        "Arrow error: ",
        "Compute error: ",
        "Error during planning: ",
        "Execution error: ",
        "Schema error: ",
    ):
        last = last.removeprefix(prefix)
    return last.partition("\n")[0].rstrip(" .")


def _shorten(sql: str) -> str:
    return sql if len(sql) <= _SQL_CHARACTERS_MAX else sql[:_SQL_CHARACTERS_MAX] + "..."


def _lower_first_letter(text: str) -> str:
    return text[:1].lower() + text[1:]


_EXPLANATIONS: tuple[tuple[str, Callable[[re.Match[str], str, pa.Schema], str]], ...] = (
    (r'SQL error: (?:ParserError|TokenizerError)\("(.*)"\)', _explain_syntax_error),
    (r"RecursionLimitExceeded", _explain_recursion_limit),
    (r"No field named (.+?)(?:\. |\.\n|\n|\.$|$)", _explain_unknown_column),
    (r"Field (\S+) not found in struct", _explain_unknown_field),
    (r"Invalid function '([^']*)'(?:.\s*Did you mean '([^']*)')?", _explain_unknown_function),
    (r"not boolean but (.*)", _explain_not_boolean),
    (r"Struct\(\"json text\".*", _explain_type_mismatch),
    (r"(?:Cannot infer common|There isn't a common type|Can not find compatible)[^\n]*", _explain_type_mismatch),
)

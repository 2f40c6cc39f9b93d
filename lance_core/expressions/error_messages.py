"""SQL error messages: turns errors about SQL into an `InvalidInput` that says what is wrong, where, and what to
write.

Only this module parses the messages of DataFusion. A message that it does not recognize is passed on unchanged. Start
at `error_for`.
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
_CLAUSE = re.compile(r"found: (limit|offset|fetch|order|group|having|union|where|from) at", flags=re.IGNORECASE)
_SQL_CHARACTERS_MAX = 200


def error_for(what: str, sql: str, engine_message: str, schema: pa.Schema) -> InvalidInput:
    """Return the error for SQL that the engine rejected. `what` names the purpose of the SQL."""
    shown = _shorten(sql)
    for pattern, explain in _EXPLANATIONS:
        if match := re.search(pattern, engine_message, flags=re.DOTALL):
            return InvalidInput(f"{what} {shown!r}: {explain(match, sql, schema)}")
    return InvalidInput(f"{what} {shown!r}: {_innermost_cause(engine_message)}. {SUPPORTED}")


def invalid_expression_error(what: str, sql: str, message: str) -> InvalidInput:
    """Return the error for an `InvalidExpression` of this package, whose message is complete."""
    return InvalidInput(f"{what} {_shorten(sql)!r}: {message}")


def evaluation_error(what: str, sql: str, engine_message: str) -> InvalidInput:
    """Return the error for a failed evaluation, which a value caused, not the SQL."""
    return InvalidInput(
        f"{what} {_shorten(sql)!r} failed on a row: {_innermost_cause(engine_message)}; exclude such rows with another "
        "condition, or use try_cast, nullif or CASE"
    )


def _explain_syntax_error(match: re.Match[str], sql: str, schema: pa.Schema) -> str:
    if clause := _CLAUSE.search(match[1]):
        return (
            f"{clause[1].upper()} is a clause of a query, and this is an expression for single rows; remove it, and "
            "pass `limit=` or `offset=` to the read, or give the whole query to `Table.query`"
        )
    return f"it does not parse: {_lower_first_letter(match[1])}. {SUPPORTED}"


def _explain_recursion_limit(match: re.Match[str], sql: str, schema: pa.Schema) -> str:
    return "it is nested too deeply; remove parentheses"


def _explain_unknown_column(match: re.Match[str], sql: str, schema: pa.Schema) -> str:
    name = match[1].replace('"', "").rstrip(".")
    position = sql.find(name)
    at = f" at character {position + 1}" if position >= 0 else ""
    if "." in name and name.partition(".")[0] in schema.names:
        return f"there is no field {name!r}{at}"
    return f"there is no column {name!r}{at}; {suggest_name(name, schema.names)}"


def _explain_unknown_field(match: re.Match[str], sql: str, schema: pa.Schema) -> str:
    position = sql.find(match[1])
    return f"there is no field {match[1]!r} in that struct{f' at character {position + 1}' if position >= 0 else ''}"


def _explain_unknown_function(match: re.Match[str], sql: str, schema: pa.Schema) -> str:
    name = match[1]
    position = sql.lower().find(name.lower())
    at = f" at character {position + 1}" if position >= 0 else ""
    alternative = _ALTERNATIVES.get(name.lower())
    if name.lower().startswith("json_"):
        alternative = f"there are {', '.join(FUNCTIONS)}"
    suggestion = match[2] if match.lastindex and match.lastindex > 1 else None
    hint = alternative or (f"did you mean {suggestion!r}?" if suggestion else SUPPORTED)
    return f"there is no function {name!r}{at}; {hint}"


def _explain_not_boolean(match: re.Match[str], sql: str, schema: pa.Schema) -> str:
    return f"it is of type {match[1]}, but a predicate must be true or false for each row"


def _explain_type_mismatch(match: re.Match[str], sql: str, schema: pa.Schema) -> str:
    if 'Struct("json text"' in match[0]:
        return "a JSON column cannot be compared or cast; use IS NULL or a function such as json_get_string(x, 'key')"
    return f"the types cannot be compared: {_innermost_cause(match[0])}; CAST one side"


def _innermost_cause(engine_message: str) -> str:
    """Return the first line of the innermost cause, without DataFusion's list of optimizer rules."""
    last = engine_message.rpartition("caused by\n")[2]
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

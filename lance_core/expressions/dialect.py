"""SQL dialect: rewrites spellings of Lance's SQL that the engine's parser rejects into ones that it accepts.

Lance accepts `struct` as the name of a column wherever no parenthesis follows, and DATETIME as a type with
microseconds. After `as`, it is a type in a cast and an alias everywhere else. A final semicolon is dropped. The
rewriting changes words outside of quotes and comments only. It does not validate anything; the parser rejects invalid
SQL. Start with `to_engine_sql`.
"""

import re

from lance_core.expressions.cost_limits import QUOTED_OR_COMMENT

_TOKEN = re.compile(
    rf"(?P<skipped>{QUOTED_OR_COMMENT.pattern}|\s+)"
    r"|(?P<word>[^\W\d]\w*)"
    r"|(?P<precision>\(\s*\d+\s*\))"
    r"|(?P<other>::|\w+|.)",
    re.DOTALL,
)
_REWRITTEN = re.compile(r"\b(?:struct|datetime)\b", re.IGNORECASE)
_DATETIME = "timestamp(6)"
"""Lance stores a DATETIME without a precision in microseconds."""
_CASTS = ("cast", "try_cast", "safe_cast")


def to_engine_sql(sql: str) -> str:
    """Return the SQL with the spellings of the engine.

    >>> to_engine_sql("struct.y > 0 and note = 'struct.y' and struct(1) is not null")
    "`struct`.y > 0 and note = 'struct.y' and struct(1) is not null"
    >>> to_engine_sql("cast(day as datetime) > datetime '2026-01-01' and datetime < 5")
    "cast(day as timestamp(6)) > timestamp(6) '2026-01-01' and datetime < 5"
    >>> to_engine_sql("select cast(day as datetime) as datetime from dataset")
    'select cast(day as timestamp(6)) as datetime from dataset'
    """
    sql = sql.rstrip().removesuffix(";")
    if not _REWRITTEN.search(sql):
        return sql
    tokens = [(match.lastgroup, match[0]) for match in _TOKEN.finditer(sql)]
    written = [text for _kind, text in tokens]
    visible = [number for number, (kind, text) in enumerate(tokens) if kind != "skipped" or text[0] in "'\"`"]
    texts = ["", *(written[number].lower() for number in visible), ""]
    is_cast = [False]  # for each parenthesis that is open, and for the text outside of all
    for number, before, word, after in zip(visible, texts, texts[1:], texts[2:], strict=False):
        if word == "(":
            is_cast.append(before in _CASTS)
        elif word == ")" and len(is_cast) > 1:
            is_cast.pop()
        elif tokens[number][0] == "word" and not (before == "as" and word == "datetime" and not is_cast[-1]):
            written[number] = _engine_word(written[number], before, word, after)
    return "".join(written)


def _engine_word(written: str, before: str, word: str, after: str) -> str:
    """Return a word as the engine spells it. `word` is the same in lower case, between its neighbours."""
    if word == "struct" and before != "." and not after.startswith(("(", "<")):
        return f"`{written}`"
    if word == "datetime" and (before in ("as", "::") or after.startswith(("'", '"'))):
        return "timestamp" if after.startswith("(") else _DATETIME
    return written

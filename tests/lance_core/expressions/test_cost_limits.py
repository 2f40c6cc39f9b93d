"""Cost limits: expressions that would take minutes to plan or gigabytes to evaluate are refused within a second, and
ordinary ones are not."""

import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from lance_core import InvalidInput
from lance_core.expressions import engine
from lance_core.expressions.predicate import Predicate
from lance_core.expressions.row_queries import RowQuery

SCHEMA = pa.schema([("s", pa.string()), ("i", pa.int64()), ("b", pa.bool_()), ("l", pa.list_(pa.int64()))])
BRANCHES = " ".join(f"when {number} then {number + 1}" for number in range(20))
COPYING = [
    lambda inner: f"coalesce({inner}, 1)",
    lambda inner: f"cast({inner} as bigint)",
    lambda inner: f"(case when {inner} between 1 and 2 then 1 else 0 end)",
    lambda inner: f"(case {inner} {BRANCHES} else 0 end)",
]
TOO_LARGE = [
    "lpad(s, 2147483647, 'x') = 'a'",
    "rpad(s, 100 * 1000 * 1000) = 'a'",
    "repeat(s, 100000) = 'a'",
    "repeat('x', 10000000) = s",
    "repeat(repeat(s, 1000), 1000) = 'a'",
    "replace(repeat('a', 1000000), 'a', repeat('b', 1000000)) = s",
    "regexp_replace(s, '', repeat('b', 100000), 'g') = s",
    "range(0, 10000000000)[1] = 1",
    "generate_series(-10000000, 10000000)[1] = 1",
    "array_repeat(i, 1000000000)[1] = 1",
    "array_length(array_resize(l, 1000000000)) = 1",
    "array_to_string(l, repeat('x', 10000)) = 'a'",
    f"regexp_replace(s, '{'a|' * 50}b', '{'b' * 2000}', 'g') = s",
    "replace(repeat('a', 100000), 'a', s) = s",
    "translate(repeat(s, 500), 'a', 'x') = s",
    f"concat_ws(repeat(s, 100), {', '.join('s' * 20)}) = s",
]
OF_UNKNOWN_SIZE = [
    "repeat(s, i) = 'a'",
    "lpad(s, i) = 'a'",
    "rpad(s, length(s)) = 'a'",
    "range(i)[1] = 1",
    "array_repeat(1, i)[1] = 1",
]
ORDINARY = [
    ("repeat(s, 3) = 'ababab'", 1),
    ("lpad(s, 4, '0') = '00ab'", 1),
    ("rpad(s, 2 + 2, '.') = 'ab..'", 1),
    ("replace(s, 'a', 'xyz') = 'xyzb'", 1),
    ("replace('xyx', 'x', s) = 'abyab'", 1),
    ("regexp_replace(s, 'a|b', 'c', 'g') = 'cc'", 1),
    ("concat_ws(s, s, 'x') = 'ababx'", 1),
    ("translate(s, 'ab', 'xy') = 'xy'", 1),
    ("range(1, 4)[2] = i", 1),
    ("array_to_string(l, ',') = '1,2'", 1),
    ("case i when 1 then 'x' when 2 then 'y' end = 'y'", 1),
    ("coalesce(coalesce(coalesce(i, 1), 2), 3) between 1 and 2", 1),
    (" and ".join(["i > 1"] * 1000), 1),
    (f"i in ({', '.join(map(str, range(10000)))})", 1),
]
ROW = pa.RecordBatch.from_pylist([{"s": "ab", "i": 2, "b": True, "l": [1, 2]}], SCHEMA)


@pytest.mark.parametrize("nest", COPYING)
def test_nesting_that_the_planner_multiplies_is_refused_at_once(nest: Callable[[str], str]) -> None:
    inner = "i"
    for _ in range(15):
        inner = nest(inner)
    start = time.monotonic()
    with pytest.raises(InvalidInput, match="nested so deep"):
        Predicate.parse(f"{inner} = 1", SCHEMA)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("opening", ["(", "not (", "cast(", "abs((", "[", "(case i when 1 then "])
def test_deep_nesting_is_refused_before_it_is_parsed(opening: str) -> None:
    sql = f"{opening * 45}i"
    for parse in (Predicate.parse, lambda text, schema: RowQuery.parse(f"select i from dataset where {text}", schema)):
        with pytest.raises(InvalidInput, match="deep, and at most 32 are supported"):
            parse(sql, SCHEMA)


@pytest.mark.parametrize("hidden", ["/* )))))))))))))))))))) */", "-- ))))))))))))))))))))\n", "/* ' */", "end + "])
def test_closing_brackets_in_comments_close_nothing(hidden: str) -> None:
    half = "(" * 20
    with pytest.raises(InvalidInput, match="too deeply"):
        Predicate.parse(f"{half} {hidden} {half} i = 1", SCHEMA)


def test_a_comment_within_a_comment_is_refused() -> None:
    with pytest.raises(InvalidInput, match="comment within a comment"):
        Predicate.parse("i = 1 /* a /* b */ c */", SCHEMA)
    assert Predicate.parse("i = 2 /* two */ -- ((((", SCHEMA).mask(ROW).true_count == 1


def test_quotes_hide_parentheses() -> None:
    assert Predicate.parse(f"s = '{'(' * 100}' OR `s` = 'ab'", SCHEMA).mask(ROW).true_count == 1


@pytest.mark.parametrize("sql", TOO_LARGE)
def test_a_result_of_gigabytes_is_refused_before_it_is_made(sql: str) -> None:
    with pytest.raises(InvalidInput, match=r"at most .* are supported"):
        Predicate.parse(sql, SCHEMA)
    with pytest.raises(InvalidInput, match=r"at most .* are supported"):
        RowQuery.parse(f"select i from dataset where {sql}", SCHEMA)
    with pytest.raises(InvalidInput, match=r"at most .* are supported"):
        RowQuery.parse(f"select {sql} as it from dataset", SCHEMA)


@pytest.mark.parametrize("sql", OF_UNKNOWN_SIZE)
def test_a_count_from_a_column_is_refused(sql: str) -> None:
    with pytest.raises(InvalidInput, match="write a number"):
        Predicate.parse(sql, SCHEMA)


@pytest.mark.parametrize(
    "sql",
    [
        "replace(s, 'a', s) = 'x'",
        "regexp_replace(s, 'a', concat(s, 'x'), 'g') = 'x'",
        "replace(lower(s), '', case when b then s else 'x' end) = 'x'",
        "array_to_string(l, s) = 'x'",
    ],
)
def test_a_result_of_the_square_of_a_row_is_refused(sql: str) -> None:
    with pytest.raises(InvalidInput, match="the square of the bytes of a row; write one of them as a literal"):
        Predicate.parse(sql, SCHEMA)


@pytest.mark.parametrize(("sql", "matches"), ORDINARY)
def test_ordinary_expressions_are_evaluated(sql: str, matches: int) -> None:
    assert Predicate.parse(sql, SCHEMA).mask(ROW).true_count == matches


def test_a_batch_that_makes_too_much_is_evaluated_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 400
    batch = pa.RecordBatch.from_pydict({"s": [f"{number % 7}" for number in range(rows)]})
    predicate = Predicate.parse("lpad(s, 200000, '0') LIKE '%3'", batch.schema)
    sizes: list[int] = []
    evaluate = engine.evaluate

    def count_rows(exprs: object, batches: list[pa.RecordBatch], relation: str | None = None) -> tuple[pa.Array, ...]:
        sizes.append(sum(part.num_rows for part in batches))
        return evaluate(exprs, batches, relation)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "evaluate", count_rows)
    assert predicate.mask(batch).to_pylist() == [number % 7 == 3 for number in range(rows)]
    assert sum(sizes) == rows
    assert max(sizes) * 4 * 200_000 <= 1 << 27

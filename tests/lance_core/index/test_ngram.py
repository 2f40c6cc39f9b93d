"""NGRAM compared with the evaluator of predicates: no row that contains a text is left out, in any script and case."""

import time
import unicodedata
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core.errors import InvalidInput, LanceError
from lance_core.expressions.tree import Call, Comparison, Like, Op
from lance_core.format import treemap
from lance_core.index import registry
from lance_core.index.index_type import Certainty, Condition
from lance_core.index.ngram import NGRAM
from lance_core.index.segment_files import read_all_rows
from lance_core.index.trigrams import required_tokens, token_text
from tests.lance_core.index.segment_builder import (
    BuiltSegment,
    Fragments,
    build_segment,
    check_search,
    parse_condition,
    replace_file,
    search_segment,
)

INDEX_TYPE = NGRAM
FILE = "ngram_postings.lance"
UNUSUAL_LETTERS = (
    "\u212a\u017f\u0130\u0131ßẞﬁﬃæÆée\u0301ÅÅ\u03c3\u03c2\u03a3ǅ½①™\U0001d400\U0001d415日\x00\u200d\U0001f600%_\\ "
)
LETTERS = "abckstiKSTIfs019"
TEXTS = st.text(alphabet=st.sampled_from([*LETTERS, *UNUSUAL_LETTERS]), max_size=12)
WORDS = {0: pa.array(["Strawberry", None, "straw", "berry", ""]), 2: pa.array(["ber ry", "RAWB", "a_b", "12345"])}


def swap_case(text: str, flips: int) -> str:
    return "".join(letter.swapcase() if flips >> at & 1 else letter for at, letter in enumerate(text))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Fragments, Condition]:
    """Draw texts and a condition on a substring of one of them, possibly with the case of some letters changed."""
    texts = draw(st.lists(st.one_of(st.none(), TEXTS), min_size=1, max_size=8))
    text = draw(st.sampled_from([text or "abc" for text in texts]))
    start = draw(st.integers(0, len(text)))
    piece = text[start : draw(st.integers(start, len(text)))]
    if draw(st.booleans()):
        piece = swap_case(piece, draw(st.integers(0, 2**12)))
    arrow = draw(st.sampled_from([pa.string(), pa.large_string()]))
    fragments = {3: pa.array(texts, arrow)}
    operator = draw(st.sampled_from(["like", "ilike", "contains", "starts_with", "ends_with", "="]))
    if operator in ("like", "ilike"):
        escaped = "".join(f"\\{letter}" if letter in "%_\\" else letter for letter in piece)
        for wild in draw(st.lists(st.tuples(st.integers(0, 12), st.sampled_from("%_")), max_size=2)):
            position = min(wild[0], len(escaped))
            if not escaped[:position].endswith("\\"):
                escaped = escaped[:position] + wild[1] + escaped[position:]
        return fragments, Like(("v",), draw(st.sampled_from(["%", ""])) + escaped + "%", operator == "ilike")
    if operator == "=":
        return fragments, Comparison(("v",), Op.EQ, pa.scalar(piece, arrow))
    return fragments, Call(operator, ("v",), (pa.scalar(piece, arrow),))


@settings(max_examples=400, deadline=None)
@given(cases())
def test_a_search_includes_every_match(case: tuple[Fragments, Condition]) -> None:
    fragments, condition = case
    arrow = fragments[3].type
    built = build_segment(INDEX_TYPE, arrow, fragments)
    if INDEX_TYPE.answers(condition, built.segment.metadata) is None:
        assert search_segment(INDEX_TYPE, built, condition) is None
    else:
        check_search(INDEX_TYPE, built, fragments, condition)


EQUAL_WITHOUT_CASE = [
    (first_segment, chr(code))
    for first_segment in "abcdefghijklmnopqrstuvwxyz0123456789"
    for code in (0x17F, 0x212A, 0x130, 0x131, 0xDF, 0x1E9E, 0xFB01, 0x2126, 0xB5, 0x1D400, ord(first_segment.upper()))
]


@pytest.mark.parametrize("ignore_case", [False, True])
def test_equal_letters_without_case_are_found(ignore_case: bool) -> None:
    """Each letter finds all texts that the evaluator considers equal to it."""
    texts = {0: pa.array([f"x{other}y" for _, other in EQUAL_WITHOUT_CASE])}
    built = build_segment(INDEX_TYPE, pa.string(), texts)
    for letter in sorted({first_segment for first_segment, _ in EQUAL_WITHOUT_CASE}):
        check_search(
            INDEX_TYPE, built, texts, Like(("v",), f"%x{letter}Y%" if ignore_case else f"%x{letter}y%", ignore_case)
        )


def test_every_case_fold_of_unicode_is_found() -> None:
    """The letters are taken from the whole of Unicode instead of from a list of known folds."""
    letters = [chr(code) for code in range(0x80, 0x20000) if unicodedata.category(chr(code))[0] in "LNSM"]
    texts = {0: pa.array([f"q{letter}7" for letter in letters])}
    built = build_segment(INDEX_TYPE, pa.string(), texts, batch_rows=50_000)
    found = {
        letter: len(check_search(INDEX_TYPE, built, texts, Like(("v",), f"%q{letter}7%", ignore_case=True)).rows)
        for letter in "abcdefghijklmnopqrstuvwxyz"
    }
    assert found["k"] >= 1
    assert found["s"] >= 1


def test_a_search_finds_candidates() -> None:
    built = build_segment(INDEX_TYPE, pa.string(), WORDS)
    for sql, expected in {
        "v LIKE '%berry%'": {0, 3},
        "v LIKE '%raw%'": {0, 2, 2 << 32 | 1},
        "v ILIKE 'STRAW%'": {0, 2},
        "contains(v, 'rawb')": {0, 2 << 32 | 1},
        "v = 'straw'": {0, 2},
        "v LIKE '%234_'": {2 << 32 | 3},
        "v LIKE '%xyz%'": set(),
        "starts_with(v, 'Straw')": {0, 2},
        "ends_with(v, 'berry')": {0, 3},
    }.items():
        found = search_segment(INDEX_TYPE, built, parse_condition(sql, pa.string()))
        assert found is not None
        assert (set(found.rows), found.certainty) == (expected, Certainty.AT_MOST), sql


@pytest.mark.parametrize(
    "sql", ["v LIKE '%be%'", "v LIKE '%b_r_y%'", "contains(v, 'é')", "v IS NULL", "v > 'abc'", "v LIKE '%a b%'"]
)
def test_unsupported_conditions(sql: str) -> None:
    built = build_segment(INDEX_TYPE, pa.string(), WORDS)
    condition = parse_condition(sql, pa.string())
    assert search_segment(INDEX_TYPE, built, condition) is None is INDEX_TYPE.answers(condition, built.segment.metadata)


def test_a_null_argument_is_unsupported() -> None:
    built = build_segment(INDEX_TYPE, pa.string(), WORDS)
    condition = Call("contains", ("v",), (pa.scalar(None, pa.string()),))
    assert search_segment(INDEX_TYPE, built, condition) is None is INDEX_TYPE.answers(condition, built.segment.metadata)


def read_posting_lists(built: BuiltSegment) -> dict[int, set[int]]:
    table = read_all_rows(built.segment.files.open(FILE))
    rows = (set(treemap.decode(data, lambda _high: 1 << 32, path="x")) for data in table["posting_list"].to_pylist())
    return dict(zip(table["tokens"].to_pylist(), rows, strict=True))


def test_posting_lists_of_a_file() -> None:
    built = build_segment(INDEX_TYPE, pa.string(), {1: pa.array(["Abc", "xABCD", None, "é12", "a-b-c"])})
    named = {token_text(token) if token else "": rows for token, rows in read_posting_lists(built).items()}
    first = 1 << 32
    assert named == {
        "": {first | 2},
        "abc": {first, first | 1},
        "xab": {first | 1},
        "bcd": {first | 1},
        "e12": {first | 3},
    }
    assert list(read_posting_lists(built)) == sorted(read_posting_lists(built))
    assert registry.by_type_url(built.segment.metadata) is INDEX_TYPE
    assert built.segment.details == b""


@settings(max_examples=50, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=6), st.lists(TEXTS, max_size=6), st.sets(st.sampled_from([0, 1])))
def test_a_merged_segment_covers_its_inputs_and_new_rows(
    first: list[str], second: list[str], surviving: set[int]
) -> None:
    """A merged segment equals the segment built from all rows at once."""
    rows = dict.fromkeys(range(4), 10)
    old = {0: pa.array(first), 1: pa.array(first[::-1])}
    new = {2: pa.array(second, pa.string())}
    first_segment = build_segment(INDEX_TYPE, pa.string(), old, row_counts=rows)
    merged = build_segment(
        INDEX_TYPE,
        pa.string(),
        new,
        merge_inputs=[first_segment.merge_input(*surviving)],
        merged_ids=surviving,
        location=first_segment.location,
        row_counts=rows,
    )
    kept = {id: old[id] for id in sorted(surviving)} | dict(new)
    assert read_posting_lists(merged) == read_posting_lists(
        build_segment(INDEX_TYPE, pa.string(), kept, row_counts=rows)
    )


def test_a_merge_remaps_rows_that_a_compaction_moved() -> None:
    class Shifted:
        def remap(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return rows + np.uint64(7 << 32), rows != np.uint64(2)

    built = build_segment(INDEX_TYPE, pa.string(), WORDS)
    part = built.merge_input()
    moved = type(part)(part.segment, Shifted())  # type: ignore[arg-type]
    merged_segment = build_segment(
        INDEX_TYPE,
        pa.string(),
        {},
        merge_inputs=[moved],
        merged_ids=[7, 9],
        location=built.location,
        row_counts={7: 9, 9: 9},
    )
    found = search_segment(INDEX_TYPE, merged_segment, parse_condition("v LIKE '%raw%'", pa.string()))
    assert found is not None
    assert set(found.rows) == {7 << 32, 9 << 32 | 1}


def replace_postings(built: BuiltSegment, tokens: list[int | None], data: list[bytes | None]) -> None:
    replace_file(
        built, FILE, pa.table({"tokens": pa.array(tokens, pa.uint32()), "posting_list": pa.array(data, pa.binary())})
    )


TOKENS = required_tokens("straw")
DAMAGE: Mapping[str, tuple[Callable[[BuiltSegment], None], str]] = {
    "gone": (lambda built: built.location.store.delete(f"{built.path}/{FILE}"), "does not exist|no such|not found"),
    "no tokens": (lambda built: replace_postings(built, [None], [b""]), "a value is missing"),
    "twice": (lambda built: replace_postings(built, [*TOKENS, *TOKENS], [b""] * 6), "a token occurs twice"),
    "no list": (lambda built: replace_postings(built, list(TOKENS), [None] * 3), "is not a set of rows"),
    "cut short": (lambda built: replace_postings(built, list(TOKENS), [b"\x01\x00"] * 3), "is not a set of rows"),
    "no column": (
        lambda built: replace_file(built, FILE, pa.table({"tokens": pa.array([1], pa.uint32())})),
        "is missing",
    ),
    "numbers": (
        lambda built: replace_file(built, FILE, pa.table({"tokens": [1], "posting_list": [b""]})),
        "has type int64",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_raise_typed_errors(name: str) -> None:
    built = build_segment(INDEX_TYPE, pa.string(), WORDS)
    damage, message = DAMAGE[name]
    damage(built)
    with pytest.raises(LanceError, match=message):
        search_segment(INDEX_TYPE, built, parse_condition("v LIKE '%straw%'", pa.string()))


def test_examine_reports_contradictions() -> None:
    built = build_segment(INDEX_TYPE, pa.string(), WORDS)
    examined = INDEX_TYPE.examine(built.segment, built.column)
    assert set(examined.rows) == {0, 1, 2, 3, *(2 << 32 | row for row in (0, 1, 3))}
    assert (examined.lists_every_row, examined.problems) == (False, ())
    replace_postings(built, [TOKENS[1], TOKENS[0], None], [b"", treemap.encode(examined.rows), b"x"])
    problems = INDEX_TYPE.examine(built.segment, built.column).problems
    assert "1 of its posting lists have no token" in problems
    assert any("comes after" in problem for problem in problems)
    assert "is not a set of rows" in problems


def test_unsorted_tokens_are_found() -> None:
    built = build_segment(INDEX_TYPE, pa.string(), WORDS)
    table = read_all_rows(built.segment.files.open(FILE)).take(list(range(len(read_posting_lists(built))))[::-1])
    replace_file(built, FILE, table)
    check_search(INDEX_TYPE, built, WORDS, parse_condition("v LIKE '%berry%'", pa.string()))


def test_options_and_types() -> None:
    with pytest.raises(InvalidInput, match="NGRAM has no option 'n'"):
        INDEX_TYPE.parse_options({"n": 3})
    types = (pa.string(), pa.large_string(), pa.binary(), pa.int64())
    assert [INDEX_TYPE.supports(pa.field("v", arrow)) for arrow in types] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_repeated_search_is_fast() -> None:
    texts = {0: pa.array([f"row number {number}" for number in range(20_000)])}
    built = build_segment(INDEX_TYPE, pa.string(), texts, batch_rows=20_000)
    searcher = INDEX_TYPE.open(built.segment, built.column)
    condition = parse_condition("v LIKE '%number 12345%'", pa.string())
    assert searcher.search(condition) is not None
    durations = []
    for _ in range(20):
        started = time.perf_counter()
        searcher.search(condition)
        durations.append(time.perf_counter() - started)
    assert min(durations) < 0.002

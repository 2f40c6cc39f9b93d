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

KIND = NGRAM
FILE = "ngram_postings.lance"
ODD = "\u212a\u017f\u0130\u0131ßẞﬁﬃæÆée\u0301ÅÅ\u03c3\u03c2\u03a3ǅ½①™\U0001d400\U0001d415日\x00\u200d\U0001f600%_\\ "
LETTERS = "abckstiKSTIfs019"
TEXTS = st.text(alphabet=st.sampled_from([*LETTERS, *ODD]), max_size=12)
WORDS = {0: pa.array(["Strawberry", None, "straw", "berry", ""]), 2: pa.array(["ber ry", "RAWB", "a_b", "12345"])}


def flipped(text: str, flips: int) -> str:
    return "".join(letter.swapcase() if flips >> at & 1 else letter for at, letter in enumerate(text))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Fragments, Condition]:
    """Draw texts and a condition on a substring of one of them, possibly with the case of some letters changed."""
    texts = draw(st.lists(st.one_of(st.none(), TEXTS), min_size=1, max_size=8))
    text = draw(st.sampled_from([text or "abc" for text in texts]))
    start = draw(st.integers(0, len(text)))
    piece = text[start : draw(st.integers(start, len(text)))]
    if draw(st.booleans()):
        piece = flipped(piece, draw(st.integers(0, 2**12)))
    arrow = draw(st.sampled_from([pa.string(), pa.large_string()]))
    fragments = {3: pa.array(texts, arrow)}
    kind = draw(st.sampled_from(["like", "ilike", "contains", "starts_with", "ends_with", "="]))
    if kind in ("like", "ilike"):
        escaped = "".join(f"\\{letter}" if letter in "%_\\" else letter for letter in piece)
        for wild in draw(st.lists(st.tuples(st.integers(0, 12), st.sampled_from("%_")), max_size=2)):
            at = min(wild[0], len(escaped))
            if not escaped[:at].endswith("\\"):
                escaped = escaped[:at] + wild[1] + escaped[at:]
        return fragments, Like(("v",), draw(st.sampled_from(["%", ""])) + escaped + "%", kind == "ilike")
    if kind == "=":
        return fragments, Comparison(("v",), Op.EQ, pa.scalar(piece, arrow))
    return fragments, Call(kind, ("v",), (pa.scalar(piece, arrow),))


@settings(max_examples=400, deadline=None)
@given(cases())
def test_a_search_includes_every_match(case: tuple[Fragments, Condition]) -> None:
    fragments, leaf = case
    arrow = fragments[3].type
    it = build_segment(KIND, arrow, fragments)
    if KIND.answers(leaf, it.segment.metadata) is None:
        assert search_segment(KIND, it, leaf) is None
    else:
        check_search(KIND, it, fragments, leaf)


EQUAL_WITHOUT_CASE = [
    (one, chr(code))
    for one in "abcdefghijklmnopqrstuvwxyz0123456789"
    for code in (0x17F, 0x212A, 0x130, 0x131, 0xDF, 0x1E9E, 0xFB01, 0x2126, 0xB5, 0x1D400, ord(one.upper()))
]


@pytest.mark.parametrize("ignore_case", [False, True])
def test_equal_letters_without_case_are_found(ignore_case: bool) -> None:
    """Each letter finds all texts that the evaluator considers equal to it."""
    texts = {0: pa.array([f"x{other}y" for _, other in EQUAL_WITHOUT_CASE])}
    it = build_segment(KIND, pa.string(), texts)
    for letter in sorted({one for one, _ in EQUAL_WITHOUT_CASE}):
        check_search(KIND, it, texts, Like(("v",), f"%x{letter}Y%" if ignore_case else f"%x{letter}y%", ignore_case))


def test_every_case_fold_of_unicode_is_found() -> None:
    """The letters are taken from the whole of Unicode instead of from a list of known folds."""
    every = [chr(code) for code in range(0x80, 0x20000) if unicodedata.category(chr(code))[0] in "LNSM"]
    texts = {0: pa.array([f"q{letter}7" for letter in every])}
    it = build_segment(KIND, pa.string(), texts, batch_rows=50_000)
    found = {
        letter: len(check_search(KIND, it, texts, Like(("v",), f"%q{letter}7%", ignore_case=True)).rows)
        for letter in "abcdefghijklmnopqrstuvwxyz"
    }
    assert found["k"] >= 1
    assert found["s"] >= 1


def test_a_search_finds_candidates() -> None:
    it = build_segment(KIND, pa.string(), WORDS)
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
        found = search_segment(KIND, it, parse_condition(sql, pa.string()))
        assert found is not None
        assert (set(found.rows), found.certainty) == (expected, Certainty.AT_MOST), sql


@pytest.mark.parametrize(
    "sql", ["v LIKE '%be%'", "v LIKE '%b_r_y%'", "contains(v, 'é')", "v IS NULL", "v > 'abc'", "v LIKE '%a b%'"]
)
def test_unsupported_conditions(sql: str) -> None:
    it = build_segment(KIND, pa.string(), WORDS)
    leaf = parse_condition(sql, pa.string())
    assert search_segment(KIND, it, leaf) is None is KIND.answers(leaf, it.segment.metadata)


def test_a_null_argument_is_unsupported() -> None:
    it = build_segment(KIND, pa.string(), WORDS)
    leaf = Call("contains", ("v",), (pa.scalar(None, pa.string()),))
    assert search_segment(KIND, it, leaf) is None is KIND.answers(leaf, it.segment.metadata)


def lists(it: BuiltSegment) -> dict[int, set[int]]:
    table = read_all_rows(it.segment.files.open(FILE))
    rows = (set(treemap.decode(data, lambda _high: 1 << 32, path="x")) for data in table["posting_list"].to_pylist())
    return dict(zip(table["tokens"].to_pylist(), rows, strict=True))


def test_posting_lists_of_a_file() -> None:
    it = build_segment(KIND, pa.string(), {1: pa.array(["Abc", "xABCD", None, "é12", "a-b-c"])})
    named = {token_text(token) if token else "": rows for token, rows in lists(it).items()}
    first = 1 << 32
    assert named == {
        "": {first | 2},
        "abc": {first, first | 1},
        "xab": {first | 1},
        "bcd": {first | 1},
        "e12": {first | 3},
    }
    assert list(lists(it)) == sorted(lists(it))
    assert registry.by_type_url(it.segment.metadata) is KIND
    assert it.segment.details == b""


@settings(max_examples=50, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=6), st.lists(TEXTS, max_size=6), st.sets(st.sampled_from([0, 1])))
def test_a_merged_segment_covers_its_inputs_and_new_rows(
    first: list[str], second: list[str], staying: set[int]
) -> None:
    """A merged segment equals the segment built from all rows at once."""
    rows = dict.fromkeys(range(4), 10)
    old = {0: pa.array(first), 1: pa.array(first[::-1])}
    new = {2: pa.array(second, pa.string())}
    one = build_segment(KIND, pa.string(), old, row_counts=rows)
    both = build_segment(
        KIND,
        pa.string(),
        new,
        merge_inputs=[one.merge_input(*staying)],
        merged_ids=staying,
        location=one.location,
        row_counts=rows,
    )
    kept = {id: old[id] for id in sorted(staying)} | dict(new)
    assert lists(both) == lists(build_segment(KIND, pa.string(), kept, row_counts=rows))


def test_a_merge_remaps_rows_that_a_compaction_moved() -> None:
    class Shifted:
        def remap(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return rows + np.uint64(7 << 32), rows != np.uint64(2)

    it = build_segment(KIND, pa.string(), WORDS)
    part = it.merge_input()
    moved = type(part)(part.segment, Shifted())  # type: ignore[arg-type]
    anew = build_segment(
        KIND, pa.string(), {}, merge_inputs=[moved], merged_ids=[7, 9], location=it.location, row_counts={7: 9, 9: 9}
    )
    found = search_segment(KIND, anew, parse_condition("v LIKE '%raw%'", pa.string()))
    assert found is not None
    assert set(found.rows) == {7 << 32, 9 << 32 | 1}


def changed(it: BuiltSegment, tokens: list[int | None], data: list[bytes | None]) -> None:
    replace_file(
        it, FILE, pa.table({"tokens": pa.array(tokens, pa.uint32()), "posting_list": pa.array(data, pa.binary())})
    )


SOME = required_tokens("straw")
DAMAGE: Mapping[str, tuple[Callable[[BuiltSegment], None], str]] = {
    "gone": (lambda it: it.location.store.delete(f"{it.path}/{FILE}"), "does not exist|no such|not found"),
    "no tokens": (lambda it: changed(it, [None], [b""]), "a value is missing"),
    "twice": (lambda it: changed(it, [*SOME, *SOME], [b""] * 6), "a token occurs twice"),
    "no list": (lambda it: changed(it, list(SOME), [None] * 3), "is not a set of rows"),
    "cut short": (lambda it: changed(it, list(SOME), [b"\x01\x00"] * 3), "is not a set of rows"),
    "no column": (lambda it: replace_file(it, FILE, pa.table({"tokens": pa.array([1], pa.uint32())})), "is missing"),
    "numbers": (lambda it: replace_file(it, FILE, pa.table({"tokens": [1], "posting_list": [b""]})), "has type int64"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_files_raise_typed_errors(what: str) -> None:
    it = build_segment(KIND, pa.string(), WORDS)
    damage, said = DAMAGE[what]
    damage(it)
    with pytest.raises(LanceError, match=said):
        search_segment(KIND, it, parse_condition("v LIKE '%straw%'", pa.string()))


def test_examine_reports_contradictions() -> None:
    it = build_segment(KIND, pa.string(), WORDS)
    examined = KIND.examine(it.segment, it.column)
    assert set(examined.rows) == {0, 1, 2, 3, *(2 << 32 | row for row in (0, 1, 3))}
    assert (examined.lists_every_row, examined.problems) == (False, ())
    changed(it, [SOME[1], SOME[0], None], [b"", treemap.encode(examined.rows), b"x"])
    problems = KIND.examine(it.segment, it.column).problems
    assert "1 of its posting lists have no token" in problems
    assert any("comes after" in problem for problem in problems)
    assert "is not a set of rows" in problems


def test_unsorted_tokens_are_found() -> None:
    it = build_segment(KIND, pa.string(), WORDS)
    table = read_all_rows(it.segment.files.open(FILE)).take(list(range(len(lists(it))))[::-1])
    replace_file(it, FILE, table)
    check_search(KIND, it, WORDS, parse_condition("v LIKE '%berry%'", pa.string()))


def test_options_and_types() -> None:
    with pytest.raises(InvalidInput, match="NGRAM has no option 'n'"):
        KIND.parse_options({"n": 3})
    types = (pa.string(), pa.large_string(), pa.binary(), pa.int64())
    assert [KIND.supports(pa.field("v", arrow)) for arrow in types] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_repeated_search_is_fast() -> None:
    texts = {0: pa.array([f"row number {number}" for number in range(20_000)])}
    it = build_segment(KIND, pa.string(), texts, batch_rows=20_000)
    searcher = KIND.open(it.segment, it.column)
    leaf = parse_condition("v LIKE '%number 12345%'", pa.string())
    assert searcher.search(leaf) is not None
    took = []
    for _ in range(20):
        started = time.perf_counter()
        searcher.search(leaf)
        took.append(time.perf_counter() - started)
    assert min(took) < 0.002

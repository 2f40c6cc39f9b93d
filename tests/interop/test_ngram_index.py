"""NGRAM: ours used by pylance, pylance's read by us, and the same trigrams in both."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader
from pyroaring import BitMap64

from lance_core.index.index_type import Certainty
from lance_core.index.ngram import NGRAM
from lance_core.index.trigrams import token_pairs
from tests.interop.segment_exchange import by_plan, check_theirs, commit_ours

WORDS = [
    "Strawberry",
    None,
    "straw",
    "raspberry jam",
    "",
    "café crème",
    "Straße 12",
    "ﬁne ½ dozen",
    "K\u212aelvin",
    "ok",
]
ROWS = 400
SQLS = ("v LIKE '%berry%'", "contains(v, 'traw')", "v LIKE 'Str%'", "contains(v, 'xyz')", "contains(v, 'asp')")
ONLY_THEIRS = ("contains(v, 'café')", "contains(v, 'Straße')", "contains(v, 'ﬁne')", "contains(v, '½ dozen')")


def made(uri: str, *, stable: bool, delete: bool, arrow: pa.DataType) -> None:
    table = pa.table({"id": range(ROWS), "v": pa.array([WORDS[at % len(WORDS)] for at in range(ROWS)], arrow)})
    dataset = lance.write_dataset(table, uri, max_rows_per_file=150, enable_stable_row_ids=stable)
    if delete:
        dataset.delete("id in (0, 2, 3, 160) or id >= 390")
    if stable:
        dataset.optimize.compact_files(target_rows_per_fragment=1_000)


@pytest.mark.parametrize("arrow", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("delete", [False, True], ids=["", "deletions"])
@pytest.mark.parametrize("stable", [False, True], ids=["", "stable ids"])
def test_pylance_uses_ours(stable: bool, delete: bool, arrow: pa.DataType, tmp_path: Path) -> None:
    uri = str(tmp_path)
    made(uri, stable=stable, delete=delete, arrow=arrow)
    commit_ours(uri, "v", NGRAM)
    for sql in (*SQLS, *ONLY_THEIRS):
        answer = by_plan(uri, sql)
        assert answer.used, sql
        assert answer.rows == answer.expected, sql


@pytest.mark.parametrize("arrow", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("delete", [False, True], ids=["", "deletions"])
@pytest.mark.parametrize("stable", [False, True], ids=["", "stable ids"])
def test_we_read_those_of_pylance(stable: bool, delete: bool, arrow: pa.DataType, tmp_path: Path) -> None:
    uri = str(tmp_path)
    made(uri, stable=stable, delete=delete, arrow=arrow)
    lance.dataset(uri).create_scalar_index("v", "NGRAM")
    said = check_theirs(uri, "v", [*SQLS, "v ILIKE '%STRAW%'", "v ILIKE '%kke%'", "contains(v, 'aße')", "v = 'straw'"])
    assert said.pop("contains(v, 'aße')") is None
    assert set(said.values()) == {Certainty.AT_MOST}


LETTERS = st.one_of(
    st.sampled_from("abCD019 _%"),
    st.characters(max_codepoint=0x250),
    st.characters(categories=("L", "N", "M", "S"), max_codepoint=0x1FFFF),
)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.text(alphabet=LETTERS, max_size=20), min_size=40, max_size=40))
def test_texts_have_the_same_trigrams(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    assert ours(texts) >= theirs(texts, tmp_path_factory.mktemp("table"))


@pytest.mark.parametrize("letters", [range(0x80, 0xD800), range(0xE000, 0x20000)], ids=["below", "above"])
def test_every_character_is_folded_alike(letters: range, tmp_path: Path) -> None:
    texts = [f"xq{chr(code)}zj" for code in letters]
    assert ours(texts) >= theirs(texts, tmp_path)


def ours(texts: list[str]) -> set[tuple[int, int]]:
    return {(pair >> 32, pair & 0xFFFFFFFF) for pair in token_pairs(pa.array(texts)).tolist()}


def theirs(texts: list[str], place: Path) -> set[tuple[int, int]]:
    lance.write_dataset(pa.table({"v": texts}), str(place)).create_scalar_index("v", "NGRAM")
    (path,) = place.glob("_indices/*/ngram_postings.lance")
    table = LanceFileReader(str(path)).read_all().to_table()
    lists = zip(table["tokens"].to_pylist(), table["posting_list"].to_pylist(), strict=True)
    return {(token, row) for token, data in lists for row in BitMap64.deserialize(data)}

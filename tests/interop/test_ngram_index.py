"""N-gram indices: pylance queries ours, we read those of pylance, and both contain the same trigrams."""

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
from tests.interop.segment_exchange import check_their_segment, commit_our_segment, query_by_pylance
from tests.pairwise import pairwise

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
CONDITIONS = ("v LIKE '%berry%'", "contains(v, 'traw')", "v LIKE 'Str%'", "contains(v, 'xyz')", "contains(v, 'asp')")
ANSWERED_BY_PYLANCE_ONLY = (
    "contains(v, 'café')",
    "contains(v, 'Straße')",
    "contains(v, 'ﬁne')",
    "contains(v, '½ dozen')",
)


def create_table(uri: str, *, stable: bool, delete: bool, arrow: pa.DataType) -> None:
    table = pa.table({"id": range(ROWS), "v": pa.array([WORDS[row % len(WORDS)] for row in range(ROWS)], arrow)})
    dataset = lance.write_dataset(table, uri, max_rows_per_file=150, enable_stable_row_ids=stable)
    if delete:
        dataset.delete("id in (0, 2, 3, 160) or id >= 390")
    if stable:
        dataset.optimize.compact_files(target_rows_per_fragment=1_000)


@pytest.mark.parametrize(
    ("stable", "delete", "arrow"), pairwise((False, True), (False, True), (pa.string(), pa.large_string()))
)
def test_pylance_queries_our_index(stable: bool, delete: bool, arrow: pa.DataType, tmp_path: Path) -> None:
    uri = str(tmp_path)
    create_table(uri, stable=stable, delete=delete, arrow=arrow)
    commit_our_segment(uri, "v", NGRAM)
    for condition in (*CONDITIONS, *ANSWERED_BY_PYLANCE_ONLY):
        result = query_by_pylance(uri, condition)
        assert result.used_index, condition
        assert result.rows == result.expected, condition


@pytest.mark.parametrize(
    ("stable", "delete", "arrow"), pairwise((False, True), (False, True), (pa.string(), pa.large_string()))
)
def test_we_read_indices_of_pylance(stable: bool, delete: bool, arrow: pa.DataType, tmp_path: Path) -> None:
    uri = str(tmp_path)
    create_table(uri, stable=stable, delete=delete, arrow=arrow)
    lance.dataset(uri).create_scalar_index("v", "NGRAM")
    certainty = check_their_segment(
        uri, "v", [*CONDITIONS, "v ILIKE '%STRAW%'", "v ILIKE '%kke%'", "contains(v, 'aße')", "v = 'straw'"]
    )
    assert certainty.pop("contains(v, 'aße')") is None
    assert set(certainty.values()) == {Certainty.AT_MOST}


CHARACTERS = st.one_of(
    st.sampled_from("abCD019 _%"),
    st.characters(max_codepoint=0x250),
    st.characters(categories=("L", "N", "M", "S"), max_codepoint=0x1FFFF),
)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.text(alphabet=CHARACTERS, max_size=20), min_size=40, max_size=40))
def test_texts_have_the_same_trigrams(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    assert our_trigrams(texts) >= their_trigrams(texts, tmp_path_factory.mktemp("table"))


@pytest.mark.parametrize("characters", [range(0x80, 0xD800), range(0xE000, 0x20000)], ids=["below", "above"])
def test_both_libraries_fold_every_character_alike(characters: range, tmp_path: Path) -> None:
    texts = [f"xq{chr(code)}zj" for code in characters]
    assert our_trigrams(texts) >= their_trigrams(texts, tmp_path)


def our_trigrams(texts: list[str]) -> set[tuple[int, int]]:
    return {(pair >> 32, pair & 0xFFFFFFFF) for pair in token_pairs(pa.array(texts)).tolist()}


def their_trigrams(texts: list[str], folder: Path) -> set[tuple[int, int]]:
    lance.write_dataset(pa.table({"v": texts}), str(folder)).create_scalar_index("v", "NGRAM")
    (path,) = folder.glob("_indices/*/ngram_postings.lance")
    table = LanceFileReader(str(path)).read_all().to_table()
    lists = zip(table["tokens"].to_pylist(), table["posting_list"].to_pylist(), strict=True)
    return {(token, row) for token, data in lists for row in BitMap64.deserialize(data)}

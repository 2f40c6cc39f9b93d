"""Text indices built here: their files equal those of pylance, which searches them with the same scores, and they stay
correct while the table changes."""

import contextlib
import random
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.query import MatchQuery, PhraseQuery

from lance_core import Table
from lance_core.index.text import builder, runs
from lance_core.index.text.list_decoder import decode_lists
from lance_core.index.text.posting_decoder import DamagedList
from lance_core.index.text.posting_encoder import Corpus, PostingEncoder, PostingLists
from tests.lance_core.index.text.pylance_index import index_of_pylance, occurrences_of, partitions_of

WORDS = [f"{'wort' if number % 5 else 'Wört'}{number}" for number in range(60)]
PARAMETERS: dict[str, Any] = {"with_position": True, "language": "German"}


def make_texts(seed: int, count: int) -> pa.Array:
    """Return texts in which some words are in nearly every text, and some texts are null, empty or long."""
    generator = random.Random(seed)

    def text() -> str | None:
        if generator.random() < 0.03:
            return generator.choice([None, "", "und oder"])
        length = 300 if generator.random() < 0.01 else generator.randrange(1, 12)
        return " ".join(WORDS[min(59, int(generator.paretovariate(0.6)) - 1)] for _ in range(length))

    return pa.array([text() for _ in range(count)], pa.string())


def columns_of(uri: str) -> dict[str, pa.Table]:
    """Return the rows of the files of the only segment, with posting lists in the order of their terms."""
    (directory,) = Path(uri, "_indices").iterdir()
    files = {name: lance.file.LanceFileReader(str(directory / f"part_0_{name}.lance")) for name in ("docs", "invert")}
    tables = {name: file.read_all().to_table() for name, file in files.items()}
    tokens = partitions_of(Table.open(uri))[0].list_tokens()
    tables["invert"] = tables["invert"].take(pa.array(tokens.numbers))
    return tables | {"terms": pa.table({"terms": tokens.terms.cast(pa.string())})}


@pytest.mark.parametrize("with_position", [True, False])
def test_files_equal_those_of_pylance(with_position: bool, tmp_path: Path) -> None:
    data = pa.table({"body": make_texts(1, 6_000)})
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    Table.create(ours, data, durable=False).create_index("body", "INVERTED", with_position=with_position)
    lance.write_dataset(data, theirs).create_scalar_index("body", "INVERTED", with_position=with_position)
    actual, expected = columns_of(ours), columns_of(theirs)
    assert actual["terms"] == expected["terms"]
    assert actual["docs"] == expected["docs"]
    for name in expected["invert"].column_names:
        mine, wanted = actual["invert"][name], expected["invert"][name]
        if name == "_max_score":
            np.testing.assert_allclose(mine.to_numpy(), wanted.to_numpy(), rtol=1e-6)
            continue
        lists, wanted_lists = mine.to_pylist(), wanted.to_pylist()
        if name == "_posting":  # each block begins with a score, which is rounded differently
            scores, wanted_scores = (
                [np.frombuffer(block[:4], np.float32)[0] for each in column for block in each]
                for column in (lists, wanted_lists)
            )
            np.testing.assert_allclose(scores, wanted_scores, rtol=1e-6)
            lists, wanted_lists = (
                [[block[4:] for block in each] for each in column] for column in (lists, wanted_lists)
            )
        assert lists == wanted_lists, name


def test_portions_that_are_spilled_and_merged_equal_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = make_texts(2, 3_000)
    expected = index_of_pylance(tmp_path, texts, **PARAMETERS)
    monkeypatch.setattr(builder, "PORTION_BYTES", 1 << 12)
    monkeypatch.setattr(builder, "RUNS_BYTES", 1 << 16)
    monkeypatch.setattr(builder, "DOCUMENTS_MAX", 2_000)
    monkeypatch.setattr(runs, "POSTINGS_PER_RANGE", 500)
    table = Table.create(tmp_path / "t", pa.table({"body": texts}), durable=False)
    table = table.create_index("body", "INVERTED", **PARAMETERS).table
    partitions = partitions_of(table)
    assert len(partitions) == 2
    assert occurrences_of(partitions) == expected


@pytest.mark.parametrize("values", ["large", "view", "list", "nested"])
def test_every_column_type_is_indexed(values: str, tmp_path: Path) -> None:
    texts = make_texts(3, 200)
    expected = index_of_pylance(tmp_path, texts, **PARAMETERS)
    column, path = texts.cast(pa.large_string()), "body"
    if values == "list":
        column = pa.array([None if text is None else text.split(" ", 1) for text in texts.to_pylist()])
    if values == "nested":
        column, path = pa.StructArray.from_arrays([texts], ["text"]), "body.text"
    if values == "view":
        column = texts.cast(pa.string_view())
    table = Table.create(tmp_path / "t", pa.table({"body": column}), durable=False)
    table = table.create_index(path, "INVERTED", name="body_idx", **PARAMETERS).table
    assert occurrences_of(partitions_of(table)) == expected


def answers(uri: str) -> list[tuple[list[float], set[int]]]:
    """Return the scores and rows of pylance for a few queries. Rows of the lowest score may differ, since ties do."""
    dataset = lance.dataset(uri)
    queries = [MatchQuery("wort1 wort2 wort7", "body"), MatchQuery("wört5", "body"), PhraseQuery("wort1 wort2", "body")]
    found = []
    for query in queries:
        rows = dataset.to_table(full_text_query=query, columns=["id", "_score"], limit=200)
        scores = np.round(rows["_score"].to_numpy(), 4)
        order = np.lexsort((rows["id"].to_numpy(), -scores))
        ids = rows["id"].to_numpy()[order]
        found.append((scores[order].tolist(), set(ids[scores[order] > scores.min(initial=0) + 1e-3].tolist())))
    return found


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_an_index_follows_its_table(stable: bool, tmp_path: Path) -> None:
    """After each change, pylance finds the same as in a table that it has changed and indexed itself."""
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")

    def rows(seed: int, first: int, count: int) -> pa.Table:
        return pa.table({"id": range(first, first + count), "body": make_texts(seed, count)})

    for uri in (ours, theirs):
        lance.write_dataset(rows(4, 0, 900), uri, max_rows_per_file=300, enable_stable_row_ids=stable)
    table = Table.open(ours).create_index("body", "INVERTED", **PARAMETERS).table
    lance.dataset(theirs).create_scalar_index("body", "INVERTED", **PARAMETERS)
    assert answers(ours) == answers(theirs)
    for uri in (ours, theirs):
        dataset = lance.dataset(uri)
        dataset.insert(rows(5, 900, 200))
        dataset.delete("id % 6 = 1")
        dataset.update({"body": "'wort1 wort2 wort2'"}, where="id % 50 = 3")

    check_equals_new_index(table.refresh().optimize_indices(merge="all").table)
    committed = table.refresh().compact()
    assert not committed.uncovered
    check_equals_new_index(committed.table)
    lance.dataset(ours).optimize.compact_files()
    check_equals_new_index(table.refresh())
    assert not [each for each in table.refresh().fsck("head").findings if each.rule.startswith("index_")]


def check_equals_new_index(table: Table) -> None:
    """The only segment has the live rows of an index that pylance builds anew, with equal terms and positions."""
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("body", "INVERTED", name="new", **PARAMETERS)
    (actual, _), (expected, lengths) = (
        occurrences_of(partitions_of(table.refresh(), name)) for name in ("body_idx", "new")
    )
    assert {key: positions for key, positions in actual.items() if key[1] in lengths} == expected
    lance.dataset(table.uri).drop_index("new")


@pytest.mark.parametrize("block_size", [128, 256])
def test_segments_of_both_libraries_are_merged(tmp_path: Path, block_size: int) -> None:
    """pylance stores token sets as transducers, this library as Arrow columns; each library merges both. Blocks of 256
    documents become blocks of 128."""
    uri = str(tmp_path / "t")
    first, second, third = (pa.table({"body": make_texts(seed, 300)}) for seed in (6, 7, 8))
    lance.write_dataset(first, uri).create_scalar_index("body", "INVERTED", block_size=block_size, **PARAMETERS)
    lance.dataset(uri).insert(second)
    table = Table.open(uri).optimize_indices(merge="none").table
    assert len(table.indices) == 2
    table = table.optimize_indices(merge="all").table
    assert len(table.indices) == 1
    lance.dataset(uri).insert(third)
    lance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=1)
    table = table.refresh()
    texts = pa.concat_arrays([each["body"].combine_chunks() for each in (first, second, third)])
    expected, lengths = index_of_pylance(tmp_path, texts, **PARAMETERS)
    actual, actual_lengths = occurrences_of(partitions_of(table))
    position = {row: number for number, row in enumerate(sorted(actual_lengths))}
    wanted = {row: number for number, row in enumerate(sorted(lengths))}
    assert {(term, position[row]): at for (term, row), at in actual.items()} == {
        (term, wanted[row]): at for (term, row), at in expected.items()
    }


def test_damage_is_found_by_fsck(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.table({"body": make_texts(9, 300)}), durable=False)
    table = table.create_index("body", "INVERTED", **PARAMETERS).table
    (directory,) = Path(table.uri, "_indices").iterdir()
    other = Table.create(tmp_path / "o", pa.table({"body": make_texts(10, 300)}), durable=False)
    other = other.create_index("body", "INVERTED", **PARAMETERS).table
    (source,) = Path(other.uri, "_indices").iterdir()
    (directory / "part_0_invert.lance").write_bytes((source / "part_0_invert.lance").read_bytes())
    assert "index_contents" in [finding.rule for finding in table.fsck("head").findings]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_lists_are_refused_or_read(seed: int) -> None:
    """Changed bytes of lists raise one error, or are other lists; no other exception leaves the decoder."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 400, 30)
    documents = [np.sort(generator.choice(2_000, length, replace=False)) for length in lengths]
    frequencies = generator.integers(1, 6, lengths.sum()).astype(np.int32)
    positions = np.concatenate([np.sort(generator.integers(0, 5_000, count)) for count in frequencies])
    lists = PostingLists(lengths, np.concatenate(documents).astype(np.int32), frequencies, positions.astype(np.int32))
    corpus = Corpus(generator.integers(1, 300, 2_000).astype(np.uint32), 300_000)
    columns = PostingEncoder(corpus).encode(lists)

    def decode(postings: pa.Array, positions: pa.Array) -> PostingLists:
        return decode_lists(postings, lengths, positions, columns["_position_block_offset"], 2_000)

    decoded = decode(columns["_posting"], columns["_compressed_position"])
    for name in ("documents", "frequencies", "positions"):
        np.testing.assert_array_equal(getattr(decoded, name), getattr(lists, name))
    for _ in range(150):
        postings, placed = columns["_posting"], columns["_compressed_position"]
        if generator.random() < 0.5:
            postings = pa.ListArray.from_arrays(postings.offsets, damaged(postings.flatten(), generator))
        else:
            placed = damaged(placed, generator)
        with contextlib.suppress(DamagedList):
            decode(postings, placed)
    with pytest.raises(DamagedList):
        decode_lists(columns["_posting"], lengths + 1, None, None, 2_000)
    with pytest.raises(DamagedList):
        decode_lists(columns["_posting"], lengths, None, None, 100)


def damaged(values: pa.Array, generator: np.random.Generator) -> pa.Array:
    """Return binary values with some other bytes."""
    _, offsets, data = values.buffers()
    changed = np.frombuffer(data, dtype=np.uint8).copy()
    changed[generator.integers(0, len(changed), 3)] = generator.integers(0, 256, 3)
    return pa.LargeBinaryArray.from_buffers(values.type, len(values), [None, offsets, pa.py_buffer(changed)])

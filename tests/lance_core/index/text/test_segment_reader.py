"""Files of full-text indices that pylance wrote: what the reader returns equals the texts, and damage is one error."""

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import Corrupt, Table
from lance_core.index.index_type import Segment
from lance_core.index.segment_files import OpenSegment
from lance_core.index.text.positions import decode_listed_positions, decode_shared_positions
from lance_core.index.text.posting_decoder import DamagedList, Tail, decode_posting_list
from lance_core.index.text.segment_reader import TextPartition, TextSegment
from lance_core.index.text.token_set import FstTokenSet

DOCUMENTS = 300
VERBATIM: dict[str, Any] = {"stem": False, "remove_stop_words": False, "ascii_folding": False, "lower_case": False}
COMMON, FREQUENT = "common", "frequent"
"""A word of every document, and one whose positions fill several packed groups of a document."""


def make_texts() -> list[str]:
    """Return texts with words of every frequency, up to several hundred in one text."""
    generator = random.Random(5)
    words = [f"{'ä' if number % 9 == 0 else ''}w{number}" for number in range(120)]
    texts = []
    for number in range(DOCUMENTS):
        count = 450 if number % 97 == 0 else generator.randrange(3, 60)
        drawn = [words[min(119, int(generator.paretovariate(0.7)) - 1)] for _ in range(count)]
        drawn.insert(generator.randrange(count), COMMON)
        texts.append(" ".join(drawn + [FREQUENT] * (400 if number == 50 else number % 2)))
    return texts


TEXTS = make_texts()


@pytest.fixture(scope="module", params=[1, 2, 3])
def partition(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextPartition:
    return open_partition(tmp_path_factory.mktemp("text"), request.param)


def open_partition(directory: Path, file_format: int) -> TextPartition:
    """Return the partition of an index that pylance builds in this format. Format 3 has blocks of 256 documents."""
    uri = str(directory / "texts")
    dataset = lance.write_dataset(pa.table({"body": TEXTS}), uri)
    parameters = {**VERBATIM, "format_version": file_format, "block_size": 256 if file_format == 3 else 128}
    dataset.create_scalar_index("body", "INVERTED", with_position=True, **parameters)
    table = Table.open(uri)
    (metadata,) = table.indices
    files = OpenSegment(table._location, metadata)
    (partition,) = TextSegment(Segment(metadata, files, lambda high: DOCUMENTS)).partitions
    return partition


def test_token_sets_postings_and_positions_equal_the_texts(partition: TextPartition) -> None:
    expected: dict[str, dict[int, list[int]]] = {}
    documents = partition.documents
    for document, row in enumerate(documents.row_numbers.tolist()):
        for position, word in enumerate(TEXTS[row].split()):
            expected.setdefault(word, {}).setdefault(document, []).append(position)
    listed = partition.list_tokens()
    assert listed.terms.to_pylist() == sorted(expected, key=str.encode)
    assert [partition.find(term) for term in expected] == [
        dict(zip(listed.terms.to_pylist(), listed.numbers.tolist(), strict=True))[term] for term in expected
    ]
    assert [partition.find(term) for term in ("", "w", "w1x", "zz", COMMON + "s")] == [None] * 5
    numbers = [int(number) for number in listed.numbers]
    lists, positions = partition.postings(numbers), partition.positions_of(numbers)
    for term, postings, places in zip(listed.terms.to_pylist(), lists, positions, strict=True):
        assert postings.documents.tolist() == sorted(expected[term])
        counts = [len(expected[term][document]) for document in sorted(expected[term])]
        assert postings.frequencies.tolist() == counts
        assert np.diff(places.starts).tolist() == counts
        assert places.values.tolist() == [
            each for document in sorted(expected[term]) for each in expected[term][document]
        ]
    assert documents.lengths.tolist() == [len(TEXTS[row].split()) for row in documents.row_numbers.tolist()]
    assert documents.token_count == sum(documents.lengths.tolist())


def survives(action: Callable[[], object], error: type[Exception]) -> bool:
    """Return whether an action on damaged bytes succeeds. It may fail only with one type of error."""
    try:
        action()
    except error:
        return False
    return True


def flipped(data: bytes, generator: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(generator.randrange(1, 4)):
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
    return bytes(damaged[: generator.randrange(len(damaged)) + 1] if generator.random() < 0.2 else damaged)


def test_damaged_lists_raise_one_error(partition: TextPartition) -> None:
    number = partition.find(COMMON)
    assert number is not None
    file = partition._postings_file
    (batch,) = file.take(file.schema.names, np.array([number]))
    row = batch.to_pylist()[0]
    blocks, generator = row["_posting"], random.Random(3)
    frequencies = partition.postings([number])[0].frequencies.astype(np.uint32)
    is_shared = "_position_block_offset" in row
    failed = 0
    for _ in range(300):
        damaged = [flipped(block, generator) if generator.random() < 0.4 else block for block in blocks]
        data = np.frombuffer(b"".join(damaged), dtype=np.uint8)
        offsets = np.cumsum([0, *map(len, damaged)])
        tail = Tail.VARINT if is_shared else Tail.FIXED
        failed += not survives(lambda: decode_posting_list(data, offsets, DOCUMENTS, tail, DOCUMENTS), DamagedList)  # noqa: B023
        if is_shared:
            positions = np.frombuffer(flipped(row["_compressed_position"], generator), dtype=np.uint8)
            begins = np.array(row["_position_block_offset"]) + generator.choice([0, 0, 0, 7])
            failed += not survives(lambda: decode_shared_positions(positions, begins, frequencies), DamagedList)  # noqa: B023
        else:
            parts = [part for document in row["_position"] for part in document]
            edges = np.cumsum([0, *map(len, row["_position"])])
            damaged = [flipped(part, generator) if generator.random() < 0.01 else part for part in parts]
            data = np.frombuffer(b"".join(damaged), dtype=np.uint8)
            offsets = np.cumsum([0, *map(len, damaged)])
            failed += not survives(lambda: decode_listed_positions(data, offsets, edges, frequencies), DamagedList)  # noqa: B023
    assert failed > 100


def test_damaged_transducers_raise_one_error_and_end(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, 2)
    tokens = partition.tokens
    assert isinstance(tokens, FstTokenSet)
    data, generator = tokens._data, random.Random(4)
    terms, failed = partition.list_tokens().terms.to_pylist(), 0
    for _ in range(400):
        damaged = flipped(data, generator)

        def use(damaged: bytes = damaged) -> None:
            opened = FstTokenSet(damaged, count=len(terms), path="part_0_tokens.lance")
            for term in generator.sample(terms, 3):
                opened.find(term)
            opened.list_tokens()

        failed += not survives(use, Corrupt)
    assert failed > 300


def make_transducer(length: int, *, is_final: bool) -> bytes:
    """Return a transducer of one path of this many bytes, which a token ends after each byte or only at the end."""
    inner = bytes([0, 1, 1, ord("a"), 0x11, 0x41]) if is_final else bytes([0, 1, ord("a"), 0x11, 0x01])
    last = inner[:-4] + b"\0" + inner[-3:]  # leads to the leaf
    root = bytes([0, 1, ord("a"), 0x11, 0x01])
    nodes = last + inner * (length - 2) + root
    count = length if is_final else 1
    return struct.pack("<QQ", 3, 0) + nodes + struct.pack("<QQI", count, 15 + len(nodes), 0)


def test_transducers_of_long_tokens_take_bounded_time_and_memory() -> None:
    """The work is that of the bytes of all tokens, which are bounded, since a node can be a part of many tokens."""
    few = FstTokenSet(make_transducer(40, is_final=True), count=40, path="part_0_tokens.lance")
    assert few.list_tokens().terms.to_pylist() == ["a" * length for length in range(1, 41)]
    assert [few.find("a" * length) for length in (1, 40, 41)] == [0, 39, None]
    one = FstTokenSet(make_transducer(100_000, is_final=False), count=1, path="part_0_tokens.lance")
    assert one.list_tokens().terms.to_pylist() == ["a" * 100_000]
    many = FstTokenSet(make_transducer(24_000, is_final=True), count=24_000, path="part_0_tokens.lance")
    with pytest.raises(Corrupt, match="lists more than 268,435,456 bytes of tokens"):
        many.list_tokens()

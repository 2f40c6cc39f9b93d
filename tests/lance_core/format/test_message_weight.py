"""The weight of a message counts what its parser allocates, and nothing that only looks like it."""

import pytest

from lance_core import Unsupported
from lance_core.format import message_weight, size_guard
from lance_core.format._pb import table_pb2, transaction_pb2
from lance_core.format.message_weight import TooManyParts, Unweighable, Weight, weigh
from lance_core.limits import Limit

MANY = 3_000
"""So many messages are walked in numpy."""


def fragments(count: int, columns: int) -> table_pb2.Manifest:
    message = table_pb2.Manifest(version=7)
    for number in range(count):
        fragment = message.fragments.add(id=number, physical_rows=130)
        fragment.files.add(path="x" * 50, fields=range(columns), column_indices=range(columns), file_size_bytes=2)
        fragment.deletion_file.num_deleted_rows = 1
        fragment.inline_row_ids = b"\x0a\x02\x0a\x00" * 3
    return message


@pytest.mark.parametrize("count", [1, 10, MANY])
@pytest.mark.parametrize("columns", [1, 15, 16, 200])
def test_fragments(count: int, columns: int) -> None:
    """A fragment has a small deletion file and, up to fifteen columns, two small arrays."""
    weight = weigh(fragments(count, columns).SerializeToString(), table_pb2.Manifest, small_parts_max=10**6)
    small = count * (3 if columns < 16 else 1)
    assert weight == Weight(small_parts=small, numbers=2 * count * columns)


@pytest.mark.parametrize("count", [10, MANY])
def test_fragments_of_a_transaction(count: int) -> None:
    message = transaction_pb2.Transaction(uuid="x", transaction_properties={"a": "b", "c": "d" * 30})
    message.append.fragments.extend(fragments(count, 1).fragments)
    message.delete.deleted_fragment_ids.extend([1, 2**40])
    message.append.fragments.extend(fragments(count, 1).fragments)  # one of the two operations stays
    weight = weigh(message.SerializeToString(), transaction_pb2.Transaction, small_parts_max=10**6)
    assert weight.small_parts == 1 + 3 * len(message.append.fragments)


@pytest.mark.parametrize("count", [5, MANY])
@pytest.mark.parametrize(
    ("inner", "small_parts"),
    [
        (b"\x12\x00" * 4, 4),
        (b"\x92\x00\x80\x00" * 2, 2),  # tags and lengths with more bytes than they need
        (b"\x12\x02\x12\x00" * 2, 4),
        (b"\x12\x00\x12\xff", 1),  # longer than its parent
        (b"\x12\x00\x12" + b"\xff" * 9 + b"\x01", 1),
        (b"\xba\x3e\x00" * 4, 0),  # an unknown field
        (b"\x20\x01\x12\x00\x25abcd\x12\x00\x21abcdefgh\x12\x00", 3),
        (b"\x12\x00\x20", 1),
    ],
)
def test_parts_however_they_are_encoded(count: int, inner: bytes, small_parts: int) -> None:
    fragment = b"\x12" + bytes([len(inner)]) + inner
    weight = weigh(fragment * count, table_pb2.Manifest, small_parts_max=10**6)
    assert weight.small_parts - count * (len(inner) < 16) == count * small_parts


@pytest.mark.parametrize("count", [5, MANY])
@pytest.mark.parametrize("length", [2**63 - 1, 2**63 - 4, 2**62, 2**32])
def test_lengths_beyond_the_message_end_a_part(count: int, length: int) -> None:
    """The sum of a position and such a length may exceed 64 bits."""
    inner = b"\x12" + _varint(length)
    weigh((b"\x12" + bytes([len(inner)]) + inner) * count + b"\x20\x01", table_pb2.Manifest, small_parts_max=10**6)


@pytest.mark.parametrize("count", [1, MANY])
def test_the_walk_is_bounded(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_weight, "VISITS_MAX", 10_000)
    inner = b"\x20\x01" * 60_000 if count == 1 else b"\x20\x01" * 60
    fragment = b"\x12" + _varint(len(inner)) + inner
    with pytest.raises(Unweighable):
        weigh(fragment * count, table_pb2.Manifest, small_parts_max=10**6)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


@pytest.mark.parametrize("count", [5, MANY])
def test_groups_are_not_weighed(count: int) -> None:
    with pytest.raises(Unweighable):
        weigh(b"\x12\x02\x0b\x0c" * count, table_pb2.Manifest, small_parts_max=10**6)
    with pytest.raises(TooManyParts):
        weigh(b"\x12\x00" * count, table_pb2.Manifest, small_parts_max=count - 1)


def test_numbers_that_look_like_parts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    message = fragments(200, 1_000).SerializeToString()
    monkeypatch.setattr(size_guard, "SMALL_PARTS", Limit("SMALL_PARTS", 1_000, "parts"))
    size_guard.check_message(message, path="m", kind=table_pb2.Manifest)
    with pytest.raises(Unsupported, match="LANCE_ASSETS_SMALL_PARTS_MAX"):
        size_guard.check_message(message, path="m")
    monkeypatch.setattr(size_guard, "NUMBERS", Limit("NUMBERS", 2 * 200 * 1_000 - 1, "numbers"))
    with pytest.raises(Unsupported, match="400,000 numbers"):
        size_guard.check_message(message, path="m", kind=table_pb2.Manifest)

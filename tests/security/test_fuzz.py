"""A part of T-FUZZ, other bytes than `make torture` tries, and the mutations themselves."""

import random
from contextlib import suppress

import pytest

from lance_core import Unsupported
from lance_core.format import framing
from tests.torture import fuzz
from tests.torture.decoders import DECODERS
from tests.torture.fuzz import Size
from tests.torture.mutations import built, mutated, parsed, varint

SLICE = Size(structured=250, looks=4, values=1, seed=1_000_000)


def test_what_comes_is_an_error_of_ours_or_whole() -> None:
    report = fuzz.run(SLICE)
    assert report.found == ()
    assert report.tried > 5_000
    assert int(report.told["read"].replace(",", "")) > 500


@pytest.mark.parametrize("kind", DECODERS)
def test_whole_ones_are_read(kind: str) -> None:
    """But for tables that do not say how many rows they have."""
    assert fuzz.originals(kind)
    for data in fuzz.originals(kind):
        with suppress(Unsupported):
            DECODERS[kind](data)


@pytest.mark.parametrize("kind", ["manifest", "transaction", "row ids"])
def test_messages_are_put_together_as_they_were(kind: str) -> None:
    for data in fuzz.originals(kind)[:20]:
        body = framing.extract_manifest_message(data, path="m") if kind == "manifest" else data
        fields = parsed(body)
        assert fields is not None
        assert built(fields) == body


def test_a_seed_and_a_number_are_one_input() -> None:
    assert fuzz.case("manifest", 3, 17) == fuzz.case("manifest", 3, 17) != fuzz.case("manifest", 3, 18)
    assert mutated(b"\x08\x01", random.Random(1)) == mutated(b"\x08\x01", random.Random(1))
    assert [varint(1), varint(300), varint(-1), varint(1, padded=2)] == [
        b"\x01",
        b"\xac\x02",
        b"\xff" * 9 + b"\x01",
        b"\x81\x80\x00",
    ]


def test_what_goes_wrong_is_told_once_for_all_that_is_alike() -> None:
    tally = fuzz._Tally()

    def broken(data: bytes) -> None:
        raise KeyError(len(data))

    for number in range(10):
        tally.tried(f"manifest 0 {number}", bytes(number), broken)
    assert tally.found == [f"manifest 0 {number}: KeyError: {number}" for number in range(3)]

"""A slice of T-FUZZ with other bytes than `make torture` uses, and tests of the mutations themselves."""

import random
from contextlib import suppress

import pytest

from lance_core import Unsupported
from lance_core.format import manifest_file
from tests.torture import fuzz
from tests.torture.decoders import DECODERS
from tests.torture.fuzz import Size
from tests.torture.mutations import encode_fields, encode_varint, mutate_message, parse_message

SLICE = Size(structured=250, table_inputs=4, values=1, seed=1_000_000)


def test_what_comes_is_an_error_of_ours_or_whole() -> None:
    report = fuzz.run(SLICE)
    assert report.failures == ()
    assert report.case_count > 5_000
    assert int(report.figures["read"].replace(",", "")) > 500


@pytest.mark.parametrize("kind", DECODERS)
def test_whole_ones_are_read(kind: str) -> None:
    """Every intact input is read, except tables that do not record how many rows they have."""
    assert fuzz.intact_inputs(kind)
    for data in fuzz.intact_inputs(kind):
        with suppress(Unsupported):
            DECODERS[kind](data)


@pytest.mark.parametrize("kind", ["manifest", "transaction", "row ids"])
def test_messages_are_put_together_as_they_were(kind: str) -> None:
    for data in fuzz.intact_inputs(kind)[:20]:
        body = manifest_file.extract_manifest_message(data, path="m") if kind == "manifest" else data
        fields = parse_message(body)
        assert fields is not None
        assert encode_fields(fields) == body


def test_a_seed_and_a_number_are_one_input() -> None:
    assert (
        fuzz.decoder_input("manifest", 3, 17)
        == fuzz.decoder_input("manifest", 3, 17)
        != fuzz.decoder_input("manifest", 3, 18)
    )
    assert mutate_message(b"\x08\x01", random.Random(1)) == mutate_message(b"\x08\x01", random.Random(1))
    assert [encode_varint(1), encode_varint(300), encode_varint(-1), encode_varint(1, padded=2)] == [
        b"\x01",
        b"\xac\x02",
        b"\xff" * 9 + b"\x01",
        b"\x81\x80\x00",
    ]


def test_what_goes_wrong_is_told_once_for_all_that_is_alike() -> None:
    tally = fuzz._Tally()

    def fail(data: bytes) -> None:
        raise KeyError(len(data))

    for number in range(10):
        tally.run_input(f"manifest 0 {number}", bytes(number), fail)
    assert tally.failures == [f"manifest 0 {number}: KeyError: {number}" for number in range(3)]

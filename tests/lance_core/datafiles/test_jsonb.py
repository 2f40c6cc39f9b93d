"""JSONB: a stored JSON text is decoded to the same value, and damaged bytes raise a typed error."""

import json
import struct
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import Corrupt, Table, Unsupported
from lance_core.datafiles.jsonb import to_text
from lance_core.datafiles.lance_codec import check_json_support

TEXTS = [
    "null", "true", "false", "0", "-0.0", "1", "-1", "127", "-128", "128", "255", "256", "65536", "-32769",
    "2147483648", "9223372036854775807", "-9223372036854775808", "18446744073709551615", "0.1", "1e300", "-1.5e-300",
    '""', '"é\\u0000🐟\\n\\""', "[]", "{}", "[[],{},[[]]]", '{"a":{"b":{"c":[1,2.5,"x",null,true]}}}',
    '{"":1," ":2,"ä":3}', '{"b":1,"a":2}', json.dumps(["x" * 300] * 300),
    json.dumps({f"k{number}": number for number in range(500)}), "[" * 50 + "]" * 50,
]  # fmt: skip


def test_json_values_survive_a_round_trip(tmp_path: Path) -> None:
    """Pylance reads the same values."""
    uri = str(tmp_path / "t")
    column = pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array([*TEXTS, None]))
    Table.create(uri, pa.table({"j": column}))
    ours = Table.open(uri).to_table()["j"].to_pylist()
    theirs = lance.dataset(uri).to_table()["j"].to_pylist()
    for text, actual, reference in zip([*TEXTS, None], ours, theirs, strict=True):
        if text is None:
            assert (actual, reference) == (None, None)
        else:
            assert json.loads(actual) == json.loads(reference) == json.loads(text)


def encode_entry(kind: int, length: int) -> bytes:
    return struct.pack(">I", (kind << 28) | length)


SCALAR = b"\x20\0\0\0"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\0\0\0\0",
        b"\x80\0\0\x01",
        b"\x9f\xff\xff\xff",
        SCALAR + encode_entry(7, 0),
        SCALAR + encode_entry(2, 0),
        SCALAR + encode_entry(2, 1) + b"\x99",
        SCALAR + encode_entry(2, 3) + b"\x60\0\0",
        SCALAR + encode_entry(1, 2) + b"\xff\xff",
        (b"\x80\0\0\x01" + encode_entry(5, 0x0FFFFFFF)) * 5000,
    ],
    ids=range(11),
)
def test_damage_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match="f: contains a JSON value that cannot be decoded"):
        to_text(data, path="f")


def test_old_codecs_write_no_json() -> None:
    """pylance 11 and 12 store JSON text as if it were encoded, and no release reads it."""
    json_type = pa.json_(pa.string())
    for arrow in (json_type, pa.struct([("a", json_type)]), pa.list_(json_type)):
        schema = pa.schema([("id", pa.int64()), ("doc", arrow)])
        with pytest.raises(
            Unsupported, match="column 'doc' has JSON, which pylance 12 cannot write; install pylance 13"
        ):
            check_json_support(schema, 12)
        check_json_support(schema, 13)
    check_json_support(pa.schema([("text", pa.string())]), 11)

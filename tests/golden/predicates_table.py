"""Fixed table of the golden predicates.

Every type that a predicate can meet has a column. The rows hold the values on which engines disagree: nulls, NaN, both
zeros, infinities, the extremes of integers, empty and unusual strings. `predicates.json` holds the predicates with
pylance's answers, which `make_predicates.py` generates. This module runs no predicate.
"""

import datetime as dt
import decimal
import json
import uuid

import pyarrow as pa

_NAN, _INF = float("nan"), float("inf")
_UTC = dt.UTC


def _decimals(*values: str | None) -> list[decimal.Decimal | None]:
    return [None if value is None else decimal.Decimal(value) for value in values]


def _naive(*values: str | None) -> list[dt.datetime | None]:
    return [None if value is None else dt.datetime.fromisoformat(value) for value in values]


def _zoned(*values: str | None) -> list[dt.datetime | None]:
    return [None if value is None else dt.datetime.fromisoformat(value).replace(tzinfo=_UTC) for value in values]


_DATES = [dt.date(2020, 1, 1), dt.date(2020, 1, 2), None, dt.date(1969, 12, 31), dt.date(2024, 2, 29)]
_DATES += [dt.date(2020, 1, 1), None, dt.date(2038, 1, 19)]
_TIMES = [
    dt.time(0, 0),
    dt.time(12, 30),
    None,
    dt.time(23, 59, 59),
    dt.time(12, 30, 1),
    dt.time(6),
    dt.time(0, 0),
    None,
]
_STAMPS = ("2020-01-01", "2020-01-01T12:30:00", None, "1969-12-31T23:59:59", "2024-02-29T01:02:03",
           "2020-01-02", None, "2038-01-19T03:14:07")  # fmt: skip
_SPANS = [dt.timedelta(seconds=s) if s is not None else None for s in (0, 1, None, 60, 86400, -5, 3600, None)]
_JSON = [
    {"a": 1, "b": {"c": "x"}, "tags": ["red", "blue"], "t": True},
    {"a": 2, "b": {"c": "y"}, "tags": [], "f": 1.5},
    None,
    {"a": None},
    {"a": "1"},
    {},
    {"a": 10, "tags": ["red"]},
    {"b": None, "t": False},
]
_TEXTS = ["", "apple", None, "Apple", "a%c_d", "it's", "na\u00efve \U0001f600", "a\\b"]


def table() -> pa.Table:
    columns: dict[str, pa.Array] = {
        "id": pa.array([0, 1, 2, 3, 4, 5, 6, 7], pa.int64()),
        "i8": pa.array([0, 1, None, -128, 127, -1, 2, 3], pa.int8()),
        "i16": pa.array([0, 1, None, -32768, 32767, -1, 2, 3], pa.int16()),
        "i32": pa.array([0, 1, None, -(2**31), 2**31 - 1, -1, 2, 3], pa.int32()),
        "i64": pa.array([0, 1, None, -(2**63), 2**63 - 1, -1, 2, 3], pa.int64()),
        "u8": pa.array([0, 1, None, 255, 128, 7, 2, 3], pa.uint8()),
        "u16": pa.array([0, 1, None, 65535, 256, 7, 2, 3], pa.uint16()),
        "u32": pa.array([0, 1, None, 2**32 - 1, 2**31, 7, 2, 3], pa.uint32()),
        "u64": pa.array([0, 1, None, 2**64 - 1, 2**63, 7, 2, 3], pa.uint64()),
        "f16": pa.array([0.0, 1.5, None, _NAN, _INF, -_INF, -0.0, 0.1], pa.float16()),
        "f32": pa.array([0.0, 1.5, None, _NAN, _INF, -_INF, -0.0, 0.1], pa.float32()),
        "f64": pa.array([0.0, 1.5, None, _NAN, _INF, -_INF, -0.0, 0.1], pa.float64()),
        "b": pa.array([True, False, None, True, False, True, None, False]),
        "str": pa.array(_TEXTS),
        "lstr": pa.array(_TEXTS, pa.large_string()),
        "bin": pa.array([b"", b"\x00\x01", None, b"\xff", b"abc", b"ABC", b"a", b"\x00"], pa.binary()),
        "lbin": pa.array([b"", b"\x00\x01", None, b"\xff", b"abc", b"ABC", b"a", b"\x00"], pa.large_binary()),
        "fsb": pa.array([b"\x00\x00", b"\x00\x01", None, b"\xff\xff", b"ab", b"AB", b"aa", b"zz"], pa.binary(2)),
        "d32": pa.array(_DATES, pa.date32()),
        "d64": pa.array(_DATES, pa.date64()),
        "t32s": pa.array(_TIMES, pa.time32("s")),
        "t32ms": pa.array(_TIMES, pa.time32("ms")),
        "t64us": pa.array(_TIMES, pa.time64("us")),
        "t64ns": pa.array(_TIMES, pa.time64("ns")),
        "ts_s": pa.array(_naive(*_STAMPS), pa.timestamp("s")),
        "ts_ms": pa.array(_naive(*_STAMPS), pa.timestamp("ms")),
        "ts_us": pa.array(_naive(*_STAMPS), pa.timestamp("us")),
        "ts_ns": pa.array(_naive(*_STAMPS), pa.timestamp("ns")),
        "ts_utc": pa.array(_zoned(*_STAMPS), pa.timestamp("us", "UTC")),
        "ts_ny": pa.array(_zoned(*_STAMPS), pa.timestamp("ms", "America/New_York")),
        "ts_off": pa.array(_zoned(*_STAMPS), pa.timestamp("us", "+05:30")),
        "dur": pa.array(_SPANS, pa.duration("us")),
        "dec": pa.array(
            _decimals("0", "1.50", None, "-1.50", "99999999.99", "0.01", "2.00", "1.5"), pa.decimal128(10, 2)
        ),
        "dec256": pa.array(
            _decimals("0", "1.50", None, "-1.50", "9" * 40 + ".99", "0.01", "2.00", "1.5"), pa.decimal256(50, 2)
        ),
        "dic": pa.array(["red", "blue", None, "red", "", "green", "Red", "blue"]).dictionary_encode(),
        "dici": pa.DictionaryArray.from_arrays(
            pa.array([0, 1, None, 0, 2, 1, 2, 0], pa.int16()), pa.array([10, 20, 30], pa.int64())
        ),
        "uid": pa.array([None if i == 2 else uuid.UUID(int=i).bytes for i in range(8)], pa.binary(16)),
        "s": pa.array(
            [
                {"x": 1, "y": {"z": 0.5, "Odd Name": "q"}, "f": 1.5},
                {"x": 2, "y": {"z": None, "Odd Name": None}, "f": 0.1},
                None,
                {"x": None, "y": None, "f": None},
                {"x": 5, "y": {"z": _NAN, "Odd Name": "p"}, "f": _NAN},
                {"x": -1, "y": {"z": -0.0, "Odd Name": ""}, "f": -0.0},
                {"x": 3, "y": {"z": 2.0, "Odd Name": "r"}, "f": 2.0},
                {"x": 4, "y": {"z": 3.0, "Odd Name": "a.b"}, "f": 3.0},
            ],
            pa.struct(
                [
                    ("x", pa.int32()),
                    ("y", pa.struct([("z", pa.float64()), ("Odd Name", pa.string())])),
                    ("f", pa.float32()),
                ]
            ),
        ),
        "l": pa.array([[1, 2], [], None, [None], [3, None], [5], [1], [2, 3, 4]], pa.list_(pa.int32())),
        "ll": pa.array([[1, 2], [], None, [None], [3, None], [5], [1], [2, 3, 4]], pa.large_list(pa.int64())),
        "tags": pa.array(
            [["red", "blue"], [], None, [None], ["green", None], ["it's"], ["red"], ["Blue"]], pa.list_(pa.string())
        ),
        "ls": pa.array(
            [[{"k": 1}], [], None, [None], [{"k": None}], [{"k": 2}, {"k": 3}], [{"k": 1}], [{"k": 9}]],
            pa.list_(pa.struct([("k", pa.int32())])),
        ),
        "fsl": pa.array(
            [[0.0, 1.0], [1.5, 2.5], None, [_NAN, 0.0], [1.0, 1.0], [-0.0, 0.0], [3.0, 4.0], [0.1, 0.2]],
            pa.list_(pa.float32(), 2),
        ),
        "fslh": pa.array(
            [[0.0, 1.0], [1.5, 2.5], None, [_NAN, 0.0], [1.0, 1.0], [-0.0, 0.0], [3.0, 4.0], [0.1, 0.2]],
            pa.list_(pa.float16(), 2),
        ),
        "m": pa.array(
            [[("a", 1)], [], None, [("a", None)], [("b", 2), ("a", 3)], [("c", 3)], [("a", 1)], []],
            pa.map_(pa.string(), pa.int32()),
        ),
        "js": pa.ExtensionArray.from_storage(
            pa.json_(pa.string()), pa.array([None if value is None else json.dumps(value) for value in _JSON])
        ),
        "null": pa.nulls(8),
        "Mixed": pa.array([0, 1, 2, 3, 4, 5, 6, None], pa.int32()),
        "odd name": pa.array([0, 1, 2, 3, 4, 5, 6, None], pa.int32()),
        "dash-ed": pa.array(["a", "b", "c", "d", "e", "f", "g", None]),
        "select": pa.array([0, 1, 2, 3, 4, 5, 6, None], pa.int32()),
        "case_a": pa.array([0, 1, 2, 3, 4, 5, 6, None], pa.int32()),
        "CASE_A": pa.array([7, 6, 5, 4, 3, 2, 1, None], pa.int32()),
    }  # fmt: skip
    return pa.table(columns)

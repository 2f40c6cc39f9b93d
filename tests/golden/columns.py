"""Columns of every type that a Lance release could be asked to store, with values that differ from row to row.

In pyarrow alone, and in what pyarrow 12 could do already: the recipes hand them to old releases.
"""

import datetime
import decimal
from typing import Any

import pyarrow as pa


def columns_of_every_type(rows: int) -> dict[str, pa.Array]:
    """Distinct values in every row; every third is null where the name says so."""

    def every_third_null(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if row % 3 == 1 else value for row, value in enumerate(values)], kind)

    numbers = list(range(rows))
    day = datetime.date(2020, 2, 28)
    moment = datetime.datetime(2020, 2, 28, 23, 59, 58)  # noqa: DTZ001 - stored without a zone
    found: dict[str, pa.Array] = {"row": pa.array(numbers, pa.int32())}
    for kind in (pa.int8(), pa.int16(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        found[str(kind)] = pa.array([number + 100 for number in numbers], kind)
    found["float32"] = pa.array([number / 4 for number in numbers], pa.float32())
    found["float64"] = pa.array([number / 3 for number in numbers], pa.float64())
    found["bool"] = pa.array([number % 3 == 0 for number in numbers])
    found["int32_null"] = every_third_null([-number for number in numbers], pa.int32())
    found["float64_null"] = every_third_null([number / 8 for number in numbers], pa.float64())
    found["bool_null"] = every_third_null([number % 2 == 0 for number in numbers], pa.bool_())
    found["null"] = pa.nulls(rows)
    texts = ["" if number % 4 == 3 else "x" * (number % 3) + f"é{number}" for number in numbers]
    for text in (pa.string(), pa.large_string()):
        found[str(text)] = pa.array(texts, text)
        found[f"{text}_null"] = every_third_null(texts, text)
    for binary in (pa.binary(), pa.large_binary()):
        found[f"{binary}_null"] = every_third_null([text.encode() for text in texts], binary)
    found["binary3"] = pa.array([bytes([number, 0, 255]) for number in numbers], pa.binary(3))
    found["date32"] = pa.array([day + datetime.timedelta(number) for number in numbers], pa.date32())
    found["date64"] = pa.array([day + datetime.timedelta(number) for number in numbers], pa.date64())
    found["time32"] = pa.array([number * 1000 for number in numbers], pa.time32("ms"))
    found["time64"] = pa.array([number * 1000 for number in numbers], pa.time64("us"))
    for unit in ("s", "ms", "us", "ns"):
        moments = [moment + datetime.timedelta(number) for number in numbers]
        found[f"timestamp_{unit}"] = pa.array(moments, pa.timestamp(unit))
    found["timestamp_utc_null"] = every_third_null(moments, pa.timestamp("us", "UTC"))
    found["duration"] = pa.array([number * 10 for number in numbers], pa.duration("us"))
    tenths = [decimal.Decimal(number) / 10 for number in numbers]
    found["decimal128"] = pa.array(tenths, pa.decimal128(12, 2))
    found["decimal256"] = pa.array(tenths, pa.decimal256(50, 3))
    for item in (pa.float32(), pa.float64(), pa.int8(), pa.bool_()):
        vectors = [[number % 2, 1, number % 5] for number in numbers]
        found[f"vector_{item}"] = _vectors(vectors, item)
    found["vector_of_vectors"] = pa.FixedSizeListArray.from_arrays(
        _vectors([[n, n + 1] for n in range(rows * 2)], pa.int32()), 2
    )
    words = pa.array(["one", "two", "three", "four"])
    codes = pa.array([number % 4 for number in numbers], pa.int8())
    found["dictionary"] = pa.DictionaryArray.from_arrays(codes, words)
    codes = every_third_null([number % 4 for number in numbers], pa.int16())
    found["dictionary_null"] = pa.DictionaryArray.from_arrays(codes, words)
    codes = pa.array([number % 3 for number in numbers], pa.uint32())
    found["dictionary_int64"] = pa.DictionaryArray.from_arrays(codes, pa.array([7, 8, 9], pa.int64()))
    points = [{"x": number, "inner": {"y": f"y{number}", "z": number % 2 == 0}} for number in numbers]
    inner = pa.struct([("y", pa.string()), ("z", pa.bool_())])
    found["struct"] = pa.array(points, pa.struct([("x", pa.int64()), ("inner", inner)]))
    found["struct_null"] = every_third_null(points, pa.struct([("x", pa.int64()), ("inner", inner)]))
    lists = [list(range(number % 4)) for number in numbers]
    found["list"] = pa.array(lists, pa.list_(pa.int32()))
    found["list_null"] = every_third_null(lists, pa.list_(pa.int32()))
    found["large_list"] = pa.array(lists, pa.large_list(pa.float64()))
    found["list_of_strings"] = pa.array([[f"s{number}"] * (number % 3) for number in numbers], pa.list_(pa.string()))
    found["list_of_lists"] = pa.array([[one, one[:1]] for one in lists], pa.list_(pa.list_(pa.int32())))
    found["list_of_structs"] = pa.array([points[: number % 3] for number in numbers], pa.list_(found["struct"].type))
    found["list_of_bools"] = pa.array([[True, False, True][: number % 4] for number in numbers], pa.list_(pa.bool_()))
    return found


def columns_of_later_types(rows: int) -> dict[str, pa.Array]:
    numbers = list(range(rows))
    found: dict[str, pa.Array] = {"row": pa.array(numbers, pa.int32())}
    found["float16"] = _halves(numbers)
    found["vector_float16"] = pa.FixedSizeListArray.from_arrays(_halves(list(range(rows * 2))), 2)
    found["map"] = pa.array([[(f"k{number}", number)] for number in numbers], pa.map_(pa.string(), pa.int32()))
    if hasattr(pa, "json_"):
        texts = [f'{{"a": [{number}, null]}}' for number in numbers]
        found["json"] = pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(texts))
    return found


def _halves(numbers: list[int]) -> pa.Array:
    """1.0 and the half floats after it, by their bits."""
    bits = pa.array([15360 + number for number in numbers], pa.uint16())
    return pa.Array.from_buffers(pa.float16(), len(bits), bits.buffers())


def _vectors(vectors: list[list[Any]], item: pa.DataType) -> pa.Array:
    flat = pa.array([bool(value) if item == pa.bool_() else value for one in vectors for value in one], item)
    return pa.FixedSizeListArray.from_arrays(flat, len(vectors[0]))

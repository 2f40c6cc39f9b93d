"""Test columns of every type that a Lance release might store, with different values in each row.

The module uses only pyarrow, and only the API of pyarrow 12, because the recipes pass the columns to old releases.
"""

import datetime
import decimal
from typing import Any

import pyarrow as pa


def columns_of_every_type(rows: int) -> dict[str, pa.Array]:
    """Return columns with distinct values; every third value is null where the name says so."""

    def every_third_null(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if row % 3 == 1 else value for row, value in enumerate(values)], kind)

    numbers = list(range(rows))
    day = datetime.date(2020, 2, 28)
    moment = datetime.datetime(2020, 2, 28, 23, 59, 58)  # noqa: DTZ001 - stored without a zone
    columns: dict[str, pa.Array] = {"row": pa.array(numbers, pa.int32())}
    for kind in (pa.int8(), pa.int16(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        columns[str(kind)] = pa.array([number + 100 for number in numbers], kind)
    columns["float32"] = pa.array([number / 4 for number in numbers], pa.float32())
    columns["float64"] = pa.array([number / 3 for number in numbers], pa.float64())
    columns["bool"] = pa.array([number % 3 == 0 for number in numbers])
    columns["int32_null"] = every_third_null([-number for number in numbers], pa.int32())
    columns["float64_null"] = every_third_null([number / 8 for number in numbers], pa.float64())
    columns["bool_null"] = every_third_null([number % 2 == 0 for number in numbers], pa.bool_())
    columns["null"] = pa.nulls(rows)
    texts = ["" if number % 4 == 3 else "x" * (number % 3) + f"é{number}" for number in numbers]
    for text in (pa.string(), pa.large_string()):
        columns[str(text)] = pa.array(texts, text)
        columns[f"{text}_null"] = every_third_null(texts, text)
    for binary in (pa.binary(), pa.large_binary()):
        columns[f"{binary}_null"] = every_third_null([text.encode() for text in texts], binary)
    columns["binary3"] = pa.array([bytes([number, 0, 255]) for number in numbers], pa.binary(3))
    columns["date32"] = pa.array([day + datetime.timedelta(number) for number in numbers], pa.date32())
    columns["date64"] = pa.array([day + datetime.timedelta(number) for number in numbers], pa.date64())
    columns["time32"] = pa.array([number * 1000 for number in numbers], pa.time32("ms"))
    columns["time64"] = pa.array([number * 1000 for number in numbers], pa.time64("us"))
    for unit in ("s", "ms", "us", "ns"):
        moments = [moment + datetime.timedelta(number) for number in numbers]
        columns[f"timestamp_{unit}"] = pa.array(moments, pa.timestamp(unit))
    columns["timestamp_utc_null"] = every_third_null(moments, pa.timestamp("us", "UTC"))
    columns["duration"] = pa.array([number * 10 for number in numbers], pa.duration("us"))
    tenths = [decimal.Decimal(number) / 10 for number in numbers]
    columns["decimal128"] = pa.array(tenths, pa.decimal128(12, 2))
    columns["decimal256"] = pa.array(tenths, pa.decimal256(50, 3))
    for item in (pa.float32(), pa.float64(), pa.int8(), pa.bool_()):
        vectors = [[number % 2, 1, number % 5] for number in numbers]
        columns[f"vector_{item}"] = _vectors(vectors, item)
    columns["vector_of_vectors"] = pa.FixedSizeListArray.from_arrays(
        _vectors([[n, n + 1] for n in range(rows * 2)], pa.int32()), 2
    )
    words = pa.array(["one", "two", "three", "four"])
    codes = pa.array([number % 4 for number in numbers], pa.int8())
    columns["dictionary"] = pa.DictionaryArray.from_arrays(codes, words)
    codes = every_third_null([number % 4 for number in numbers], pa.int16())
    columns["dictionary_null"] = pa.DictionaryArray.from_arrays(codes, words)
    codes = pa.array([number % 3 for number in numbers], pa.uint32())
    columns["dictionary_int64"] = pa.DictionaryArray.from_arrays(codes, pa.array([7, 8, 9], pa.int64()))
    points = [{"x": number, "inner": {"y": f"y{number}", "z": number % 2 == 0}} for number in numbers]
    inner = pa.struct([("y", pa.string()), ("z", pa.bool_())])
    columns["struct"] = pa.array(points, pa.struct([("x", pa.int64()), ("inner", inner)]))
    columns["struct_null"] = every_third_null(points, pa.struct([("x", pa.int64()), ("inner", inner)]))
    lists = [list(range(number % 4)) for number in numbers]
    columns["list"] = pa.array(lists, pa.list_(pa.int32()))
    columns["list_null"] = every_third_null(lists, pa.list_(pa.int32()))
    columns["large_list"] = pa.array(lists, pa.large_list(pa.float64()))
    columns["list_of_strings"] = pa.array([[f"s{number}"] * (number % 3) for number in numbers], pa.list_(pa.string()))
    columns["list_of_lists"] = pa.array([[one, one[:1]] for one in lists], pa.list_(pa.list_(pa.int32())))
    columns["list_of_structs"] = pa.array(
        [points[: number % 3] for number in numbers], pa.list_(columns["struct"].type)
    )
    columns["list_of_bools"] = pa.array([[True, False, True][: number % 4] for number in numbers], pa.list_(pa.bool_()))
    return columns


def columns_of_later_types(rows: int) -> dict[str, pa.Array]:
    numbers = list(range(rows))
    columns: dict[str, pa.Array] = {"row": pa.array(numbers, pa.int32())}
    columns["float16"] = _halves(numbers)
    columns["vector_float16"] = pa.FixedSizeListArray.from_arrays(_halves(list(range(rows * 2))), 2)
    columns["map"] = pa.array([[(f"k{number}", number)] for number in numbers], pa.map_(pa.string(), pa.int32()))
    if hasattr(pa, "json_"):
        texts = [f'{{"a": [{number}, null]}}' for number in numbers]
        columns["json"] = pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(texts))
    return columns


def _halves(numbers: list[int]) -> pa.Array:
    """Return 1.0 and the half floats that follow it, built from their bits."""
    bits = pa.array([15360 + number for number in numbers], pa.uint16())
    return pa.Array.from_buffers(pa.float16(), len(bits), bits.buffers())


def _vectors(vectors: list[list[Any]], item: pa.DataType) -> pa.Array:
    flat = pa.array([bool(value) if item == pa.bool_() else value for one in vectors for value in one], item)
    return pa.FixedSizeListArray.from_arrays(flat, len(vectors[0]))

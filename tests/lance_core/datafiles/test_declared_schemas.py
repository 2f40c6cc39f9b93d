"""Tests of `lance_core/datafiles/declared_schemas.py`: dataclasses and models of pydantic declare the same columns."""

import dataclasses
import datetime
import enum
import subprocess
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NewType, Optional

import numpy as np
import pyarrow as pa
import pydantic
import pytest

from lance_core import InvalidInput, SchemaMismatch, Table
from lance_core.datafiles.declared_schemas import declared_schema

UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Place:
    city: str
    code: int | None = None


@dataclasses.dataclass
class Page:
    kinds: ClassVar[int] = 3
    id: UserId
    url: str
    seen: datetime.datetime | None
    day: Optional[datetime.date]  # noqa: UP045  # the older spelling is declared too
    place: Place
    places: list[Place | None]
    tags: Sequence[str]
    scores: dict[str, float | None]
    color: Color
    state: Literal["new", "old"]
    price: Annotated[Decimal, pa.decimal128(10, 2)]
    embedding: Annotated[list[float], "of the model", pa.list_(pa.float32(), 2)]
    width: Annotated[int, pa.int16()] | None
    raw: bytes
    flag: bool
    ratio: np.float32 | None
    pair: tuple[int, ...] | None = None


class PlaceModel(pydantic.BaseModel):
    city: str
    code: int | None = None


class PageModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    id: UserId
    url: str = pydantic.Field(min_length=1)
    seen: datetime.datetime | None
    day: datetime.date | None
    place: PlaceModel
    places: list[PlaceModel | None]
    tags: Sequence[str]
    scores: Mapping[str, float | None]
    color: Color
    state: Literal["new", "old"]
    price: Annotated[Decimal, pa.decimal128(10, 2)]
    embedding: Annotated[list[float], pydantic.Field(max_length=2), pa.list_(pa.float32(), 2)]
    width: Annotated[int, pa.int16()] | None
    raw: bytes
    flag: bool
    ratio: np.float32 | None
    pair: tuple[int, ...] | None = None


PLACE = pa.struct([pa.field("city", pa.string(), nullable=False), ("code", pa.int64())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        ("seen", pa.timestamp("us")),
        ("day", pa.date32()),
        pa.field("place", PLACE, nullable=False),
        pa.field("places", pa.list_(PLACE), nullable=False),
        pa.field("tags", pa.list_(pa.field("item", pa.string(), nullable=False)), nullable=False),
        pa.field("scores", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("color", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("price", pa.decimal128(10, 2), nullable=False),
        pa.field("embedding", pa.list_(pa.float32(), 2), nullable=False),
        ("width", pa.int16()),
        pa.field("raw", pa.binary(), nullable=False),
        pa.field("flag", pa.bool_(), nullable=False),
        ("ratio", pa.float32()),
        ("pair", pa.list_(pa.field("item", pa.int64(), nullable=False))),
    ]
)
VALUES: dict[str, object] = {
    "id": 1,
    "url": "/a",
    "seen": datetime.datetime(2026, 1, 1),  # noqa: DTZ001  # the column has no time zone
    "day": None,
    "tags": ["x", "y"],
    "scores": {"a": 0.5, "b": None},
    "color": Color.BLUE,
    "state": "new",
    "price": Decimal("1.50"),
    "embedding": [0.25, 0.5],
    "width": 7,
    "raw": b"\x00",
    "flag": True,
    "ratio": None,
}


def page(page_class: type, place_class: type) -> object:
    place = place_class(city="Oslo", code=5)
    return page_class(**VALUES, place=place, places=[place, None])


@pytest.mark.parametrize(("page_class", "place_class"), [(Page, Place), (PageModel, PlaceModel)])
def test_a_declaration_creates_a_table_and_its_instances_are_rows(
    tmp_path: Path, page_class: type, place_class: type
) -> None:
    assert declared_schema(page_class) == SCHEMA
    record = page(page_class, place_class)
    empty = Table.create(tmp_path / "empty", page_class, durable=False)
    created = Table.create(tmp_path / "created", [record], durable=False)
    assert empty.schema == created.schema == SCHEMA
    written = empty.append([record, record]).table
    assert written.to_table() == pa.concat_tables([created.to_table()] * 2)
    (row,) = created.to_table().to_pylist()
    assert row == {
        **VALUES,
        "color": "blue",
        "place": {"city": "Oslo", "code": 5},
        "places": [{"city": "Oslo", "code": 5}, None],
        "scores": [("a", 0.5), ("b", None)],
        "pair": None,
    }
    updated = written.overwrite([record], where="id = 1").table.upsert([record], "url").table
    assert updated.to_table() == created.to_table()


def test_a_schema_declares_the_columns_of_other_rows(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Small:
        id: Annotated[int, pa.int16()]
        vector: Annotated[list[float], pa.list_(pa.float32(), 2)] | None = None

    rows = [{"id": 1, "vector": [0.5, 0.25]}, {"id": 2}]
    for number, data in enumerate((rows, {"id": [1, 2], "vector": [[0.5, 0.25], None]}, pa.Table.from_pylist(rows))):
        table = Table.create(tmp_path / str(number), data, schema=Small, durable=False)
        assert table.schema == declared_schema(Small)
        assert table.to_table()["vector"].to_pylist() == [[0.5, 0.25], None]
    wider = pa.schema([("id", pa.int64()), ("more", pa.string())])
    assert table.overwrite(pa.table({"id": pa.array([1], pa.int8())}), schema=wider).table.schema == wider
    for data, schema, error in (
        ([{"id": 70_000}], Small, "column 'id'"),
        ([{"id": None}], Small, "not nullable"),
        ([{"id": 1, "other": 2}], Small, "no column 'other'"),
        (
            [{"s": 5}],
            pa.schema([("s", pa.struct([("m", pa.map_(pa.string(), pa.int64()))]))]),
            "column 's'.*no mapping",
        ),
        ([{"id": 1}], dict, "a schema must be"),
        ([{"id": 1}], "id int", "a schema must be"),
    ):
        with pytest.raises((InvalidInput, SchemaMismatch), match=error):
            Table.create(tmp_path / "refused", data, schema=schema, durable=False)
    with pytest.raises(InvalidInput, match="with where= the schema stays"):
        table.overwrite(rows, schema=Small, where="id = 1")


@dataclasses.dataclass
class Recursive:
    inner: "list[Recursive]"


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (int | str, "a column has one type"),
        (Decimal, "Annotated"),
        (list, "Annotated"),
        (Literal["a", 1], "several types"),
        (Recursive, "contains itself"),
        ("Missing", "cannot be resolved"),
        (tuple[int, str], "Annotated"),
    ],
)
def test_a_type_without_an_arrow_type_is_refused_by_the_name_of_its_field(hint: object, message: str) -> None:
    declaration = dataclasses.make_dataclass("Bad", [("value", hint)])
    with pytest.raises(InvalidInput, match=rf"Bad.*{message}"):
        declared_schema(declaration)


def test_pydantic_is_not_loaded() -> None:
    program = "import sys, lance_core.datafiles.declared_schemas; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

"""`lance_assets/spark/TYPES.md`, from what the code does.

`python -m tests.lance_assets.spark.printed_types` writes it.
"""

from pathlib import Path

import pyarrow as pa

import lance_assets.spark
from lance_assets.spark.types import spark_schema, stored_schema
from tests.lance_assets.spark.cells import KINDS

PLACE = Path(lance_assets.spark.__file__).with_name("TYPES.md")

_BEFORE = """# Spark's types and Lance's

What a column of a table is to Spark, and what a new table stores for a Spark column of that type. A table that is
there decides by its own types: rows that come back from Spark are brought into them, and a value that does not fit
is an error on the driver that names the column (nested: its path), the two types and what to do; nothing is
committed then. So a table keeps its unsigned numbers, halves, vectors, zones, units and field metadata through
`append` and `overwrite`. This page is held true by tests, which take every type through a real Spark in every
shape: plain, without nulls, with nothing but nulls, in structs, lists, large lists, maps, and structs in lists.

| stored (Arrow) | to Spark | a new table of it stores | what to know |
|---|---|---|---|
"""

_NOTES = {
    "uint64": "wide enough for all; signed `bigint` is not",
    "float16": "back into halves only what a half holds: no rounding, no infinity for what is too large",
    "fixed_binary": "back only of that width",
    "vector": "back only of that length; items may be null, as in Lance",
    "date64": "a date64 that is no whole day is an error",
    "timestamp_ns_utc": "what Spark would cut off is an error; likewise with every zone, and without",
    "timestamp_s_utc": "beyond what microseconds hold is an error; back, what seconds would cut off",
    "timestamp_us_berlin": "an instant stays an instant, whatever the session's time zone; the table keeps its zone",
    "timestamp_us_ntz": "no zone is put in, none taken off: instants do not go into it",
    "duration_ns": "what microseconds would cut off is an error",
    "decimal256": "up to 38 digits",
    "uuid": "sixteen bytes",
    "dictionary": "the values",
    "null": "Spark's `void`",
}

_AFTER = """
**Spark cannot hold** `time32`, `time64` and decimals of more than 38 digits: the error names the column; leave it
out with `columns=[...]`, or read it with `lance_core.Table`. Decimals with a scale below zero come with zeros in
its place. JSON comes as text. Of blobs comes where they are, as in `Table.to_table`; bytes go in.

**A table does not store** `variant` (`to_json` makes a text), `time` (cast to string), `interval year to month`
(months as a number), calendar intervals, `geometry` and `geography` (`st_asbinary`) and user-defined types (select
what they are made of): refused by name before a job runs. `char` and `varchar` are stored as text, without their
length; so is text with a collation, without it.

**No cast is guessed**: text does not become a number, a timestamp no date, an instant no time without zone, a
boolean no number, and decimals lose no digits. Cast in Spark, where you see it. To Spark "not null" is said of one
DataFrame: a new table's columns are nullable.

**Field metadata** of a stored column is metadata of the Spark column, and of a new table made of it. In it
`arrow.fixed-size-list.size` (as the JVM connector spells it) says that arrays are vectors of that length: reading
sets it, and a column that has it is stored as vectors. Spark's own notes (`SPARK::...`, `__...`) are never stored,
nor is its name for the items of a list.
"""


def printed() -> str:
    rows = []
    for kind in KINDS:
        schema = pa.schema([pa.field("v", kind.stored)])
        spark = spark_schema(schema)
        again = stored_schema(spark).field("v").type
        assert spark["v"].dataType.simpleString() == kind.spark
        rows.append(f"| `{kind.stored}` | `{kind.spark}` | `{again}` | {_NOTES.get(kind.name, '')} |")
    return _BEFORE + "\n".join(rows) + "\n" + _AFTER


if __name__ == "__main__":
    PLACE.write_text(printed())

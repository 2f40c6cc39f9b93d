"""Types document: renders `lance_assets/spark/TYPES.md` from the conversions of the code.

`python -m tests.lance_assets.spark.types_document` writes it.
"""

from pathlib import Path

import pyarrow as pa

import lance_assets.spark
from lance_assets.spark.types import spark_schema, stored_schema
from tests.lance_assets.spark.type_matrix import COLUMN_TYPES

DOCUMENT_PATH = Path(lance_assets.spark.__file__).with_name("TYPES.md")

_HEADER = """# Type conversions between Spark and Lance

The table lists how Spark sees a stored column, and what a new table stores for a Spark column of that type. An
existing table keeps its own types: rows that return from Spark are converted to them. A value that does not fit is
an error on the driver, which names the column (with its path if it is nested), both types and the remedy; nothing is
committed then. A table therefore keeps its unsigned integers, half floats, vectors, time zones, units and field
metadata through `append` and `overwrite`. Tests keep this page current: they pass every type through a real Spark in
every shape: plain, without nulls, all nulls, in structs, lists, large lists, maps, and structs in lists.

| stored (Arrow) | Spark type | stored by a new table | notes |
|---|---|---|---|
"""

_NOTES = {
    "uint64": "a signed `bigint` is too narrow",
    "float16": "only values that a half float represents exactly return: no rounding, no infinity for large values",
    "fixed_binary": "only values of that width return",
    "vector": "only lists of that length return; items may be null, as in Lance",
    "date64": "a date64 that is not a whole day is an error",
    "timestamp_ns_utc": "a value that microseconds would truncate is an error; likewise with every zone, and without",
    "timestamp_s_utc": "a value outside the range of microseconds is an error; on return, one that seconds truncate",
    "timestamp_us_berlin": "an instant stays an instant, whatever the session's time zone; the table keeps its zone",
    "timestamp_us_ntz": "no zone is added or removed: instants are an error",
    "duration_ns": "a value that microseconds would truncate is an error",
    "decimal256": "up to 38 digits",
    "uuid": "sixteen bytes",
    "dictionary": "the dictionary is decoded",
    "null": "Spark's `void`",
}

_FOOTER = """
**Spark lacks** `time32`, `time64` and decimals of more than 38 digits: the error names the column. Leave it out with
`columns=[...]`, or read it with `lance_core.Table`. Decimals with a negative scale are read with zeros for the missing
digits. JSON is read as text. A blob is read as its location, as in `Table.to_table`, and is written as bytes.

**A table cannot store** `variant` (use `to_json`), `time` (cast it to string), `interval year to month` (store its
months as a number), calendar intervals, `geometry` and `geography` (use `st_asbinary`) and user-defined types (select
their fields): an error names the column before a job runs. `char` and `varchar` are stored as text without their
length, and text with a collation is stored without it.

**No implicit casts**: text does not become a number, a timestamp a date, an instant a time without zone, or a boolean
a number, and decimals lose no digits. Cast in Spark, where the cast is visible. All columns of a new table are
nullable, since in Spark "not null" describes one DataFrame only.

**Field metadata** of a stored column is metadata of the Spark column, and of a new table created from it. The key
`arrow.fixed-size-list.size` (spelt as in the JVM connector) marks arrays as vectors of that length: a read sets it, and
a column that has it is stored as vectors. Spark's internal keys (`SPARK::...`, `__...`) are never stored, nor is its
name for the items of a list.
"""


def render_document() -> str:
    rows = []
    for column_type in COLUMN_TYPES:
        schema = pa.schema([pa.field("v", column_type.stored)])
        spark = spark_schema(schema)
        stored_type = stored_schema(spark).field("v").type
        assert spark["v"].dataType.simpleString() == column_type.spark
        rows.append(
            f"| `{column_type.stored}` | `{column_type.spark}` | `{stored_type}` | {_NOTES.get(column_type.name, '')} |"
        )
    return _HEADER + "\n".join(rows) + "\n" + _FOOTER


if __name__ == "__main__":
    DOCUMENT_PATH.write_text(render_document())

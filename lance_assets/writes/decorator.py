"""A write declared beside the function that it calls: `@lance_write(table=orders, op="append")`.

The function stays what it was, so that a test calls it with a session and whatever it needs of a context. Which writes
there are by name is in `write_list.py`.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Protocol, TypeVar

from lance_assets.writes.row_writes import SparkIngest
from lance_assets.writes.write import Write
from lance_assets.writes.write_list import create_write, write_type_of
from lance_core import InvalidInput

Function = TypeVar("Function", bound=Callable[..., Any])


class AcceptsWrites(Protocol):
    """A `LanceTable`."""

    def add_write(self, write: Write) -> None: ...


def lance_write(*, table: AcceptsWrites, op: str, **options: Any) -> Callable[[Function], Function]:
    """Declare a write of `table` whose function is the one below; `options` are those of that write.

        @lance_write(table=orders, op="upsert", on="order_id", partitions=days)
        def corrected_orders(spark, ctx):
            return spark.read.parquet(f"corrections/{ctx.partition_key}")

    It is named like the function, unless `name=` says otherwise, and described by the first paragraph of its
    docstring. `op` is append, upsert, merge_columns, map_columns or any other write with a function; of an ingest the
    function gives the files, of the context alone. Read `table.defs` below: what is declared later is refused.
    """
    kind = write_type_of(op, what="op")
    takes = "files" if kind is SparkIngest else "fn"
    if takes not in {field.name for field in fields(kind)}:
        raise InvalidInput(
            f"op={op!r} calls no function, so that there is nothing to decorate; give {kind.__name__}(...) to writes= "
            "of the table"
        )
    if takes in options:
        raise InvalidInput(f"{takes}= is the function that is decorated; leave it out")
    if not hasattr(table, "add_write"):
        raise InvalidInput(f"table= is what lance_table(...) gave, not {table!r}")

    def declared(function: Function) -> Function:
        if not callable(function):
            raise InvalidInput(f"@lance_write(op={op!r}) stands above a function, not above {function!r}")
        about = {"name": getattr(function, "__name__", ""), "description": _first_paragraph(function)}
        table.add_write(create_write(kind, {**about, **options, takes: function}))
        return function

    return declared


def _first_paragraph(function: object) -> str | None:
    text = inspect.getdoc(function) or ""
    return " ".join(text.split("\n\n")[0].split()) or None

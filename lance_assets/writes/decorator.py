"""Write decorator: `@lance_write(table=orders, op="append")` declares a write on the function that it calls.

The decorator returns the function unchanged, so that a test can call it with a session and a context of its own. The
names of the writes are in `write_list.py`.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Protocol, TypeVar

from lance_assets.common.text import first_paragraph
from lance_assets.writes.row_writes import SparkIngest
from lance_assets.writes.write import Write
from lance_assets.writes.write_list import create_write, write_type_of
from lance_core import InvalidInput

Function = TypeVar("Function", bound=Callable[..., Any])


class AcceptsWrites(Protocol):
    """Table that accepts declared writes: a `LanceTable`."""

    def add_write(self, write: Write) -> None: ...


def lance_write(*, table: AcceptsWrites, op: str, **options: Any) -> Callable[[Function], Function]:
    """Declare a write of `table` that calls the decorated function. `options` are those of the write class of `op`.

        @lance_write(table=orders, op="upsert", on="order_id", partitions=days)
        def corrected_orders(spark, ctx):
            return spark.read.parquet(f"corrections/{ctx.partition_key}")

    The write takes the name of the function unless `name=` is given, and its description is the first paragraph of
    the docstring. `op` is append, upsert, merge_columns, map_columns or any other write that calls a function. The
    function of an ingest takes the context alone and returns the files. Read `table.defs` below all declarations: a
    write that is declared later is refused.
    """
    kind = write_type_of(op, what="op")
    function_option = "files" if kind is SparkIngest else "fn"
    if function_option not in {field.name for field in fields(kind)}:
        raise InvalidInput(
            f"op={op!r} calls no function, so there is nothing to decorate; add {kind.__name__}(...) to writes= of the "
            "table instead"
        )
    if function_option in options:
        raise InvalidInput(f"{function_option}= is the decorated function; leave it out")
    if not hasattr(table, "add_write"):
        raise InvalidInput(f"table= must be the result of lance_table(...), not {table!r}")

    def decorate(function: Function) -> Function:
        if not callable(function):
            raise InvalidInput(f"@lance_write(op={op!r}) decorates a function, not {function!r}")
        defaults = {"name": getattr(function, "__name__", ""), "description": first_paragraph(function)}
        table.add_write(create_write(kind, {**defaults, **options, function_option: function}))
        return function

    return decorate

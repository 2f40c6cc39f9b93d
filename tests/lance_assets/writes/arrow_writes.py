"""Write without Spark: its function returns an Arrow table, which this process appends."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from lance_assets import WriteContext
from lance_assets.writes import Write
from lance_assets.writes.dependencies import accepted_values
from lance_assets.writes.write import SparkWriteOptions
from lance_core import Committed, Table


@dataclass(frozen=True, slots=True)
class ArrowAppend(Write):
    """Append the Arrow table that `fn` returns."""

    fn: Callable[..., pa.Table]
    summary: ClassVar[str] = "Appends Arrow rows to"
    is_remote: ClassVar[bool] = True
    context_arguments: ClassVar[int] = 1

    def check(self) -> None:
        self.check_function(self.fn, signature="(ctx) -> pyarrow.Table")

    @property
    def resource_key(self) -> str:
        return "io_manager"

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        rows = self.fn(ctx, **accepted_values(self.fn, self.context_arguments, ctx.input_values))
        options = make_options()
        table = Table.open(ctx.table.uri, **ctx.table.access())
        return table.append(rows, intent=options["intent"], properties=options["properties"], audit=options["audit"])

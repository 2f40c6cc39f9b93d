"""Filter mask: the rows that pass a filter, as a mask over the table positions of a version, for ranked searches."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from lance_core.expressions.engine_batches import is_time_independent
from lance_core.index.table_order import TableOrder
from lance_core.scan.executor import matching_rows
from lance_core.scan.plan import plan_scan
from lance_core.scan.selection import RowSelector
from lance_core.versions.snapshot import Snapshot

Mask = npt.NDArray[np.bool_]


class MaskCache(Protocol):
    """Masks by filter and fragments."""

    def get(self, key: tuple[str, bytes]) -> Mask | None: ...

    def put(self, key: tuple[str, bytes], value: Mask, weight: int) -> None: ...


def select_positions(
    base: Snapshot,
    order: TableOrder,
    filter: str,
    select: RowSelector | None,
    cache: MaskCache,
) -> Mask:
    """Return a mask of the positions of the rows that pass a filter, from the cache if it has it."""
    key = (filter, b"")
    if (known := cache.get(key)) is not None:
        return known
    plan = plan_scan(base.manifest, columns=(), filter=filter, select=select)
    selected = np.zeros(order.row_count, dtype=np.bool_)
    for fragment, offsets in matching_rows(base.location, plan):
        selected[order.start_of(fragment.id) + offsets] = True
    if is_time_independent(filter, base.manifest.schema.arrow):
        cache.put(key, selected, selected.nbytes)
    return selected

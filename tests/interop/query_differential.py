"""Differential testing of queries: one condition answered by pylance and by us, with indices and without."""

from collections.abc import Iterable

import lance
import pyarrow as pa

from lance_core import LanceError, Table

_ADDRESS = "_rowaddr"


def find_query_difference(uri: str, conditions: Iterable[str]) -> str | None:
    """Return a description of the first condition with different answers; `None` if all answers agree.

    A condition that pylance refuses in a scan without indices is skipped.
    """
    dataset, table = lance.dataset(uri), Table.open(uri)
    for condition in conditions:
        try:
            expected = _addresses(dataset.to_table(columns=[_ADDRESS], filter=condition, use_scalar_index=False))
        except (ValueError, OSError, RuntimeError):
            continue
        by_index = _addresses(dataset.to_table(columns=[_ADDRESS], filter=condition))
        if by_index != expected:
            return f"pylance finds {by_index} by index where {condition}, and {expected} by a scan"
        try:
            ours = _addresses(table.to_table([_ADDRESS], condition))
        except LanceError:
            continue  # other tests compare which parts of Lance's SQL each library refuses
        if ours != expected:
            return f"we find {ours} where {condition}, and pylance finds {expected} by a scan"
    return None


def _addresses(rows: pa.Table) -> list[int]:
    addresses: list[int] = sorted(rows[_ADDRESS].to_pylist())
    return addresses

"""The same question in four ways: by pylance and by us, with indices and without."""

from collections.abc import Iterable

import lance
import pyarrow as pa

from lance_core import LanceError, Table

_ID = "_rowaddr"


def ask(uri: str, conditions: Iterable[str]) -> str | None:
    """What is wrong with the answers. A condition that pylance does not take without an index asks for nothing."""
    dataset, table = lance.dataset(uri), Table.open(uri)
    for condition in conditions:
        try:
            expected = _found(dataset.to_table(columns=[_ID], filter=condition, use_scalar_index=False))
        except (ValueError, OSError, RuntimeError):
            continue
        by_index = _found(dataset.to_table(columns=[_ID], filter=condition))
        if by_index != expected:
            return f"pylance finds {by_index} by index where {condition}, and {expected} by a scan"
        try:
            ours = _found(table.to_table([_ID], condition))
        except LanceError:
            continue  # what of Lance's SQL is refused is compared elsewhere
        if ours != expected:
            return f"we find {ours} where {condition}, and pylance {expected} by a scan"
    return None


def _found(rows: pa.Table) -> list[int]:
    found: list[int] = sorted(rows[_ID].to_pylist())
    return found

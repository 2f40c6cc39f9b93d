"""Changes give the same rows in a table with indices as in an equal table without."""

import tempfile
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core import Table
from tests.lance_core.index.indexed_tables import predicates, rows

KEYS = st.lists(st.integers(-3, 300), min_size=1, max_size=4, unique=True)
Change = Callable[[Table], Table]


def upsert_change(keys: list[int], matched: str, on: list[str]) -> Change:
    source = rows(-3, 304).filter(pa.compute.is_in(rows(-3, 304)["id"], pa.array(keys)))
    return lambda table: table.upsert(source, on=on, matched=matched).table


def sorted_rows(table: Table) -> list[str]:
    return sorted(map(str, table.to_table().to_pylist()))


CHANGES: st.SearchStrategy[Change] = st.one_of(
    predicates().map(lambda predicate: lambda table: table.delete(predicate).table),
    predicates().map(lambda predicate: lambda table: table.update({"n": "7"}, where=predicate).table),
    st.builds(
        upsert_change,
        KEYS,
        st.sampled_from(["update", "delete", "ignore"]),
        st.sampled_from([["id"], ["id", "word"]]),
    ),
    st.just(lambda table: table.compact(remap="reuse" if not table.manifest.has_stable_row_ids else None).table),
    st.just(lambda table: table.append(rows(400, 5)).table),
)


@pytest.mark.parametrize("stable_row_ids", [False, True], ids=["addresses", "stable row ids"])
def test_changes_with_and_without_indices_agree(stable_row_ids: bool) -> None:
    @settings(max_examples=15, deadline=None)
    @given(st.lists(CHANGES, min_size=1, max_size=4))
    def run(changes: list[Change]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            tables = [Table.create(f"{directory}/{name}", rows(0, 120), stable_row_ids=stable_row_ids) for name in "ab"]
            indexed, plain = (table.append(rows(120, 120)).table for table in tables)
            for column, kind in {"id": "BTREE", "word": "BITMAP", "n": "ZONEMAP"}.items():
                indexed = indexed.create_index(column, kind).table
            for change in changes:
                indexed, plain = change(indexed), change(plain)
            # Columns with an index are rewritten in place less often, so the order of rows may differ.
            assert sorted_rows(indexed) == sorted_rows(plain)

    run()

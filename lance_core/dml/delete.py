"""Delete: removes the rows that match a condition. It reads only the columns of the condition, and writes only deletion
files.
"""

from lance_core.dml.deletion_files import add_all_deletions, encode_offsets
from lance_core.dml.row_matching import find_matching_rows
from lance_core.expressions import Predicate
from lance_core.format.operations import Delete
from lance_core.runtime import Runtime
from lance_core.scan.column_resolution import check_condition, filterable_schema
from lance_core.scan.selection import Selection
from lance_core.versions.snapshot import Snapshot


def delete(base: Snapshot, sql: str, *, runtime: Runtime, selection: Selection | None = None) -> Delete:
    """Plan a delete. A fragment that loses all of its rows is removed and gets no deletion file. `selection` is the
    result of the indices, if they were asked before."""
    predicate = Predicate.parse(sql, filterable_schema(base.manifest))
    check_condition(base.manifest, predicate.columns, what="the condition")
    updated, removed, affected = [], [], {}
    matches = find_matching_rows(base, predicate, selection)
    changes = add_all_deletions(base.location, matches, read_version=base.version, runtime=runtime)
    for fragment, offsets, after in changes:
        affected[fragment.id] = encode_offsets(offsets)
        if after is None:
            removed.append(fragment.id)
        else:
            updated.append(after)
    return Delete(tuple(updated), tuple(removed), sql, affected)

"""Delete the rows that match: only the predicate's columns are read, and only deletion files are written."""

import numpy as np

from lance_core.edit.deletions import with_deleted
from lance_core.expressions import Predicate, with_metadata_columns
from lance_core.format.operations import Delete
from lance_core.ports import Ports
from lance_core.scan.read import rows_of
from lance_core.scan.row_columns import ROW_OFFSET
from lance_core.snapshot import Snapshot


def delete(base: Snapshot, sql: str, *, ports: Ports) -> Delete:
    """Fragments that lose all of their rows go as a whole, and get no deletion file."""
    predicate = Predicate.parse(sql, with_metadata_columns(base.manifest.schema.arrow))
    columns = list(dict.fromkeys((*predicate.columns, ROW_OFFSET)))
    updated, removed = [], []
    for fragment in base.manifest.fragments:
        matching = [
            batch.column(ROW_OFFSET).to_numpy()
            for batch in predicate.filter(rows_of(base.location, base.manifest, fragment, columns))
        ]
        if not matching:
            continue
        offsets = np.concatenate(matching).astype(np.int64)
        after = with_deleted(base.location, fragment, offsets, read_version=base.version, ports=ports)
        if after is None:
            removed.append(fragment.id)
        else:
            updated.append(after)
    return Delete(tuple(updated), tuple(removed), sql)

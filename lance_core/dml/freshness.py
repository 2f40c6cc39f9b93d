"""Freshness of computed columns: which fragments are known to have no stale row, and how many rows of a version are
stale.

    _lance_assets/computed/{field id}.json     a version, the code of the column, and its fragments without a stale row

A fragment stays fresh while the files of its inputs and of the column are those of that version. Nothing depends on the
record: without it, or after a cleanup of its version, the inputs of all fragments are read and compared with the
fingerprints. Concurrent runs replace each other's record. Start with `measure_freshness`.
"""

import base64
import json
from collections.abc import Collection, Iterable
from contextlib import suppress

from pyroaring import BitMap

from lance_core.dml.column_fill import read_field_ids, still_matches
from lance_core.dml.computed_column import Declaration
from lance_core.dml.stale_rows import Freshness, find_stale_rows, total
from lance_core.errors import Corrupt, InvalidInput, NotFound, StorageError
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.limits import INTENT_BYTES
from lance_core.storage.store import read_whole
from lance_core.versions.snapshot import Snapshot, load_at

DIRECTORY = f"{naming.PROJECT_DIRECTORY}/computed"


def measure_freshness(base: Snapshot, column: Declaration) -> Freshness:
    """Count the rows of a version by the state of a computed column. The inputs of fragments that are not known to be
    fresh are read. Raise `InvalidInput` if the version lacks an input."""
    names = base.manifest.schema.arrow.names
    if missing := [name for name in (*column.reads, column.fingerprint) if name not in names]:
        raise InvalidInput(
            f"{base.location.uri}: computed column {column.name!r} needs {missing[0]!r}, which version {base.version} "
            "does not have; declare the column with its present inputs, and run it"
        )
    fresh = known_fresh(base, column)
    counts = [Freshness(fragment.live_rows) for fragment in base.manifest.fragments if fragment.id in fresh]
    for fragment in base.manifest.fragments:
        if fragment.id not in fresh:
            counts += [rows.freshness for rows in find_stale_rows(base, fragment, column)]
    return total(counts)


def known_fresh(base: Snapshot, column: Declaration) -> BitMap:
    """Return the fragments of a version that are known to have no stale row."""
    names = {*column.reads, column.name, column.fingerprint}
    with suppress(NotFound, StorageError, Corrupt, ValueError, LookupError, TypeError, RecursionError):
        record = json.loads(read_whole(base.location.own_store, _path(base, column), INTENT_BYTES))
        if record["code"] != column.code or record["inputs"] != list(column.fingerprinted):
            return BitMap()
        fresh = BitMap.deserialize(base64.b64decode(record["fragments"]))
        then = load_at(base.location, Version(int(record["version"])))
        is_same_table = then.manifest.transaction_file == record["transaction"]
        if is_same_table and read_field_ids(then, names) == read_field_ids(base, names):
            return unchanged_since(then, base, fresh, names)
    return BitMap()


def unchanged_since(then: Snapshot, base: Snapshot, fragments: Iterable[int], read: Collection[str]) -> BitMap:
    """Return those of the fragments in which the columns `read` have the same values in both versions."""
    before = {fragment.id: fragment for fragment in then.manifest.fragments}
    wanted = BitMap(fragments)
    return BitMap(
        fragment.id
        for fragment in base.manifest.fragments
        if fragment.id in wanted and fragment.id in before and still_matches(base, before[fragment.id], fragment, read)
    )


def record_fresh(at: Snapshot, column: Declaration, fragments: BitMap) -> None:
    """Record the fragments of a version that have no stale row. An error is ignored: the next run inspects more."""
    record = {
        "version": int(at.version),
        "transaction": at.manifest.transaction_file,
        "code": column.code,
        "inputs": list(column.fingerprinted),
        "fragments": base64.b64encode(fragments.serialize()).decode(),
    }
    with suppress(StorageError):
        at.location.own_store.put(_path(at, column), json.dumps(record).encode())


def _path(base: Snapshot, column: Declaration) -> str:
    return f"{DIRECTORY}/{base.manifest.schema.field(column.name).id}.json"

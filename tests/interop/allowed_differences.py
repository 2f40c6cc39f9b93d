"""Allowed differences: what two correct writers may do differently, and the normal form that removes the difference.

Each use of an allowed difference is counted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from lance_core import Table
from lance_core.format import field_ids
from lance_core.format._pb import table_pb2
from lance_core.format.config_keys import TABLE_ID
from lance_core.format.operations import Operation, Overwrite, Restore, Update, UpdateMode
from lance_core.format.row_lineage import RowIdSequence, RowVersions
from tests.interop.history_reader import BranchHistory, VersionContent, steps_by_version
from tests.private_fields import clear_private_fields

OUR_CONFIG_KEYS = (TABLE_ID, field_ids.FIELD_ID_MAX_KEY)
ALLOWED_DIFFERENCES: Mapping[str, str] = {
    "our entries in config": (
        "`lance_assets.table_id` identifies the table, `lance_assets.field_id_max` is the highest field id used so far"
    ),
    "a field id is not reused": (
        "pylance reuses the id of a dropped column that no file has for the next column (trap 9); the comparison then "
        "numbers the ids by their order"
    ),
    "columns of a file in another order": (
        "pylance writes columns in the order of the data, we in the order of the schema (trap 8)"
    ),
    "ids or versions in other segments": (
        "pylance copies the segments of the fragments that it compacts or moves, we compute the shortest ones"
    ),
    "an upsert omits columns that the data lacks": (
        "a column that no file of a fragment has is null; pylance omits it from appends, but writes nulls in a merge"
    ),
    "an update lists the nested fields of a column too": (
        "pylance lists the top-level fields of the columns that caused rows to move; an index may be on a nested one"
    ),
    "upserts that record the keys they inserted": (
        "pylance records those by a declared primary key, even if there are none; we record all inserted keys, so that "
        "two upserts of one new key always conflict"
    ),
    "columns rewritten where pylance moves rows": (
        "the format has both (lance_core/dml/001); these rows then have other addresses, and so have those of later "
        "steps"
    ),
    "rows of an upsert in another order": (
        "pylance writes them in the order of its join, we write the changed ones in the order of the table and then "
        "the new ones in the order of the data; the rows then have other addresses"
    ),
}
_TABLE_CONFIG = 8
_ROW_IDS = "inline_row_ids"
_SEQUENCES = (_ROW_IDS, "inline_created_at_versions", "inline_last_updated_at_versions")


def relocation_reason(theirs: BranchHistory, other: BranchHistory, pair: tuple[int, int]) -> str | None:
    """Return the allowed difference because of which the rows of this step may have other addresses; `None` if they
    must have the same."""
    operations = theirs.operations[pair[0]], other.operations[pair[1]]
    if not all(isinstance(operation, Update) for operation in operations):
        return None
    if _is_in_place(operations[1]) and not _is_in_place(operations[0]):
        return "columns rewritten where pylance moves rows"
    rows = _rows_in_order(theirs.contents[pair[0]]), _rows_in_order(other.contents[pair[1]])
    if rows[0] != rows[1] and sorted(rows[0]) == sorted(rows[1]):
        return "rows of an upsert in another order"
    return None


def are_still_relocated(operation: Operation, relocated: Mapping[int, bool], before: int) -> bool:
    """Return whether rows have other addresses after the operation because they had before."""
    if isinstance(operation, Overwrite):
        return False
    if isinstance(operation, Restore):
        return relocated[operation.version]
    return relocated.get(before, False)


def comparable_manifests(
    theirs: BranchHistory,
    other: BranchHistory,
    pair: tuple[int, int],
    *,
    were_relocated: bool,
    counts: Counter[str],
) -> tuple[table_pb2.Manifest, table_pb2.Manifest]:
    """Return both manifests without their allowed differences.

    `were_relocated` is true for tables whose rows had different addresses at an earlier version.
    """
    _find_missing_columns(theirs, other, pair, counts)
    have_other_field_ids = field_ids.FIELD_ID_MAX_KEY in other.table_at[pair[1]].config
    counts["a field id is not reused"] += have_other_field_ids
    messages = (
        _comparable_manifest(theirs.table_at[pair[0]], counts),
        _comparable_manifest(other.table_at[pair[1]], counts),
    )
    without_files = [
        position
        for position, fragment in enumerate(messages[1].fragments)
        if fragment.id in other.fragments_with_missing_columns
    ]
    for message in messages:
        if have_other_field_ids:
            _renumber_fields(message)
        for position in without_files:
            if position < len(message.fragments):
                message.fragments[position].ClearField("files")
        if were_relocated:
            _renumber_fragments(message)
            message.version = 0
    _decode_lineage(messages, (steps_by_version(theirs), steps_by_version(other)), counts)
    return messages


def user_settings(table: Table) -> dict[str, object]:
    """Return the configuration and metadata of a table without our own entries."""
    config = {key: value for key, value in table.config.items() if key not in OUR_CONFIG_KEYS}
    return {"config": config, "metadata": dict(table.metadata)}


def _rows_in_order(content: VersionContent) -> list[str]:
    return list(map(repr, zip(*content.table_columns, strict=True)))


def _is_in_place(operation: Operation) -> bool:
    return isinstance(operation, Update) and operation.mode is UpdateMode.REWRITE_COLUMNS


def _comparable_manifest(table: Table, counts: Counter[str]) -> table_pb2.Manifest:
    """Return the manifest without times, file names, sizes, positions and our own entries."""
    message = table_pb2.Manifest()
    message.CopyFrom(table.manifest.message)
    clear_private_fields(message)
    for name in ("timestamp", "writer_version", "transaction_file", "transaction_section", "index_section"):
        message.ClearField(name)
    for key in OUR_CONFIG_KEYS:
        if message.config.pop(key, None) is not None:
            counts["our entries in config"] += 1
    if not message.config:
        message.writer_feature_flags &= ~_TABLE_CONFIG
    for node in message.fields:
        node.ClearField("dictionary")  # for the oldest storage version; pylance writes an empty one if there are rows
    for fragment in message.fragments:
        if fragment.HasField("deletion_file"):
            fragment.deletion_file.ClearField("id")
        for file in fragment.files:
            if list(file.fields) != sorted(file.fields):
                file.fields[:] = sorted(file.fields)
                counts["columns of a file in another order"] += 1
            file.ClearField("path")
            file.ClearField("file_size_bytes")
    return message


def _find_missing_columns(
    theirs: BranchHistory, other: BranchHistory, pair: tuple[int, int], counts: Counter[str]
) -> None:
    """Record the new fragments that lack columns for which pylance wrote nulls."""
    operation = other.operations[pair[1]]
    if not isinstance(operation, Update) or _is_in_place(operation):
        return
    before = {fragment.id for fragment in other.table_at[pair[1] - 1].fragments}
    for their_fragment, our_fragment in zip(
        theirs.table_at[pair[0]].fragments, other.table_at[pair[1]].fragments, strict=False
    ):
        if our_fragment.id not in before:
            our_ids, their_ids = (
                {field_id for file in fragment.files for field_id in file.field_ids}
                for fragment in (our_fragment, their_fragment)
            )
            if our_ids < their_ids:
                other.fragments_with_missing_columns.add(our_fragment.id)
                counts["an upsert omits columns that the data lacks"] += 1


def _decode_lineage(
    messages: Sequence[table_pb2.Manifest], steps: Sequence[Mapping[int, int]], counts: Counter[str]
) -> None:
    """Replace encoded sequences that differ by the row ids, or by the steps that made the versions, one by one."""
    for pair in zip(*(message.fragments for message in messages), strict=False):
        for name in _SEQUENCES:
            if getattr(pair[0], name) != getattr(pair[1], name):
                counts["ids or versions in other segments"] += 1
                for fragment, step_of_version in zip(pair, steps, strict=True):
                    setattr(fragment, name, str(_decode_sequence(fragment, name, step_of_version)).encode())


def _decode_sequence(fragment: table_pb2.DataFragment, name: str, step_of_version: Mapping[int, int]) -> list[int]:
    data, rows = getattr(fragment, name), fragment.physical_rows
    if name == _ROW_IDS:
        return list(map(int, RowIdSequence.decode(data, rows=rows, path=name).to_numpy()))
    versions = RowVersions.decode(data, rows=rows, path="", field=name).to_numpy()
    return [step_of_version[int(version)] for version in versions]


def _renumber_fields(message: table_pb2.Manifest) -> None:
    """Number the fields in the order of the schema, then of the files."""
    new_ids = {-1: -1, -2: -2}
    for node in message.fields:
        node.id = new_ids.setdefault(node.id, len(new_ids))
        node.parent_id = new_ids.setdefault(node.parent_id, len(new_ids))
    for fragment in message.fragments:
        for file in fragment.files:
            file.fields[:] = sorted(new_ids.setdefault(field_id, len(new_ids)) for field_id in file.fields)


def _renumber_fragments(message: table_pb2.Manifest) -> None:
    message.ClearField("max_fragment_id")
    for position, fragment in enumerate(message.fragments):
        fragment.id = position

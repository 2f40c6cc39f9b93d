"""What may differ between two writers, why, and how manifests are made alike where it does. Each time is counted."""

from collections import Counter
from collections.abc import Mapping, Sequence

from lance_core import Table
from lance_core.format import field_ids
from lance_core.format._pb import table_pb2
from lance_core.format.config_keys import TABLE_ID
from lance_core.format.operations import Operation, Overwrite, Restore, Update, UpdateMode
from lance_core.format.row_versions import RowVersions
from lance_core.format.rowids import RowIdSequence
from lance_core.format.config_keys import TABLE_ID
from tests.interop.history_reader import Line, steps_of

OUR_CONFIG = (TABLE_ID, field_ids.FIELD_ID_MAX_KEY)
ALLOWED: Mapping[str, str] = {
    "our entries in config": (
        "`lance_assets.table_id` says which table it is, `lance_assets.field_id_max` which field ids were given out"
    ),
    "a field id is not given out again": (
        "pylance takes the id of a dropped column that no file has for the next one (trap 9); ids are then compared by "
        "their order"
    ),
    "columns of a file in another order": (
        "pylance writes columns in the order in which they came, we in that of the schema (trap 8)"
    ),
    "ids or versions in other segments": (
        "pylance keeps the segments of the fragments that it compacts or moves, we look for the shortest ones anew"
    ),
    "an upsert leaves out columns that did not come": (
        "what no file of a fragment has is null; pylance leaves it out of appends, but writes nulls in a merge"
    ),
    "an update names the fields within a column too": (
        "of the columns that rows were moved for pylance names the top ones; an index may be on what is in them"
    ),
    "which upserts tell the keys they inserted": (
        "pylance those by a declared primary key, of no key too; we all that insert any, so that two upserts of one "
        "new key are always kept apart"
    ),
    "columns rewritten where pylance moves rows": (
        "the format knows both (lance_core/dml/001); rows then lie elsewhere, and so do those of later steps"
    ),
    "rows of an upsert in another order": (
        "pylance writes them as they come out of its join, we the changed ones in the order of the table, then the new "
        "ones in the order in which they came; rows then lie elsewhere"
    ),
}
_TABLE_CONFIG = 8


def lies_elsewhere(theirs: Line, other: Line, pair: tuple[int, int]) -> str | None:
    """Why rows that the two wrote just now may lie elsewhere, if they may."""
    operations = theirs.operations[pair[0]], other.operations[pair[1]]
    if not all(isinstance(operation, Update) for operation in operations):
        return None
    if _is_in_place(operations[1]) and not _is_in_place(operations[0]):
        return "columns rewritten where pylance moves rows"
    facts = theirs.facts[pair[0]], other.facts[pair[1]]
    in_order = [list(map(repr, zip(*each.own, strict=True))) for each in facts]
    if in_order[0] != in_order[1] and sorted(in_order[0]) == sorted(in_order[1]):
        return "rows of an upsert in another order"
    return None


def still_elsewhere(operation: Operation, elsewhere: Mapping[int, bool], before: int) -> bool:
    """Whether rows lie elsewhere after this, where they did or did not before."""
    if isinstance(operation, Overwrite):
        return False
    if isinstance(operation, Restore):
        return elsewhere[operation.version]
    return elsewhere.get(before, False)


def manifests(
    theirs: Line, other: Line, pair: tuple[int, int], *, shifted: bool, counted: Counter[str]
) -> tuple[table_pb2.Manifest, table_pb2.Manifest]:
    """Both, without what may differ. `shifted` are tables in which rows lay elsewhere for a time."""
    _note_unwritten(theirs, other, pair, counted)
    renumbered = field_ids.FIELD_ID_MAX_KEY in other.at[pair[1]].config
    counted["a field id is not given out again"] += renumbered
    messages = _message(theirs.at[pair[0]], counted), _message(other.at[pair[1]], counted)
    places = [place for place, each in enumerate(messages[1].fragments) if each.id in other.unwritten]
    for message in messages:
        if renumbered:
            _number_fields_anew(message)
        for place in places:
            if place < len(message.fragments):
                message.fragments[place].ClearField("files")
        if shifted:
            _number_fragments_anew(message)
            message.version = 0
    _decode_lineage(messages, (steps_of(theirs), steps_of(other)), counted)
    return messages


def settings(table: Table) -> dict[str, object]:
    config = {key: value for key, value in table.config.items() if key not in OUR_CONFIG}
    return {"config": config, "metadata": dict(table.metadata)}


def _is_in_place(operation: Operation) -> bool:
    return isinstance(operation, Update) and operation.mode is UpdateMode.REWRITE_COLUMNS


def _message(table: Table, counted: Counter[str]) -> table_pb2.Manifest:
    """Without times, names of files, sizes and positions, and what is only ours."""
    message = table_pb2.Manifest()
    message.CopyFrom(table.manifest.message)
    for name in ("timestamp", "writer_version", "transaction_file", "transaction_section", "index_section"):
        message.ClearField(name)
    for key in OUR_CONFIG:
        if message.config.pop(key, None) is not None:
            counted["our entries in config"] += 1
    if not message.config:
        message.writer_feature_flags &= ~_TABLE_CONFIG
    for node in message.fields:
        node.ClearField("dictionary")  # of the oldest format; pylance writes an empty one where there are rows
    for fragment in message.fragments:
        if fragment.HasField("deletion_file"):
            fragment.deletion_file.ClearField("id")
        for file in fragment.files:
            if list(file.fields) != sorted(file.fields):
                file.fields[:] = sorted(file.fields)
                counted["columns of a file in another order"] += 1
            file.ClearField("path")
            file.ClearField("file_size_bytes")
    return message


def _note_unwritten(theirs: Line, other: Line, pair: tuple[int, int], counted: Counter[str]) -> None:
    """Which new fragments lack columns that pylance wrote nulls of."""
    operation = other.operations[pair[1]]
    if not isinstance(operation, Update) or _is_in_place(operation):
        return
    before = {fragment.id for fragment in other.at[pair[1] - 1].fragments}
    for theirs_now, ours_now in zip(theirs.at[pair[0]].fragments, other.at[pair[1]].fragments, strict=False):
        if ours_now.id not in before:
            ids = [{number for file in each.files for number in file.field_ids} for each in (ours_now, theirs_now)]
            if ids[0] < ids[1]:
                other.unwritten.add(ours_now.id)
                counted["an upsert leaves out columns that did not come"] += 1


def _decode_lineage(
    messages: Sequence[table_pb2.Manifest], steps: Sequence[Mapping[int, int]], counted: Counter[str]
) -> None:
    """Ids one by one, and the steps that made versions, in place of the segments that hold them."""
    for pair in zip(*(message.fragments for message in messages), strict=False):
        for name in _SEQUENCES:
            if getattr(pair[0], name) != getattr(pair[1], name):
                counted["ids or versions in other segments"] += 1
                for fragment, made_by in zip(pair, steps, strict=True):
                    setattr(fragment, name, str(_decoded(fragment, name, made_by)).encode())


def _decoded(fragment: table_pb2.DataFragment, name: str, made_by: Mapping[int, int]) -> list[int]:
    data, rows = getattr(fragment, name), fragment.physical_rows
    if name == _ROW_IDS:
        return list(map(int, RowIdSequence.decode(data, rows=rows, path=name).to_numpy()))
    return [made_by[int(each)] for each in RowVersions.decode(data, rows=rows, path="", field=name).to_numpy()]


_ROW_IDS = "inline_row_ids"
_SEQUENCES = (_ROW_IDS, "inline_created_at_versions", "inline_last_updated_at_versions")


def _number_fields_anew(message: table_pb2.Manifest) -> None:
    """In the order of the schema, then of the files."""
    numbers = {-1: -1, -2: -2}
    for node in message.fields:
        node.id = numbers.setdefault(node.id, len(numbers))
        node.parent_id = numbers.setdefault(node.parent_id, len(numbers))
    for fragment in message.fragments:
        for file in fragment.files:
            file.fields[:] = sorted(numbers.setdefault(number, len(numbers)) for number in file.fields)


def _number_fragments_anew(message: table_pb2.Manifest) -> None:
    message.ClearField("max_fragment_id")
    for place, fragment in enumerate(message.fragments):
        fragment.id = place

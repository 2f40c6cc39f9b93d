"""Do the fragments that a change brings fit the table that they join? Asked of the schema they will be read by, and of
the files that are there already.

Here is only what reading them would trip over, or would count twice. That a fragment is whole in itself is
`invariants.py`'s to say; that its files exist is checked before a commit begins. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from lance_core.errors import Corrupt, InvalidInput, Unsupported
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.schema import TableSchema
from lance_core.validation import STABLE_ROW_IDS_ADVICE

_SEARCHES_MAX = 32
"""Up to here looking for each name in the manifest's bytes is cheaper than to parse all that it names."""
_FileKey: TypeAlias = tuple[str, int | None]


def check_schema(schema: TableSchema) -> None:
    """It can be read back, and its keys be keys."""
    schema.check_keys()
    try:
        decoded = TableSchema.decode(schema.encode(), {})
        decoded.arrow  # noqa: B018 - that there is one is the question
    except (Corrupt, Unsupported) as error:
        raise InvalidInput(f"no table can have this schema: {error}") from error


def check_no_row_ids(fragments: Iterable[Fragment]) -> None:
    """For a table without stable row ids. The next writer would take them for a sign that it has them, and then every
    other fragment would lack its own."""
    for fragment in fragments:
        if fragment.message.WhichOneof("row_id_sequence") is not None:
            raise InvalidInput(f"{_describe_fragment(fragment)} brings stable row ids, and {STABLE_ROW_IDS_ADVICE}")


def check_fields(fragments: Sequence[Fragment], schema: TableSchema) -> None:
    """Each stores fields of the table only, and every column that may not be null."""
    known = {node.id for top in schema.fields for node in top.walk()}
    needed = {top.name: {node.id for node in top.walk()} for top in schema.fields if not top.nullable}
    judged: set[tuple[tuple[int, ...], ...]] = set()
    for fragment in fragments:
        listed = tuple(file.field_ids for file in fragment.files)
        if listed in judged:
            continue  # thousands of fragments have one layout
        judged.add(listed)
        live = {field_id for ids in listed for field_id in ids if field_id >= 0}
        if unknown := live - known:
            raise InvalidInput(
                f"{_describe_fragment(fragment)} stores field {min(unknown)}, and the table has no such field; write its files by "
                "the schema of the table they are to join"
            )
        for name, ids in needed.items():
            if not ids & live:
                raise InvalidInput(
                    f"{_describe_fragment(fragment)} does not store column {name!r}, which is not nullable; write it with that "
                    "column"
                )


def check_files_once(fragments: Sequence[Fragment], head: Manifest | None) -> None:
    """No file is named twice, here or by the version that these fragments are added to: its rows would be doubled."""
    arriving: set[_FileKey] = set()
    for place in _file_keys(fragments):
        if place in arriving:
            raise InvalidInput(f"data file {place[0]} is named twice in one change; its rows would be there twice")
        arriving.add(place)
    if head is None or not _may_reference(head, arriving):
        return
    if again := arriving.intersection(_file_keys(head.fragments)):
        raise InvalidInput(
            f"data file {min(again)[0]} is part of version {head.version} already; its rows would be there twice. "
            "Commit only what was newly written"
        )


def _may_reference(head: Manifest, places: set[_FileKey]) -> bool:
    """False only if the manifest names none of them; its inline transaction may, without doubling anything."""
    if len(places) > _SEARCHES_MAX:
        return True
    data = head.encode()
    return any(path.encode() in data for path, _base in places)


def _file_keys(fragments: Sequence[Fragment]) -> Iterator[_FileKey]:
    return ((file.path, file.base_id) for fragment in fragments for file in fragment.files)


def _describe_fragment(fragment: Fragment) -> str:
    files: tuple[DataFile, ...] = fragment.files
    return f"the fragment of {files[0].path}" if files else "a fragment without files"

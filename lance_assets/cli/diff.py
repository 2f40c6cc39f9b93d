"""`lance-assets diff URI@a URI@b`: compares the manifests of two versions: columns, rows, fragments, indices,
settings.

Fields are matched by id, so that a renamed column is one change; fragments are matched by id and by their data files.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from lance_assets.cli import EXIT_FOUND, EXIT_OK, printing
from lance_assets.cli.indices import index_states
from lance_assets.cli.show import column_types
from lance_assets.cli.table_names import TABLE_HELP, open_named
from lance_assets.common.text import format_count
from lance_assets.lineage.ancestry_reader import origin_of
from lance_assets.lineage.model import VersionName
from lance_assets.lineage.render import display_name
from lance_core import InvalidInput, Table
from lance_core.operations import Fragment
from lance_core.shell import Access

HELP = "compare two versions: columns, rows, fragments, indices, settings"
_LISTED_MAX = 20


@dataclass(frozen=True, slots=True)
class ItemChange:
    """Change of one item. `before` is `None` if it was added, `after` if it was removed. The field names are JSON
    keys."""

    name: str
    before: str | None
    after: str | None
    renamed_to: str | None = None

    def __str__(self) -> str:
        if self.renamed_to is not None:
            return f"~ {self.name} -> {self.renamed_to}" + (f"  {self._change}" if self.before != self.after else "")
        if self.before is None:
            return f"+ {self.name}  {self.after}".rstrip()
        if self.after is None:
            return f"- {self.name}  {self.before}".rstrip()
        return f"~ {self.name}  {self._change}"

    @property
    def _change(self) -> str:
        return f"{self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class FragmentChanges:
    """Differences between the fragments of two versions. The field names are JSON keys."""

    added: int
    added_rows: int
    removed: int
    removed_rows: int
    deleted_rows: int
    """Rows of common fragments that only the later version marks as deleted."""
    with_deletions: int
    other_files: int
    """Common fragments with different data files: columns were added or rewritten."""
    same: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences between two versions."""

    before: VersionName
    after: VersionName
    rows_before: int
    rows_after: int
    columns: tuple[ItemChange, ...]
    fragments: FragmentChanges
    indices: tuple[ItemChange, ...]
    settings: tuple[ItemChange, ...]

    @property
    def is_empty(self) -> bool:
        fragments = self.fragments
        has_fragment_changes = (
            fragments.added
            or fragments.removed
            or fragments.with_deletions
            or fragments.other_files
            or fragments.deleted_rows
        )
        return not (self.columns or has_fragment_changes or self.indices or self.settings)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="URI@A", help=TABLE_HELP)
    parser.add_argument(
        "after", metavar="URI@B", nargs="?",
        help="the other version; @B alone names a version of the same table (default: compare URI@A with its parent)",
    )  # fmt: skip
    parser.add_argument("--exit-code", action="store_true", help="exit with 1 if the versions differ")


def run(arguments: argparse.Namespace, access: Access) -> int:
    difference = compare_versions(*_versions(arguments, access))
    if arguments.json:
        printing.print_json(_as_json(difference))
    else:
        printing.print_text(_as_text(difference))
    return EXIT_FOUND if arguments.exit_code and not difference.is_empty else EXIT_OK


def _versions(arguments: argparse.Namespace, access: Access) -> tuple[Table, Table]:
    first = open_named(arguments.before, access)
    text: str | None = arguments.after
    if text is not None:
        return first.table, open_named(f"{first.parsed.uri}{text}" if text.startswith("@") else text, access).table
    parent = origin_of(first.table).parent
    if parent is None:
        raise InvalidInput(
            f"{display_name(VersionName(first.table.uri, first.table.version))} has no parent; name two versions"
        )
    return first.table.at(parent), first.table


def compare_versions(before: Table, after: Table) -> Difference:
    return Difference(
        before=VersionName(before.uri, before.version),
        after=VersionName(after.uri, after.version),
        rows_before=before.count_rows(),
        rows_after=after.count_rows(),
        columns=tuple(_column_changes(before, after)),
        fragments=_fragment_changes(before, after),
        indices=tuple(_text_changes(_index_texts(before), _index_texts(after))),
        settings=tuple(_text_changes(_setting_texts(before), _setting_texts(after))),
    )


def _column_changes(before: Table, after: Table) -> Iterator[ItemChange]:
    """Yield the changes of columns, matched by field id within one table and by name between two tables."""
    old_ids, new_ids = ({field.name: field.id for field in table.manifest.schema.fields} for table in (before, after))
    old, new = (
        {name: _column_text(kind, nullable) for name, kind, nullable in column_types(table)}
        for table in (before, after)
    )
    renamed = {}
    if before.id == after.id:
        names = {field_id: name for name, field_id in new_ids.items()}
        renamed = {
            name: names[field_id]
            for name, field_id in old_ids.items()
            if name not in new_ids and field_id in names and names[field_id] not in old_ids
        }
    for name, text in old.items():
        if name in renamed:
            yield ItemChange(name, text, new[renamed[name]], renamed_to=renamed[name])
        elif name not in new:
            yield ItemChange(name, text, None)
        elif text != new[name]:
            yield ItemChange(name, text, new[name])
    for name, text in new.items():
        if name not in old and name not in renamed.values():
            yield ItemChange(name, None, text)


def _column_text(kind: str, nullable: bool) -> str:
    return kind if nullable else f"{kind} not null"


def _fragment_changes(before: Table, after: Table) -> FragmentChanges:
    old = {fragment.id: fragment for fragment in before.fragments}
    new = {fragment.id: fragment for fragment in after.fragments}
    is_same_table = before.id is not None and before.id == after.id
    common = [
        (old[fragment_id], new[fragment_id])
        for fragment_id in old.keys() & new.keys()
        if is_same_table or _share_files(old[fragment_id], new[fragment_id])
    ]
    common_ids = {fragment.id for fragment, _ in common}
    removed = [fragment for fragment in old.values() if fragment.id not in common_ids]
    added = [fragment for fragment in new.values() if fragment.id not in common_ids]
    return FragmentChanges(
        added=len(added),
        added_rows=sum(fragment.live_rows for fragment in added),
        removed=len(removed),
        removed_rows=sum(fragment.live_rows for fragment in removed),
        deleted_rows=sum(one.live_rows - other.live_rows for one, other in common),
        with_deletions=sum(_deletion_path(one) != _deletion_path(other) for one, other in common),
        other_files=sum(_file_paths(one) != _file_paths(other) for one, other in common),
        same=sum(
            _file_paths(one) == _file_paths(other) and _deletion_path(one) == _deletion_path(other)
            for one, other in common
        ),
    )


def _share_files(one: Fragment, other: Fragment) -> bool:
    return bool(_file_paths(one) & _file_paths(other))


def _file_paths(fragment: Fragment) -> frozenset[str]:
    return frozenset(file.path for file in fragment.files)


def _deletion_path(fragment: Fragment) -> str | None:
    return fragment.deletion_file.path if fragment.deletion_file else None


def _index_texts(table: Table) -> dict[str, str]:
    return {
        state.name: f"{state.kind} on {', '.join(state.columns)}, "
        + ("covers unknown" if state.covered is None else f"covers {format_count(state.covered, 'fragment')}")
        for state in index_states(table)
    }


def _setting_texts(table: Table) -> dict[str, str]:
    texts = {f"config {key}": value for key, value in table.config.items()}
    texts |= {f"metadata {key}": value for key, value in table.metadata.items()}
    texts["format"] = str(table.manifest.storage_version)
    return texts


def _text_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[ItemChange]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield ItemChange(name, before.get(name), after.get(name))


def _as_text(difference: Difference) -> Iterator[str]:
    yield f"- {printing.printable(display_name(difference.before))}"
    yield f"+ {printing.printable(display_name(difference.after))}"
    if difference.is_empty:
        yield "\nno difference"
        return
    change = difference.rows_after - difference.rows_before
    yield f"\nrows       {difference.rows_before:,} -> {difference.rows_after:,}" + (
        f" ({change:+,})" if change else ""
    )
    yield from _section_lines("fragments", [*_fragment_lines(difference.fragments)])
    yield from _section_lines("columns", difference.columns)
    yield from _section_lines("indices", difference.indices)
    yield from _section_lines("settings", difference.settings)


def _fragment_lines(changes: FragmentChanges) -> Iterator[str]:
    if changes.added:
        yield f"+ {format_count(changes.added, 'fragment')}, {format_count(changes.added_rows, 'row')}"
    if changes.removed:
        yield f"- {format_count(changes.removed, 'fragment')}, {format_count(changes.removed_rows, 'row')}"
    if changes.with_deletions:
        rows = format_count(abs(changes.deleted_rows), "row")
        effect = "deleted" if changes.deleted_rows >= 0 else "restored"
        yield f"~ {format_count(changes.with_deletions, 'fragment')} with {rows} {effect}"
    if changes.other_files:
        yield f"~ {format_count(changes.other_files, 'fragment')} with other files"
    if changes.same:
        yield f"= {format_count(changes.same, 'fragment')} the same"


def _section_lines(title: str, changes: Sequence[object]) -> Iterator[str]:
    shown = [printing.printable(str(each)) for each in changes]
    for number, line in enumerate(
        printing.limit_lines(shown, _LISTED_MAX, lambda more: f"… and {more:,} more, with --json")
    ):
        yield f"{title if not number else '':<9}  {line}"


def _as_json(difference: Difference) -> dict[str, object]:
    return {
        "before": {"uri": difference.before.uri, "version": difference.before.version, "rows": difference.rows_before},
        "after": {"uri": difference.after.uri, "version": difference.after.version, "rows": difference.rows_after},
        "differs": not difference.is_empty,
        "columns": [asdict(each) for each in difference.columns],
        "fragments": asdict(difference.fragments),
        "indices": [asdict(each) for each in difference.indices],
        "settings": [asdict(each) for each in difference.settings],
    }

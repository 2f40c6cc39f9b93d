"""`lance-assets diff URI@a URI@b`: what differs between two versions, by their manifests: columns, rows, fragments,
indices, settings.

Fields are told apart by their ids, so that a renamed column is one; fragments by their ids and the files they have.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from lance_assets.cli import EXIT_OK, EXIT_FOUND, printing
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

HELP = "what differs between two versions: columns, rows, fragments, indices, settings"
_LISTED_MAX = 20


@dataclass(frozen=True, slots=True)
class ItemChange:
    """One thing, as it was and as it is; None where it was not, or is no more."""

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
    added: int
    added_rows: int
    removed: int
    removed_rows: int
    deleted_rows: int
    """In fragments that both have, rows that only the later one has marked as deleted."""
    with_deletions: int
    other_files: int
    """Fragments that both have, with other data files: columns were added, or rewritten."""
    same: int


@dataclass(frozen=True, slots=True)
class Difference:
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
        these = self.fragments
        moved = these.added or these.removed or these.with_deletions or these.other_files or these.deleted_rows
        return not (self.columns or moved or self.indices or self.settings)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="URI@A", help=TABLE_HELP)
    parser.add_argument(
        "after", metavar="URI@B", nargs="?",
        help="the same, or @B alone for another version of that table; without it, URI@A is compared with its parent",
    )  # fmt: skip
    parser.add_argument("--exit-code", action="store_true", help="end with 1 where something differs")


def run(arguments: argparse.Namespace, access: Access) -> int:
    told = compare_versions(*_versions(arguments, access))
    if arguments.json:
        printing.print_json(_as_json(told))
    else:
        printing.print_text(_as_text(told))
    return EXIT_FOUND if arguments.exit_code and not told.is_empty else EXIT_OK


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
    """By the ids of their fields where it is one table, by their names where it is not."""
    was, now = ({field.name: field.id for field in each.manifest.schema.fields} for each in (before, after))
    old, new = ({name: _column_text(kind, null) for name, kind, null in column_types(each)} for each in (before, after))
    renamed = {}
    if before.id == after.id:
        by_id = {field_id: name for name, field_id in now.items()}
        renamed = {name: by_id[i] for name, i in was.items() if name not in now and i in by_id and by_id[i] not in was}
    for name, told in old.items():
        if name in renamed:
            yield ItemChange(name, told, new[renamed[name]], renamed_to=renamed[name])
        elif name not in new:
            yield ItemChange(name, told, None)
        elif told != new[name]:
            yield ItemChange(name, told, new[name])
    for name, told in new.items():
        if name not in old and name not in renamed.values():
            yield ItemChange(name, None, told)


def _column_text(kind: str, nullable: bool) -> str:
    return kind if nullable else f"{kind} not null"


def _fragment_changes(before: Table, after: Table) -> FragmentChanges:
    old = {fragment.id: fragment for fragment in before.fragments}
    new = {fragment.id: fragment for fragment in after.fragments}
    is_one = before.id is not None and before.id == after.id
    both = [(old[each], new[each]) for each in old.keys() & new.keys() if is_one or _share_files(old[each], new[each])]
    shared = {one.id for one, _ in both}
    gone = [each for each in old.values() if each.id not in shared]
    came = [each for each in new.values() if each.id not in shared]
    deleted = [(one.live_rows - other.live_rows, _deletion_path(one) != _deletion_path(other)) for one, other in both]
    moved = sum(_file_paths(one) != _file_paths(other) for one, other in both)
    marked = sum(is_marked for _, is_marked in deleted)
    return FragmentChanges(
        added=len(came),
        added_rows=sum(each.live_rows for each in came),
        removed=len(gone),
        removed_rows=sum(each.live_rows for each in gone),
        deleted_rows=sum(rows for rows, _ in deleted),
        with_deletions=marked,
        other_files=moved,
        same=sum(
            _file_paths(one) == _file_paths(other) and _deletion_path(one) == _deletion_path(other)
            for one, other in both
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
    told = {f"config {key}": value for key, value in table.config.items()}
    told |= {f"metadata {key}": value for key, value in table.metadata.items()}
    told["format"] = str(table.manifest.storage_version)
    return told


def _text_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[ItemChange]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield ItemChange(name, before.get(name), after.get(name))


def _as_text(told: Difference) -> Iterator[str]:
    yield f"- {printing.printable(display_name(told.before))}"
    yield f"+ {printing.printable(display_name(told.after))}"
    if told.is_empty:
        yield "\nno difference"
        return
    change = told.rows_after - told.rows_before
    yield f"\nrows       {told.rows_before:,} -> {told.rows_after:,}" + (f" ({change:+,})" if change else "")
    yield from _section_lines("fragments", [*_fragment_lines(told.fragments)])
    yield from _section_lines("columns", told.columns)
    yield from _section_lines("indices", told.indices)
    yield from _section_lines("settings", told.settings)


def _fragment_lines(these: FragmentChanges) -> Iterator[str]:
    if these.added:
        yield f"+ {format_count(these.added, 'fragment')}, {format_count(these.added_rows, 'row')}"
    if these.removed:
        yield f"- {format_count(these.removed, 'fragment')}, {format_count(these.removed_rows, 'row')}"
    if these.with_deletions:
        what = "deleted" if these.deleted_rows >= 0 else "back"
        yield f"~ {format_count(these.with_deletions, 'fragment')} with {format_count(abs(these.deleted_rows), 'row')} {what}"
    if these.other_files:
        yield f"~ {format_count(these.other_files, 'fragment')} with other files"
    if these.same:
        yield f"= {format_count(these.same, 'fragment')} the same"


def _section_lines(title: str, changes: Sequence[object]) -> Iterator[str]:
    shown = [printing.printable(str(each)) for each in changes]
    for number, line in enumerate(
        printing.limit_lines(shown, _LISTED_MAX, lambda more: f"… and {more:,} more, with --json")
    ):
        yield f"{title if not number else '':<9}  {line}"


def _as_json(told: Difference) -> dict[str, object]:
    return {
        "before": {"uri": told.before.uri, "version": told.before.version, "rows": told.rows_before},
        "after": {"uri": told.after.uri, "version": told.after.version, "rows": told.rows_after},
        "differs": not told.is_empty,
        "columns": [asdict(each) for each in told.columns],
        "fragments": asdict(told.fragments),
        "indices": [asdict(each) for each in told.indices],
        "settings": [asdict(each) for each in told.settings],
    }

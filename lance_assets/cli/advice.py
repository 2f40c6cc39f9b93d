"""What would do a table good, and the call that does it: small files, deleted rows, old versions, indices that lag.

Compaction itself is asked what it would do, so that nothing is advised that would change nothing. A question that
cannot be answered is left out: what is wrong with a table is said by fsck.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from lance_assets.cli.indices import index_states
from lance_assets.common.text import format_count
from lance_assets.lineage.render import without_credentials
from lance_core import LanceError, Table
from lance_core.shell import Access
from lance_core.tasks.compact import groups_to_compact
from lance_core.tasks.driver import TableRef

_KEEP_FOR, _KEEP_VERSIONS = timedelta(days=14), 10
"""What cleanup removes and keeps, unless it is told otherwise."""
_NAMED_MAX = 5
_SEGMENTS_MAX = 16
_V2_NAME_DIGITS = 20
"""Digits of a manifest's name, since they sort with the newest first."""


@dataclass(frozen=True, slots=True)
class Advice:
    rule: str
    """A short name that stays, for programs."""
    problem: str
    remedy: str
    is_actionable: bool = True
    """Whether somebody had better do it; what is False is only worth knowing."""


def collect_advice(table: Table, access: Access, *, now: datetime, old_versions: bool) -> Iterator[Advice]:
    """`table` is at its newest version. Looking for old versions reads all of them."""
    opened = f'Table.open("{without_credentials(table.uri)}")'
    yield from _advise_compaction(table, access, opened)
    yield from _advise_indices(table, opened)
    if old_versions:
        yield from _advise_cleanup(table, opened, now)
    yield from _advise_migration(table, opened)


def _advise_compaction(table: Table, access: Access, opened: str) -> Iterator[Advice]:
    where = TableRef(table.uri, storage_options=access.storage_options, manifest_store=access.manifest_store)
    try:
        groups = groups_to_compact(where)
    except LanceError:
        return
    if not groups:
        return
    chosen = [fragment for group in groups for fragment in group]
    deleted = sum(each.physical_rows - each.live_rows for each in chosen)
    total = sum(each.physical_rows for each in table.fragments)
    rows = (
        f", {format_count(deleted, 'deleted row')} among them ({deleted / total:.0%} of all)"
        if deleted and total
        else ""
    )
    yield Advice(
        "small_files_or_deletions",
        f"{len(chosen):,} of {format_count(len(table.fragments), 'fragment')} are small, or have many deleted rows{rows}; "
        f"compaction writes them anew as {format_count(len(groups), 'group')}",
        f'{opened}.compact(), or on Spark: compact(spark, "{without_credentials(table.uri)}")',
    )


def _advise_indices(table: Table, opened: str) -> Iterator[Advice]:
    for state in index_states(table):
        if state.why_unused is not None and state.covered != 0:
            yield Advice(
                "index_unused",
                f"the index {state.name!r} on {', '.join(state.columns)} {state.why_unused}; no query here uses it",
                f"{opened}.drop_index({state.name!r}) and create_index, once nobody else needs it"
                if state.is_known
                else "nothing needs to be done where others use it",
                is_actionable=state.is_known,
            )
        elif state.segments >= _SEGMENTS_MAX:
            yield Advice(
                "index_segments",
                f"the index {state.name!r} has {state.segments:,} segments, each of which a query looks into",
                f'{opened}.optimize_indices(merge="all")',
            )
        if state.uncovered_rows:
            yield Advice(
                "index_lags",
                f"the index {state.name!r} on {', '.join(state.columns)} does not cover "
                f"{format_count(state.uncovered_rows, 'row')} in {format_count(state.uncovered, 'fragment')}; queries scan them",
                f'{opened}.optimize_indices(), or on Spark: optimize_indices(spark, "{without_credentials(table.uri)}")'
                if state.is_known
                else f'lance.dataset("{without_credentials(table.uri)}").optimize.optimize_indices(), of pylance',
            )


def _advise_cleanup(table: Table, opened: str, now: datetime) -> Iterator[Advice]:
    """By what versions say of their age. A dry run of cleanup knows better, and leaves a file on the store for it."""
    try:
        infos = table.versions()
        tagged = {
            tag.version: f"the tag {name!r}" for name, tag in table.tags.list().items() if tag.branch == table.branch
        }
        begun = {
            branch.parent_version: f"the branch {name!r}"
            for name, branch in table.branches.list().items()
            if branch.parent_branch == table.branch
        }
    except LanceError:
        return
    named = tagged | begun
    old = [info for info in infos[:-_KEEP_VERSIONS] if now - info.timestamp > _KEEP_FOR]
    free = [info for info in old if info.version not in named]
    if free:
        yield Advice(
            "old_versions",
            f"{format_count(len(free), 'version')} older than {_KEEP_FOR.days} days and not among the newest {_KEEP_VERSIONS}, which no tag "
            f"and no branch names; the oldest is version {free[0].version}, of {free[0].timestamp:%Y-%m-%d}",
            f"{opened}.cleanup(), after a look at what cleanup(dry_run=True) would remove",
        )
    if kept := [named[info.version] for info in old if info.version in named]:
        shown = ", ".join(kept[:_NAMED_MAX]) + (", …" if len(kept) > _NAMED_MAX else "")
        yield Advice(
            "old_versions_kept",
            f"old versions stay because of {shown}",
            "delete what is no longer needed, and they go with the next cleanup",
            is_actionable=False,
        )


def _advise_migration(table: Table, opened: str) -> Iterator[Advice]:
    name = table.manifest.path.rpartition("/")[2].partition(".")[0]
    if len(name) < _V2_NAME_DIGITS:
        yield Advice(
            "old_manifest_names",
            "its manifests have names of the old scheme: to find the newest version takes a listing of all of them",
            f"{opened}.migrate_manifest_names(), while no writer is at work",
            is_actionable=False,
        )
    if table.manifest.storage_version.is_legacy:
        yield Advice(
            "old_format",
            "its data files have the format of 2023, which newer libraries will stop reading",
            f"write its rows to a new table: Table.create(uri, {opened}.to_batches())",
        )
    if table.id is None:
        yield Advice(
            "no_identity",
            "it has no identity: its first version is gone, and it is another library's. A table that took its place "
            "could not be told from it",
            "nothing needs to be done as long as it stays where it is",
            is_actionable=False,
        )

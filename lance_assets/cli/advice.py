"""Advice: maintenance that would improve a table, and the call that performs it: small files, deleted rows, old
versions, lagging indices.

The compaction planner decides whether compaction is advised, so a recommended compaction always changes the table.
Advice that needs an unreadable file is omitted, since `fsck` reports the problems of a table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from lance_assets.cli.indices import index_states
from lance_assets.common.text import format_count
from lance_assets.lineage.render import without_credentials
from lance_core import LanceError, Table
from lance_core.shell import Access
from lance_core.tasks.compaction.compact import groups_to_compact
from lance_core.tasks.driver import TableRef

_KEEP_FOR, _KEEP_VERSIONS = timedelta(days=14), 10
"""Defaults of `cleanup`."""
_NAMED_MAX = 5
_SEGMENTS_MAX = 16
_V2_NAME_DIGITS = 20
"""Digits in a manifest name of the V2 naming scheme, which sorts the newest version first."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Recommendation with the call that carries it out."""

    rule: str
    """Stable short name, for programs."""
    problem: str
    remedy: str
    is_actionable: bool = True
    """False if it is only for information."""


def collect_advice(table: Table, access: Access, *, now: datetime, old_versions: bool) -> Iterator[Advice]:
    """Yield the advice for the newest version of a table. `old_versions` includes advice that reads all versions."""
    open_call = f'Table.open("{without_credentials(table.uri)}")'
    yield from _advise_compaction(table, access, open_call)
    yield from _advise_indices(table, open_call)
    if old_versions:
        yield from _advise_cleanup(table, open_call, now)
    yield from _advise_migration(table, open_call)


def _advise_compaction(table: Table, access: Access, open_call: str) -> Iterator[Advice]:
    reference = TableRef(
        table.uri,
        storage_options=access.storage_options,
        manifest_store=access.manifest_store,
        verify=access.verify,
        trusted=access.trusted,
    )
    try:
        groups = groups_to_compact(reference)
    except LanceError:
        return
    if not groups:
        return
    fragments = [fragment for group in groups for fragment in group]
    deleted = sum(each.physical_rows - each.live_rows for each in fragments)
    total = sum(each.physical_rows for each in table.fragments)
    rows = (
        f", {format_count(deleted, 'deleted row')} among them ({deleted / total:.0%} of all)"
        if deleted and total
        else ""
    )
    yield Advice(
        "small_files_or_deletions",
        f"{len(fragments):,} of {format_count(len(table.fragments), 'fragment')} are small, or have many deleted rows"
        f"{rows}; compaction rewrites them as {format_count(len(groups), 'group')}",
        f'{open_call}.compact(), or on Spark: compact(spark, "{without_credentials(table.uri)}")',
    )


def _advise_indices(table: Table, open_call: str) -> Iterator[Advice]:
    uri = without_credentials(table.uri)
    for state in index_states(table):
        if state.why_unused is not None and state.covered != 0:
            yield Advice(
                "index_unused",
                f"the index {state.name!r} on {', '.join(state.columns)} {state.why_unused}; no query here uses it",
                f"{open_call}.drop_index({state.name!r}) and create_index, unless another program uses the index"
                if state.is_known
                else "no action is needed if another program uses it",
                is_actionable=state.is_known,
            )
        elif state.segments >= _SEGMENTS_MAX:
            yield Advice(
                "index_segments",
                f"the index {state.name!r} has {state.segments:,} segments, and queries search each of them",
                f'{open_call}.optimize_indices(merge="all")',
            )
        if state.uncovered_rows:
            yield Advice(
                "index_lags",
                f"the index {state.name!r} on {', '.join(state.columns)} does not cover "
                f"{format_count(state.uncovered_rows, 'row')} in {format_count(state.uncovered, 'fragment')}; queries "
                "scan them",
                f'{open_call}.optimize_indices(), or on Spark: optimize_indices(spark, "{uri}")'
                if state.is_known
                else f'with pylance: lance.dataset("{uri}").optimize.optimize_indices()',
            )


def _advise_cleanup(table: Table, open_call: str, now: datetime) -> Iterator[Advice]:
    """Yield advice from the recorded ages of versions. A dry run of cleanup would be more exact, but writes a file to
    the store."""
    try:
        infos = table.versions()
        tagged = {
            tag.version: f"the tag {name!r}" for name, tag in table.tags.list().items() if tag.branch == table.branch
        }
        forked = {
            branch.parent_version: f"the branch {name!r}"
            for name, branch in table.branches.list().items()
            if branch.parent_branch == table.branch
        }
    except LanceError:
        return
    referenced = tagged | forked
    old = [info for info in infos[:-_KEEP_VERSIONS] if now - info.timestamp > _KEEP_FOR]
    removable = [info for info in old if info.version not in referenced]
    if removable:
        yield Advice(
            "old_versions",
            f"{format_count(len(removable), 'version')} older than {_KEEP_FOR.days} days and not among the newest "
            f"{_KEEP_VERSIONS}, without a tag or a branch; the oldest is version {removable[0].version}, of "
            f"{removable[0].timestamp:%Y-%m-%d}",
            f"{open_call}.cleanup(); cleanup(dry_run=True) shows what it would remove",
        )
    if references := [referenced[info.version] for info in old if info.version in referenced]:
        shown = ", ".join(references[:_NAMED_MAX]) + (", …" if len(references) > _NAMED_MAX else "")
        yield Advice(
            "old_versions_kept",
            f"old versions are retained because of {shown}",
            "delete the ones that are no longer needed, and the next cleanup removes the versions",
            is_actionable=False,
        )


def _advise_migration(table: Table, open_call: str) -> Iterator[Advice]:
    name = table.manifest.path.rpartition("/")[2].partition(".")[0]
    if len(name) < _V2_NAME_DIGITS:
        yield Advice(
            "old_manifest_names",
            "its manifests have names of the old scheme, so finding the newest version lists all of them",
            f"{open_call}.migrate_manifest_names(), while no program writes the table",
            is_actionable=False,
        )
    if table.manifest.storage_version.is_legacy:
        yield Advice(
            "old_format",
            "its data files have the format of 2023, which newer libraries will stop reading",
            f"write its rows to a new table: Table.create(uri, {open_call}.to_batches())",
        )
    if table.id is None:
        yield Advice(
            "no_identity",
            "it has no identity, because its first version no longer exists and another library created it; a table "
            "that replaced it could not be distinguished from it",
            "no action is needed unless another table is created at this location",
            is_actionable=False,
        )

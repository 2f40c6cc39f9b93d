"""What is due for a table, and why. Pure: a survey, a policy and the versions that others need in, sentences out.

Only what an upkeep would change is counted: small fragments that can be joined, deleted rows in fragments that would be
written anew, rows that an index would cover, segments that would become one, versions that would go. So a table that
was just looked after is never due again by what is left.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from lance_assets.maintenance.policy import Maintenance
from lance_core import IndexSurvey, Survey


@dataclass(frozen=True, slots=True)
class Plan:
    """Reasons as sentences; none, not due. In the order in which it is done: a compaction moves rows from under
    indices, and a cleanup takes what both leave behind."""

    compact: tuple[str, ...]
    index: tuple[str, ...]
    clean: tuple[str, ...]
    key: str
    """The same for the same work on the same table: done once, it is not worth doing again."""

    @property
    def is_due(self) -> bool:
        return bool(self.compact or self.index or self.clean)

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.compact + self.index + self.clean


def plan(found: Survey, policy: Maintenance, *, needed: Collection[int] = ()) -> Plan:
    """`needed` are versions that stay for others."""
    going = [version for version in found.outlived if version not in needed]
    compact, clean = tuple(_to_compact(found, policy)), tuple(_to_clean(going, policy))
    index = tuple(_to_index(found, policy))
    done = [*(["compact"] if compact else []), *(["index"] if index else []), *([f"clean{going[-1]}"] if clean else [])]
    return Plan(compact, index, clean, "-".join([f"v{found.version}", *done]))


def shape(found: Survey) -> str:
    """In a sentence, for a table that nothing is due for."""
    least = max(found.indices, key=lambda each: each.uncovered_rows, default=None)
    indices = f"; its index {least.name!r} leaves {_count(least.uncovered_rows, 'row')} uncovered" if least else ""
    return (
        f"version {found.version} has {_count(found.rows, 'row')} in {_count(found.fragments, 'fragment')}, of which "
        f"{found.small_fragments} could be joined{indices}; {_count(len(found.outlived), 'version')} could go"
    )


def _to_compact(found: Survey, policy: Maintenance) -> list[str]:
    reasons = []
    bound = policy.compact_when_small_files
    # A single one that is left over is nobody's neighbour.
    if bound is not None and found.small_fragments >= max(bound, 2):
        reasons.append(
            f"{found.small_fragments} fragments of fewer than {policy.small_rows:,} rows can be joined; the bound is "
            f"{bound}"
        )
    stored = found.rows + found.deleted_rows
    share = found.deleted_rows_compacted / stored if stored else 0.0
    if policy.compact_when_deleted is not None and share >= policy.compact_when_deleted:
        reasons.append(
            f"{share:.0%} of the stored rows are deleted ({found.deleted_rows_compacted:,} of {stored:,}); the bound "
            f"is {policy.compact_when_deleted:.0%}"
        )
    return reasons


def _to_index(found: Survey, policy: Maintenance) -> list[str]:
    return [reason for each in found.indices if (reason := _why_index(each, policy))] if policy.indexes else []


def _why_index(index: IndexSurvey, policy: Maintenance) -> str | None:
    """The first reason that there is for it."""
    name, rows = f"the index {index.name!r} on {index.column}", index.uncovered_rows
    share, most, segments = policy.index_when_uncovered, policy.index_when_uncovered_rows, policy.index_when_segments
    uncovered = f"{name} leaves {_count(rows, 'row')} of {index.rows:,} uncovered"
    if share is not None and rows and rows >= share * index.rows:
        return f"{uncovered} ({rows / index.rows:.0%}); the bound is {share:.0%}"
    if most is not None and rows >= most:
        return f"{uncovered}; the bound is {_count(most, 'row')}"
    # One alone has nothing to be joined with.
    if segments is not None and index.joined_segments >= max(segments, 2):
        return f"{name} has {index.joined_segments} segments that could become one; the bound is {segments}"
    if index.behind:
        return f"{name} has {_count(index.behind, 'segment')} whose rows a compaction moved"
    return None


def _to_clean(going: Sequence[int], policy: Maintenance) -> list[str]:
    bound = policy.clean_when_versions
    if bound is None or len(going) < bound:
        return []
    which = f"{_count(len(going), 'version')} (up to {going[-1]})"
    return [f"{which} outlived {length(policy.keep_for)} and the newest {policy.keep_versions}; the bound is {bound}"]


def length(time: timedelta) -> str:
    """
    >>> length(timedelta(days=14)), length(timedelta(hours=36)), length(timedelta(0))
    ('14 days', '1 day, 12:00:00', '0:00:00')
    """
    return str(time).removesuffix(", 0:00:00")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"

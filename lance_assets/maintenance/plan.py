"""Maintenance plan: decides which actions are due for a table, and why.

Pure: a survey, a policy and the pinned versions become reasons. Only what maintenance would change counts: small
fragments that can be joined, deleted rows in fragments that a compaction would rewrite, rows that an index would cover,
segments that would be merged, versions that would be removed. So a table is not due again directly after its
maintenance.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from lance_assets.common.text import format_count
from lance_assets.maintenance.policy import Maintenance
from lance_core import IndexSurvey, Survey


@dataclass(frozen=True, slots=True)
class Plan:
    """Reasons for each action as sentences; an action without reasons is not due. The actions run in this order,
    because a compaction moves rows that indices cover, and a cleanup removes files that both leave behind."""

    compact: tuple[str, ...]
    index: tuple[str, ...]
    clean: tuple[str, ...]
    key: str
    """Key of the version and the actions, by which the sensor avoids launching the same maintenance twice."""

    @property
    def is_due(self) -> bool:
        return bool(self.compact or self.index or self.clean)

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.compact + self.index + self.clean


def plan_maintenance(survey: Survey, policy: Maintenance, *, pinned: Collection[int] = ()) -> Plan:
    """Decide what is due. `pinned` are versions that other tables need."""
    expired = [version for version in survey.expired_versions if version not in pinned]
    compact, clean = tuple(_compaction_reasons(survey, policy)), tuple(_cleanup_reasons(expired, policy))
    index = tuple(_index_reasons(survey, policy))
    actions = [
        *(["compact"] if compact else []),
        *(["index"] if index else []),
        *([f"clean{expired[-1]}"] if clean else []),
    ]
    return Plan(compact, index, clean, "-".join([f"v{survey.version}", *actions]))


def describe_shape(survey: Survey) -> str:
    """Return a sentence about a table for which nothing is due."""
    worst = max(survey.indices, key=lambda index: index.uncovered_rows, default=None)
    indices = (
        f"; its index {worst.name!r} leaves {format_count(worst.uncovered_rows, 'row')} uncovered" if worst else ""
    )
    return (
        f"version {survey.version} has {format_count(survey.rows, 'row')} in "
        f"{format_count(survey.fragments, 'fragment')}, of which {survey.small_fragments} could be joined{indices}; "
        f"{format_count(len(survey.expired_versions), 'version')} could be removed"
    )


def _compaction_reasons(survey: Survey, policy: Maintenance) -> list[str]:
    reasons = []
    bound = policy.compact_when_small_files
    # A single small fragment has no neighbour to be joined with.
    if bound is not None and survey.small_fragments >= max(bound, 2):
        reasons.append(
            f"{survey.small_fragments} fragments of fewer than {policy.small_rows:,} rows can be joined; the bound is "
            f"{bound}"
        )
    stored = survey.rows + survey.deleted_rows
    share = survey.deleted_rows_compacted / stored if stored else 0.0
    if policy.compact_when_deleted is not None and share >= policy.compact_when_deleted:
        reasons.append(
            f"{share:.0%} of the stored rows are deleted ({survey.deleted_rows_compacted:,} of {stored:,}); the bound "
            f"is {policy.compact_when_deleted:.0%}"
        )
    return reasons


def _index_reasons(survey: Survey, policy: Maintenance) -> list[str]:
    return [reason for index in survey.indices if (reason := _index_reason(index, policy))] if policy.indexes else []


def _index_reason(index: IndexSurvey, policy: Maintenance) -> str | None:
    """Return the first reason to maintain an index, or `None`."""
    name, rows = f"the index {index.name!r} on {index.column}", index.uncovered_rows
    share, most, segments = policy.index_when_uncovered, policy.index_when_uncovered_rows, policy.index_when_segments
    uncovered = f"{name} leaves {format_count(rows, 'row')} of {index.rows:,} uncovered"
    if share is not None and rows and rows >= share * index.rows:
        return f"{uncovered} ({rows / index.rows:.0%}); the bound is {share:.0%}"
    if most is not None and rows >= most:
        return f"{uncovered}; the bound is {format_count(most, 'row')}"
    # A single segment has none to be merged with.
    if segments is not None and index.joined_segments >= max(segments, 2):
        return f"{name} has {index.joined_segments} segments that could be merged; the bound is {segments}"
    if index.behind:
        return f"{name} has {format_count(index.behind, 'segment')} whose rows a compaction moved"
    return None


def _cleanup_reasons(expired: Sequence[int], policy: Maintenance) -> list[str]:
    bound = policy.clean_when_versions
    if bound is None or len(expired) < bound:
        return []
    versions = f"{format_count(len(expired), 'version')} (up to {expired[-1]})"
    expired_by = f"older than {duration_text(policy.keep_for)} and not among the newest {policy.keep_versions}"
    return [f"{versions} can be removed: {expired_by}; the bound is {bound}"]


def duration_text(time: timedelta) -> str:
    """Return a duration as text; whole days are shown without a time.

    >>> duration_text(timedelta(days=14)), duration_text(timedelta(hours=36)), duration_text(timedelta(0))
    ('14 days', '1 day, 12:00:00', '0:00:00')
    """
    return str(time).removesuffix(", 0:00:00")

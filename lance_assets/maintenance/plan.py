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


def plan_maintenance(survey: Survey, policy: Maintenance, *, pinned: Collection[int] = ()) -> Plan:
    """`pinned` are versions that stay for others."""
    expired = [version for version in survey.expired_versions if version not in pinned]
    compact, clean = tuple(_compaction_reasons(survey, policy)), tuple(_cleanup_reasons(expired, policy))
    index = tuple(_index_reasons(survey, policy))
    done = [
        *(["compact"] if compact else []),
        *(["index"] if index else []),
        *([f"clean{expired[-1]}"] if clean else []),
    ]
    return Plan(compact, index, clean, "-".join([f"v{survey.version}", *done]))


def describe_shape(survey: Survey) -> str:
    """In a sentence, for a table that nothing is due for."""
    least = max(survey.indices, key=lambda each: each.uncovered_rows, default=None)
    indices = f"; its index {least.name!r} leaves {_count(least.uncovered_rows, 'row')} uncovered" if least else ""
    return (
        f"version {survey.version} has {_count(survey.rows, 'row')} in {_count(survey.fragments, 'fragment')}, of which "
        f"{survey.small_fragments} could be joined{indices}; {_count(len(survey.expired_versions), 'version')} could go"
    )


def _compaction_reasons(survey: Survey, policy: Maintenance) -> list[str]:
    reasons = []
    bound = policy.compact_when_small_files
    # A single one that is left over is nobody's neighbour.
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
    return [reason for each in survey.indices if (reason := _index_reason(each, policy))] if policy.indexes else []


def _index_reason(index: IndexSurvey, policy: Maintenance) -> str | None:
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


def _cleanup_reasons(expired: Sequence[int], policy: Maintenance) -> list[str]:
    bound = policy.clean_when_versions
    if bound is None or len(expired) < bound:
        return []
    which = f"{_count(len(expired), 'version')} (up to {expired[-1]})"
    return [
        f"{which} outlived {duration_text(policy.keep_for)} and the newest {policy.keep_versions}; the bound is {bound}"
    ]


def duration_text(time: timedelta) -> str:
    """
    >>> length(timedelta(days=14)), length(timedelta(hours=36)), length(timedelta(0))
    ('14 days', '1 day, 12:00:00', '0:00:00')
    """
    return str(time).removesuffix(", 0:00:00")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"

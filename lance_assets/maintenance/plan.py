"""What is due for a table, and why. Pure: a survey, a policy and the versions that others need in, sentences out.

Only what an upkeep would change is counted: small fragments that can be joined, deleted rows in fragments that would be
written anew, versions that would go. So a table that was just looked after is never due again by what is left.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from lance_assets.maintenance.policy import Maintenance
from lance_core import Survey


@dataclass(frozen=True, slots=True)
class Plan:
    """Reasons as sentences; none, not due. (Upkeep of indices will be a third.)"""

    compact: tuple[str, ...]
    clean: tuple[str, ...]
    key: str
    """The same for the same work on the same table: done once, it is not worth doing again."""

    @property
    def is_due(self) -> bool:
        return bool(self.compact or self.clean)

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.compact + self.clean


def plan(found: Survey, policy: Maintenance, *, needed: Collection[int] = ()) -> Plan:
    """`needed` are versions that stay for others."""
    going = [version for version in found.outlived if version not in needed]
    compact, clean = tuple(_to_compact(found, policy)), tuple(_to_clean(going, policy))
    parts = [f"v{found.version}", *(["compact"] if compact else []), *([f"clean{going[-1]}"] if clean else [])]
    return Plan(compact, clean, "-".join(parts))


def shape(found: Survey) -> str:
    """In a sentence, for a table that nothing is due for."""
    return (
        f"version {found.version} has {_count(found.rows, 'row')} in {_count(found.fragments, 'fragment')}, of which "
        f"{found.small_fragments} could be joined; {_count(len(found.outlived), 'version')} could go"
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

"""Ancestry graph: the versions that a version comes from, transitively, as a graph and as a tree of lines.

Pure: origins come from a function argument. Tables may contain anything, so a version may be its own ancestor and an
ancestry may be endless; each version is read once, up to a bound.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from lance_assets.lineage.model import AncestryKind, InputVersion, Origin, Unknown, VersionName

DEPTH_MAX = 20
VERSIONS_MAX = 1000
_CLOCK_SKEW_MAX = timedelta(minutes=5)
"""Tolerated difference between the clocks of two writers."""

ReadOrigin = Callable[[VersionName], Origin | Unknown]


class LineKind(Enum):
    """Kind of a tree line."""

    NEW = "new"
    """First line of a version; its sources are on the lines below."""
    REPEATED = "again"
    """The version already has a line further up."""
    CYCLE = "cycle"
    """The version is an ancestor of itself: this line is below its own first line."""
    TRUNCATED = "cut"
    """The origin of the version is shown, but not its sources, because of a bound."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TreeLine:
    """One line of the tree."""

    name: VersionName
    ancestry: AncestryKind | None
    """Relation to the version of the parent line; `None` for the root."""
    kind: LineKind
    origin: Origin | None
    reason: str | None
    """Reason why the version is unknown."""
    is_younger: bool
    """True if the version is younger than the one made from it: the table at this location has been replaced."""
    is_last: tuple[bool, ...]
    """For each level from the top down to this line, True if the line is the last child. Its length is the depth."""

    @property
    def depth(self) -> int:
        return len(self.is_last)


@dataclass(frozen=True, slots=True)
class Ancestry:
    """Ancestors of one version."""

    root: VersionName
    origins: Mapping[VersionName, Origin | Unknown]
    """All versions that were read, the nearest first."""
    unfollowed: frozenset[VersionName]
    """Versions whose sources exist but were not followed."""

    @property
    def is_complete(self) -> bool:
        return not self.unfollowed

    def lines(self) -> Iterator[TreeLine]:
        """Yield the tree: the root, then its sources, recursively. Each version is shown in full once, and each of
        its sources has a line below it."""
        shown: set[VersionName] = set()
        path: list[VersionName] = []
        stack: list[tuple[InputVersion | None, VersionName, tuple[bool, ...]]] = [(None, self.root, ())]
        while stack:
            source, name, last = stack.pop()
            del path[len(last) :]
            line = self._tree_line(source, name, last, path, shown)
            yield line
            shown.add(name)
            path.append(name)
            if line.kind is LineKind.NEW and line.origin is not None:
                sources = line.origin.sources
                for number, next_source in reversed([*enumerate(sources, 1)]):
                    stack.append((next_source, next_source.name, (*last, number == len(sources))))

    def _tree_line(
        self,
        source: InputVersion | None,
        name: VersionName,
        last: tuple[bool, ...],
        path: list[VersionName],
        shown: set[VersionName],
    ) -> TreeLine:
        facts = self.origins[name]
        origin = facts if isinstance(facts, Origin) else None
        derived = self.origins[path[-1]] if path else None
        return TreeLine(
            name=name,
            ancestry=source.kind if source else None,
            kind=self._kind_of(name, facts, path, shown),
            origin=origin,
            reason=facts.reason if isinstance(facts, Unknown) else None,
            is_younger=isinstance(derived, Origin)
            and origin is not None
            and origin.timestamp - derived.timestamp > _CLOCK_SKEW_MAX,
            is_last=last,
        )

    def _kind_of(
        self, name: VersionName, facts: Origin | Unknown, path: list[VersionName], shown: set[VersionName]
    ) -> LineKind:
        if isinstance(facts, Unknown):
            return LineKind.UNKNOWN
        if name in path:
            return LineKind.CYCLE
        if name in shown:
            return LineKind.REPEATED
        return LineKind.TRUNCATED if name in self.unfollowed else LineKind.NEW


def build_ancestry(
    root: VersionName, read_origin: ReadOrigin, *, depth_max: int = DEPTH_MAX, versions_max: int = VERSIONS_MAX
) -> Ancestry:
    """Read the ancestry of `root` breadth first, so that a bound cuts off the most distant versions.

    `depth_max` bounds the steps from the root, `versions_max` the versions that are read.
    """
    origins: dict[VersionName, Origin | Unknown] = {}
    unfollowed: set[VersionName] = set()
    queue = deque([(root, 0)])
    queued = {root}
    while queue:
        name, depth = queue.popleft()
        facts = read_origin(name)
        origins[name] = facts
        if isinstance(facts, Unknown):
            continue
        new = dict.fromkeys(source.name for source in facts.sources if source.name not in queued)
        if new and (depth >= depth_max or len(queued) + len(new) > versions_max):
            unfollowed.add(name)
            continue
        queued |= new.keys()
        queue.extend((source, depth + 1) for source in new)
    return Ancestry(root, origins, frozenset(unfollowed))

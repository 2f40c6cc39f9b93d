"""The ancestry of a version: what it comes from, what that comes from, and so on, as a graph and as a tree of lines.

Pure: what a version says of itself is asked of a function that is handed in. Tables say what they like, so versions may
be their own ancestors, and ancestries may be endless: each version is asked once, and only so many are.
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
"""So much may the clocks of two writers differ."""

ReadOrigin = Callable[[VersionName], Origin | Unknown]


class LineKind(Enum):
    """What a line of the tree is."""

    NEW = "new"
    """What the version says of itself; the lines below it are its sources."""
    REPEATED = "again"
    """It has a line already, further up."""
    CYCLE = "cycle"
    """It is an ancestor of itself: this line is below its own."""
    TRUNCATED = "cut"
    """What it says, without what that comes from: that would be too deep, or too much."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TreeLine:
    name: VersionName
    ancestry: AncestryKind | None
    """To the line above that it is below; None for the version that was asked for."""
    kind: LineKind
    origin: Origin | None
    reason: str | None
    """Of one that is unknown."""
    is_younger: bool
    """Than what says that it comes from it: there is another table in that place now."""
    is_last: tuple[bool, ...]
    """From the top down to here, whether each is the last one of its parent. As long as the line is deep."""

    @property
    def depth(self) -> int:
        return len(self.is_last)


@dataclass(frozen=True, slots=True)
class Ancestry:
    root: VersionName
    origins: Mapping[VersionName, Origin | Unknown]
    """All that were asked, the nearest first."""
    unfollowed: frozenset[VersionName]
    """Of those, the ones whose sources were not, though they have some."""

    @property
    def is_complete(self) -> bool:
        return not self.unfollowed

    def lines(self) -> Iterator[TreeLine]:
        """From the version that was asked for to its sources, and from each of them on. Every version has its say once;
        every source of one that does has a line below it."""
        said: set[VersionName] = set()
        path: list[VersionName] = []
        stack: list[tuple[InputVersion | None, VersionName, tuple[bool, ...]]] = [(None, self.root, ())]
        while stack:
            source, name, last = stack.pop()
            del path[len(last) :]
            line = self._tree_line(source, name, last, path, said)
            yield line
            said.add(name)
            path.append(name)
            if line.kind is LineKind.NEW and line.origin is not None:
                sources = line.origin.sources
                for number, each in reversed([*enumerate(sources, 1)]):
                    stack.append((each, each.name, (*last, number == len(sources))))

    def _tree_line(
        self,
        source: InputVersion | None,
        name: VersionName,
        last: tuple[bool, ...],
        path: list[VersionName],
        said: set[VersionName],
    ) -> TreeLine:
        facts = self.origins[name]
        origin = facts if isinstance(facts, Origin) else None
        above = self.origins[path[-1]] if path else None
        return TreeLine(
            name=name,
            ancestry=source.kind if source else None,
            kind=self._kind_of(name, facts, path, said),
            origin=origin,
            reason=facts.reason if isinstance(facts, Unknown) else None,
            is_younger=isinstance(above, Origin)
            and origin is not None
            and origin.timestamp - above.timestamp > _CLOCK_SKEW_MAX,
            is_last=last,
        )

    def _kind_of(
        self, name: VersionName, facts: Origin | Unknown, path: list[VersionName], said: set[VersionName]
    ) -> LineKind:
        if isinstance(facts, Unknown):
            return LineKind.UNKNOWN
        if name in path:
            return LineKind.CYCLE
        if name in said:
            return LineKind.REPEATED
        return LineKind.TRUNCATED if name in self.unfollowed else LineKind.NEW


def build_ancestry(
    root: VersionName, read_origin: ReadOrigin, *, depth_max: int = DEPTH_MAX, versions_max: int = VERSIONS_MAX
) -> Ancestry:
    """Nearest first, so that what is left out is what is furthest. `depth_max` is how many steps are gone from the
    root, `versions_max` how many versions are asked."""
    found: dict[VersionName, Origin | Unknown] = {}
    unfollowed: set[VersionName] = set()
    waiting = deque([(root, 0)])
    seen = {root}
    while waiting:
        name, depth = waiting.popleft()
        facts = read_origin(name)
        found[name] = facts
        if isinstance(facts, Unknown):
            continue
        fresh = dict.fromkeys(source.name for source in facts.sources if source.name not in seen)
        if fresh and (depth >= depth_max or len(seen) + len(fresh) > versions_max):
            unfollowed.add(name)
            continue
        seen |= fresh.keys()
        waiting.extend((each, depth + 1) for each in fresh)
    return Ancestry(root, found, frozenset(unfollowed))

"""Lineage graph: the ancestry of random graphs, and the rendered lines of small ones."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_assets.lineage.graph import Ancestry, LineKind, TreeLine, build_ancestry
from lance_assets.lineage.model import AncestryKind, InputVersion, Origin, Unknown, VersionName

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
Graph = Mapping[int, Sequence[int]]


def name(number: int) -> VersionName:
    return VersionName("/t", number)


def origin(number: int, sources: Sequence[int], at: datetime = NOON) -> Origin:
    return Origin(
        name=name(number),
        operation="Append",
        timestamp=at,
        rows=1,
        rows_added=1,
        rows_removed=0,
        parent=None,
        planned_on=None,
        rebased_over=(),
        uuid=None,
        properties={},
        sources=tuple(InputVersion(name(each), AncestryKind.READ) for each in sources),
    )


def find_ancestry(graph: Graph, root: int = 0, **bounds: int) -> tuple[Ancestry, list[VersionName]]:
    """Return the ancestry and the versions in the order of their reads. A version without an entry is removed."""
    reads: list[VersionName] = []

    def read_inputs(each: VersionName) -> Origin | Unknown:
        reads.append(each)
        number = each.version
        return origin(number, graph[number]) if number in graph else Unknown(each, "gone")

    return build_ancestry(name(root), read_inputs, **bounds), reads


def rendered(graph: Graph, root: int = 0, **bounds: int) -> list[str]:
    descriptions = {
        LineKind.NEW: "",
        LineKind.REPEATED: " again",
        LineKind.CYCLE: " cycle",
        LineKind.TRUNCATED: " cut",
        LineKind.UNKNOWN: " gone",
    }
    ancestry, _ = find_ancestry(graph, root, **bounds)
    return [f"{'.' * line.depth}{line.name.version}{descriptions[line.kind]}" for line in ancestry.lines()]


@pytest.mark.parametrize(
    ("graph", "bounds", "expected"),
    [
        pytest.param({0: []}, {}, ["0"], id="alone"),
        pytest.param({0: [1], 1: [2], 2: []}, {}, ["0", ".1", "..2"], id="chain"),
        pytest.param({0: [1, 2], 1: [3], 2: [3], 3: []}, {}, ["0", ".1", "..3", ".2", "..3 again"], id="diamond"),
        pytest.param({0: [1], 1: [2], 2: [0]}, {}, ["0", ".1", "..2", "...0 cycle"], id="cycle"),
        pytest.param({0: [0]}, {}, ["0", ".0 cycle"], id="itself"),
        pytest.param({0: [1, 1], 1: []}, {}, ["0", ".1", ".1 again"], id="twice"),
        pytest.param({0: [1, 7], 1: []}, {}, ["0", ".1", ".7 gone"], id="gone"),
        pytest.param({}, {}, ["0 gone"], id="the root is gone"),
        pytest.param({0: [1], 1: [2], 2: [3], 3: []}, {"depth_max": 1}, ["0", ".1 cut"], id="deep"),
        pytest.param({0: [1], 1: [], 2: []}, {"depth_max": 0}, ["0 cut"], id="not at all"),
        pytest.param({0: [1], 1: []}, {"depth_max": 1}, ["0", ".1"], id="just deep enough"),
        pytest.param({0: [1], 1: [0]}, {"depth_max": 1}, ["0", ".1", "..0 cycle"], id="a cycle needs no more depth"),
        pytest.param({0: [1, 2], 1: [3], 2: [], 3: []}, {"versions_max": 3}, ["0", ".1 cut", ".2"], id="many"),
    ],
)
def test_rendered_lines(graph: Graph, bounds: Mapping[str, int], expected: list[str]) -> None:
    assert rendered(graph, **bounds) == expected


graphs = st.integers(1, 12).flatmap(
    lambda size: st.dictionaries(
        st.integers(0, size), st.lists(st.integers(0, size), max_size=5), max_size=size + 1
    ).map(lambda graph: {0: [], **graph})
)


def reachable(graph: Graph, depth_max: int) -> set[int]:
    reached, edge = {0}, {0}
    for _ in range(depth_max):
        edge = {to for each in edge for to in graph.get(each, ())} - reached
        reached |= edge
    return reached


@given(graphs, st.integers(0, 6))
def test_every_version_is_expanded_once_and_every_edge_is_a_line(graph: Graph, depth_max: int) -> None:
    ancestry, reads = find_ancestry(graph, depth_max=depth_max)
    assert len(reads) == len(set(reads))
    assert {each.version for each in reads} == reachable(graph, depth_max)
    lines = [*ancestry.lines()]
    having_their_say = [line for line in lines if line.kind in (LineKind.NEW, LineKind.TRUNCATED)]
    expanded = [line.name.version for line in having_their_say]
    followed = [line.name.version for line in lines if line.kind is LineKind.NEW]
    assert sorted(set(expanded)) == sorted(number for number in reachable(graph, depth_max) if number in graph)
    assert len(followed) == len(set(followed))
    assert len(lines) == 1 + sum(len(graph[number]) for number in followed)
    assert ancestry.is_complete == (reachable(graph, depth_max) == reachable(graph, 99))


@given(graphs)
def test_cycles_are_detected(graph: Graph) -> None:
    ancestry, _ = find_ancestry(graph)
    path: list[TreeLine] = []
    for line in ancestry.lines():
        del path[line.depth :]
        above = {each.name for each in path}
        assert (line.kind is LineKind.CYCLE) == (line.name in above)
        assert line.depth == len(path)
        path.append(line)


@given(graphs)
def test_tree_lines_connect_parents_and_siblings(graph: Graph) -> None:
    """The prefix of a line connects its parent to its next sibling."""
    ancestry, _ = find_ancestry(graph)
    lines = [*ancestry.lines()]
    for position, line in enumerate(lines):
        after = next((each for each in lines[position + 1 :] if each.depth <= line.depth), None)
        if line.is_last:
            assert line.is_last[-1] == (after is None or after.depth < line.depth)
            assert (
                after is None
                or after.is_last[: line.depth - 1] == line.is_last[: after.depth - 1]
                or after.depth < line.depth
            )


@given(graphs, st.integers(1, 20))
def test_reads_are_bounded(graph: Graph, versions_max: int) -> None:
    ancestry, reads = find_ancestry(graph, versions_max=versions_max)
    assert len(reads) <= versions_max
    assert len([*ancestry.lines()]) <= 1 + sum(map(len, graph.values()))


def test_long_chains_do_not_recurse() -> None:
    graph = {number: [number + 1] for number in range(2000)}
    lines = rendered(graph, depth_max=10_000, versions_max=10_000)
    assert (len(lines), lines[-1].lstrip(".")) == (2001, "2000 gone")


def test_source_that_is_younger_than_its_descendant() -> None:
    def read_inputs(each: VersionName) -> Origin | Unknown:
        later = NOON + timedelta(minutes=each.version)
        return origin(each.version, {0: [4, 6], 4: [], 6: []}[each.version], later)

    lines = [*build_ancestry(name(0), read_inputs).lines()]
    assert [(line.name.version, line.is_younger) for line in lines] == [(0, False), (4, False), (6, True)]

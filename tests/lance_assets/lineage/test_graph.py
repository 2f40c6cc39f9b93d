"""The ancestry of random graphs, and the lines of small ones that somebody can read."""

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


def found_in(graph: Graph, root: int = 0, **bounds: int) -> tuple[Ancestry, list[VersionName]]:
    """And what was asked, in order. A number without an entry is a version that is gone."""
    asked: list[VersionName] = []

    def look(each: VersionName) -> Origin | Unknown:
        asked.append(each)
        number = each.version
        return origin(number, graph[number]) if number in graph else Unknown(each, "gone")

    return build_ancestry(name(root), look, **bounds), asked


def drawn(graph: Graph, root: int = 0, **bounds: int) -> list[str]:
    told = {
        LineKind.NEW: "",
        LineKind.REPEATED: " again",
        LineKind.CYCLE: " cycle",
        LineKind.TRUNCATED: " cut",
        LineKind.UNKNOWN: " gone",
    }
    found, _ = found_in(graph, root, **bounds)
    return [f"{'.' * line.depth}{line.name.version}{told[line.kind]}" for line in found.lines()]


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
def test_lines(graph: Graph, bounds: Mapping[str, int], expected: list[str]) -> None:
    assert drawn(graph, **bounds) == expected


graphs = st.integers(1, 12).flatmap(
    lambda size: st.dictionaries(
        st.integers(0, size), st.lists(st.integers(0, size), max_size=5), max_size=size + 1
    ).map(lambda graph: {0: [], **graph})
)


def reachable(graph: Graph, depth_max: int) -> set[int]:
    found, edge = {0}, {0}
    for _ in range(depth_max):
        edge = {to for each in edge for to in graph.get(each, ())} - found
        found |= edge
    return found


@given(graphs, st.integers(0, 6))
def test_every_version_has_its_say_once_and_every_edge_a_line(graph: Graph, depth_max: int) -> None:
    found, asked = found_in(graph, depth_max=depth_max)
    assert len(asked) == len(set(asked))
    assert {each.version for each in asked} == reachable(graph, depth_max)
    lines = [*found.lines()]
    having_their_say = [line for line in lines if line.kind in (LineKind.NEW, LineKind.TRUNCATED)]
    said = [line.name.version for line in having_their_say]
    followed = [line.name.version for line in lines if line.kind is LineKind.NEW]
    assert sorted(set(said)) == sorted(number for number in reachable(graph, depth_max) if number in graph)
    assert len(followed) == len(set(followed))
    assert len(lines) == 1 + sum(len(graph[number]) for number in followed)
    assert found.is_complete == (reachable(graph, depth_max) == reachable(graph, 99))


@given(graphs)
def test_a_cycle_is_told_where_there_is_one(graph: Graph) -> None:
    found, _ = found_in(graph)
    path: list[TreeLine] = []
    for line in found.lines():
        del path[line.depth :]
        above = {each.name for each in path}
        assert (line.kind is LineKind.CYCLE) == (line.name in above)
        assert line.depth == len(path)
        path.append(line)


@given(graphs)
def test_the_branches_of_the_tree_end_where_they_end(graph: Graph) -> None:
    """So that what is drawn before a line leads from its parent to its next sister."""
    found, _ = found_in(graph)
    lines = [*found.lines()]
    for place, line in enumerate(lines):
        after = next((each for each in lines[place + 1 :] if each.depth <= line.depth), None)
        if line.is_last:
            assert line.is_last[-1] == (after is None or after.depth < line.depth)
            assert (
                after is None
                or after.is_last[: line.depth - 1] == line.is_last[: after.depth - 1]
                or after.depth < line.depth
            )


@given(graphs, st.integers(1, 20))
def test_no_more_are_asked_than_may_be(graph: Graph, versions_max: int) -> None:
    found, asked = found_in(graph, versions_max=versions_max)
    assert len(asked) <= versions_max
    assert len([*found.lines()]) <= 1 + sum(map(len, graph.values()))


def test_a_long_chain_is_no_deep_call() -> None:
    graph = {number: [number + 1] for number in range(2000)}
    lines = drawn(graph, depth_max=10_000, versions_max=10_000)
    assert (len(lines), lines[-1].lstrip(".")) == (2001, "2000 gone")


def test_a_source_that_is_younger_than_what_comes_from_it() -> None:
    def look(each: VersionName) -> Origin | Unknown:
        later = NOON + timedelta(minutes=each.version)
        return origin(each.version, {0: [4, 6], 4: [], 6: []}[each.version], later)

    lines = [*build_ancestry(name(0), look).lines()]
    assert [(line.name.version, line.is_younger) for line in lines] == [(0, False), (4, False), (6, True)]

"""What indices are good for in a filter, in words: which would be asked what, and which not and why. From what the
version says of them alone; none is opened."""

import re
from collections.abc import Iterator, Mapping

from pyroaring import BitMap

from lance_core.errors import LanceError
from lance_core.expressions import Predicate
from lance_core.index.access_path import AccessPath, AllOf, AnyOf, IndexProbe, Step, Unknown, describe
from lance_core.index.coverage import SegmentCoverage
from lance_core.index.index_type import Certainty
from lance_core.index.lookup import IndexLookup, resolved_rows
from lance_core.scan.explain import Indices, runs
from lance_core.versions.snapshot import Snapshot

_NUMBER = re.compile(r"\b(?:U?Int\d+|Float\d+|Boolean)\(([^()]*)\)")
_TEXT = re.compile(r"\b(?:Large)?Utf8(?:View)?\(\"((?:[^\"\\]|\\.)*)\"\)")
"""How the engine writes literals."""


def explained(base: Snapshot, predicate: Predicate | None, *, use_indices: bool = True) -> Indices:
    """What a plan of a scan is told with."""
    if base.manifest.index_section is None:
        return Indices()
    try:
        indexed = IndexLookup.of(base)
    except LanceError as error:
        return Indices((f"indices   cannot be told, and every fragment is scanned: {error}",))
    names = sorted(indexed.coverage.by_name)
    if predicate is None or not use_indices:
        why = "there is no filter" if predicate is None else "use_indices=False"
        return Indices((f"indices   none used, since {why}: every fragment is scanned",))
    route = indexed.route(predicate)
    return Indices(tuple(_aligned(_lines(indexed, predicate, route, names))), narrow=route.knows_anything)


def _lines(
    indexed: IndexLookup, predicate: Predicate, route: AccessPath, names: list[str]
) -> Iterator[tuple[str, str]]:
    coverage, used = indexed.coverage, set[str]()
    live = coverage.live
    for ask in route.asks():
        for name, text in _used(ask, len(live)):
            used.add(name)
            yield "indices", text
    known = resolved_rows(route, live)
    if used:
        yield "re-checked", _rechecked(predicate, route, known)
        left = live - known
        yield "scanned", f"{len(left)} of {len(live)} fragments ({runs(left)})" if left else "no fragment"
    else:
        yield "indices", "none used: every fragment is scanned"
    asked = {id for name in used for id in coverage.by_name[name][0].metadata.field_ids}
    for name in names:
        if name not in used:
            yield "not used", _unused(coverage.by_name[name], asked)


def _used(ask: IndexProbe, live: int) -> Iterator[tuple[str, str]]:
    """Each index that answers a condition, with what it answers."""
    covered: dict[tuple[str, str, Certainty], int] = {}
    for share in ask.shares:
        assert share.standing.kind is not None
        key = (share.standing.metadata.name, share.standing.kind.name, share.certainty)
        covered[key] = covered.get(key, 0) + len(share.fragments)
    for (name, kind, certainty), count in covered.items():
        yield name, f"{name} ({kind}) answers {describe(ask)}: {certainty.value}, in {count} of {live} fragments"


def _rechecked(predicate: Predicate, route: AccessPath, known: BitMap) -> str:
    """Conditions that rows found have to meet besides, in any fragment."""
    left = sorted(
        number for numbers, step in route.steps if not known.issubset(_exactly(step, known)) for number in numbers
    )
    if not left:
        return "nothing"
    text = _NUMBER.sub(r"\1", _TEXT.sub(r"'\1'", predicate.keeping(left).sql))
    return f"{text}, of the rows found"


def _exactly(step: Step, everywhere: BitMap) -> BitMap:
    """The fragments in which nothing is left to be looked at."""
    match step:
        case IndexProbe(shares=shares):
            exact = (share.fragments for share in shares if share.certainty is Certainty.EXACT)
            return BitMap.union(BitMap(), *exact)
        case AllOf(parts=parts) | AnyOf(parts=parts):
            return BitMap.intersection(everywhere, *(_exactly(part, everywhere) for part in parts))
        case Unknown():
            return BitMap()
    return everywhere


def _unused(segments: tuple[SegmentCoverage, ...], asked: set[int]) -> str:
    name, kind = segments[0].metadata.name, segments[0].metadata.kind.removesuffix("IndexDetails")
    if segments[0].kind is not None:
        kind = segments[0].kind.name
    reasons: Mapping[str, None] = dict.fromkeys(each.unused for each in segments if each.unused is not None)
    if all(each.unused is not None for each in segments):
        return f"{name} ({kind}): {'; '.join(reasons)}"
    if asked & set(segments[0].metadata.field_ids):
        return f"{name} ({kind}): does not answer this filter, or no better than the index on its column that does"
    return f"{name} ({kind}): does not answer this filter"


def _aligned(lines: Iterator[tuple[str, str]]) -> Iterator[str]:
    before = ""
    for word, text in lines:
        yield f"{'' if word == before else word:<10}{text}" if word != "re-checked" else f"re-check  {text}"
        before = word

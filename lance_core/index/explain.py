"""Explain: describes which indices a filter uses for what, and why it does not use the others.

It reads the metadata of a version and opens no index file.
"""

import re
from collections.abc import Iterator, Mapping

from pyroaring import BitMap

from lance_core.errors import LanceError
from lance_core.expressions import Predicate
from lance_core.index.access_path import AccessPath, AllOf, AnyOf, IndexProbe, Step, Unknown, describe
from lance_core.index.coverage import SegmentCoverage
from lance_core.index.index_type import Certainty
from lance_core.index.lookup import IndexLookup, resolved_fragments
from lance_core.scan.explain import IndexUsage, format_ranges
from lance_core.versions.snapshot import Snapshot

_NUMBER = re.compile(r"\b(?:U?Int\d+|Float\d+|Boolean)\(([^()]*)\)")
_TEXT = re.compile(r"\b(?:Large)?Utf8(?:View)?\(\"((?:[^\"\\]|\\.)*)\"\)")
"""Literals as the query engine prints them."""


def explain_indices(base: Snapshot, predicate: Predicate | None, *, use_indices: bool = True) -> IndexUsage:
    """Return the part of a scan's plan that concerns indices."""
    if base.manifest.index_section is None:
        return IndexUsage()
    try:
        lookup = IndexLookup.of(base)
    except LanceError as error:
        return IndexUsage((f"indices   cannot be read, so every fragment is scanned: {error}",))
    names = sorted(lookup.coverage.by_name)
    if predicate is None or not use_indices:
        reason = "there is no filter" if predicate is None else "use_indices=False"
        return IndexUsage((f"indices   none used, since {reason}: every fragment is scanned",))
    path = lookup.plan(predicate)
    return IndexUsage(tuple(_align(_describe_lines(lookup, predicate, path, names))), is_selective=path.uses_indices)


def _describe_lines(
    lookup: IndexLookup, predicate: Predicate, path: AccessPath, names: list[str]
) -> Iterator[tuple[str, str]]:
    coverage, used = lookup.coverage, set[str]()
    live = coverage.live_fragments
    for probe in path.probes():
        for name, text in _describe_used(probe, len(live)):
            used.add(name)
            yield "indices", text
    resolved = resolved_fragments(path, live)
    if used:
        yield "re-checked", _describe_rechecked(predicate, path, resolved)
        scanned = live - resolved
        yield (
            "scanned",
            f"{len(scanned)} of {len(live)} fragments ({format_ranges(scanned)})" if scanned else "no fragment",
        )
    else:
        yield "indices", "none used: every fragment is scanned"
    field_ids = {id for name in used for id in coverage.by_name[name][0].metadata.field_ids}
    for name in names:
        if name not in used:
            yield "not used", _describe_unused(coverage.by_name[name], field_ids)


def _describe_used(probe: IndexProbe, live: int) -> Iterator[tuple[str, str]]:
    """Yield each index that answers a condition, with what it answers."""
    covered: dict[tuple[str, str, Certainty], int] = {}
    for scope in probe.scopes:
        assert scope.segment.kind is not None
        key = (scope.segment.metadata.name, scope.segment.kind.name, scope.certainty)
        covered[key] = covered.get(key, 0) + len(scope.fragments)
    for (name, kind, certainty), count in covered.items():
        yield name, f"{name} ({kind}) answers {describe(probe)}: {certainty.value}, in {count} of {live} fragments"


def _describe_rechecked(predicate: Predicate, path: AccessPath, resolved: BitMap) -> str:
    """Return the conditions that matching rows must still be checked for, in any fragment."""
    unresolved = sorted(
        number
        for numbers, step in path.steps
        if not resolved.issubset(_exact_fragments(step, resolved))
        for number in numbers
    )
    if not unresolved:
        return "nothing"
    text = _NUMBER.sub(r"\1", _TEXT.sub(r"'\1'", predicate.select_conjuncts(unresolved).sql))
    return f"{text}, of the rows found"


def _exact_fragments(step: Step, fragments: BitMap) -> BitMap:
    """Return the fragments in which a step leaves nothing to re-check."""
    match step:
        case IndexProbe(scopes=scopes):
            exact = (scope.fragments for scope in scopes if scope.certainty is Certainty.EXACT)
            return BitMap.union(BitMap(), *exact)
        case AllOf(steps=steps) | AnyOf(steps=steps):
            return BitMap.intersection(fragments, *(_exact_fragments(inner, fragments) for inner in steps))
        case Unknown():
            return BitMap()
    return fragments


def _describe_unused(segments: tuple[SegmentCoverage, ...], used_field_ids: set[int]) -> str:
    name, kind = segments[0].metadata.name, segments[0].metadata.kind.removesuffix("IndexDetails")
    if segments[0].kind is not None:
        kind = segments[0].kind.name
    reasons: Mapping[str, None] = dict.fromkeys(
        segment.unused_reason for segment in segments if segment.unused_reason is not None
    )
    if all(segment.unused_reason is not None for segment in segments):
        return f"{name} ({kind}): {'; '.join(reasons)}"
    if used_field_ids & set(segments[0].metadata.field_ids):
        return f"{name} ({kind}): does not answer this filter, or no better than the index on its column that does"
    return f"{name} ({kind}): does not answer this filter"


def _align(lines: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines with their labels in a column of equal width; a repeated label is left out."""
    previous = ""
    for label, text in lines:
        yield f"{'' if label == previous else label:<10}{text}" if label != "re-checked" else f"re-check  {text}"
        previous = label

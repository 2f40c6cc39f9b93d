"""What must be true of a table that was hammered, whatever was killed: each intent that was answered is in exactly one
version, the one that was answered each time, none is in two; versions are dense; and both libraries read the rows that
the pieces of work leave behind, one after the other in the order of their versions.

Start with `judge`, which says what is wrong in words.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import lance

from lance_core.fsck.report import Severity
from lance_core.operations import ReserveFragments
from tests.histories.hammer import Played, Size, jobs
from tests.histories.hammer_locations import Place
from tests.histories.hammer_writer import WORK, Work


def judge(place: Place, size: Size, played: Played) -> list[str]:
    found = list(played.broken)
    heard: dict[str, set[int]] = {}
    for answer in played.answers:
        heard.setdefault(answer.intent, set())
        if answer.version is not None:
            heard[answer.intent].add(answer.version)
    found += [f"{intent} was answered with versions {sorted(at)}" for intent, at in heard.items() if len(at) > 1]
    works = {work.intent: work for job in jobs(size) for work in job}
    found += [f"{intent} was never answered" for intent in works if intent not in heard]
    table = place.table()
    history = table.versions()
    numbers = [info.version for info in history]
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"versions are not dense: {numbers}")
    landed: dict[str, list[int]] = {}
    for info in history[1:]:
        if info.operation == ReserveFragments.name:
            continue  # of a compaction, before it knows what it will be
        landed.setdefault(info.properties.get(WORK, f"nobody's, by {info.operation}"), []).append(info.version)
    for intent in sorted({*works, *landed}):
        here, told = landed.get(intent, []), heard.get(intent, set())
        if len(here) > 1 or intent not in works or (told and here != sorted(told)):
            found.append(f"{intent} is in versions {here}, and {sorted(told)} was answered")
    expected = _rows(works[intent] for _, intent in sorted((at[0], who) for who, at in landed.items() if who in works))
    for who, rows in _readers(place):
        found += [f"{who} reads {wrong}" for wrong in _differences(expected, rows)]
    serious = [each for each in table.fsck().findings if each.severity is not Severity.INFO]
    return found + [f"fsck: {each}" for each in serious]


def _rows(works: Iterable[Work]) -> dict[int, int]:
    """One after the other, in the order of their versions."""
    rows: dict[int, int] = {}
    for work in works:
        match work.verb:
            case "append" | "upsert":
                rows[work.row] = work.value
            case "update":
                rows[work.row] += 1
            case "delete":
                del rows[work.row]
    return rows


def _readers(place: Place) -> list[tuple[str, Sequence[tuple[int, int]]]]:
    theirs = lance.dataset(place.uri, storage_options=dict(place.quiet_options) or None)
    return [
        (who, list(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True)))
        for who, rows in (("Table", place.table().to_table()), ("pylance", theirs.to_table()))
    ]


def _differences(expected: Mapping[int, int], rows: Sequence[tuple[int, int]]) -> list[str]:
    have, want = Counter(rows), Counter(expected.items())
    return [f"row {row} {have[row]} times, not {want[row]}" for row in sorted({*have, *want}) if have[row] != want[row]]

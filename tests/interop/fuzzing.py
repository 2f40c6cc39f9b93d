"""Programs tried by their seeds: run, judged, and made short where they fail."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tests.interop.history_comparison import judge
from tests.interop.program_generator import program
from tests.interop.program_runner import Disagreement, run
from tests.interop.programs import Program

_SEEDS_AT_ONCE = 10
_MEMORY = Path("/dev/shm")
"""Where the system has one: half of the time would go into directories of a disk."""


@dataclass(frozen=True)
class Tried:
    """What came of some seeds."""

    counted: Counter[str]
    failures: tuple[str, ...]
    """Each with its seed, and the program, shortened, to run by hand."""


def try_indexed(seeds: Sequence[int]) -> Tried:
    return try_some(seeds, indexed=True)


def try_seeds(seeds: Sequence[int], processes: int) -> Iterator[Tried]:
    parts = [seeds[start : start + _SEEDS_AT_ONCE] for start in range(0, len(seeds), _SEEDS_AT_ONCE)]
    if processes == 1:
        yield from map(try_some, parts)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(try_some, parts)


def try_some(seeds: Sequence[int], *, indexed: bool = False) -> Tried:
    counted: Counter[str] = Counter()
    failures = []
    for seed in seeds:
        tried = program(seed, indexed=indexed)
        found = attempt(tried, counted)
        if found is not None:
            short, why = shortened(tried, found)
            failures.append(f"seed {seed}: {type(found).__name__}: {found}\n\nShortened: {why}\n\n{short}")
    return Tried(counted, tuple(failures))


def attempt(tried: Program, counted: Counter[str]) -> Exception | None:
    """What went wrong with a program. Whatever a library throws is a finding, not only what we say of it."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as place:
        try:
            ran = run(tried, Path(place))
            counted += judge(ran)
        except Exception as error:  # noqa: BLE001
            return error
    counted["programs"] += 1
    counted["steps"] += len(ran.done)
    for step in tried.steps:
        if step.number in ran.histories["theirs"].refused:
            counted[f"refused by both: {step.kind}"] += 1
        if step.number in ran.left_out:
            counted[f"left out: {ran.left_out[step.number]}"] += 1
        if step.number in ran.histories["theirs"].ends:
            counted[f"done: {step.kind}"] += 1
    return None


def shortened(failing: Program, why: Exception) -> tuple[Program, Exception]:
    """The same failure with as few steps as may be: what can be left out, from the end on, is."""
    for step in reversed(failing.steps[1:]):
        shorter = failing.without(step)
        found = attempt(shorter, Counter())
        if found is not None and _is_like(found, why):
            failing, why = shorter, found
    return failing, why


def _is_like(one: Exception, other: Exception) -> bool:
    """By the first words, which are the same where the fault is; numbers of steps and versions are not."""
    if type(one) is not type(other):
        return False
    if not isinstance(one, Disagreement):
        return True
    return _words(one) == _words(other)


def _words(error: Exception) -> list[str]:
    return [word for word in str(error).split()[:8] if word.isalpha()]


def read_seeds(path: Path) -> list[int]:
    """One a line; what follows a `#` says what it found."""
    seeds = []
    for line in path.read_text().splitlines():
        with suppress(ValueError):
            seeds.append(int(line.partition("#")[0]))
    return seeds

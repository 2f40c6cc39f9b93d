"""Fuzzing: runs the programs of seeds, compares the tables, and shrinks the programs that fail."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tests.interop.history_comparison import compare_histories
from tests.interop.program_generator import generate_program
from tests.interop.program_runner import LibraryDifference, run_program
from tests.interop.programs import Program

_SEEDS_PER_TASK = 10
_MEMORY = Path("/dev/shm")
"""Folder for the tables, if the system has it: on a disk, half of the time would go into creating directories."""


@dataclass(frozen=True)
class FuzzResult:
    """Result of the programs of some seeds."""

    counts: Counter[str]
    failures: tuple[str, ...]
    """Each failure with its seed and the shrunk program, which runs by itself."""


def fuzz(seeds: Sequence[int], *, with_indices: bool = False) -> FuzzResult:
    counts: Counter[str] = Counter()
    failures = []
    for seed in seeds:
        program = generate_program(seed, with_indices=with_indices)
        error = check_program(program, counts)
        if error is not None:
            shrunk, shrunk_error = shrink(program, error)
            failures.append(f"seed {seed}: {type(error).__name__}: {error}\n\nShrunk: {shrunk_error}\n\n{shrunk}")
    return FuzzResult(counts, tuple(failures))


def fuzz_with_indices(seeds: Sequence[int]) -> FuzzResult:
    return fuzz(seeds, with_indices=True)


def fuzz_in_processes(
    seeds: Sequence[int], processes: int, run_seeds: Callable[[Sequence[int]], FuzzResult] = fuzz
) -> Iterator[FuzzResult]:
    tasks = [seeds[start : start + _SEEDS_PER_TASK] for start in range(0, len(seeds), _SEEDS_PER_TASK)]
    if processes == 1:
        yield from map(run_seeds, tasks)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_seeds, tasks)


def check_program(program: Program, counts: Counter[str]) -> Exception | None:
    """Run a program and return its failure; `None` if the libraries agree.

    Any exception that a library raises is a failure, not only a difference that the comparison finds.
    """
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        try:
            run = run_program(program, Path(folder))
            counts += compare_histories(run)
        except Exception as error:  # noqa: BLE001
            return error
    counts["programs"] += 1
    counts["steps"] += len(run.completed_steps)
    for step in program.steps:
        if step.number in run.tables["theirs"].errors:
            counts[f"refused by both: {step.name}"] += 1
        if step.number in run.skipped:
            counts[f"skipped: {run.skipped[step.number]}"] += 1
        if step.number in run.tables["theirs"].version_after:
            counts[f"completed: {step.name}"] += 1
    return None


def shrink(program: Program, error: Exception) -> tuple[Program, Exception]:
    """Return a program with the same failure and as few steps as possible, tried from the last step to the first."""
    for step in reversed(program.steps[1:]):
        candidate = program.without(step)
        candidate_error = check_program(candidate, Counter())
        if candidate_error is not None and _is_same_failure(candidate_error, error):
            program, error = candidate, candidate_error
    return program, error


def _is_same_failure(left: Exception, right: Exception) -> bool:
    """Compare failures by their first words: those depend on the defect, while step and version numbers vary."""
    if type(left) is not type(right):
        return False
    if not isinstance(left, LibraryDifference):
        return True
    return _first_words(left) == _first_words(right)


def _first_words(error: Exception) -> list[str]:
    return [word for word in str(error).split()[:8] if word.isalpha()]


def read_seeds(path: Path) -> list[int]:
    """Return the seeds of a file, one per line; a comment after `#` describes the difference that the seed found."""
    seeds = []
    for line in path.read_text().splitlines():
        with suppress(ValueError):
            seeds.append(int(line.partition("#")[0]))
    return seeds

"""Generated programs: histories of tables that pylance, our library and both in turn write, compared after each step.

The suite runs 40 programs, `make interop` 1,100, and `make interop N=5000 SEED=1` as many as requested. The text of a
failure runs by itself. `seeds.txt` lists the seeds that found a difference. A seed makes another program once the step
generators change, so the smallest program of each difference is here too.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.interop import index_steps
from tests.interop.allowed_differences import ALLOWED_DIFFERENCES
from tests.interop.data_steps import STEP_GENERATORS
from tests.interop.fuzzing import FuzzResult, check_program, fuzz, fuzz_with_indices, read_seeds, shrink
from tests.interop.known_pylance_defects import PYLANCE_DEFECTS
from tests.interop.program_generator import generate_program
from tests.interop.programs import Program, Step

PROCESSES = 2
PROGRAM_COUNT = 24
GENERATED_PROGRAM_COUNT = 300
PROGRAM_WITH_INDICES_COUNT = 16
SEEDS = Path(__file__).with_name("seeds.txt")


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        yield pool


def check_programs_agree(
    pool: ProcessPoolExecutor, seeds: list[int], run_seeds: Callable[[list[int]], FuzzResult] = fuzz
) -> Counter[str]:
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for result in pool.map(run_seeds, [seeds[start::PROCESSES] for start in range(PROCESSES)]):
        counts += result.counts
        failures += result.failures
    assert not failures, "\n\n".join(failures)
    return counts


def test_programs_agree(pool: ProcessPoolExecutor) -> None:
    counts = check_programs_agree(pool, list(range(PROGRAM_COUNT)))
    assert counts["programs"] == PROGRAM_COUNT
    assert counts["steps"] > 5 * PROGRAM_COUNT
    exact = counts["versions"] - counts["versions compared without order and addresses"]
    assert exact > counts["versions"] * 2 / 3
    refused = sum(number for name, number in counts.items() if name.startswith("refused by both"))
    skipped = sum(number for name, number in counts.items() if name.startswith("skipped"))
    assert refused + skipped < counts["steps"] / 5


def test_programs_with_indices_agree(pool: ProcessPoolExecutor) -> None:
    """After every step the conditions have the same answers with indices and without."""
    counts = check_programs_agree(pool, list(range(PROGRAM_WITH_INDICES_COUNT)), fuzz_with_indices)
    assert counts["programs"] == PROGRAM_WITH_INDICES_COUNT
    for generator in index_steps.STEP_GENERATORS:
        assert counts[f"completed: {generator[0]}"]


def test_seeds_that_found_a_difference(pool: ProcessPoolExecutor) -> None:
    check_programs_agree(pool, read_seeds(SEEDS))


def test_every_step_is_generated() -> None:
    counts = Counter(step.name for seed in range(GENERATED_PROGRAM_COUNT) for step in generate_program(seed).steps)
    assert [generator.name for generator in STEP_GENERATORS if generator.weight and not counts[generator.name]] == []


def test_allowed_differences_have_a_reason() -> None:
    assert all(reason.strip() for reason in ALLOWED_DIFFERENCES.values())
    assert len({defect.name for defect in PYLANCE_DEFECTS}) == len(PYLANCE_DEFECTS)


# Smallest programs of the differences that were found.


def make_program(*statements: tuple[str, str], stable: bool = False, version: str = "2.2") -> Program:
    """Return a program of these statements, each ours and pylance's. On the mixed table the last step is ours."""
    steps = [
        Step(number, "by hand", ours, theirs, ours_in_mixed=number == len(statements) - 1)
        for number, (ours, theirs) in enumerate(statements)
    ]
    return Program(-1, version, stable, True, tuple(steps))


def creation_statements(data: str, version: str = "2.2", stable: bool = False) -> tuple[str, str]:
    return (
        f"Table.create(uri, {data}, storage_version={version!r}, stable_row_ids={stable}, durable=False)",
        f"lance.write_dataset({data}, uri, data_storage_version={version!r}, enable_stable_row_ids={stable})",
    )


def same_statements(call: str) -> tuple[str, str]:
    return f"table.{call}", f"dataset.{call}"


REGRESSIONS = {
    "a null struct with a UUID in it": make_program(
        creation_statements('make_rows({"k": "key", "b": "struct-of-extensions"}, range(7))', "2.1"),
        same_statements('update({"b": "null"})'),
    ),
    "a cast of a required column conflicts with older appends": make_program(
        creation_statements('make_rows({"k": "key", "a": "int8!"}, range(3))'),
        (
            'table.alter_column("a", type=arrow_type("int64"))',
            'dataset.alter_columns({"path": "a", "data_type": arrow_type("int64")})',
        ),
    ),
    "a new field of a required struct conflicts with older appends": make_program(
        creation_statements('make_rows({"k": "key", "a": "struct!"}, range(3))'),
        same_statements('add_columns(pa.field("a", pa.struct([pa.field("added", pa.int8())])))'),
    ),
    "JSON assigned from another column": make_program(
        creation_statements('make_rows({"k": "key", "a": "json", "b": "json"}, range(5))'),
        same_statements('update({"a": "b"}, where="k < 3")'),
    ),
    "columns rewritten in a file whose other columns were dropped": make_program(
        creation_statements('make_rows({"k": "key", "c": "large_string"}, range(7))'),
        same_statements('add_columns({"c1": "k % 2 = 0", "c2": "1"})'),
        same_statements('drop_columns(["c", "c2"])'),
        same_statements('update({"c1": "null"}, where="k < 6")'),
    ),
}


@pytest.mark.parametrize("name", REGRESSIONS)
def test_regressions(name: str) -> None:
    error = check_program(REGRESSIONS[name], Counter())
    assert error is None, f"{error}\n\n{REGRESSIONS[name]}"


# The fuzzer itself.


def test_differences_are_detected_and_shrunk() -> None:
    """The statements of one step differ."""
    program = make_program(
        creation_statements('make_rows({"k": "key", "a": "int32"}, range(9))'),
        same_statements('delete("k = 1")'),
        ('table.delete("k = 2")', 'dataset.delete("k = 3")'),
        ('table.set_config({"a": "1"})', 'dataset.update_config({"a": "1"})'),
    )
    error = check_program(program, Counter())
    assert error is not None
    assert "step 2" in str(error)
    shrunk, _error = shrink(program, error)
    assert [step.number for step in shrunk.steps] == [0, 2]


@pytest.mark.parametrize("refusing_library", ["ours", "theirs"])
def test_refusals_by_one_library_are_detected(refusing_library: str) -> None:
    impossible = 'drop_columns(["nowhere"])'
    statements = (
        ("table.restore(1)", f"dataset.{impossible}")
        if refusing_library == "theirs"
        else (f"table.{impossible}", "dataset.restore()")
    )
    error = check_program(make_program(creation_statements('make_rows({"k": "key"}, range(2))'), statements), Counter())
    assert error is not None
    assert ("pylance refuses it" if refusing_library == "theirs" else "pylance accepts it") in str(error)


def test_printed_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    exec(compile(str(REGRESSIONS[next(iter(REGRESSIONS))]), "<program>", "exec"), {})
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["ours", "theirs"]

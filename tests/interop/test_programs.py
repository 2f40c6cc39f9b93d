"""Generated histories of tables, run by pylance, by us and in mixed turns: 300 of them here, as many as you like with
`make interop N=5000 SEED=1`. What a failure prints runs by itself.

`seeds.txt` keeps the seeds that found something. A seed means another program once the kinds of steps change, so what
was found stands here too, as the shortest program that shows it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.interop import index_steps
from tests.interop.allowed_differences import ALLOWED
from tests.interop.data_steps import KINDS
from tests.interop.fuzzing import Tried, attempt, read_seeds, shortened, try_indexed, try_some
from tests.interop.known_pylance_defects import FAULTS
from tests.interop.program_generator import program
from tests.interop.programs import Program, Step

PROCESSES = 2
PROGRAMS, AT_ONCE = 300, 50
INDEXED = 40
SEEDS = Path(__file__).with_name("seeds.txt")


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        yield pool


def agree(
    pool: ProcessPoolExecutor, seeds: list[int], attempted: Callable[[list[int]], Tried] = try_some
) -> Counter[str]:
    counted: Counter[str] = Counter()
    failures: list[str] = []
    for tried in pool.map(attempted, [seeds[start::PROCESSES] for start in range(PROCESSES)]):
        counted += tried.counted
        failures += tried.failures
    assert not failures, "\n\n".join(failures)
    return counted


@pytest.mark.parametrize("first", range(0, PROGRAMS, AT_ONCE))
def test_programs_agree(pool: ProcessPoolExecutor, first: int) -> None:
    counted = agree(pool, list(range(first, first + AT_ONCE)))
    assert counted["programs"] == AT_ONCE
    assert counted["steps"] > 5 * AT_ONCE
    exactly = counted["versions"] - counted["versions compared without order and place"]
    assert exactly > counted["versions"] * 2 / 3
    refused = sum(number for name, number in counted.items() if name.startswith("refused by both"))
    left_out = sum(number for name, number in counted.items() if name.startswith("left out"))
    assert refused + left_out < counted["steps"] / 5


def test_programs_with_indices_agree(pool: ProcessPoolExecutor) -> None:
    """After every step, what both find by them and without them."""
    counted = agree(pool, list(range(INDEXED)), try_indexed)
    assert counted["programs"] == INDEXED
    for kind in index_steps.KINDS:
        assert counted[f"done: {kind[0]}"]


def test_seeds_that_found_something(pool: ProcessPoolExecutor) -> None:
    agree(pool, read_seeds(SEEDS))


def test_every_kind_of_step_is_told_to_both() -> None:
    told = Counter(step.kind for seed in range(PROGRAMS) for step in program(seed).steps)
    assert [kind.name for kind in KINDS if kind.weight and not told[kind.name]] == []


def test_what_is_forgiven_has_a_reason() -> None:
    assert all(reason.strip() for reason in ALLOWED.values())
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


# Found


def written(*told: tuple[str, str], stable: bool = False, version: str = "2.2") -> Program:
    """A program by hand: what each library is told. In mixed turns the last step is ours."""
    steps = [
        Step(number, "by hand", ours, theirs, by_us=number == len(told) - 1)
        for number, (ours, theirs) in enumerate(told)
    ]
    return Program(-1, version, stable, True, tuple(steps))


def created(data: str, version: str = "2.2", stable: bool = False) -> tuple[str, str]:
    return (
        f"Table.create(uri, {data}, storage_version={version!r}, stable_row_ids={stable}, durable=False)",
        f"lance.write_dataset({data}, uri, data_storage_version={version!r}, enable_stable_row_ids={stable})",
    )


def both(call: str) -> tuple[str, str]:
    return f"table.{call}", f"dataset.{call}"


FOUND = {
    "a null struct with a UUID in it": written(
        created('rows({"k": "key", "b": "struct-of-extensions"}, range(7))', "2.1"),
        both('update({"b": "null"})'),
    ),
    "a cast of a mandatory column does not let old appends stand": written(
        created('rows({"k": "key", "a": "int8!"}, range(3))'),
        (
            'table.alter_column("a", type=arrow("int64"))',
            'dataset.alter_columns({"path": "a", "data_type": arrow("int64")})',
        ),
    ),
    "a part more of a mandatory struct does not let old appends stand": written(
        created('rows({"k": "key", "a": "struct!"}, range(3))'),
        both('add_columns(pa.field("a", pa.struct([pa.field("added", pa.int8())])))'),
    ),
    "JSON taken over from another column": written(
        created('rows({"k": "key", "a": "json", "b": "json"}, range(5))'),
        both('update({"a": "b"}, where="k < 3")'),
    ),
    "columns rewritten in a file whose other columns were dropped": written(
        created('rows({"k": "key", "c": "large_string"}, range(7))'),
        both('add_columns({"c1": "k % 2 = 0", "c2": "1"})'),
        both('drop_columns(["c", "c2"])'),
        both('update({"c1": "null"}, where="k < 6")'),
    ),
}


@pytest.mark.parametrize("found", FOUND)
def test_found(found: str) -> None:
    wrong = attempt(FOUND[found], Counter())
    assert wrong is None, f"{wrong}\n\n{FOUND[found]}"


# The machinery itself


def test_a_disagreement_is_seen_and_shortened() -> None:
    """A program in which the two are told different things."""
    differing = written(
        created('rows({"k": "key", "a": "int32"}, range(9))'),
        both('delete("k = 1")'),
        ('table.delete("k = 2")', 'dataset.delete("k = 3")'),
        ('table.set_config({"a": "1"})', 'dataset.update_config({"a": "1"})'),
    )
    why = attempt(differing, Counter())
    assert why is not None
    assert "step 2" in str(why)
    short, _why = shortened(differing, why)
    assert [step.number for step in short.steps] == [0, 2]


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_a_refusal_of_one_alone_is_seen(side: str) -> None:
    impossible = 'drop_columns(["nowhere"])'
    told = (
        ("table.restore(1)", f"dataset.{impossible}")
        if side == "theirs"
        else (f"table.{impossible}", "dataset.restore()")
    )
    why = attempt(written(created('rows({"k": "key"}, range(2))'), told), Counter())
    assert why is not None
    assert ("pylance refuses it" if side == "theirs" else "pylance does it") in str(why)


def test_what_is_printed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    exec(compile(str(FOUND[next(iter(FOUND))]), "<program>", "exec"), {})
    (place,) = tmp_path.iterdir()
    assert sorted(path.name for path in place.iterdir()) == ["ours", "theirs"]

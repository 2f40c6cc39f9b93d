"""Corrupted bytes: after any change of a byte and any truncation of a metadata file, an error of this library is raised
or the table can be read, quickly and without memory for the values of a corrupted number.

The tests try a few hundred cases of each kind, drawn from a fixed seed. `make damage` tries all positions with `VALUES`
of the other 255 values each, which the variable `DAMAGE` of the environment contains.
"""

import os
import random
import resource
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import LanceError
from tests.lance_core.corruption_cases import TABLES, CorruptibleFile, changed_bytes, create_case, truncations

VALUES = int(os.environ.get("DAMAGE", "0"))
TRIED = 80
SECONDS_MAX = 5.0
"""Processor time of this process for one case."""
MEGABYTES_MAX = 300
LARGE = 4000
"""In bytes; a larger file gets few values for each byte, since most of it is one field."""


def cases(original: bytes, draw: random.Random) -> Iterator[tuple[str, bytes]]:
    def others(count: int, byte: int) -> Iterator[int]:
        return iter(draw.sample([value for value in range(256) if value != byte], count))

    if VALUES:
        count = VALUES if len(original) < LARGE else min(VALUES, 2)
        yield from chain(changed_bytes(original, lambda byte: others(count, byte)), truncations(original))
        return
    for position in sorted(draw.sample(range(len(original)), min(TRIED, len(original)))):
        (value,) = others(1, original[position])
        yield f"byte {position} = {value}", original[:position] + bytes([value]) + original[position + 1 :]
    for end in sorted(draw.sample(range(len(original)), min(TRIED // 3, len(original)))):
        yield f"cut at {end}", original[:end]


@pytest.mark.filterwarnings("ignore::lance_core.IndexIgnored")
@pytest.mark.parametrize("name", TABLES)
def test_corruption_is_reported_or_harmless(name: str, tmp_path: Path) -> None:
    corrupted_file = create_case(name, tmp_path / "place")
    outcomes = [outcome(corrupted_file, "nothing", corrupted_file.original)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for what, data in cases(corrupted_file.original, random.Random(name)):
        began = time.process_time()
        outcomes.append(outcome(corrupted_file, what, data))
        assert time.process_time() - began < SECONDS_MAX, what
    assert {"reported", "read"} <= set(outcomes) or "transaction" in name
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert grown < MEGABYTES_MAX
    assert outcome(corrupted_file, "nothing", corrupted_file.original) == outcomes[0]


def outcome(corrupted_file: CorruptibleFile, what: str, data: bytes) -> str:
    try:
        actual = corrupted_file.use_with(data)
    except LanceError:
        return "reported"
    except BaseException as error:
        error.add_note(f"after the damage: {what}")
        raise
    if isinstance(actual, pa.Table):
        actual.validate(full=True)
    return "read"

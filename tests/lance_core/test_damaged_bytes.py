"""Every change of one byte, and every truncation, of files that a table is made of: an error of ours, or a table that
can be read; nothing else, at once, and without taking memory for what a wrong number promises.

Here a few hundred of each kind are tried, drawn by a fixed seed. `make damage` tries all positions with `VALUES` of
the other 255 values each; `DAMAGE` in the environment is that number.
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
from tests.lance_core.damaged import TABLES, Subject, changes, subject, truncations

VALUES = int(os.environ.get("DAMAGE", "0"))
TRIED = 80
SECONDS_MAX = 5.0
"""Of this process, for one look."""
MEGABYTES_MAX = 300
LARGE = 4000
"""Bytes; of a larger file every byte gets few values, for most of it is one field."""


def cases(whole: bytes, draw: random.Random) -> Iterator[tuple[str, bytes]]:
    def others(count: int, byte: int) -> Iterator[int]:
        return iter(draw.sample([value for value in range(256) if value != byte], count))

    if VALUES:
        count = VALUES if len(whole) < LARGE else min(VALUES, 2)
        yield from chain(changes(whole, lambda byte: others(count, byte)), truncations(whole))
        return
    for position in sorted(draw.sample(range(len(whole)), min(TRIED, len(whole)))):
        (value,) = others(1, whole[position])
        yield f"byte {position} = {value}", whole[:position] + bytes([value]) + whole[position + 1 :]
    for end in sorted(draw.sample(range(len(whole)), min(TRIED // 3, len(whole)))):
        yield f"cut at {end}", whole[:end]


@pytest.mark.filterwarnings("ignore::lance_core.IndexIgnored")
@pytest.mark.parametrize("name", TABLES)
def test_damage_is_told_or_harmless(name: str, tmp_path: Path) -> None:
    looked = subject(name, tmp_path / "place")
    came = [outcome(looked, "nothing", looked.whole)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for what, data in cases(looked.whole, random.Random(name)):
        began = time.process_time()
        came.append(outcome(looked, what, data))
        assert time.process_time() - began < SECONDS_MAX, what
    assert {"told", "read"} <= set(came) or "transaction" in name
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert grown < MEGABYTES_MAX
    assert outcome(looked, "nothing", looked.whole) == came[0]


def outcome(looked: Subject, what: str, data: bytes) -> str:
    try:
        found = looked.damaged(data)
    except LanceError:
        return "told"
    except BaseException as error:
        error.add_note(f"after the damage: {what}")
        raise
    if isinstance(found, pa.Table):
        found.validate(full=True)
    return "read"

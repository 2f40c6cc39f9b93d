"""Histories of fleet tables: who builds the indices, and the steps that this project and a release of pylance take in
turns."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tests.fleets.rows import FOREIGN

OURS, PEER = "ours", "peer"
ROWS, ROWS_PER_FILE = 60, 15
STORAGE_VERSIONS = ("2.0", "2.1", "2.2")
_ACTORS = (OURS, PEER)


@dataclass(frozen=True, slots=True)
class Setting:
    """How a table is created."""

    stable: bool
    storage: str
    builder: str
    """Engine that creates the table and the indices that both engines build."""
    foreign: tuple[str, ...] = tuple(FOREIGN)
    """Columns with indices that only pylance builds."""

    def __str__(self) -> str:
        numbers = "stable row ids" if self.stable else "row addresses"
        foreign = f", {' and '.join(self.foreign)} by pylance" if self.foreign else ""
        return f"{numbers}, storage version {self.storage}, created and indexed by {self.builder}{foreign}"


@dataclass(frozen=True, slots=True)
class Step:
    actor: str
    verb: str
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def event(self) -> str | None:
        """Name under which later faults refer to this step (`faults.py`)."""
        if self.verb == "upsert" or (self.verb == "update" and "key" in self.arguments["values"]):
            return "change"
        return "deferred compaction" if self.verb == "compact" and self.arguments["deferred"] else None

    def __str__(self) -> str:
        texts = (f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.actor}: {self.verb}({', '.join(texts)})"


@dataclass(frozen=True, slots=True)
class History:
    setting: Setting
    steps: tuple[Step, ...]

    @property
    def label(self) -> str:
        """Short name, such as `stable 2.1 peer: upsert by ours, compact by peer`."""
        numbers = "stable" if self.setting.stable else "addresses"
        steps = ", ".join(f"{step.verb} by {step.actor}" for step in self.steps)
        return f"{numbers} {self.setting.storage} {self.setting.builder} {'+'.join(self.setting.foreign)}: {steps}"

    def __str__(self) -> str:
        return "\n".join([str(self.setting), *(f"  {step}" for step in self.steps)])


def compact(actor: str, *, deferred: bool = False, target_rows: int = 1000) -> Step:
    return Step(actor, "compact", {"target_rows": target_rows, "deferred": deferred})


def optimize(actor: str, *, merge: bool) -> Step:
    return Step(actor, "optimize", {"merge": merge})


def append(actor: str, first: int = 100) -> Step:
    return Step(actor, "append", {"ids": list(range(first, first + 20))})


def delete(actor: str, where: str = "id % 5 = 3") -> Step:
    return Step(actor, "delete", {"where": where})


def update_other(actor: str, where: str = "id >= 10 and id < 20") -> Step:
    return Step(actor, "update", {"values": {"other": "other + 1"}, "where": where})


def update_key(actor: str, where: str = "id in (7, 20)") -> Step:
    return Step(actor, "update", {"values": {"key": "key + 1000000"}, "where": where})


def upsert(actor: str, ids: tuple[int, ...] = (3, 7, 11, 25, 300), revision: int = 1) -> Step:
    return Step(actor, "upsert", {"ids": list(ids), "revision": revision})


def systematic_histories() -> Iterator[History]:
    """Yield each short sequence of steps in each setting. The storage version changes from one to the next.

    Next to a text index, our compaction writes no fragment reuse index for vectors, so some settings have none.
    """
    for number, (stable, builder) in enumerate(product((True, False), _ACTORS)):
        for position, steps in enumerate(_short_sequences(stable)):
            storage = STORAGE_VERSIONS[(number + position) % len(STORAGE_VERSIONS)]
            foreign = ("vector", "words") if position % 2 else ("vector",)
            yield History(Setting(stable, storage, builder, foreign), steps)


def _short_sequences(stable: bool) -> Iterator[tuple[Step, ...]]:
    for actor in _ACTORS:
        yield (delete(PEER), compact(actor), append(PEER), optimize(PEER, merge=True))
        yield (compact(actor), append(actor), optimize(PEER, merge=False), compact(PEER))
        yield (compact(actor), append(PEER), compact(PEER), optimize(OURS, merge=True))
        yield (update_other(actor), compact(PEER), update_other(OURS), compact(OURS))
        yield (update_key(actor), compact(PEER), optimize(PEER, merge=True))
        yield (upsert(actor), optimize(PEER, merge=True), compact(OURS))
        yield (upsert(actor), optimize(PEER, merge=False), optimize(OURS, merge=True))
        yield (upsert(actor), optimize(OURS, merge=False), compact(PEER), optimize(PEER, merge=True))
        yield (upsert(actor), compact(OURS), optimize(PEER, merge=True), compact(PEER))
        if not stable:
            yield (compact(actor, deferred=True), append(PEER), compact(PEER))
            yield (compact(actor, deferred=True), append(PEER), optimize(PEER, merge=True), optimize(OURS, merge=True))
            yield (compact(actor, deferred=True), append(OURS), optimize(OURS, merge=True), compact(PEER))
            yield (compact(actor, deferred=True), delete(PEER), compact(OURS), optimize(PEER, merge=True))


def random_history(seed: int) -> History:
    """Return a history of eight steps."""
    draw = random.Random(seed)
    foreign = draw.choice([(), ("vector",), ("vector", "words")])
    setting = Setting(draw.random() < 0.5, draw.choice(STORAGE_VERSIONS), draw.choice(_ACTORS), foreign)
    return History(setting, tuple(_random_step(draw, setting, number) for number in range(8)))


def _random_step(draw: random.Random, setting: Setting, number: int) -> Step:
    actor, low = draw.choice(_ACTORS), draw.randrange(ROWS)
    ids = tuple(sorted({*draw.sample(range(ROWS), 4), 300 + number}))
    return draw.choice(
        [
            append(actor, 1000 + 100 * number),
            delete(actor, f"id % {draw.randrange(7, 19)} = 3"),
            update_other(actor, f"id >= {low} and id < {low + 8}"),
            update_key(actor, f"id in ({low}, 7)"),
            upsert(actor, ids, number + 1),
            compact(actor, target_rows=draw.choice((40, 1000))),
            compact(actor, target_rows=draw.choice((40, 1000)), deferred=not setting.stable and draw.random() < 0.4),
            optimize(actor, merge=draw.random() < 0.6),
        ]
    )

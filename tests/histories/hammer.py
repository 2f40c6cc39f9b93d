"""Many processes at one table, killed at any moment and started again with the same intents.

What the simulation decides by a seed is left to the operating system here: it shows nothing twice, and finds what only
real files, real sockets and real deaths do. `jobs` says who does what, `hammer` lets them and kills them. A process is
`hammer_writer.py`, where the table is `hammer_locations.py`, and what must be true at the end `hammer_invariants.py`.
"""

import json
import os
import random
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from tests.histories.hammer_locations import Place
from tests.histories.hammer_writer import VERBS, Answer, Work

ROOT = Path(__file__).parents[2]
_MIX = dict(zip(VERBS, (70, 8, 8, 9, 5), strict=True))
_SHARED_KEYS = 5
_SILENCE_SECONDS_MAX = 90.0


@dataclass(frozen=True, slots=True)
class Size:
    writers: int
    works: int
    """Of each writer."""
    kills: int
    seed: int = 0


@dataclass
class Played:
    """What was heard of all writers."""

    seconds: float = 0.0
    kills: int = 0
    answers: list[Answer] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Writers that gave up, and what they said last."""

    @property
    def raised(self) -> Counter[str]:
        return Counter(each.partition(":")[0] for answer in self.answers for each in answer.raised)

    def told(self) -> dict[str, str]:
        landed = [each for each in self.answers if each.version is not None and not each.landed_before]
        times = sorted(each.seconds for each in landed)
        if not landed:
            return {}
        mean = statistics.fmean(each.attempts for each in landed)
        return {
            "kills": str(self.kills),
            "commits/s": f"{len(landed) / self.seconds:.0f}",
            "attempts": f"{mean:.2f} (most {max(each.attempts for each in landed)})",
            "seconds": f"{statistics.median(times):.3f} (slowest {times[-1]:.2f})",
            "raised": ", ".join(f"{name} {count}" for name, count in sorted(self.raised.items())) or "nothing",
            **{f"raised by {each.intent}": each.raised[0] for each in self.answers if each.raised},
        }


def jobs(size: Size) -> list[tuple[Work, ...]]:
    """Each writer changes and deletes rows of its own; keys below zero all of them bring."""
    chance = random.Random(size.seed)
    return [_job(chance, writer, size.works) for writer in range(size.writers)]


def _job(chance: random.Random, writer: int, works: int) -> tuple[Work, ...]:
    own: list[int] = []
    job = []
    for number in range(works):
        (verb,) = chance.choices(list(_MIX), list(_MIX.values()))
        if verb in ("update", "delete") and not own:
            verb = "append"
        row = writer * 10_000 + number
        if verb == "append":
            own.append(row)
        elif verb == "upsert":
            row = -1 - chance.randrange(_SHARED_KEYS)
        elif verb != "compact":
            row = own[chance.randrange(len(own))]
        if verb == "delete":
            own.remove(row)
        value = writer * 10_000 + number if verb == "upsert" else 0
        job.append(Work(f"{writer}.{number} {verb}", verb, row, value))
    return tuple(job)


class _Writer:
    """A process, or the next one in its place, and what is left for it to do."""

    def __init__(self, place: Place, work: tuple[Work, ...], errors: IO[str]) -> None:
        self._place, self._work, self._errors = place, work, errors
        self._answered = 0
        self.start()

    def start(self) -> None:
        """The last piece of work that was answered is asked for once more: it has to be found done."""
        self.is_ready, self._heard = False, b""
        command = [sys.executable, "-m", "tests.histories.hammer_writer"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        left = self._work[max(self._answered - 1, 0) :]
        self._left = iter(left)
        job = {
            "uri": self._place.uri,
            "options": dict(self._place.options),
            "durable": False,
            "work": [asdict(each) for each in left],
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job).encode())
        self.process.stdin.close()

    def kill(self) -> None:
        self.process.kill()
        self.is_ready = False

    @property
    def is_at_work(self) -> bool:
        return self.is_ready and self.process.poll() is None

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def hear(self) -> list[Answer] | None:
        """None: there is nothing more to come."""
        data = os.read(self.output.fileno(), 1 << 16)
        *lines, self._heard = (self._heard + data).split(b"\n")
        answers = []
        for line in lines:
            if line == b"ready":
                self.is_ready = True
            else:
                answers.append(Answer(**json.loads(line)))
                at = self._work.index(next(self._left))
                self._answered = max(self._answered, at + 1)
        return answers if data else None


class _Killer:
    """Spreads its kills over the work, not over the time, most of which goes into starting anew. It hits in the middle:
    a random part of what a piece of work takes after somebody was heard."""

    def __init__(self, size: Size) -> None:
        self._chance = random.Random(size.seed + 1)
        self._works_between = size.writers * size.works / (size.kills + 1)
        self._kills_max = size.kills
        self._works_next = self._works_between
        self._typical = 0.01
        self._victim: _Writer | None = None
        self._due = 0.0
        self.kills = 0

    @property
    def patience(self) -> float:
        """Seconds until there is something to do."""
        return _SILENCE_SECONDS_MAX if self._victim is None else max(0.0, self._due - time.perf_counter())

    @property
    def is_idle(self) -> bool:
        return self._victim is None

    def hears(self, answer: Answer) -> None:
        self._typical += (answer.seconds - self._typical) / 20

    def work(self, writers: Sequence[_Writer], answered: int) -> None:
        if self._victim and self._due <= time.perf_counter():
            if self._victim.is_at_work:
                self._victim.kill()
                self.kills += 1
                self._works_next += self._works_between
            self._victim = None
        at_work = [each for each in writers if each.is_at_work]
        if self._victim is None and at_work and self.kills < self._kills_max and answered >= self._works_next:
            self._victim = self._chance.choice(at_work)
            self._due = time.perf_counter() + 2 * self._typical * self._chance.random()


def hammer(place: Place, size: Size) -> Played:
    played = Played()
    begun = time.perf_counter()
    with selectors.DefaultSelector() as selector, tempfile.TemporaryFile("w+") as errors:
        writers = [_Writer(place, work, errors) for work in jobs(size)]
        try:
            played.kills = _play(writers, size, selector, played)
        finally:
            for writer in writers:
                writer.kill()
                writer.process.wait()
                writer.output.close()
        errors.seek(0)
        played.broken += [line for line in errors.read().splitlines() if line and not line.startswith(" ")][-5:]
    played.seconds = time.perf_counter() - begun
    return played


def _play(writers: Sequence[_Writer], size: Size, selector: selectors.BaseSelector, played: Played) -> int:
    """How many were killed, when all work is done."""
    killer = _Killer(size)
    answered: set[str] = set()
    for each in writers:
        selector.register(each.output, selectors.EVENT_READ, each)
    while selector.get_map():
        heard = selector.select(killer.patience)
        if not heard and killer.is_idle:
            played.broken.append(f"nobody was heard for {_SILENCE_SECONDS_MAX:.0f} s")
            break
        for key, _ in heard:
            writer: _Writer = key.data
            answers = writer.hear()
            for answer in answers or ():
                played.answers.append(answer)
                answered.add(answer.intent)
                killer.hears(answer)
            if answers is None:
                selector.unregister(writer.output)
                writer.output.close()
                code = writer.process.wait()
                if code == -signal.SIGKILL:
                    writer.start()
                    selector.register(writer.output, selectors.EVENT_READ, writer)
                elif code:
                    played.broken.append(f"a writer ended with {code}")
        killer.work(writers, len(answered))
    return killer.kills

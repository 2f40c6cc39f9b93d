"""Running of a history: after each step, the alternating engines answer every question by index and by scan, and
at the end the other releases do too."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fleets.engines import Answers, Engine, Ours, Release, StepFailed
from tests.fleets.faults import Fault, faults_of
from tests.fleets.histories import OURS, ROWS, ROWS_PER_FILE, History, Step
from tests.fleets.rows import FILTERS, FOREIGN, INDEXED

KINDS = {text: INDEXED[column] for column, texts in FILTERS.items() for text in texts}
WORDS = ("w3", "r1")
VECTORS = ([11.0, 1.0, 1.0, 0.0], [2000011.0, 1.0, 1.0, 0.0])


@dataclass
class Outcome:
    """Findings of one or more histories."""

    problems: list[str] = field(default_factory=list)
    answers: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Wrong answers and errors of pylance that `faults.py` lists, by the fault."""

    def add(self, other: "Outcome") -> None:
        self.problems += other.problems
        self.answers += other.answers
        self.faults += other.faults


def run_history(history: History, peer: Release, readers: Sequence[Release]) -> Outcome:
    """Run a history with one release of pylance. `readers` answer at the end, and change nothing."""
    root = Path(tempfile.mkdtemp(prefix="fleet-"))
    try:
        return _Run(history, peer, readers, str(root / "t")).run()
    finally:
        shutil.rmtree(root)


class _Run:
    def __init__(self, history: History, peer: Release, readers: Sequence[Release], uri: str) -> None:
        self._history, self._peer, self._uri = history, peer, uri
        self._ours = Ours()
        self._readers = [reader for reader in readers if reader.name != peer.name]
        self._active: list[Fault] = []
        self._before: set[str] = set()
        self._outcome = Outcome()

    def run(self) -> Outcome:
        self._build()
        self._activate(None)
        for step in (None, *self._history.steps):
            if step is not None and not self._perform(step):
                break
            self._compare("the beginning" if step is None else str(step), [self._peer])
            if self._outcome.problems:
                break
        self._compare("the end", self._readers)
        return self._outcome

    def _build(self) -> None:
        setting = self._history.setting
        builder = self._engine(setting.builder)
        builder.perform(
            "create",
            uri=self._uri,
            ids=list(range(ROWS)),
            stable=setting.stable,
            storage=setting.storage,
            per_file=ROWS_PER_FILE,
        )
        for column, kind in INDEXED.items():
            builder.perform("index", uri=self._uri, column=column, kind=kind)
        for column in setting.foreign:
            self._peer.perform("index", uri=self._uri, column=column, kind=FOREIGN[column])

    def _engine(self, actor: str) -> Engine:
        return self._ours if actor == OURS else self._peer

    def _activate(self, step: Step | None) -> None:
        self._active += faults_of(self._history.setting, step, frozenset(self._before), self._peer.major)
        if step is not None and step.event is not None:
            self._before.add(step.event)

    def _perform(self, step: Step) -> bool:
        """Perform a step. Return whether the history goes on: a step of pylance may fail because of a known fault."""
        self._activate(step)
        try:
            self._engine(step.actor).perform(step.verb, uri=self._uri, **step.arguments)
        except StepFailed as error:
            fault = next((fault for fault in self._active if _reads(fault, self._peer)), None)
            if fault is None:
                self._report(f"{step} failed: {error}")
            else:
                self._outcome.faults[fault.what] += 1
            return False
        return True

    def _compare(self, moment: str, releases: Sequence[Release]) -> None:
        ours: Answers = self._ours.perform("answer_filters", uri=self._uri, filters=list(KINDS))
        for question, ways in ours.items():
            self._outcome.answers += 1
            if ways["index"] != ways["scan"]:
                self._report(f"after {moment}, ours: {question}: {ways['index']} by index, {ways['scan']} by scan")
        for release in releases:
            for question, kind, ways in self._ask(release):
                self._outcome.answers += 1
                if question in ours and ways["scan"] != ours[question]["scan"]:
                    self._report(f"after {moment}, {release.name}: a scan for {question} finds {ways['scan']}")
                elif ways["index"] != ways["scan"]:
                    self._judge(moment, release, question, kind, ways)

    def _ask(self, release: Release) -> Iterator[tuple[str, str, Mapping[str, list[int] | str]]]:
        """Yield each question with the index type that answers it and the answers."""
        answers: Answers = release.perform("answer_filters", uri=self._uri, filters=list(KINDS))
        for question, ways in answers.items():
            yield question, KINDS[question], ways
        foreign = self._history.setting.foreign
        words, vectors = WORDS if "words" in foreign else (), VECTORS if "vector" in foreign else ()
        searches: Answers = release.perform("answer_searches", uri=self._uri, words=words, vectors=vectors)
        for question, ways in searches.items():
            yield question, FOREIGN[question.partition(" ")[0]], ways

    def _judge(
        self, moment: str, release: Release, question: str, kind: str, ways: Mapping[str, list[int] | str]
    ) -> None:
        fault = next((fault for fault in self._active if kind in fault.kinds and _reads(fault, release)), None)
        if fault is not None:
            self._outcome.faults[fault.what] += 1
            return
        self._report(
            f"after {moment}, {release.name}: {question} ({kind}): {ways['index']} by index, {ways['scan']} by scan"
        )

    def _report(self, problem: str) -> None:
        self._outcome.problems.append(f"with pylance {self._peer.name}: {self._history}\n{problem}")


def _reads(fault: Fault, release: Release) -> bool:
    return fault.readers[0] <= release.major <= fault.readers[1]

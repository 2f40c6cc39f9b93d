"""Stage progress: reports the finished tasks of each Spark stage while a job runs, if someone receives reports.

Classic sessions are asked by their status tracker, sessions of Spark Connect (4.0 and newer) send the numbers to a
handler. Without a receiver nothing is asked. Start with `report_stages`.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lance_assets.spark.release import has_progress_handlers
from lance_assets.spark.session import classic_context
from lance_core.progress import Reporter, reporter

_POLL_SECONDS = 0.5


@contextmanager
def report_stages(spark: SparkSession) -> Iterator[None]:
    """Report the stages that run during the block."""
    report = reporter()
    if report is None:
        yield
    elif (context := classic_context(spark)) is not None:
        with _polling(_StatusTracker(context.statusTracker()), report):
            yield
    elif has_progress_handlers(spark):
        with _handling(spark, report):
            yield
    else:
        yield


class _StatusTracker:
    """Stages of a classic session that were not active at the start."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self._earlier = set(tracker.getActiveStageIds())
        self._totals: dict[int, int] = {}

    def states(self) -> Iterator[tuple[int, int, int]]:
        """Yield number, finished tasks and tasks of each active stage, and once more of each that ended."""
        active = set(self._tracker.getActiveStageIds()) - self._earlier
        for stage in sorted(self._totals.keys() - active):
            total = self._totals.pop(stage)
            yield stage, total, total
        for stage in sorted(active):
            if (info := self._tracker.getStageInfo(stage)) is not None:
                self._totals[stage] = info.numTasks
                yield stage, info.numCompletedTasks, info.numTasks


@contextmanager
def _polling(tracker: _StatusTracker, report: Reporter) -> Iterator[None]:
    """Report the states of the tracker from another thread until the end of the block."""
    ended, failure = threading.Event(), list[BaseException]()

    def poll() -> None:
        try:
            while not ended.wait(_POLL_SECONDS):
                _report_all(tracker, report)
        except Py4JError:
            return  # the session was stopped
        except BaseException as error:  # noqa: BLE001  # of the receiver; the block raises it
            failure.append(error)

    thread = threading.Thread(target=poll, name="stage progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failure:
        raise failure[0]
    _report_all(tracker, report)


def _report_all(tracker: _StatusTracker, report: Reporter) -> None:
    for stage, done, total in tracker.states():
        report(f"stage {stage}", done, total, "tasks")


@contextmanager
def _handling(spark: Any, report: Reporter) -> Iterator[None]:
    """Report what Spark Connect sends."""

    def handle(stages: Sequence[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        for stage in stages or ():
            report(f"stage {stage.stage_id}", stage.num_completed_tasks, stage.num_tasks, "tasks")

    handler: Callable[..., None] = handle
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)

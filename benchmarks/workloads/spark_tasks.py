"""Workload `spark_tasks`: additional time per Python task in a session of ours, compared with bare PySpark, with tasks
that return their input."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from benchmarks.spark_application import BARE, OURS, SparkApplication, start_application

_TASKS: Mapping[Scale, int] = {Scale.SMOKE: 6, Scale.DEFAULT: 100, Scale.FULL: 200}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 5}


class SparkTasks:
    name = "spark_tasks"
    summary = "the price of one more Python task, against bare PySpark"
    notes = (
        "two applications, each in a process of its own, local[*]; bare is PySpark with its default settings",
        "one more task: the additional time of a job of many tasks, divided by the number of additional tasks",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"tasks": _TASKS[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        stage.log("starting Spark, twice")
        tasks = _TASKS[stage.scale]
        with start_application(OURS) as ours, start_application(BARE) as bare:
            yield Case(
                f"a job of {tasks} tasks",
                (
                    Entrant("ours", Side.OURS, lambda: _JobRunner(ours, tasks)),
                    Entrant("bare PySpark", Side.PEER, lambda: _JobRunner(bare, tasks)),
                ),
                warm_ups=3,
            )


WORKLOAD = SparkTasks()


@dataclass
class _JobRunner:
    application: SparkApplication
    count: int
    _one: float = field(default=0.0)
    _many: float = field(default=0.0)

    def before(self) -> None:
        self._one = self.application.time_job(1)

    def call(self) -> None:
        self._many = self.application.time_job(self.count)

    def call_figures(self) -> CallFigures:
        seconds_per_task = (self._many - self._one) / (self.count - 1)
        return CallFigures(seconds={"one more task": seconds_per_task, "a job of one": self._one})

    def facts(self) -> Facts:
        return {"rows": self.count}

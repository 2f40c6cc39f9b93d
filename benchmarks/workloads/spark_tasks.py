"""What one more Python task costs in a session of ours, against a bare PySpark: tasks that give back what they got."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from benchmarks.harness import Case, Entrant, Scale, Side, Stage, Told
from benchmarks.report import Facts
from benchmarks.tasks_of import BARE, OURS, Tasks, application

_TASKS: Mapping[Scale, int] = {Scale.SMOKE: 6, Scale.DEFAULT: 100, Scale.FULL: 200}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 5}


class SparkTasks:
    name = "spark_tasks"
    summary = "the price of one more Python task, against bare PySpark"
    notes = (
        "two applications, each in a process of its own, local[*]; bare is PySpark as it comes",
        "one more task: what a job of many takes beyond a job of one, by how many it has more",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"tasks": _TASKS[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        stage.log("starting Spark, twice")
        tasks = _TASKS[stage.scale]
        with application(OURS) as ours, application(BARE) as bare:
            yield Case(
                f"a job of {tasks} tasks",
                (
                    Entrant("ours", Side.OURS, lambda: _Jobs(ours, tasks)),
                    Entrant("bare PySpark", Side.PEER, lambda: _Jobs(bare, tasks)),
                ),
                warm_ups=3,
            )


WORKLOAD = SparkTasks()


@dataclass
class _Jobs:
    tasks: Tasks
    count: int
    _one: float = field(default=0.0)
    _many: float = field(default=0.0)

    def before(self) -> None:
        self._one = self.tasks.took(1)

    def call(self) -> None:
        self._many = self.tasks.took(self.count)

    def told(self) -> Told:
        more = (self._many - self._one) / (self.count - 1)
        return Told(seconds={"one more task": more, "a job of one": self._one})

    def facts(self) -> Facts:
        return {"rows": self.count}

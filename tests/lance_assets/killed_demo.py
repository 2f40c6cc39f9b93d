"""Runs the demo in processes that die at a chosen step. Not a test: `test_demo_killed.py` drives it.

One process has everything imported and forks a child for each order it reads on stdin, so that a death costs a fork
and not a minute of imports. A child runs the real demo; around each call that leaves a trace outside the process it
writes the call's name on a tape, and kills itself, with SIGKILL, where it was told to.
"""

import functools
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql.classic.dataframe import DataFrame

from lance_assets import assets, resources  # noqa: F401 - loaded before the fork
from lance_core.storage.local import LocalStore

ROWS_A_DAY = 1000
_EVENTS = {"ASSET_MATERIALIZATION", "STEP_SUCCESS", "PIPELINE_SUCCESS"}


@dataclass
class Tape:
    path: Path
    kill_at: str | None
    seen: Counter[str] = field(default_factory=Counter)

    def around(self, function: Callable[..., Any], name: Callable[..., str | None]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            label = name(*args, **kwargs)
            if label is None:
                return function(*args, **kwargs)
            self.seen[label] += 1
            step = f"{label} {self.seen[label]}"
            self._reach(f"before {step}")
            answer = function(*args, **kwargs)
            self._reach(f"after {step}")
            return answer

        return wrapped

    def _reach(self, point: str) -> None:
        with self.path.open("a") as tape:
            tape.write(point + "\n")
        if point == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def run_demo(order: dict[str, str | None]) -> None:
    root = Path(str(order["root"]))
    os.environ["LANCE_ASSETS_DEMO"] = str(root)
    from lance_assets.demo import definitions, place, story  # they read the variable when they are loaded

    definitions.ORDERS_A_DAY = ROWS_A_DAY
    one_day = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-02")
    setattr(story, "days", one_day)  # noqa: B010 - the module imports it
    tape = Tape(root / "tape", order["kill_at"])
    LocalStore.create = tape.around(LocalStore.create, lambda store, path, data: f"create {_place(path)}")  # type: ignore[method-assign]
    LocalStore.put = tape.around(LocalStore.put, lambda store, path, data: f"put {_place(path)}")  # type: ignore[method-assign]
    DataFrame.toArrow = tape.around(DataFrame.toArrow, lambda frame: "spark job")  # type: ignore[method-assign]
    for method, name in (
        ("add_dynamic_partitions", _fixed("add_dynamic_partitions")),
        ("delete_dynamic_partition", _fixed("delete_dynamic_partition")),
        ("add_run_tags", _fixed("add_run_tags")),
        ("handle_new_event", _event),
    ):
        setattr(dg.DagsterInstance, method, tape.around(getattr(dg.DagsterInstance, method), name))
    story.tell(place.place(), print)


def _fixed(label: str) -> Callable[..., str]:
    return lambda *args, **kwargs: label


def _place(path: str) -> str:
    """The directory of the table that a path is in: names of files are different in every run."""
    return path.rpartition("/")[0]


def _event(instance: dg.DagsterInstance, entry: dg.EventLogEntry, **_: object) -> str | None:
    event = entry.dagster_event
    if event is None or event.event_type_value not in _EVENTS:
        return None
    return f"event {event.event_type_value} {event.asset_key.to_user_string() if event.asset_key else ''}".strip()


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        Path(order["root"]).mkdir(parents=True, exist_ok=True)
        child = os.fork()
        if child == 0:
            log = os.open(Path(order["root"]) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            run_demo(order)
            sys.stdout.flush()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


if __name__ == "__main__":
    main()

"""What a writer does that leaves a trace outside its process, call by call, and its death at one of them.

    Tape(path, kill_at="after create _versions 1").run()

From then on each such call is written on the tape before and after it is made.
"""

import functools
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql.classic.dataframe import DataFrame

from lance_core.storage.local import LocalStore

_EVENTS = {"ASSET_MATERIALIZATION", "STEP_SUCCESS", "PIPELINE_SUCCESS"}


@dataclass
class Tape:
    path: Path
    kill_at: str | None
    also: tuple[int, ...] = ()
    """Processes that die with this one, before it."""
    seen: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        for method, name in (("create", _placed("create")), ("put", _placed("put"))):
            setattr(LocalStore, method, self.around(getattr(LocalStore, method), name))
        DataFrame.toArrow = self.around(DataFrame.toArrow, lambda frame: "spark job")  # type: ignore[method-assign]
        for method, named in (
            ("add_dynamic_partitions", _fixed("add_dynamic_partitions")),
            ("delete_dynamic_partition", _fixed("delete_dynamic_partition")),
            ("add_run_tags", _fixed("add_run_tags")),
            ("handle_new_event", _event),
        ):
            setattr(dg.DagsterInstance, method, self.around(getattr(dg.DagsterInstance, method), named))

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
            for process in (*self.also, os.getpid()):
                os.kill(process, signal.SIGKILL)


def _fixed(label: str) -> Callable[..., str]:
    return lambda *args, **kwargs: label


def _placed(label: str) -> Callable[..., str]:
    """With the directory of the table that a path is in: names of files are different in every run."""
    return lambda store, path, data: f"{label} {path.rpartition('/')[0]}"


def _event(instance: dg.DagsterInstance, entry: dg.EventLogEntry, **_: object) -> str | None:
    event = entry.dagster_event
    if event is None or event.event_type_value not in _EVENTS:
        return None
    return f"event {event.event_type_value} {event.asset_key.to_user_string() if event.asset_key else ''}".strip()

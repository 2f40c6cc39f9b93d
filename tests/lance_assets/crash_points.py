"""Crash points: the calls of a process that have an effect outside it, and its death at one of them.

    CrashPointRecorder(path, kill_at="after create _versions 1").install()

From then on the process writes a line to the file before and after each such call, and kills itself at `kill_at`.
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
class CrashPointRecorder:
    path: Path
    kill_at: str | None
    """Crash point at which the process dies; `None` means that it only records."""
    killed_first: tuple[int, ...] = ()
    """Processes to kill before this one."""
    call_counts: Counter[str] = field(default_factory=Counter)

    def install(self) -> None:
        """Wrap the methods of the store, of Spark and of Dagster that have an effect outside the process."""
        for method, name in (
            ("create_after", _name_with_directory("create")),
            ("put", _name_with_directory("put")),
            ("put_unsynced", _name_with_directory("put")),
        ):
            setattr(LocalStore, method, self._wrap(getattr(LocalStore, method), name))
        DataFrame.toArrow = self._wrap(DataFrame.toArrow, lambda frame: "spark job")  # type: ignore[method-assign]
        for method, instance_name in (
            ("add_dynamic_partitions", _fixed_name("add_dynamic_partitions")),
            ("delete_dynamic_partition", _fixed_name("delete_dynamic_partition")),
            ("add_run_tags", _fixed_name("add_run_tags")),
            ("handle_new_event", _event_name),
        ):
            setattr(dg.DagsterInstance, method, self._wrap(getattr(dg.DagsterInstance, method), instance_name))

    def _wrap(self, function: Callable[..., Any], call_name: Callable[..., str | None]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            name = call_name(*args, **kwargs)
            if name is None:
                return function(*args, **kwargs)
            self.call_counts[name] += 1
            step = f"{name} {self.call_counts[name]}"
            self._reach(f"before {step}")
            result = function(*args, **kwargs)
            self._reach(f"after {step}")
            return result

        return wrapper

    def _reach(self, point: str) -> None:
        with self.path.open("a") as file:
            file.write(point + "\n")
        if point == self.kill_at:
            for process in (*self.killed_first, os.getpid()):
                os.kill(process, signal.SIGKILL)


def _fixed_name(name: str) -> Callable[..., str]:
    return lambda *args, **kwargs: name


def _name_with_directory(name: str) -> Callable[..., str]:
    """Append the directory inside the table to the name; file names differ between runs."""
    return lambda store, path, *_arguments: f"{name} {path.rpartition('/')[0]}"


def _event_name(instance: dg.DagsterInstance, entry: dg.EventLogEntry, **_: object) -> str | None:
    event = entry.dagster_event
    if event is None or event.event_type_value not in _EVENTS:
        return None
    return f"event {event.event_type_value} {event.asset_key.to_user_string() if event.asset_key else ''}".strip()

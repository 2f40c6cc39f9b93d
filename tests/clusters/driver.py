"""A Spark driver in a process of its own, told one scene after the other: it can be killed, and other tests keep
theirs.

    with driving(spark) as driver:
        driver.play(life.everything, uri=...)      a function of a module, with the session and what is given here

What a scene returns comes back; what goes wrong in it comes back as text.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import cast

from pyspark.sql import SparkSession

from lance_assets.spark import SparkSettings, open_session
from lance_assets.spark.session import classic_context
from tests.clusters.places import HOME, PROJECT, Spark

Value = str | int | float | bool | None | list["Value"] | Mapping[str, "Value"]


@dataclass(frozen=True, slots=True)
class Driver:
    process: "subprocess.Popen[str]"

    def play(self, scene: Callable[..., object], **given: object) -> Value:
        """What the scene returned. The process may be killed by it, which is an error of its own."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"scene": f"{scene.__module__}:{scene.__qualname__}", "given": given}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise DriverEnded(self.process.wait())
        told = json.loads(answer)
        if told["error"] is not None:
            raise AssertionError(told["error"])
        return cast(Value, told["value"])


class DriverEnded(Exception):
    """In the middle of a scene."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the driver ended with {code}")
        self.code = code


@contextmanager
def driving(spark: Spark, **environment: str) -> Iterator[Driver]:
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(asdict(spark))],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Driver(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        process.stdout.close()


def main() -> None:
    told = Spark(**json.loads(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session: SparkSession | None = None
    for line in sys.stdin:
        order = json.loads(line)
        module, _, name = order["scene"].partition(":")
        answer: dict[str, object] = {"error": None, "value": None}
        try:
            session = session or open_session(
                SparkSettings(master=told.master, remote=told.remote, conf=told.conf, log_level="ERROR")
            )
            answer["value"] = getattr(import_module(module), name)(session, **order["given"])
        except Exception:  # noqa: BLE001 - whoever asked is told, whatever it is
            answer["error"] = traceback.format_exc()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if session is not None:
        context = classic_context(session)
        application = context.applicationId if context else ""
        session.stop()
        if application:  # of a local cluster, whose executors work beside Spark's own files
            rmtree(Path(HOME) / "work" / application, ignore_errors=True)


if __name__ == "__main__":
    main()

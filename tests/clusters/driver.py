"""Spark driver process: runs functions one after the other in a separate process, so that it can be killed without
affecting other tests.

    with start_driver(spark) as driver:
        driver.call(lifecycle.run_lifecycle, uri=...)      call a module function with the session and these arguments

The result of a function is returned; its error is returned as text.
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
from tests.clusters.deployments import HOME, PROJECT, SparkAddress

Value = str | int | float | bool | None | list["Value"] | Mapping[str, "Value"]


@dataclass(frozen=True, slots=True)
class Driver:
    process: "subprocess.Popen[str]"

    def call(self, function: Callable[..., object], **arguments: object) -> Value:
        """Call a function with the session and return its result. Raise `DriverEnded` if it kills the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"function": f"{function.__module__}:{function.__qualname__}", "arguments": arguments}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise DriverEnded(self.process.wait())
        result = json.loads(answer)
        if result["error"] is not None:
            raise AssertionError(result["error"])
        return cast(Value, result["value"])


class DriverEnded(Exception):
    """The driver process ended in the middle of a function."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the driver ended with exit code {code}")
        self.code = code


@contextmanager
def start_driver(spark: SparkAddress, **environment: str) -> Iterator[Driver]:
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
    address = SparkAddress(**json.loads(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session: SparkSession | None = None
    for line in sys.stdin:
        request = json.loads(line)
        module, _, name = request["function"].partition(":")
        answer: dict[str, object] = {"error": None, "value": None}
        try:
            session = session or open_session(
                SparkSettings(master=address.master, remote=address.remote, conf=address.conf, log_level="ERROR")
            )
            answer["value"] = getattr(import_module(module), name)(session, **request["arguments"])
        except Exception:  # noqa: BLE001 - the caller gets every error
            answer["error"] = traceback.format_exc()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if session is not None:
        context = classic_context(session)
        application = context.applicationId if context else ""
        session.stop()
        if application:  # a local cluster, whose executors have their directory next to Spark's own files
            rmtree(Path(HOME) / "work" / application, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Dagster as it is deployed: a webserver and a daemon, each a process with its own end, and a browser's questions.

What is started here is stopped here, by its own process group and no other.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
_LOOK_AGAIN_S = 0.2
_STOP_SECONDS_MAX = 30


def until(holds: Callable[[], Any], what: Callable[[], str], seconds: float = 240) -> Any:
    """What it answered at last."""
    ends = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < ends, what()
        time.sleep(_LOOK_AGAIN_S)
    return found


@dataclass(frozen=True, slots=True)
class Deployment:
    """What all its processes are told, and where their logs go."""

    home: Path
    environment: Mapping[str, str]
    module: str

    @contextmanager
    def process(self, name: str, *command: str) -> Iterator["subprocess.Popen[bytes]"]:
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=PROJECT,
                env={**os.environ, **self.environment, "DAGSTER_HOME": str(self.home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                end(process, signal.SIGTERM)

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text()[-6000:]

    @contextmanager
    def daemon(self, name: str) -> Iterator["subprocess.Popen[bytes]"]:
        with self.process(name, "dagster._daemon", "run", "-m", self.module) as process:
            yield process

    @contextmanager
    def webserver(self) -> Iterator["Browser"]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        listen = ["-h", "127.0.0.1", "-p", str(port)]
        with self.process("webserver", "dagster_webserver", *listen, "-m", self.module) as process:
            browser = Browser(f"http://127.0.0.1:{port}")

            def is_up() -> bool:
                assert process.poll() is None, self.log("webserver")
                with suppress(urllib.error.URLError, ConnectionError):
                    return bool(browser.ask("{ version }"))
                return False

            until(is_up, lambda: self.log("webserver"))
            yield browser


def end(process: "subprocess.Popen[bytes]", sent: signal.Signals) -> None:
    """With everything that it has started, and that has not left it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, sent)
    try:
        process.wait(_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass(frozen=True, slots=True)
class Browser:
    url: str

    def ask(self, query: str, **variables: object) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                told: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{error}: {error.read().decode()[:4000]}") from error
        assert "errors" not in told, told["errors"]
        data: dict[str, Any] = told["data"]
        return data

    def launch(self, location: str, job: str) -> str:
        """The id of the run."""
        selector = {
            "repositoryLocationName": location,
            "repositoryName": "__repository__",
            "jobName": job,
        }
        answer = self.ask(LAUNCH, params={"selector": selector, "runConfigData": {}, "mode": "default"})
        launched = answer["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run_id: str = launched["run"]["runId"]
        return run_id

    def terminate(self, run_id: str) -> None:
        """As the button of the run's page does."""
        answer = self.ask(TERMINATE, id=run_id)["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer


LAUNCH = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) { __typename
    ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } } ... on PipelineNotFoundError { message } } }"""
TERMINATE = """mutation($id: String!) { terminateRun(runId: $id) { __typename
    ... on TerminateRunFailure { message } ... on PythonError { message } } }"""

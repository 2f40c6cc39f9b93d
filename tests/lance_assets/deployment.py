"""Deployment: Dagster's webserver and daemon as processes of their own, and a GraphQL client that acts as the browser.

Each process is stopped by its own process group.
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
_POLL_INTERVAL_S = 0.2
_STOP_SECONDS_MAX = 30


def wait_until(condition: Callable[[], Any], message: Callable[[], str], seconds: float = 240) -> Any:
    """Return the first true value of the condition; fail with the message after a time limit."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, message()
        time.sleep(_POLL_INTERVAL_S)
    return result


@dataclass(frozen=True, slots=True)
class Deployment:
    """Environment of all processes of one deployment, and the folder of their logs."""

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
                stop(process, signal.SIGTERM)

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text()[-6000:]

    @contextmanager
    def daemon(self, name: str) -> Iterator["subprocess.Popen[bytes]"]:
        with self.process(name, "dagster._daemon", "run", "-m", self.module) as process:
            yield process

    @contextmanager
    def webserver(self) -> Iterator["GraphqlClient"]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        listen = ["-h", "127.0.0.1", "-p", str(port)]
        with self.process("webserver", "dagster_webserver", *listen, "-m", self.module) as process:
            client = GraphqlClient(f"http://127.0.0.1:{port}")

            def is_up() -> bool:
                assert process.poll() is None, self.log("webserver")
                with suppress(urllib.error.URLError, ConnectionError):
                    return bool(client.query("{ version }"))
                return False

            wait_until(is_up, lambda: self.log("webserver"))
            yield client


def stop(process: "subprocess.Popen[bytes]", stop_signal: signal.Signals) -> None:
    """Stop a process with all processes of its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, stop_signal)
    try:
        process.wait(_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass(frozen=True, slots=True)
class GraphqlClient:
    url: str

    def query(self, query: str, **variables: object) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                response: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{error}: {error.read().decode()[:4000]}") from error
        assert "errors" not in response, response["errors"]
        data: dict[str, Any] = response["data"]
        return data

    def launch(self, location: str, job: str) -> str:
        """Launch a job and return the id of the run."""
        selector = {
            "repositoryLocationName": location,
            "repositoryName": "__repository__",
            "jobName": job,
        }
        answer = self.query(LAUNCH, params={"selector": selector, "runConfigData": {}, "mode": "default"})
        launched = answer["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run_id: str = launched["run"]["runId"]
        return run_id

    def terminate(self, run_id: str) -> None:
        """Terminate a run as the button of its page does."""
        answer = self.query(TERMINATE, id=run_id)["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer


LAUNCH = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) { __typename
    ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } } ... on PipelineNotFoundError { message } } }"""
TERMINATE = """mutation($id: String!) { terminateRun(runId: $id) { __typename
    ... on TerminateRunFailure { message } ... on PythonError { message } } }"""

"""Forked programs: run Python programs in processes of their own, without importing the packages and starting Java for
each.

A server process imports the packages once, starts no thread, and forks a child for each program. The Spark
applications of all children run in one Java process, one after the other. Like a program started from a shell, a child
has its own arguments, environment and directory, and may be killed. Start with `forked_programs`; the fixture
`programs` of `tests/conftest.py` shares one server among the tests of a worker.
"""

import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NoReturn, TypedDict

from py4j.java_gateway import JavaGateway
from pyspark.java_gateway import launch_gateway

from lance_assets.spark.java import ensure_java

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = (
    "dagster",
    "pandas",
    "pyspark.sql",
    "pyspark.sql.dataframe",
    *(("pyspark.sql.classic.dataframe",) if find_spec("pyspark.sql.classic") else ()),  # Spark 4
    "lance_core",
    "lance_core.tasks",
    "lance_assets",
    "lance_assets.cli.main",
    "lance_assets.components",
    "lance_assets.spark",
)
"""Modules that the children find imported. Their import does not depend on the environment of a program."""


_OUTPUTS: tuple[tuple[int, Literal["output", "errors"]], ...] = ((1, "output"), (2, "errors"))
"""File descriptors of a child, each with the member of the request that names its file."""


class _Request(TypedDict):
    program: str
    arguments: list[str]
    directory: str
    environment: dict[str, str]
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class ForkedPrograms:
    """Runner of programs in children of the server process."""

    _server: "subprocess.Popen[str]"
    _java: JavaGateway
    _output_directory: Path

    def run(
        self,
        program: str | Path,
        *arguments: str,
        directory: Path = ROOT,
        environment: Mapping[str, str] = os.environ,
        shares_java: bool = True,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a module by its name, or a script by its path. Return its exit code and what it wrote."""
        output, errors = self._output_directory / "output", self._output_directory / "errors"
        request = _Request(
            program=str(program),
            arguments=list(arguments),
            directory=str(directory),
            environment={**environment, **(self._java_environment() if shares_java else {})},
            output=str(output),
            errors=str(errors),
        )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        code = int(json.loads(self._server.stdout.readline()))
        self._stop_spark()
        return subprocess.CompletedProcess([str(program), *arguments], code, output.read_text(), errors.read_text())

    def run_text(self, text: str, directory: Path) -> str:
        """Run a text as a script in a directory, and return what it prints."""
        script = directory / "example.py"
        script.write_text(text)
        (directory / "home").mkdir(exist_ok=True)
        done = self.run(script, directory=directory)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def _java_environment(self) -> dict[str, str]:
        parameters = self._java.gateway_parameters
        return {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
            "DAGSTER_DISABLE_TELEMETRY": "yes",
        }

    def _stop_spark(self) -> None:
        """Stop the application of a program that has ended: it still runs in the Java process."""
        companion = getattr(self._java.jvm.org.apache.spark, "SparkContext$")
        application = getattr(companion, "MODULE$").getActive()
        if application.isDefined():
            application.get().stop()


@contextmanager
def forked_programs(interpreter: str = sys.executable) -> Iterator[ForkedPrograms]:
    """Start the server and Java, and stop both at the end, also if one of them does not start or has ended."""
    command = [interpreter, "-m", __name__]
    with (
        _java_process() as java,
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
        tempfile.TemporaryDirectory() as output_directory,
    ):
        yield ForkedPrograms(server, java, Path(output_directory))


@contextmanager
def _java_process() -> Iterator[JavaGateway]:
    ensure_java()
    java: JavaGateway = launch_gateway()
    try:
        yield java
    finally:
        try:
            java.shutdown()
        finally:
            java.proc.kill()
            java.proc.wait()


def _serve() -> None:
    """Fork a child for each request on stdin, and write its exit code to stdout."""
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        request: _Request = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(request)
        status = os.waitpid(child, 0)[1]
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


def _run(request: _Request) -> NoReturn:
    """Become the program of a request."""
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, name in _OUTPUTS:
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644), descriptor)
    program = request["program"]
    is_script = program.endswith(".py")
    first_path = str(Path(program).parent) if is_script else request["directory"]
    more_paths = filter(None, request["environment"].get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [first_path, *more_paths, *sys.path[1:]]
    sys.argv = [program, *request["arguments"]]
    if is_script:
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    _serve()
    sys.stdout.flush()
    os._exit(0)  # nothing is left to clean up, and the end of an interpreter with so many modules takes a second

"""Where Spark runs in these tests: real executor processes and servers on loopback, of this environment's own PySpark.

    standalone()   a master and two workers, each a process on an address of its own, so that Spark takes them for two
                   hosts: it starts the copy of a slow task on another host only
    connect()      a Spark Connect server with a small cluster inside

What is started here is stopped here, by its own process and no other. Workers find the code of these tests by
`PYTHONPATH`, as users' workers find theirs in an image or a packed environment.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from lance_assets.spark.java import ensure_java

PROJECT = Path(__file__).resolve().parents[2]
HOME = Path(pyspark.__file__).parent
EXECUTOR_MEMORY_MB = 1024
_STOP_SECONDS_MAX = 30
_HOSTS = ("127.0.0.2", "127.0.0.3")
_OF_EVERY_DRIVER: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executorEnv.PYTHONPATH": str(PROJECT),
    "spark.pyspark.python": sys.executable,
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True, slots=True)
class Spark:
    """What a driver is told."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def local() -> Iterator[Spark]:
    """Threads of the driver's own process."""
    yield Spark("local[2,3]", conf={"spark.sql.shuffle.partitions": "2"})


@contextmanager
def local_cluster() -> Iterator[Spark]:
    """Executors are processes, started by the driver; they are taken for one host."""
    yield Spark(f"local-cluster[2,1,{EXECUTOR_MEMORY_MB}]", conf=_OF_EVERY_DRIVER)


@contextmanager
def standalone() -> Iterator[Spark]:
    """Copies of slow tasks are on: what is tried there is tried with them."""
    with ExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-work-", ignore_cleanup_errors=True))
        listening = re.compile(r"Starting Spark master at (spark://\S+)")
        master = stack.enter_context(
            _daemon(
                "master.Master", ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"], "127.0.0.1", listening
            )
        )
        for host in _HOSTS:
            options = ["--host", host, "--port", "0", "--webui-port", "0", "--cores", "2", "--memory", "2g"]
            options += ["--work-dir", str(Path(work) / host), master]
            stack.enter_context(_daemon("worker.Worker", options, host, re.compile(r"(registered) with master")))
        copies = {
            "spark.cores.max": "2",  # there is room for two drivers, each with an executor on either host
            "spark.executor.cores": "1",
            "spark.executor.memory": f"{EXECUTOR_MEMORY_MB}m",
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.minTaskRuntime": "2s",
            "spark.speculation.task.duration.threshold": "3s",  # of a stage that has one task, none is a copy's measure
        }
        yield Spark(master, conf={**_OF_EVERY_DRIVER, **copies})


@contextmanager
def connect() -> Iterator[Spark]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    options = ["--master", "local[2,3]", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for key, value in conf.items():
        options += ["--conf", f"{key}={value}"]
    ready = re.compile(r"Spark Connect server (started) at")
    with _java(["org.apache.spark.deploy.SparkSubmit", *options, "spark-internal"], "127.0.0.1", ready):
        yield Spark(remote=f"sc://127.0.0.1:{port}")


PLACES = {each.__name__: each for each in (local, local_cluster, standalone, connect)}


@contextmanager
def _daemon(kind: str, options: list[str], host: str, ready: "re.Pattern[str]") -> Iterator[str]:
    little = {"SPARK_DAEMON_MEMORY": "256m"}
    with _java([f"org.apache.spark.deploy.{kind}", *options], host, ready, little) as said:
        yield said


@contextmanager
def _java(
    arguments: list[str], host: str, ready: "re.Pattern[str]", also: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A process of Spark's from the moment it says that it is ready; gives what it said."""
    ensure_java()
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(PROJECT),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": host,
        **(also or {}),
    }
    with tempfile.NamedTemporaryFile("w+", prefix="spark-log-", suffix=".txt") as log:
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *arguments],
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield _said(process, ready, Path(log.name))
        finally:
            # The group is of this process alone, and of the executors it has started.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _said(process: "subprocess.Popen[str]", ready: "re.Pattern[str]", log: Path) -> str:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := ready.search(line):
            # From here on nobody reads it, and it must not stop at a full pipe.
            _drain(process, log)
            return found[1]
    process.wait()
    raise RuntimeError(f"{process.args!r} ended with {process.returncode}:\n{''.join(lines[-50:])}")


def _drain(process: "subprocess.Popen[str]", log: Path) -> None:
    def copy() -> None:
        assert process.stderr is not None
        with log.open("w") as kept:
            for line in process.stderr:
                kept.write(line)

    threading.Thread(target=copy, daemon=True).start()

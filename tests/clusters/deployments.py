"""Spark deployments of the tests: real executor processes and servers on the loopback interface, from the PySpark of
this environment.

    standalone()   a master and two workers, each a process on an address of its own, so that Spark takes them for two
                   hosts: it starts the speculative copy of a slow task on another host only
    connect()      a Spark Connect server with a small cluster inside

Every process that is started here is stopped here, by its own process id. Workers find the code of these tests by
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
from tests.cheap_java import java_options

PROJECT = Path(__file__).resolve().parents[2]
HOME = Path(pyspark.__file__).parent
EXECUTOR_MEMORY_MB = 1024
_STOP_SECONDS_MAX = 30
_HOSTS = ("127.0.0.2", "127.0.0.3")
_DRIVER_CONF: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.extraJavaOptions": java_options(),
    "spark.executorEnv.PYTHONPATH": str(PROJECT),
    "spark.pyspark.python": sys.executable,
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True, slots=True)
class SparkAddress:
    """Address and configuration with which a driver opens its session."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def local() -> Iterator[SparkAddress]:
    """A local master: the executors are threads of the driver process."""
    yield SparkAddress("local[2,3]", conf={"spark.sql.shuffle.partitions": "2"})


@contextmanager
def local_cluster() -> Iterator[SparkAddress]:
    """A local cluster: the driver starts executor processes, which Spark takes for one host."""
    yield SparkAddress(f"local-cluster[2,1,{EXECUTOR_MEMORY_MB}]", conf=_DRIVER_CONF)


@contextmanager
def standalone() -> Iterator[SparkAddress]:
    """A standalone cluster with speculative execution, so that every test on it covers speculative tasks."""
    with ExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-work-", ignore_cleanup_errors=True))
        listening = re.compile(r"Starting Spark master at (spark://\S+)")
        master = stack.enter_context(
            _start_daemon(
                "master.Master", ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"], "127.0.0.1", listening
            )
        )
        for host in _HOSTS:
            options = ["--host", host, "--port", "0", "--webui-port", "0", "--cores", "2", "--memory", "2g"]
            options += ["--work-dir", str(Path(work) / host), master]
            stack.enter_context(_start_daemon("worker.Worker", options, host, re.compile(r"(registered) with master")))
        speculation = {
            "spark.cores.max": "2",  # two drivers fit, each with one executor on either host
            "spark.executor.cores": "1",
            "spark.executor.memory": f"{EXECUTOR_MEMORY_MB}m",
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.minTaskRuntime": "2s",
            # A stage of one task has no median that speculation could be based on.
            "spark.speculation.task.duration.threshold": "3s",
        }
        yield SparkAddress(master, conf={**_DRIVER_CONF, **speculation})


@contextmanager
def connect() -> Iterator[SparkAddress]:
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
    with _start_java(["org.apache.spark.deploy.SparkSubmit", *options, "spark-internal"], "127.0.0.1", ready):
        yield SparkAddress(remote=f"sc://127.0.0.1:{port}")


DEPLOYMENTS = {deployment.__name__: deployment for deployment in (local, local_cluster, standalone, connect)}


@contextmanager
def _start_daemon(kind: str, options: list[str], host: str, ready: "re.Pattern[str]") -> Iterator[str]:
    environment = {"SPARK_DAEMON_MEMORY": "256m"}
    with _start_java([f"org.apache.spark.deploy.{kind}", *options], host, ready, environment) as match:
        yield match


@contextmanager
def _start_java(
    arguments: list[str], host: str, ready: "re.Pattern[str]", extra_environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start a Java process of Spark, wait until it logs `ready`, and yield the matched text."""
    ensure_java()
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(PROJECT),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": host,
        **(extra_environment or {}),
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
            yield _wait_until_ready(process, ready, Path(log.name))
        finally:
            # The process group contains only this process and the executors that it started.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_until_ready(process: "subprocess.Popen[str]", ready: "re.Pattern[str]", log: Path) -> str:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if match := ready.search(line):
            # The pipe is not read below; drain it, so that the process does not block when it is full.
            _drain(process, log)
            return match[1]
    process.wait()
    raise RuntimeError(f"{process.args!r} ended with {process.returncode}:\n{''.join(lines[-50:])}")


def _drain(process: "subprocess.Popen[str]", log: Path) -> None:
    def copy() -> None:
        assert process.stderr is not None
        with log.open("w") as kept:
            for line in process.stderr:
                kept.write(line)

    threading.Thread(target=copy, daemon=True).start()

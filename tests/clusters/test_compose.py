"""Compose file: the commands of its services run as processes on loopback, and both writes of its project are launched.

An emulator takes the place of the store, and PostgreSQL runs from a wheel. Images and containers are not tested. The
test runs in `make clusters`.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

import psycopg
import pytest

from lance_assets.spark.java import ensure_java
from lance_core import Table
from tests.clusters.deployments import HOME
from tests.lance_assets.deployment import LAUNCH, GraphqlClient, stop, wait_until
from tests.lance_core.storage.object_servers import s3
from tests.postgres import for_dagster, postgres_server
from tests.test_platforms import COMPOSE, ROOT

EVERYTHING = os.environ.get("CLUSTERS") == "all"
SERVICES: Mapping[str, Mapping[str, Any]] = COMPOSE["services"]
DAY = "2026-01-05"
RUN = """query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"""
pytestmark = pytest.mark.timeout(900)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Machine:
    """Processes of the services on one machine: names of hosts become loopback addresses, and ports free ones."""

    folder: Path
    endpoint: str
    database: str
    ports: Mapping[str, int]

    def local(self, text: str) -> str:
        """Return a text of the compose file as it is on this machine."""
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
        if text.startswith("postgresql"):
            return for_dagster(self.database)
        text = text.replace("http://store:9000", self.endpoint).replace("/tmp/spark-work", str(self.folder / "work"))
        for port, free in self.ports.items():
            text = re.sub(rf"\b{port}\b", str(free), text)
        return re.sub(r"\b(spark-master|0\.0\.0\.0)\b", "127.0.0.1", text)

    def environment(self) -> dict[str, str]:
        declared = {name: self.local(str(value)) for name, value in COMPOSE["x-lance"]["environment"].items()}
        return {
            **os.environ,
            **declared,
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            "DAGSTER_HOME": str(self.folder),
            "LOAD_ORDERS": str(ROOT / "deploy/load_orders.py"),
            "PATH": os.pathsep.join([str(HOME / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DRIVER_HOST": "127.0.0.1",
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def command(self, service: str) -> list[str]:
        return [self.local(word) for word in SERVICES[service]["command"]]

    @contextmanager
    def running(self, service: str) -> Iterator["subprocess.Popen[bytes]"]:
        with (self.folder / f"{service}.log").open("wb") as log:
            process = subprocess.Popen(
                self.command(service),
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                stop(process, 15)  # type: ignore[arg-type]

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text()[-6000:]


if EVERYTHING:

    def test_commands_of_the_compose_file_run_a_project(tmp_path: Path) -> None:
        ensure_java()
        for name in ("project.py", "workspace.yaml", "dagster.yaml"):
            text = (ROOT / "deploy/compose" / name).read_text()
            (tmp_path / name).write_text(text)
        ports = {port: free_port() for port in ("3000", "4000", "7077", "8080")}
        workspace = tmp_path / "workspace.yaml"
        workspace.write_text(
            workspace.read_text().replace("host: code", "host: 127.0.0.1").replace("4000", str(ports["4000"]))
        )
        with ExitStack() as stack:
            server, url = stack.enter_context(s3()), stack.enter_context(postgres_server())
            with psycopg.connect(url.format(database="postgres"), autocommit=True) as connection:
                connection.execute("CREATE DATABASE dagster")
            machine = Machine(tmp_path, server.endpoint, url.format(database="dagster"), ports)
            for _ in range(2):  # the second start of the project finds the bucket
                subprocess.run(machine.command("bucket"), env=machine.environment(), check=True)
            for service in ("spark-master", "spark-worker"):
                stack.enter_context(machine.running(service))
                ready = "I have been elected leader" if service == "spark-master" else "registered with master"
                wait_until(lambda: ready in machine.log(service), lambda: machine.log(service))  # noqa: B023
            stack.enter_context(machine.running("code"))
            health = [machine.local(word) for word in SERVICES["code"]["healthcheck"]["test"][1:]]
            wait_until(
                lambda: (
                    subprocess.run(health, env=machine.environment(), capture_output=True, check=False).returncode == 0
                ),
                lambda: machine.log("code"),
            )
            stack.enter_context(machine.running("webserver"))
            stack.enter_context(machine.running("daemon"))
            client = GraphqlClient(f"http://127.0.0.1:{ports['3000']}")

            def is_up() -> bool:
                with suppress(URLError, ConnectionError):
                    return bool(client.query("{ version }"))
                return False

            wait_until(is_up, lambda: machine.log("webserver"))
            for job in ("load_day", "return_day"):
                selector = {"repositoryLocationName": "orders", "repositoryName": "__repository__", "jobName": job}
                tags = [{"key": "dagster/partition", "value": DAY}]
                answer = client.query(
                    LAUNCH,
                    params={
                        "selector": selector,
                        "runConfigData": {},
                        "mode": "default",
                        "executionMetadata": {"tags": tags},
                    },
                )["launchRun"]
                assert answer["__typename"] == "LaunchRunSuccess", answer
                run_id = answer["run"]["runId"]

                def status() -> str:
                    return str(client.query(RUN, id=run_id)["runOrError"]["status"])  # noqa: B023

                wait_until(lambda: status() in ("SUCCESS", "FAILURE"), lambda: machine.log("daemon"))
                assert status() == "SUCCESS", machine.log("code")
            options = {
                "aws_access_key_id": "lake-user",
                "aws_secret_access_key": "lake-password",
                "aws_endpoint": server.endpoint,
                "aws_region": "us-east-1",
                "allow_http": "true",
            }
            table = Table.open("s3://lake/orders.lance", storage_options=options)
            assert (table.version, table.count_rows()) == (2, 1010)
            assert [info.properties["dagster.partition"] for info in table.versions()] == [DAY, DAY]

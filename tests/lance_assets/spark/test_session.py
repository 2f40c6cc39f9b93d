"""Spark sessions of one application: settings, refusals, isolation of sessions, and secrets that are never shown."""

import gc
import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from lance_assets.spark import daemon
from lance_assets.spark.redaction import extend_pattern, warn_of_exposed_references
from lance_assets.spark.session import (
    PYTHON_MEMORY,
    RUNTIME_DEFAULTS,
    _socket_settings,
    _warn_of_low_memory_limit,
    classic_context,
    live_session,
    open_session,
)
from lance_assets.spark.settings import SparkSettings, mask_secret, parse_mebibytes
from lance_assets.spark.worker_setup import WorkerTask
from lance_core import InvalidInput
from lance_core.tasks.credentials import SPARK_REDACTS
from tests.lance_assets.conftest import HIDDEN_SETTINGS

SECRETS = {
    "spark.hadoop.fs.s3a.secret.key": "hush",
    "spark.hadoop.fs.azure.sas.container.account": "hush",
    "spark.ssl.trustStorePassword": "hush",
    "spark.driver.extraJavaOptions": "-Djavax.net.ssl.keyStorePassword=hush -Xss4m",
    "spark.hadoop.proxy": "https://user:hush@proxy:8080",
    "spark.my.credentials": "hush",
    "spark.gateway.accessToken": "hush",
}


@dataclass
class Resource:
    spark_session: object


def test_the_settings_are_applied(spark: SparkSession, spark_settings: SparkSettings) -> None:
    expected = {
        **RUNTIME_DEFAULTS,
        **spark_settings.settings,
        "spark.master": "local[2,3]",
        "spark.app.name": "tests",
        "spark.driver.host": "127.0.0.1",
        "spark.pyspark.python": sys.executable,
        "spark.python.daemon.module": "lance_assets.spark.daemon",
        "spark.ui.showConsoleProgress": "false",
    }
    assert {key: spark.conf.get(key, None) for key in expected} == expected


def test_start_does_not_change_the_environment(spark: SparkSession) -> None:
    assert "SPARK_LOCAL_IP" not in os.environ
    assert spark.range(1).count() == 1


def test_failed_task_is_retried_with_our_interpreter(spark: SparkSession) -> None:
    def fail_first_attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise OSError("the first attempt is lost")
        for _ in batches:
            yield pa.record_batch({"attempt": [context.attemptNumber()], "python": [sys.executable]})

    done = spark.range(0, 2, 1, 2).mapInArrow(fail_first_attempt, "attempt long, python string").toArrow()
    assert done.to_pylist() == [{"attempt": 1, "python": sys.executable}] * 2


def test_columns_in_the_wrong_order_are_an_error(spark: SparkSession) -> None:
    def swapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.select(["b", "a"])

    pairs = spark.range(1).selectExpr("id AS a", "id AS b")
    with pytest.raises(Exception, match="ARROW_TYPE_MISMATCH"):
        pairs.mapInArrow(swapped, "a long, b long").toArrow()


def test_sessions_share_only_the_application(spark: SparkSession, spark_settings: SparkSettings) -> None:
    other = open_session(
        replace(spark_settings, conf={"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.ansi.enabled": False})
    )
    assert other.sparkContext.applicationId == spark.sparkContext.applicationId
    spark.range(3).createOrReplaceTempView("three")
    assert not other.catalog.tableExists("three")
    assert other.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert other.conf.get("spark.sql.shuffle.partitions") == "200"  # the settings of the first session are its own
    assert open_session().conf.get("spark.sql.ansi.enabled") == "true"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.executor.memory", "3g"),
        ("spark.driver.memory", "3g"),
        ("spark.executor.cores", 4),
        ("spark.ui.enabled", False),
        ("spark.sql.extensions", "org.example.Extension"),
        ("spark.hadoop.fs.s3a.endpoint", "http://localhost:9000"),
    ],
)
def test_late_setting_is_refused_by_name(
    key: str, value: str, spark: SparkSession, spark_settings: SparkSettings
) -> None:
    late = replace(spark_settings, conf={**spark_settings.conf, key: value})
    requested = str(late.conf[key])
    with pytest.raises(InvalidInput, match=f"{key}: requested {requested}, but it runs with") as refused:
        open_session(late)
    assert "spark.sql.warehouse.dir" not in str(refused.value)


def test_another_master_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match=r"spark\.master: requested yarn, but it runs with local\[2,3\]"):
        open_session(SparkSettings(master="yarn"))
    with pytest.raises(InvalidInput, match="cannot be a client of Spark Connect as well"):
        open_session(SparkSettings(remote="sc://localhost:15002"))


def test_session_is_found_in_any_resource(spark: SparkSession) -> None:
    assert live_session(spark) is spark
    assert live_session(Resource(spark)) is spark  # type: ignore[arg-type]
    assert classic_context(spark) is spark.sparkContext
    for wrong in (None, "local[*]", Resource("local[*]")):
        with pytest.raises(InvalidInput, match="Spark session is needed"):
            live_session(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"master": ""}, "give one of them"),
        ({"master": "yarn", "conf": {"spark.master": "local[1]"}}, r"'yarn', spark\.master in conf is 'local\[1\]'"),
        ({"master": "yarn", "remote": "sc://host"}, "either a master"),
        ({"remote": "spark://host"}, "starts with sc://"),
        ({"log_level": "loud"}, "has no log level 'loud'"),
    ],
)
def test_invalid_settings_are_refused(settings: dict, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        SparkSettings(**settings)


@pytest.mark.parametrize(
    ("size", "expected"),
    [("600m", 600), ("2g", 2048), ("1024", 1024), ("1048576k", 1024), ("1TB", 1024**2), (None, None), ("much", None)],
)
def test_size_parsing(size: str | None, expected: int | None) -> None:
    assert parse_mebibytes(size) == expected


def test_low_memory_limit_of_workers_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """The limit bounds the mapped memory, and Spark kills a worker that exceeds it without a message."""
    for limit in ("600m", "2g", "3g", "1TB", None):
        _warn_of_low_memory_limit(limit)
    assert [record.args for record in caplog.records] == [(PYTHON_MEMORY, "600m"), (PYTHON_MEMORY, "2g")]


def test_unix_domain_sockets_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _socket_settings() == {
        "spark.python.daemon.module": "lance_assets.spark.daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": tempfile.gettempdir(),
    }
    monkeypatch.setattr(tempfile, "tempdir", "/" + "long" * 20)
    assert _socket_settings() == {}, "the path is too long for a socket"


def test_released_worker_ends_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_worker(answer: int | BaseException) -> int:
        def work(*_: object) -> int:
            if isinstance(answer, BaseException):
                raise answer
            return answer

        monkeypatch.setattr(daemon, "pyspark_worker", work)
        with socket.socket() as any_socket:
            return daemon.worker(any_socket, True)

    assert (run_worker(0), run_worker(7), run_worker(BrokenPipeError())) == (0, 7, 1)
    with pytest.raises(ConnectionError):
        run_worker(ConnectionResetError())


def test_worker_excludes_modules_from_garbage_collection(spark: SparkSession) -> None:
    """Spark runs the garbage collector after each task."""

    def seen(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"frozen": [gc.get_freeze_count()]})

    frozen = spark.range(0, 4, 1, 4).mapInArrow(WorkerTask(seen), "frozen long").toArrow()["frozen"].to_pylist()
    assert min(frozen) > 10_000
    assert WorkerTask(seen).__name__ == "seen"


def test_settings_are_text_and_picklable() -> None:
    settings = SparkSettings(master="sc://host", conf={"a": True, "b": 2, "c": "x"})
    assert settings.settings == {"a": "true", "b": "2", "c": "x"}
    assert (settings.master, settings.remote) == (None, "sc://host")
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_secrets_are_not_shown(spark: SparkSession) -> None:
    settings = SparkSettings(conf=SECRETS)
    assert "hush" not in repr(settings)
    assert "hush" not in repr(SparkSettings(remote="sc://host:15002/;token=hush"))
    assert "sc://host:15002/" in repr(SparkSettings(remote="sc://host:15002/;use_ssl=true"))
    with pytest.raises(InvalidInput, match=r"trustStorePassword: requested \*\*\*") as refused:
        open_session(settings)
    assert "hush" not in str(refused.value)
    assert mask_secret("spark.executor.memory", "3g") == "3g"


def stderr_of_new_process(program: str) -> str:
    """Run a program that fails, and return its stderr."""
    done = subprocess.run(
        [sys.executable, "-c", f"from lance_assets.spark import SparkSettings, open_session\n{program}"],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr


def test_connect_without_packages_names_the_remedy() -> None:
    stderr = stderr_of_new_process(
        "import sys; sys.modules['grpc'] = None; open_session(SparkSettings(remote='sc://localhost:1/;token=hush'))"
    )
    assert "MissingDependency: Spark Connect needs grpcio" in stderr
    assert 'pip install "pyspark[connect]"' in stderr


def test_failed_java_process_names_its_log() -> None:
    stderr = stderr_of_new_process("open_session(SparkSettings(conf={'spark.driver.memory': 'plenty'}))")
    assert "InvalidInput: Spark's Java process ended before it was ready" in stderr
    assert "spark.driver.memory" in stderr


def test_spark_shows_no_secret_setting(spark: SparkSession) -> None:
    """Neither the environment page, the REST API, the event log nor Java's command line has a secret; a variable
    without a secret is shown."""
    context = spark.sparkContext
    assert context.getConf().get("spark.executorEnv.LAKE_ACCESS") == HIDDEN_SETTINGS["spark.executorEnv.LAKE_ACCESS"]
    addresses = ("environment/", f"api/v1/applications/{context.applicationId}/environment")
    pages = [urllib.request.urlopen(f"{context.uiWebUrl}/{at}").read().decode() for at in addresses]
    logs = Path(context.getConf().get("spark.eventLog.dir", "").removeprefix("file:"))
    events = [each.read_text(errors="replace") for each in logs.rglob("*") if each.is_file()]
    assert any("SparkListenerEnvironmentUpdate" in each for each in events)
    java = context._jvm
    assert java is not None
    command = Path(f"/proc/{java.java.lang.ProcessHandle.current().pid()}/cmdline").read_text()
    assert "org.apache.spark.deploy.SparkSubmit" in command
    for text in (*pages, *events, command):
        for secret in HIDDEN_SETTINGS.values():
            assert secret not in text
    for text in (pages[1], "".join(events)):  # the page itself loads its rows from the REST API
        assert "spark.executorEnv.LAKE_ACCESS" in text


@pytest.mark.parametrize("pattern", [None, "(?i)secret|password|token|access[.]?key", "mine", "(?i)(a|b)"])
def test_redaction_pattern_is_extended_once(pattern: str | None) -> None:
    extended = extend_pattern(pattern, {"spark.door[1]"})
    for key in ("spark.executorEnv.LAKE", "spark.door[1]", "x.secret" if pattern is None else "mine a secret"):
        assert java_find(extended, key), key
    for key in ("spark.executorEnv.PYTHONPATH", "spark.executorEnv.TZ", "spark.door"):
        assert not java_find(extended.replace("(?i)(a|b)", "only"), key), key
    assert extend_pattern(extended, {"spark.door[1]"}) == extended


def java_find(pattern: str, text: str) -> bool:
    """Search as Java does, which accepts flags inside a pattern."""
    return re.search(pattern.replace("(?i)", ""), text) is not None


@dataclass
class OtherSession:
    """Session that other code has opened, as far as its settings are concerned."""

    conf: dict[str, str]


def test_session_of_others_that_shows_a_secret_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"spark.app.id": "a", "spark.executorEnv.LAKE": "hush", "spark.executorEnv.MY_TOKEN": "hush"}
    options = {"sftp": {"password": "env:LAKE"}, "token": "env:MY_TOKEN", "region": "x"}
    for _ in range(2):
        warn_of_exposed_references(cast(SparkSession, OtherSession(settings)), options, "env:ELSEWHERE")
    (record,) = caplog.records
    added = f"spark.redaction.regex={SPARK_REDACTS}|{re.escape('spark.executorEnv.LAKE')}"
    assert record.getMessage().startswith("spark.executorEnv.LAKE holds a secret of a table")
    assert added in record.getMessage()
    assert "hush" not in record.getMessage()
    caplog.clear()
    hidden = settings | {"spark.app.id": "b", "spark.redaction.regex": added.partition("=")[2]}
    warn_of_exposed_references(cast(SparkSession, OtherSession(hidden)), options, None)
    assert not caplog.records


def test_connections_to_a_connect_server_are_closed_when_the_process_begins_to_end() -> None:
    """A destructor that closes one after the threads of gRPC have ended waits forever."""
    program = """
from lance_assets.spark.session import live_session

class Client:
    def close(self):
        print("closed")

Session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "client": Client()})
session = live_session(Session())
print("end of the program")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["end of the program", "closed"]

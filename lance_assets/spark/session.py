"""A Spark session by configuration: from `local[*]` on a laptop to a cluster or a Spark Connect server.

Each `open_session` hands out a session of its own, with its own temporary views and SQL settings, over the
one Spark application a process can have. What was asked for either holds or is refused by name: a setting
that Spark fixes at its start is never dropped silently. The user's settings come before ours, and ours for
the start give way to the cluster's `spark-defaults.conf`. Only here is a `SparkContext` touched. Nothing here
reads or writes a table, or stops a session, which may be shared. Start at `open_session`; one that is there
goes through `live_session`.
"""

import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Protocol, cast

from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkException, PySparkImportError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lance_assets.spark.java import ensure_java
from lance_assets.spark.settings import COSMETIC_KEYS, SparkSettings, as_text, mask_secret, parse_mebibytes
from lance_core import InvalidInput, MissingDependency

# Rows must not depend on the machine's zone, and mapInArrow must not swap columns in silence.
RUNTIME_DEFAULTS: Mapping[str, str] = {
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",  # a native crash leaves a stack
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.redaction.options.regex": "(?i)url|passw|secret|token|key|credential|sas|signature|manifest_store",
    "spark.sql.session.timeZone": "UTC",
}
START_DEFAULTS: Mapping[str, str] = {
    "spark.python.worker.reuse": "true",
    "spark.ui.enabled": "false",
}
CONSOLE_DEFAULTS = {"spark.ui.showConsoleProgress": "false"}  # Spark turns it on for what it takes for a shell
LOOPBACK = "127.0.0.1"
LOCAL_DEFAULTS: Mapping[str, str] = {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}

# Read when the Java process starts; in one that runs they change nothing.
JVM_SETTINGS = (
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.driver.extraLibraryPath",
    "spark.driver.memory",
    "spark.jars.packages",
)
# What Spark is given of these it adds to, or spells out.
_EXTENDED_BY_SPARK = (
    "spark.archives",
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.files",
    "spark.jars",
    "spark.submit.",
)
# A limit on what workers may map, not on what they use: a reader of Lance files maps 2.4 GB and uses 0.2.
PYTHON_MEMORY = "spark.executor.pyspark.memory"
PYTHON_MEMORY_MIN_MIB = 3 * 1024
_DAEMON = "lance_assets.spark.daemon"
_SOCKET_DIRECTORY_MAX = 60
"""A socket's whole name has 108 characters at most."""
# What `pyspark[connect]` installs, by what is imported.
CONNECT_PACKAGES = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "zstandard": "zstandard",
}


_log = logging.getLogger(__name__)
_open_lock = RLock()
# By application id, what it was asked for: Spark adds to some settings, and every new session inherits the rest.
_started_with: dict[str, dict[str, str]] = {}


class HasSession(Protocol):
    """What dagster-pyspark's resources have, and ours."""

    @property
    def spark_session(self) -> SparkSession: ...


def open_session(settings: SparkSettings | None = None) -> SparkSession:
    """A session of its own on the application these settings describe, which is started if need be.

    Raises `MissingDependency` without a suitable Java (or, for Spark Connect, its packages), and `InvalidInput`
    naming each setting that the running application cannot take any more.
    """
    asked = settings or SparkSettings()
    with _open_lock:
        remote = asked.remote or (None if asked.master else os.environ.get("SPARK_REMOTE"))
        if remote:
            return _connect_to_server(asked, remote)
        running = _running_context()
        if running is None:
            running = _start_application(asked)
            session = SparkSession(running)
        else:
            session = SparkSession.builder.getOrCreate()
            if asked.master and asked.master != running.master:
                raise _ignored_settings_error({"spark.master": (asked.master, running.master or "unset")}, session)
        return _configure(session.newSession(), asked)


def live_session(source: SparkSession | HasSession) -> SparkSession:
    """The session in a resource with `.spark_session`, or the one given, if it is alive."""
    session = cast(SparkSession, getattr(source, "spark_session", source))
    if not is_session(session):
        raise InvalidInput(
            f"A Spark session is needed, or an object whose .spark_session is one; got {type(source).__name__}."
        )
    context = classic_context(session)
    if getattr(session, "is_stopped", False) or (context is not None and context._jsc is None):
        raise InvalidInput(
            "This Spark session was stopped: somebody called .stop() on it, perhaps an earlier step that "
            "shared it. Open a new one, and leave stopping to whoever opened it."
        )
    return session


def check_applied(session: SparkSession, requested: Mapping[str, object]) -> None:
    """Refuse by name what was asked for and this session has otherwise: on an application that runs `getOrCreate` says
    nothing of settings that come too late."""
    ignored = {}
    for key, value in requested.items():
        wanted = as_text(value) if isinstance(value, str | int | float | bool) else None
        live = _effective_value(session, key)
        if wanted is None or key in COSMETIC_KEYS or wanted == live or (live and key.startswith(_EXTENDED_BY_SPARK)):
            continue
        ignored[key] = (wanted, live if live is not None else "unset")
    if ignored:
        raise _ignored_settings_error(ignored, session)


def _effective_value(session: SparkSession, key: str) -> str | None:
    """`getOrCreate` notes on a session also what its application cannot take any more."""
    context = classic_context(session)
    if context is None or key.startswith("spark.sql."):
        return session.conf.get(key, None)
    return context.getConf().get(key)


def is_session(source: object) -> bool:
    return isinstance(source, SparkSession) or is_connect(source)


def is_connect(session: object) -> bool:
    """Whether this is a session of Spark Connect, which has no SparkContext, broadcast or RDD."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def classic_context(session: SparkSession) -> SparkContext | None:
    """The one way to a SparkContext; None on Spark Connect, where callers take their other road."""
    return None if is_connect(session) else session.sparkContext


def _start_application(asked: SparkSettings) -> SparkContext:
    """Start Java if it is not there, then the application.

    Java is started with what is no secret, since every user of the machine can read its command line; the
    rest is set inside. Once it runs, `SparkConf` also knows what spark-submit and spark-defaults.conf say.
    """
    if "SPARK_CONNECT_MODE_ENABLED" in os.environ and "SPARK_LOCAL_REMOTE" not in os.environ:
        raise InvalidInput(
            "This process has been a client of Spark Connect, and cannot run a Spark application of its own "
            "any more. Use one process for each, or give the remote again."
        )
    told = {"spark.app.name": asked.app_name, **asked.requested}
    if asked.master:
        told["spark.master"] = asked.master
    if _is_java_running():
        SparkContext._ensure_initialized()
        conf = SparkConf()
        late = {
            key: (told[key], conf.get(key) or "unset")
            for key in JVM_SETTINGS
            if key in told and told[key] != conf.get(key)
        }
        if late:
            raise _ignored_settings_error(late)
    else:
        ensure_java()
        public = {key for key, value in told.items() if key in JVM_SETTINGS or mask_secret(key, value) == value}
        with _temporary_environment(_java_environment(asked)):
            _launch_java(_console_settings(asked) | {key: told[key] for key in public})
        conf = SparkConf()
        told = {key: value for key, value in told.items() if key not in public}
    conf.setAll(list(told.items()))
    master = conf.get("spark.master") or "local[*]"
    defaults = {"spark.master": master, **START_DEFAULTS}
    if is_local(master):
        python = {"spark.pyspark.python": _local_python(), "spark.pyspark.driver.python": sys.executable}
        defaults |= {**LOCAL_DEFAULTS, **python, **_socket_settings()}
    for key, value in defaults.items():
        conf.setIfMissing(key, value)
    # PySpark's Python side takes the workers' interpreter from the environment alone, whatever the setting says.
    workers = conf.get("spark.pyspark.python")
    with _temporary_environment({"PYSPARK_PYTHON": workers} if workers else {}):
        context = SparkContext(conf=conf)
    _started_with[context.applicationId] = asked.requested
    return context


def _launch_java(told: Mapping[str, str]) -> None:
    if not shutil.which("bash"):
        raise MissingDependency("Spark's start scripts need bash, and there is none on the path: install it.")
    launch = SparkConf(loadDefaults=False).setAll(list(told.items()))
    try:
        SparkContext._ensure_initialized(gateway=launch_gateway(launch))  # type: ignore[no-untyped-call]
    except PySparkException as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise InvalidInput(
            "Spark's Java process ended before it was ready; it wrote why on stderr, above. "
            f"Most often a setting is at fault: {', '.join(sorted(told))}."
        ) from error


def _connect_to_server(asked: SparkSettings, remote: str) -> SparkSession:
    if _running_context() is not None:
        raise InvalidInput(
            "This process runs a Spark application of its own, and cannot be a client of Spark Connect as "
            "well. Use one process for each, or stop the other session first."
        )
    # PySpark looks for these as well, but where one is missing it ends some processes without an error.
    missing = [package for module, package in CONNECT_PACKAGES.items() if not _is_installed(module)]
    if missing:
        raise MissingDependency(
            f'Spark Connect needs {", ".join(missing)}, not installed here. Run: pip install "pyspark[connect]"'
        )
    try:
        session = SparkSession.builder.remote(remote).create()
    except PySparkImportError as error:  # one of them is too old
        raise MissingDependency(f'Spark Connect: {error}. Run: pip install "pyspark[connect]"') from error
    return _configure(session, asked)


def _configure(session: SparkSession, asked: SparkSettings) -> SparkSession:
    """Put the session's settings on it, and refuse what the application under it has otherwise."""
    requested = asked.requested
    context = classic_context(session)
    brought = _started_with.get(context.applicationId, {}) if context else {}
    for key in brought:
        if key not in requested and session.conf.isModifiable(key):
            session.conf.unset(key)
    ignored = {}
    for key, value in {**RUNTIME_DEFAULTS, **requested}.items():
        if key.startswith("spark.sql."):
            try:
                session.conf.set(key, value)
                continue
            except AnalysisException:  # fixed when the application starts
                pass
        live = session.conf.get(key, None)
        if value not in (live, brought.get(key)):  # Spark adds to some of what it is given
            ignored[key] = (value, live if live is not None else "unset")
    if ignored:
        raise _ignored_settings_error(ignored, session)
    _warn_of_low_memory_limit(session.conf.get(PYTHON_MEMORY, None))
    if context is not None:
        context.setLogLevel(asked.log_level)
    return session


def _warn_of_low_memory_limit(limit: str | None) -> None:
    if (parse_mebibytes(limit) or PYTHON_MEMORY_MIN_MIB) < PYTHON_MEMORY_MIN_MIB:
        _log.warning(
            "%s is %s: it bounds what Python workers map, and readers of Lance files map more than they use. Workers "
            "that end without a reason need 3g, or no such limit.",
            PYTHON_MEMORY,
            limit,
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def _ignored_settings_error(
    settings: Mapping[str, tuple[str, str]], session: SparkSession | None = None
) -> InvalidInput:
    """One line a setting: asked, and what runs."""
    lines = [
        f"{key}: asked for {mask_secret(key, asked)}, it runs with {mask_secret(key, live)}"
        for key, (asked, live) in settings.items()
    ]
    where = "Java process"
    if session is not None:
        context = classic_context(session)
        where = f"application {context.applicationId}" if context else "Spark Connect server"
    return InvalidInput(
        f"The running {where} cannot take settings that Spark reads at its start: {'; '.join(lines)}. "
        "Ask for what it runs with, leave them out, or use a process of its own."
    )


def is_local(master: str) -> bool:
    """`local`, `local[4,3]`, `local-cluster[...]`: driver and workers are on this machine."""
    return master.startswith("local")


def _running_context() -> SparkContext | None:
    return SparkContext._active_spark_context


def _is_java_running() -> bool:
    """Started by an earlier session of this process, perhaps stopped since, or by spark-submit."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def _temporary_environment(lent: Mapping[str, str]) -> Iterator[None]:
    """Lend Java and PySpark what they read from the environment while they start; put it back afterwards."""
    before = {key: os.environ.get(key) for key in lent}
    os.environ.update(lent)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _java_environment(asked: SparkSettings) -> dict[str, str]:
    python = asked.settings.get("spark.pyspark.python")
    if not _is_certainly_local(asked):
        return {"PYSPARK_PYTHON": python} if python else {}
    return {
        "PYSPARK_PYTHON": python or _local_python(),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP") or LOOPBACK,  # else Java looks host names up, and warns
    }


def _console_settings(asked: SparkSettings) -> dict[str, str]:
    """What PySpark prints at its start tells a user of this package nothing. A configured log stays as it is."""
    if not _is_certainly_local(asked) or "SPARK_CONF_DIR" in os.environ:
        return dict(CONSOLE_DEFAULTS)
    log = Path(__file__).with_name("log4j2.properties").as_uri()
    return CONSOLE_DEFAULTS | {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={log}"}


def _socket_settings() -> dict[str, str]:
    """Rows go to Python over sockets of the machine: over TCP each task waits 40 ms for an answer that the kernel holds
    back. Their names have to be short, which on other machines nobody knows (`004-python-task-overhead.md`)."""
    directory = tempfile.gettempdir()
    if os.name != "posix" or len(directory) > _SOCKET_DIRECTORY_MAX:
        return {}
    return {
        "spark.python.daemon.module": _DAEMON,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": directory,
    }


def _local_python() -> str:
    return os.environ.get("PYSPARK_PYTHON") or sys.executable


def _is_certainly_local(asked: SparkSettings) -> bool:
    """Before Java runs, nobody else has been asked; where a cluster may be configured we do not guess."""
    if asked.master:
        return is_local(asked.master)
    elsewhere = ("MASTER", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME")
    return not any(os.environ.get(name) for name in elsewhere)

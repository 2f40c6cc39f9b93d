"""Spark sessions: opens a session by configuration, from `local[*]` on a laptop to a cluster or Spark Connect.

Each call of `open_session` returns a new session with its own temporary views and SQL settings, over the one Spark
application that a process can have. A requested setting either takes effect or is refused by name: a setting that
Spark fixes at its start is never dropped silently. The user's settings take precedence over the defaults of this
module, and its start defaults give way to the cluster's `spark-defaults.conf`. Other modules get a `SparkContext`
from `classic_context` only. This module never reads or writes a table, and never stops a session, which may be
shared; it closes the connections to Connect servers when the process begins to end. Start with `open_session`;
`live_session` checks an existing session.
"""

import atexit
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any, Protocol, cast
from weakref import WeakSet

from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lance_assets.spark.java import ensure_java
from lance_assets.spark.redaction import PATTERN_SETTING, extend_pattern, is_hidden_variable
from lance_assets.spark.release import (
    NEWEST_JAVA,
    MissingPackageError,
    check_environment,
    error_condition,
    has_unix_sockets,
)
from lance_assets.spark.settings import COSMETIC_KEYS, SparkSettings, as_text, mask_secret, parse_mebibytes
from lance_core import InvalidInput, MissingDependency

# Rows must not depend on the machine's time zone, and mapInArrow must not swap columns silently.
RUNTIME_DEFAULTS: Mapping[str, str] = {
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",  # a native crash leaves a stack trace
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.redaction.options.regex": "(?i)url|passw|secret|token|key|credential|sas|signature|manifest_store",
    "spark.sql.session.timeZone": "UTC",
}
START_DEFAULTS: Mapping[str, str] = {
    "spark.python.worker.reuse": "true",
    "spark.ui.enabled": "false",
}
CONSOLE_DEFAULTS = {"spark.ui.showConsoleProgress": "false"}  # Spark turns it on in what looks like a shell
LOOPBACK = "127.0.0.1"
LOCAL_DEFAULTS: Mapping[str, str] = {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}

# Settings that the Java process reads at its start; in a running one they have no effect.
JVM_SETTINGS = (
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.driver.extraLibraryPath",
    "spark.driver.memory",
    "spark.jars.packages",
)
# Settings whose value Spark extends or rewrites.
_EXTENDED_BY_SPARK = (
    "spark.archives",
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.files",
    "spark.jars",
    PATTERN_SETTING,  # extended by this module
    "spark.submit.",
)
# Limits the memory that workers map, not what they use: a reader of Lance files maps 2.4 GB and uses 0.2 GB.
PYTHON_MEMORY = "spark.executor.pyspark.memory"
PYTHON_MEMORY_MIN_MIB = 3 * 1024
_DAEMON = "lance_assets.spark.daemon"
_SOCKET_DIRECTORY_MAX = 60
"""The path of a Unix domain socket has at most 108 characters."""
# Packages that `pyspark[connect]` installs, by the module that is imported.
CONNECT_PACKAGES = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "zstandard": "zstandard",
}


_log = logging.getLogger(__name__)
_open_lock = RLock()
# Requested settings by application id: Spark extends some of them, and every new session inherits the others.
_started_with: dict[str, dict[str, str]] = {}


class HasSession(Protocol):
    """Object with a Spark session, such as `SparkSessionResource` or a resource of dagster-pyspark."""

    @property
    def spark_session(self) -> SparkSession: ...


def open_session(settings: SparkSettings | None = None) -> SparkSession:
    """Return a new session on the application that these settings describe; start the application if necessary.

    Raises `MissingDependency` without a suitable Java (or, for Spark Connect, without its packages), and `InvalidInput`
    that names each setting which the running application can no longer take.
    """
    settings = settings or SparkSettings()
    with _open_lock:
        remote = settings.remote or (None if settings.master else os.environ.get("SPARK_REMOTE"))
        if remote:
            return _connect_to_server(settings, remote)
        context = _running_context()
        if context is None:
            context = _start_application(settings)
            session = SparkSession(context)
        else:
            session = SparkSession.builder.getOrCreate()
            if settings.master and settings.master != context.master:
                raise _ignored_settings_error({"spark.master": (settings.master, context.master or "unset")}, session)
        return _configure(session.newSession(), settings)


def live_session(source: SparkSession | HasSession) -> SparkSession:
    """Return the session of a resource with `.spark_session`, or a session itself.

    Raises `InvalidInput` if the session was stopped.
    """
    session = cast(SparkSession, getattr(source, "spark_session", source))
    if not is_session(session):
        raise InvalidInput(
            f"A Spark session is needed, or an object whose .spark_session is one; got {type(source).__name__}."
        )
    context = classic_context(session)
    if getattr(session, "is_stopped", False) or (context is not None and context._jsc is None):
        raise InvalidInput(
            "This Spark session was stopped: other code called .stop() on it, perhaps an earlier step that "
            "shared it. Open a new one, and stop a session only in the code that opened it."
        )
    _close_at_exit(session)
    return session


_connect_clients: "WeakSet[Any]" = WeakSet()
"""Clients of Spark Connect whose connections are closed at exit."""


def _close_at_exit(session: SparkSession) -> None:
    """Have the connection of a session of Spark Connect closed when the interpreter begins to end. The destructor of
    the session closes it too late: gRPC then waits for calls whose thread runs no more, and the process never ends."""
    if is_connect(session):
        _connect_clients.add(cast(Any, session).client)


@atexit.register
def _close_connections() -> None:
    for client in list(_connect_clients):
        with suppress(Exception):  # the process ends in any case
            client.close()


def check_applied(session: SparkSession, requested: Mapping[str, object]) -> None:
    """Raise `InvalidInput` that names each requested setting which this session runs with a different value.

    On a running application `getOrCreate` ignores settings that come too late without an error.
    """
    ignored = {}
    for key, value in requested.items():
        text = as_text(value) if isinstance(value, str | int | float | bool) else None
        live = _effective_value(session, key)
        if text is None or key in COSMETIC_KEYS or text == live or (live and key.startswith(_EXTENDED_BY_SPARK)):
            continue
        if key == "spark.remote" and is_connect(session):  # the server does not know under which name it is reached
            continue
        ignored[key] = (text, live if live is not None else "unset")
    if ignored:
        raise _ignored_settings_error(ignored, session)


def _effective_value(session: SparkSession, key: str) -> str | None:
    """Return the value a setting has in the application.

    The session may show another one: `getOrCreate` also stores settings on it that the application can no longer take.
    """
    context = classic_context(session)
    if context is None or key.startswith("spark.sql."):
        return session.conf.get(key, None)
    return context.getConf().get(key)


def is_session(source: object) -> bool:
    return isinstance(source, SparkSession) or is_connect(source)


def is_connect(session: object) -> bool:
    """Return whether this is a session of Spark Connect, which has no SparkContext, broadcast or RDD."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def classic_context(session: SparkSession) -> SparkContext | None:
    """Return the SparkContext of a session; `None` on Spark Connect, where callers work without one."""
    return None if is_connect(session) else session.sparkContext


def _start_application(settings: SparkSettings) -> SparkContext:
    """Start Java if it does not run yet, then the application.

    Java starts with the settings that are not secret, since every user of the machine can read its command line; the
    others are set inside the process. Once Java runs, `SparkConf` also has the settings of spark-submit and
    spark-defaults.conf.
    """
    if "SPARK_CONNECT_MODE_ENABLED" in os.environ and "SPARK_LOCAL_REMOTE" not in os.environ:
        raise InvalidInput(
            "This process has been a client of Spark Connect, and can no longer run a Spark application of its own. "
            "Use one process for each, or pass the remote again."
        )
    requested = {"spark.app.name": settings.app_name, **settings.requested}
    if settings.master:
        requested["spark.master"] = settings.master
    if is_java_running():
        SparkContext._ensure_initialized()
        conf = SparkConf()
        late = {
            key: (requested[key], conf.get(key) or "unset")
            for key in JVM_SETTINGS
            if key in requested and requested[key] != conf.get(key)
        }
        if late:
            raise _ignored_settings_error(late)
    else:
        check_environment()
        ensure_java(NEWEST_JAVA)
        public = {key for key in requested if key in JVM_SETTINGS or key not in settings.secret_keys}
        with _temporary_environment(_java_environment(settings)):
            _launch_java(_console_settings(settings) | {key: requested[key] for key in public})
        conf = SparkConf()
        requested = {key: value for key, value in requested.items() if key not in public}
    conf.setAll(list(requested.items()))
    master = conf.get("spark.master") or "local[*]"
    defaults = {"spark.master": master, **START_DEFAULTS}
    if is_local(master):
        python = {"spark.pyspark.python": _local_python(), "spark.pyspark.driver.python": sys.executable}
        defaults |= {**LOCAL_DEFAULTS, **python, **_socket_settings()}
    for key, value in defaults.items():
        conf.setIfMissing(key, value)
    hidden = {key for key in settings.secret_keys if not is_hidden_variable(key)}
    conf.set(PATTERN_SETTING, extend_pattern(conf.get(PATTERN_SETTING), hidden))
    # PySpark's Python side takes the workers' interpreter from the environment only and ignores the setting.
    workers = conf.get("spark.pyspark.python")
    with _temporary_environment({"PYSPARK_PYTHON": workers} if workers else {}):
        context = SparkContext(conf=conf)
    _started_with[context.applicationId] = settings.requested
    return context


def _launch_java(settings: Mapping[str, str]) -> None:
    if not shutil.which("bash"):
        raise MissingDependency("Spark's start scripts need bash, and no bash is on the path: install it.")
    launch = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        SparkContext._ensure_initialized(gateway=launch_gateway(launch))  # type: ignore[no-untyped-call]
    except PySparkException as error:
        if error_condition(error) != "JAVA_GATEWAY_EXITED":
            raise
        raise InvalidInput(
            "Spark's Java process ended before it was ready; it wrote the reason to stderr, above. "
            f"Most often a setting is at fault: {', '.join(sorted(settings))}."
        ) from error


def _connect_to_server(settings: SparkSettings, remote: str) -> SparkSession:
    if _running_context() is not None:
        raise InvalidInput(
            "This process runs a Spark application of its own, and cannot be a client of Spark Connect as "
            "well. Use one process for each, or stop the other session first."
        )
    # PySpark checks these too, but if one is missing it ends some processes without an error.
    missing = [package for module, package in CONNECT_PACKAGES.items() if not _is_installed(module)]
    if missing:
        raise MissingDependency(
            f'Spark Connect needs {", ".join(missing)}, not installed here. Run: pip install "pyspark[connect]"'
        )
    try:
        session = SparkSession.builder.remote(remote).create()
    except MissingPackageError as error:  # one of them is too old
        raise MissingDependency(f'Spark Connect: {error}. Run: pip install "pyspark[connect]"') from error
    _close_at_exit(session)
    return _configure(session, settings)


def _configure(session: SparkSession, settings: SparkSettings) -> SparkSession:
    """Apply the settings to the session. Raise `InvalidInput` for those that its application runs with differently."""
    requested = settings.requested
    context = classic_context(session)
    started_with = _started_with.get(context.applicationId, {}) if context else {}
    for key in started_with:
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
        if value not in (live, started_with.get(key)):  # Spark extends the value of some settings
            ignored[key] = (value, live if live is not None else "unset")
    if ignored:
        raise _ignored_settings_error(ignored, session)
    _warn_of_low_memory_limit(session.conf.get(PYTHON_MEMORY, None))
    if context is not None:
        context.setLogLevel(settings.log_level)
    return session


def _warn_of_low_memory_limit(limit: str | None) -> None:
    if (parse_mebibytes(limit) or PYTHON_MEMORY_MIN_MIB) < PYTHON_MEMORY_MIN_MIB:
        _log.warning(
            "%s is %s: it limits the memory that Python workers map, and readers of Lance files map more than they "
            "use. If workers end without an error, set it to 3g or remove it.",
            PYTHON_MEMORY,
            limit,
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing too
        return False


def _ignored_settings_error(
    settings: Mapping[str, tuple[str, str]], session: SparkSession | None = None
) -> InvalidInput:
    """Return the error for settings that did not take effect, with the requested and the live value of each."""
    lines = [
        f"{key}: requested {mask_secret(key, requested)}, but it runs with {mask_secret(key, live)}"
        for key, (requested, live) in settings.items()
    ]
    target = "Java process"
    if session is not None:
        context = classic_context(session)
        target = f"application {context.applicationId}" if context else "Spark Connect server"
    return InvalidInput(
        f"The running {target} cannot take settings that Spark reads at its start: {'; '.join(lines)}. "
        "Request the values it runs with, leave them out, or use a separate process."
    )


def is_local(master: str) -> bool:
    """Return whether driver and workers are on this machine: `local`, `local[4,3]`, `local-cluster[...]`."""
    return master.startswith("local")


def _running_context() -> SparkContext | None:
    return SparkContext._active_spark_context


def is_java_running() -> bool:
    """Return whether Java runs, started by spark-submit or by an earlier session, perhaps stopped since."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def _temporary_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that Java and PySpark read while they start; restore the old values afterwards."""
    previous = {key: os.environ.get(key) for key in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for key, value in previous.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _java_environment(settings: SparkSettings) -> dict[str, str]:
    python = settings.settings.get("spark.pyspark.python")
    if not _is_certainly_local(settings):
        return {"PYSPARK_PYTHON": python} if python else {}
    return {
        "PYSPARK_PYTHON": python or _local_python(),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP")
        or LOOPBACK,  # without it Java resolves host names, and warns
    }


def _console_settings(settings: SparkSettings) -> dict[str, str]:
    """Return the settings that silence PySpark's start messages, which are noise here. A configured log is kept."""
    if not _is_certainly_local(settings) or "SPARK_CONF_DIR" in os.environ:
        return dict(CONSOLE_DEFAULTS)
    log = Path(__file__).with_name("log4j2.properties").as_uri()
    return CONSOLE_DEFAULTS | {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={log}"}


def _socket_settings() -> dict[str, str]:
    """Return the settings that pass rows to Python over Unix domain sockets.

    Over TCP each task waits 40 ms for an acknowledgement that the kernel delays. The path of a socket must be short,
    which cannot be checked for other machines (`004-python-task-overhead.md`).
    """
    directory = tempfile.gettempdir()
    if not has_unix_sockets() or os.name != "posix" or len(directory) > _SOCKET_DIRECTORY_MAX:
        return {}
    return {
        "spark.python.daemon.module": _DAEMON,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": directory,
    }


def _local_python() -> str:
    return os.environ.get("PYSPARK_PYTHON") or sys.executable


def _is_certainly_local(settings: SparkSettings) -> bool:
    """Return whether Spark is certain to run on this machine, before Java runs and its configuration is known.

    The answer is no if the environment may configure a cluster.
    """
    if settings.master:
        return is_local(settings.master)
    variables = ("MASTER", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME")
    return not any(os.environ.get(name) for name in variables)

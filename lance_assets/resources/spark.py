"""`SparkSessionResource`: a Spark session for assets by configuration, from a laptop to a cluster.

Any object with a `.spark_session` works too, such as the resources of dagster-pyspark. The session is opened on first
use, so that loading definitions does not start Java. This module never stops it: a process has one Spark application,
which other code may share. Start with `session_of`.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

import dagster as dg
from pydantic import Field, PrivateAttr

from lance_assets.resources.literal_secrets import check_arguments, is_literal
from lance_assets.spark.cancellation import keep_sigint_handler
from lance_assets.spark.session import check_applied, is_session, live_session, open_session
from lance_assets.spark.settings import SparkSettings, mask_secret
from lance_core import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_RESOURCE_KEY = "spark"
"""Resource key of the Spark session of write assets."""


class SparkSessionResource(dg.ConfigurableResource["SparkSessionResource"]):
    """Spark session for assets.

    >>> SparkSessionResource(master="local[2]", conf={"spark.sql.shuffle.partitions": "4"})
    SparkSessionResource(master='local[2]', app_name='lance-assets')

    For a cluster use `master="spark://host:7077"`, `yarn` or `k8s://...`; for Spark Connect `remote="sc://host:15002"`.
    Pass a secret as `dagster.EnvVar`, since Dagster displays literal values on the page of the resource.
    """

    master: str | None = Field(default=None, description="Spark master URL; local[*] if the environment sets none.")
    remote: str | None = Field(default=None, repr=False, description="Spark Connect server: sc://host:port.")
    app_name: str = Field(default="lance-assets", description="Name of the Spark application.")
    conf: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Spark settings; give secrets as dagster.EnvVar."
    )

    _session: "SparkSession | None" = PrivateAttr(default=None)

    def __init__(self, **data: object) -> None:
        conf = data.get("conf", {})
        if not isinstance(conf, Mapping):
            raise InvalidInput("conf= of SparkSessionResource must be a mapping of Spark settings")
        for key, value in conf.items():
            if is_literal(value, str(key)) and mask_secret(str(key), str(value)) != str(value):
                raise InvalidInput(_exposed_secret_message(f"conf[{key!r}]"))
        check_arguments("SparkSessionResource", type(self).model_fields, data)
        super().__init__(**data)

    @property
    def spark_session(self) -> "SparkSession":
        """The session, opened on first use."""
        if self._session is None:
            settings = SparkSettings(
                master=self.master,
                remote=self.remote,
                app_name=self.app_name,
                conf=self.conf,
                secrets=[key for key, value in self.conf.items() if not is_literal(value, key)],
            )
            self._session = open_session(settings)
        return self._session


def session_of(resource: object) -> "SparkSession":
    """Return the live session of a resource with `.spark_session`, or a session itself.

    Raises `InvalidInput` if the session does not run with the settings that the resource requests.
    """
    if not (is_session(resource) or _has_session(resource)):
        raise InvalidInput(
            f"the resource {SPARK_RESOURCE_KEY!r} is a {type(resource).__name__} without .spark_session; use a "
            "SparkSessionResource, a PySparkResource of dagster-pyspark, a session, or an object with a .spark_session"
        )
    with keep_sigint_handler():
        session = live_session(cast("SparkSession", resource))
    # Resources of dagster-pyspark silently drop settings that come too late for the application.
    requested = getattr(resource, "spark_config", None)
    if isinstance(requested, Mapping):
        check_applied(session, dict(_flatten(requested)))
    return session


def _has_session(resource: object) -> bool:
    """Return whether the object has a `.spark_session`, without a call of the property, which may start Java."""
    return hasattr(type(resource), "spark_session") or "spark_session" in getattr(resource, "__dict__", {})


def _flatten(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the settings with dotted keys; dagster-pyspark accepts dotted keys and nested mappings."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _exposed_secret_message(name: str) -> str:
    return (
        f"{name} of SparkSessionResource looks like a secret, and Dagster displays the configuration of resources; "
        'pass it as dagster.EnvVar("NAME") and set that variable where this code runs'
    )

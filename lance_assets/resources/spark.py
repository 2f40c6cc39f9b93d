"""Spark for assets: one resource from a laptop to a cluster, by configuration.

Anything else with a `.spark_session` will do too, as dagster-pyspark's resources have. The session is opened when it is
first asked for, so that loading definitions starts no Java, and never stopped here: a process has one Spark
application, and others may be using it.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

import dagster as dg
from pydantic import Field, PrivateAttr

from lance_assets.resources.lance import is_literal
from lance_assets.spark.cancellation import keep_sigint_handler
from lance_assets.spark.session import check_applied, is_session, live_session, open_session
from lance_assets.spark.settings import SparkSettings, mask_secret
from lance_core import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_RESOURCE_KEY = "spark"
"""The resource key under which write assets look for it."""


class SparkSessionResource(dg.ConfigurableResource["SparkSessionResource"]):
    """
    >>> SparkSessionResource(master="local[2]", conf={"spark.sql.shuffle.partitions": "4"})
    SparkSessionResource(master='local[2]', app_name='lance-assets')

    On a cluster `master="spark://host:7077"`, `yarn` or `k8s://...`; for Spark Connect `remote="sc://host:15002"`.
    A secret is a `dagster.EnvVar`: what is written out would be shown on the page of the resource.
    """

    master: str | None = Field(default=None, description="Where Spark runs; local[*] if nothing else says so.")
    remote: str | None = Field(default=None, repr=False, description="A Spark Connect server, sc://host:port.")
    app_name: str = Field(default="lance-assets", description="What Spark calls the application.")
    conf: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Any Spark setting; secrets as dagster.EnvVar."
    )

    _session: "SparkSession | None" = PrivateAttr(default=None)

    def __init__(self, **data: object) -> None:
        conf = data.get("conf")
        for key, value in conf.items() if isinstance(conf, Mapping) else ():
            if is_literal(value) and mask_secret(str(key), str(value)) != str(value):
                raise InvalidInput(_exposed_secret_message(f"conf[{key!r}]"))
        remote = data.get("remote")
        if isinstance(remote, str) and is_literal(remote) and mask_secret("remote", remote) != remote:
            raise InvalidInput(_exposed_secret_message("remote"))
        super().__init__(**data)

    @property
    def spark_session(self) -> "SparkSession":
        if self._session is None:
            settings = SparkSettings(master=self.master, remote=self.remote, app_name=self.app_name, conf=self.conf)
            self._session = open_session(settings)
        return self._session


def session_of(resource: object) -> "SparkSession":
    """The live session of whatever stands under the resource key `spark`, a session itself among them. It runs with the
    settings that the resource asks for, or is refused."""
    if not (is_session(resource) or _has_session(resource)):
        raise InvalidInput(
            f"the resource {SPARK_RESOURCE_KEY!r} is a {type(resource).__name__} without .spark_session; give a "
            "SparkSessionResource, a PySparkResource of dagster-pyspark, a session, or an object that has one"
        )
    with keep_sigint_handler():
        session = live_session(cast("SparkSession", resource))
    asked = getattr(resource, "spark_config", None)  # of dagster-pyspark, whose resources drop in silence what is late
    if isinstance(asked, Mapping):
        check_applied(session, dict(_flatten(asked)))
    return session


def _has_session(resource: object) -> bool:
    """Found without asking for it, which may start Java."""
    return hasattr(type(resource), "spark_session") or "spark_session" in getattr(resource, "__dict__", {})


def _flatten(settings: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """dagster-pyspark takes dots and levels alike."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _exposed_secret_message(where: str) -> str:
    return (
        f"{where} of SparkSessionResource looks like a secret, and Dagster shows the configuration of resources; "
        'give it as dagster.EnvVar("NAME") and set that variable where this code runs'
    )

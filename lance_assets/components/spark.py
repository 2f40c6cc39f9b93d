"""Component of the resource `spark`, for projects in YAML: `type: lance_assets.SparkSessionComponent`.

It configures a `SparkSessionResource`, or with `resource: PySparkResource` or `resource: LazyPySparkResource` one of
dagster-pyspark.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import dagster as dg
from dagster_pyspark import LazyPySparkResource, PySparkResource
from pydantic import BaseModel

from lance_assets.components.forms import TEXT, choice, record
from lance_assets.components.source_position import SourcePosition
from lance_assets.components.table import attributes_of
from lance_assets.components.values import NESTED_SETTINGS, SETTING, SETTINGS
from lance_assets.resources.spark import SPARK_RESOURCE_KEY, SparkSessionResource
from lance_core import InvalidInput

_RESOURCES: Mapping[str, Callable[..., object]] = {
    "LazyPySparkResource": LazyPySparkResource,
    "PySparkResource": PySparkResource,
    "SparkSessionResource": SparkSessionResource,
}


def _make_resource(resource: str = "SparkSessionResource", **options: object) -> object:
    if resource == "SparkSessionResource":
        return SparkSessionResource(**options)
    if others := sorted(options.keys() - {"spark_config"}):
        raise InvalidInput(
            f"a {resource} has no option {others[0]!r}, only spark_config: write it there, as in spark.master, or "
            "leave out resource:"
        )
    settings = options.get("spark_config", {})
    assert isinstance(settings, Mapping)
    # The class of this project knows which settings expose secrets, also nested ones.
    if references := SparkSessionResource(spark_config=settings).references():
        raise InvalidInput(
            f"Dagster does not resolve the environment variable of {references[0]} in a {resource}; leave out "
            "resource: for a SparkSessionResource, which does"
        )
    return _RESOURCES[resource](spark_config=settings)


_SESSION = record(
    _make_resource,
    {
        "resource": choice(sorted(_RESOURCES)),
        "master": SETTING,
        "remote": SETTING,
        "app_name": TEXT,
        "conf": SETTINGS,
        "spark_config": NESTED_SETTINGS,
    },
    required=[],
    what="a Spark session",
)
_ATTRIBUTES = attributes_of(_SESSION, "SparkSession")


@dataclass
class SparkSessionComponent(dg.Component, dg.Resolvable):
    """The resource `spark`, which the writes of Lance tables use. A project has one."""

    session: SparkSessionResource | LazyPySparkResource | PySparkResource

    @classmethod
    def model(cls) -> type[BaseModel]:
        return _ATTRIBUTES

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> "SparkSessionComponent":
        attributes: Mapping[str, object] = dict(model.model_extra or {})
        session = _SESSION.read(attributes, SourcePosition(context))
        assert isinstance(session, LazyPySparkResource | PySparkResource)
        return cls(session)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return dg.Definitions(resources={SPARK_RESOURCE_KEY: self.session})

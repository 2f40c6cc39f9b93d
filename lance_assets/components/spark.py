"""Component of the resource `spark`, for projects in YAML: `type: lance_assets.SparkSessionComponent`."""

from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg
from pydantic import BaseModel

from lance_assets.components.forms import TEXT, record
from lance_assets.components.source_position import SourcePosition
from lance_assets.components.table import attributes_of
from lance_assets.components.values import SETTING, SETTINGS
from lance_assets.resources.spark import SPARK_RESOURCE_KEY, SparkSessionResource

_SESSION = record(
    SparkSessionResource,
    {"master": SETTING, "remote": SETTING, "app_name": TEXT, "conf": SETTINGS},
    required=[],
    what="a Spark session",
)
_ATTRIBUTES = attributes_of(_SESSION, "SparkSession")


@dataclass
class SparkSessionComponent(dg.Component, dg.Resolvable):
    """The resource `spark`, which the writes of Lance tables use. A project has one."""

    session: SparkSessionResource

    @classmethod
    def model(cls) -> type[BaseModel]:
        return _ATTRIBUTES

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> "SparkSessionComponent":
        attributes: Mapping[str, object] = dict(model.model_extra or {})
        session = _SESSION.read(attributes, SourcePosition(context))
        assert isinstance(session, SparkSessionResource)
        return cls(session)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return dg.Definitions(resources={SPARK_RESOURCE_KEY: self.session})

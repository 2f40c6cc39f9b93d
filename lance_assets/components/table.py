"""Table components: declare a Lance table and its writes, or a materialized view, in YAML, with the names of Python.

The file begins with `type: lance_assets.LanceTableComponent`, or `LanceViewComponent`. Dagster validates it against the
JSON schema of the model here (`dg check yaml`). The forms of `registry.py` read the values at load time, so that an
error names the file, the line and the option.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from lance_assets.components.forms import Form, record
from lance_assets.components.registry import TABLE, VIEW
from lance_assets.components.scaffolder import LanceTableScaffolder
from lance_assets.components.source_position import SourcePosition
from lance_assets.definitions.lance_table import LanceTable, lance_table
from lance_assets.definitions.lance_view import REFUSED_BY_VIEWS, lance_view
from lance_assets.writes.asset_options import REFUSED_BY_TABLES

_TABLE = record(lance_table, TABLE, required=["name", "uri"], what="a Lance table", refused=REFUSED_BY_TABLES)
_VIEW = record(lance_view, VIEW, required=["name", "of"], what="a Lance view", refused=REFUSED_BY_VIEWS)


class Attributes(BaseModel):
    """Model that accepts everything; the form reports errors, since it knows their lines."""

    model_config = ConfigDict(extra="allow")


def attributes_of(form: Form, title: str) -> type[Attributes]:
    """Return a model for Dagster that has the JSON schema of a form."""

    class Described(Attributes):
        @classmethod
        def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
            return {**form.schema, "title": title}

    Described.__name__ = title
    return Described


_ATTRIBUTES = attributes_of(_TABLE, "LanceTable")
_VIEW_ATTRIBUTES = attributes_of(_VIEW, "LanceView")


@dg.scaffold_with(LanceTableScaffolder)
@dataclass
class LanceTableComponent(dg.Component, dg.Resolvable):
    """A Lance table with a partition for each version, and an asset for each write that commits versions."""

    table: LanceTable
    """The table, for Python next to the YAML: `context.load_component("orders").table.dep`."""

    @classmethod
    def model(cls) -> type[BaseModel]:
        return _ATTRIBUTES

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> "LanceTableComponent":
        attributes: Mapping[str, object] = dict(model.model_extra or {})
        table = _TABLE.read(attributes, SourcePosition(context))
        assert isinstance(table, LanceTable)
        return cls(table)

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        return dg.ComponentTypeSpec(
            description="A Lance table whose versions are partitions, with the writes that commit them.",
            tags=["lance", "spark"],
        )

    @classmethod
    def get_code_references_for_yaml(cls, yaml_path: Path, source_position: object, context: object) -> list[Any]:
        """Return nothing: each asset refers to its own line of the file."""
        return []

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return self.table.defs


@dataclass
class LanceViewComponent(dg.Component, dg.Resolvable):
    """A materialized view: a Lance table that follows another one by its change feed."""

    table: LanceTable
    """The view, for Python next to the YAML."""

    @classmethod
    def model(cls) -> type[BaseModel]:
        return _VIEW_ATTRIBUTES

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> "LanceViewComponent":
        attributes: Mapping[str, object] = dict(model.model_extra or {})
        view = _VIEW.read(attributes, SourcePosition(context))
        assert isinstance(view, LanceTable)
        return cls(view)

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        return dg.ComponentTypeSpec(
            description="A Lance table that follows another one: rows that match a condition, with computed columns.",
            tags=["lance", "spark"],
        )

    @classmethod
    def get_code_references_for_yaml(cls, yaml_path: Path, source_position: object, context: object) -> list[Any]:
        """Return nothing: each asset refers to its own line of the file."""
        return []

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return self.table.defs

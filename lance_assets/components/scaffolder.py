"""Scaffolder: `dg scaffold defs lance_assets.LanceTableComponent orders` writes a `defs.yaml` to start from.

dg scaffold defs lance_assets.LanceTableComponent orders --uri s3://lake/orders.lance --files "landing/*.json"
"""

import re
from pathlib import Path

import dagster as dg
from pydantic import BaseModel, Field

from lance_core import InvalidInput

_TEMPLATE = """\
{separator}type: {type_name}

attributes:
  name: {name}
  uri: {uri}
  description: Description of the table.
  # key_prefix: lake
  # storage_options:
  #   aws_secret_access_key: "{{{{ env.AWS_SECRET_ACCESS_KEY }}}}"

  # checks:
  #   - {{check: row_count, min: 1}}
  # maintenance: {{every: "0 3 * * *"}}

  # Each write is an asset that commits versions; the options are those of SparkAppend, SparkIngest, ... in Python.
  writes:
    - op: ingest
      name: {name}_ingest
      files: {files}
      description: Ingests new files.

    # A function (spark, ctx) -> DataFrame in rows.py, next to this file:
    # - op: append
    #   name: {name}_append
    #   fn: .rows:new_{name}
    #   partitions: {{type: daily, start_date: "2026-01-01"}}
    #   once_per: partition

    - op: compact
      name: {name}_compact
"""


class LanceTableParams(BaseModel):
    """Options of the command."""

    name: str | None = Field(default=None, description="Name of the table (default: the name of the folder).")
    uri: str | None = Field(default=None, description="Directory of the table.")
    files: str = Field(
        default="{{ context.project_root }}/landing/*.json", description="Files that the first write ingests."
    )


class LanceTableScaffolder(dg.Scaffolder[LanceTableParams]):
    """Scaffolder of `LanceTableComponent`."""

    @classmethod
    def get_scaffold_params(cls) -> type[LanceTableParams]:
        return LanceTableParams

    def scaffold(self, request: dg.ScaffoldRequest[LanceTableParams]) -> None:
        if request.scaffold_format != "yaml":
            raise InvalidInput("this command writes YAML only; in Python, declare the table with lance_table(...)")
        folder = request.target_path.parent if request.append else request.target_path
        name = request.params.name or re.sub(r"\W", "_", folder.name)
        file = request.target_path if request.append else Path(request.target_path) / "defs.yaml"
        text = _TEMPLATE.format(
            separator="---\n" if request.append else "",
            type_name=request.type_name,
            name=name,
            uri=_quoted(request.params.uri or f"{{{{ context.project_root }}}}/tables/{name}.lance"),
            files=_quoted(request.params.files),
        )
        with file.open("a" if request.append else "w", encoding="utf-8") as defs_file:
            defs_file.write(text)


def _quoted(text: str) -> str:
    """Return the text as a double-quoted YAML scalar."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

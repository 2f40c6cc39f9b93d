"""What `dg scaffold defs lance_assets.LanceTableComponent orders` writes: a `defs.yaml` to start from.

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
  description: What is in it, for who finds it.
  # key_prefix: lake
  # storage_options:
  #   aws_secret_access_key: "{{{{ env.AWS_SECRET_ACCESS_KEY }}}}"

  # checks:
  #   - {{check: row_count, min: 1}}
  # maintenance: {{every: "0 3 * * *"}}

  # Each is an asset that makes versions; all options are those of Python's SparkAppend, SparkIngest, ...
  writes:
    - op: ingest
      name: {name}_ingest
      files: {files}
      description: Takes the files that have arrived since.

    # A function (spark, ctx) -> DataFrame, in writes/row_writes.py beside this file:
    # - op: append
    #   name: {name}_append
    #   fn: .rows:new_{name}
    #   partitions: {{type: daily, start_date: "2026-01-01"}}
    #   once_per: partition

    - op: compact
      name: {name}_compact
"""


class LanceTableParams(BaseModel):
    name: str | None = Field(default=None, description="Of the table; the name of the folder unless it is given.")
    uri: str | None = Field(default=None, description="The directory that the table is, or will be.")
    files: str = Field(
        default="{{ context.project_root }}/landing/*.json", description="What the first write takes into the table."
    )


class LanceTableScaffolder(dg.Scaffolder[LanceTableParams]):
    @classmethod
    def get_scaffold_params(cls) -> type[LanceTableParams]:
        return LanceTableParams

    def scaffold(self, request: dg.ScaffoldRequest[LanceTableParams]) -> None:
        if request.scaffold_format != "yaml":
            raise InvalidInput("this writes YAML; in Python a table is lance_table(...), and needs no component")
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
        with file.open("a" if request.append else "w", encoding="utf-8") as written:
            written.write(text)


def _quoted(text: str) -> str:
    """As YAML between double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

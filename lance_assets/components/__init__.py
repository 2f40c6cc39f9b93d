"""YAML components: declare Lance tables in YAML. `dg list components` finds the classes that are exported here.

table.py              components of a table and of a view; start here
spark.py              component of the resource `spark`
registry.py           options of a table and its writes, each with its form
forms.py              forms: a JSON schema and a function that reads the value
values.py             forms of functions, partitions, durations, column types and secrets
references.py         Python objects named as `module.path:name`
source_position.py    position in a YAML file, templates and errors
scaffolder.py         `dg scaffold defs`
"""

from lance_assets.components.spark import SparkSessionComponent
from lance_assets.components.table import LanceTableComponent, LanceViewComponent

__all__ = ["LanceTableComponent", "LanceViewComponent", "SparkSessionComponent"]

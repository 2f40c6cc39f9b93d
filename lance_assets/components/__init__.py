"""Lance tables in YAML. `dg list components` finds these here; what the YAML means is in `common/text.py`."""

from lance_assets.components.spark import SparkSessionComponent
from lance_assets.components.table import LanceTableComponent

__all__ = ["LanceTableComponent", "SparkSessionComponent"]

"""Predicates and expressions: Lance's SQL, checked, read by planners and evaluated by DataFusion.

Start at `Predicate` and `Projection`; `tree` holds the nodes that planners read and that other rooms build
predicates from. Pure: no file, no table, no version. DataFusion is loaded by the first use, in `engine` alone.
"""

from lance_core.expressions.engine_batches import METADATA_COLUMNS, with_metadata_columns
from lance_core.expressions.predicate import Predicate
from lance_core.expressions.projection import Projection
from lance_core.expressions.tree import (
    And,
    Call,
    Comparison,
    Constant,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Op,
    Or,
    Other,
)

__all__ = [
    "METADATA_COLUMNS",
    "And",
    "Call",
    "Comparison",
    "Constant",
    "In",
    "IsNull",
    "Like",
    "Node",
    "Not",
    "Op",
    "Or",
    "Other",
    "Predicate",
    "Projection",
    "with_metadata_columns",
]

"""Expressions: the SQL of filters and computed columns, parsed, checked and evaluated by DataFusion.

Start at `Predicate` and `Projection`. `tree` has the nodes that planners read and that other packages build
predicates from. This package is pure: it knows no files, tables and versions. Only `engine` imports DataFusion, on
first use.
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

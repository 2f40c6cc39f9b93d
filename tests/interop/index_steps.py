"""Index steps: generators of steps that change the indices of a table, and of the conditions that are queried then.

The comparison of a program with such steps ignores the order of rows (`history_comparison.py`): the two libraries may
cover different fragments, so they compact different ones together. After every step both libraries answer each
condition, with indices and without.
"""

from tests.interop import sql_generator
from tests.interop.columns import KEY
from tests.interop.statement_pair import StatementPair
from tests.interop.table_model import TableModel

_ORDERED = ("BTREE", "BITMAP", "ZONEMAP")
_INTEGERS = (KEY, "int8", "int32", "int64", "uint8", "uint16", "uint32", "date32")
_INDEX_TYPES = {
    **dict.fromkeys(_INTEGERS, (*_ORDERED, "BLOOMFILTER")),
    **dict.fromkeys(("string", "large_string", "string-not-null"), (*_ORDERED, "NGRAM")),
    "bool": ("BITMAP", "BTREE"),
    "list-string": ("LABEL_LIST",),
    "list": ("LABEL_LIST",),
}


def create_index(model: TableModel) -> StatementPair | None:
    candidates = [name for name, spec in model.usable_columns.items() if spec.rstrip("!") in _INDEX_TYPES]
    if not candidates:
        return None
    random = model.random
    column = random.choice(candidates)
    index_type = random.choice(_INDEX_TYPES[model.usable_columns[column].rstrip("!")])
    if model.indices and random.random() < 0.15:
        name = random.choice(sorted(model.indices))
    else:
        name = f"i{model.step}"
    replace = name in model.indices
    if replace and model.indices[name][0] != column:
        return None  # both libraries refuse it, unless the other column was dropped in between
    model.indices[name] = (column, index_type)
    replace_option = ", replace=True" if replace else ""
    return StatementPair(
        f"table.create_index({sql_generator.quote(column)!r}, {index_type!r}, name={name!r}{replace_option})",
        f"dataset.create_scalar_index({column!r}, {index_type!r}, name={name!r}, replace={replace})",
    )


def drop_index(model: TableModel) -> StatementPair | None:
    names = sorted(model.indices)
    if not names:
        return None
    name = model.random.choice(names)
    del model.indices[name]
    return StatementPair(f"table.drop_index({name!r})", f"dataset.drop_index({name!r})")


def optimize_indices(model: TableModel) -> StatementPair | None:
    """With stable row ids pylance 14 answers wrongly after it adds a segment for moved rows (test_pylance_defects.py).

    Its statement therefore rebuilds the index.
    """
    if not model.indices:
        return None
    merge = model.random.choice(("small", "all", "none"))
    theirs = f"dataset.optimize.optimize_indices(num_indices_to_merge={0 if merge == 'none' else 100})"
    if model.stable_row_ids:
        name = model.random.choice(sorted(model.indices))
        column, index_type = model.indices[name]
        theirs = f"dataset.create_scalar_index({column!r}, {index_type!r}, name={name!r}, replace=True)"
    return StatementPair(f"table.optimize_indices(merge={merge!r})", theirs)


def compact_without_remap(model: TableModel) -> StatementPair:
    """Compact without rewriting an index."""
    remap = "none" if model.stable_row_ids else model.random.choice(("reuse", "none"))
    deferred = ", defer_index_remap=True" if remap == "reuse" else ""
    return StatementPair(
        f"table.compact(target_rows=10, remap={remap!r})",
        f"dataset.optimize.compact_files(target_rows_per_fragment=10, num_threads=1{deferred})",
    )


STEP_GENERATORS = (
    ("create index", 24, create_index),
    ("drop index", 4, drop_index),
    ("optimize indices", 14, optimize_indices),
    ("compact without remap", 5, compact_without_remap),
)


def generate_conditions(model: TableModel) -> tuple[str, ...]:
    """Return conditions to query, most of them on indexed columns."""
    conditions = [sql_generator.generate_condition(model) for _ in range(2)]
    for column, _index_type in model.indices.values():
        if column in model.usable_columns:
            conditions += [
                sql_generator.generate_column_condition(model, column),
                f"not ({sql_generator.generate_column_condition(model, column)})",
            ]
    return tuple(dict.fromkeys(conditions))

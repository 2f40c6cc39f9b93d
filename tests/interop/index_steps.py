"""What can be done to the indices of a table, by both libraries, and what is asked of it then.

A program with such steps is compared by its rows, in any order (`history_comparison.py`): the two may cover other
fragments, so they compact others together. After every step each condition is answered by both libraries, with indices
and without.
"""

from tests.interop import sql_generator
from tests.interop.columns import KEY
from tests.interop.statement_pair import Told
from tests.interop.table_model import Model

_ORDERED = ("BTREE", "BITMAP", "ZONEMAP")
_INTEGERS = (KEY, "int8", "int32", "int64", "uint8", "uint16", "uint32", "date32")
_KINDS = {
    **dict.fromkeys(_INTEGERS, (*_ORDERED, "BLOOMFILTER")),
    **dict.fromkeys(("string", "large_string", "string-not-null"), (*_ORDERED, "NGRAM")),
    "bool": ("BITMAP", "BTREE"),
    "list-string": ("LABEL_LIST",),
    "list": ("LABEL_LIST",),
}


def create_index(model: Model) -> Told | None:
    fitting = [name for name, spec in model.known.items() if spec.rstrip("!") in _KINDS]
    if not fitting:
        return None
    random = model.random
    column = random.choice(fitting)
    kind = random.choice(_KINDS[model.known[column].rstrip("!")])
    if model.indices and random.random() < 0.15:
        name = random.choice(sorted(model.indices))
    else:
        name = f"i{model.step}"
    replace = name in model.indices
    if replace and model.indices[name][0] != column:
        return None  # both refuse it, unless the other column went meanwhile
    model.indices[name] = (column, kind)
    again = ", replace=True" if replace else ""
    return Told(
        f"table.create_index({sql_generator.quoted(column)!r}, {kind!r}, name={name!r}{again})",
        f"dataset.create_scalar_index({column!r}, {kind!r}, name={name!r}, replace={replace})",
    )


def drop_index(model: Model) -> Told | None:
    there = sorted(model.indices)
    if not there:
        return None
    name = model.random.choice(there)
    del model.indices[name]
    return Told(f"table.drop_index({name!r})", f"dataset.drop_index({name!r})")


def optimize(model: Model) -> Told | None:
    """With stable row ids pylance 14 answers wrongly where it has added a segment for rows that moved: there it builds
    its indices anew."""
    if not model.indices:
        return None
    merge = model.random.choice(("small", "all", "none"))
    theirs = f"dataset.optimize.optimize_indices(num_indices_to_merge={0 if merge == 'none' else 100})"
    if model.stable:
        name = model.random.choice(sorted(model.indices))
        column, kind = model.indices[name]
        theirs = f"dataset.create_scalar_index({column!r}, {kind!r}, name={name!r}, replace=True)"
    return Told(f"table.optimize_indices(merge={merge!r})", theirs)


def compact_otherwise(model: Model) -> Told:
    """Without an index being written."""
    remap = "none" if model.stable else model.random.choice(("reuse", "none"))
    deferred = ", defer_index_remap=True" if remap == "reuse" else ""
    return Told(
        f"table.compact(target_rows=10, remap={remap!r})",
        f"dataset.optimize.compact_files(target_rows_per_fragment=10, num_threads=1{deferred})",
    )


KINDS = (
    ("create index", 24, create_index),
    ("drop index", 4, drop_index),
    ("optimize indices", 14, optimize),
    ("compact otherwise", 5, compact_otherwise),
)


def questions(model: Model) -> tuple[str, ...]:
    """Conditions, on indexed columns above all."""
    asked = [sql_generator.condition(model) for _ in range(2)]
    for column, _kind in model.indices.values():
        if column in model.known:
            asked += [sql_generator.of_column(model, column), f"not ({sql_generator.of_column(model, column)})"]
    return tuple(dict.fromkeys(asked))

"""Schema steps: generators of steps that change columns, configuration or metadata. Start at `data_steps.py`."""

from collections.abc import Callable

from tests.interop import sql_generator
from tests.interop.columns import has_non_null_values
from tests.interop.statement_pair import StatementPair, same_call
from tests.interop.table_model import UNKNOWN, TableModel

CASTS: dict[str, tuple[str, ...]] = {
    "int8": ("int16", "int64", "double", "string"),
    "int16": ("int32", "int64"),
    "int32": ("int64", "double", "string", "int8"),
    "int64": ("int32", "uint64", "double"),
    "uint8": ("int16", "uint32"),
    "uint32": ("uint64", "int64"),
    "halffloat": ("float",),
    "float": ("double", "halffloat"),
    "double": ("float", "int32"),
    "string": ("large_string", "int32"),
    "large_string": ("string",),
    "binary": ("large_binary",),
    "large_binary": ("binary",),
    "date32": ("date64",),
    "date64": ("date32",),
    "timestamp-s-None": ("timestamp-us-None", "date32"),
    "timestamp-us-UTC": ("timestamp-ns-UTC", "timestamp-us-None"),
    "time32-s": ("time64-us",),
    "duration-s": ("duration-ms",),
    "list": ("large_list",),
    "bool": ("int8", "string"),
}
_METADATA = ({"a": "1"}, {"a": "2", "b": "3"}, {"a": None}, {"ü": "ö", "b": None})
_PRIMARY_KEY = {"lance-schema:unenforced-primary-key": "true"}
_COMPRESSED = {"lance-encoding:compression": "zstd"}


def add_by_sql(model: TableModel) -> StatementPair:
    expressions: dict[str, str] = {}
    for _ in range(model.random.randint(1, 2)):
        name = model.new_name()
        if name not in expressions:
            expressions[name], spec = sql_generator.generate_new_column(model)
            model.add_written_column(name, spec)
    return same_call(f"add_columns({expressions})")


def add_nulls(model: TableModel) -> StatementPair:
    name, spec = model.new_name(), model.new_spec(nullable=True)
    model.columns[name] = spec
    return same_call(f"add_columns(make_field({name!r}, {spec!r}))")


def add_by_function(model: TableModel) -> StatementPair | None:
    key = model.key
    if key is None:
        return None
    name, spec = model.new_name(), model.new_spec()
    model.add_written_column(name, spec)
    seed = model.random.randrange(1000)
    columns = {name: spec}
    function = f"lambda keys: make_batch({columns}, keys, {seed})"
    return StatementPair(
        f"table.add_columns({function}, read_columns=[{key!r}])",
        f"dataset.add_columns({function}, read_columns=[{key!r}])",
    )


def merge_columns(model: TableModel) -> StatementPair | None:
    key = model.key
    if key is None:
        return None
    name, spec = model.new_name(), model.new_spec(nullable=True)
    keys = model.random.sample(range(model.key_count + 3), min(model.key_count, model.random.choice((1, 3, 6))))
    data = model.rows_with_keys({key: model.columns[key], name: spec}, str(keys))
    model.add_written_column(name, spec)
    return StatementPair(f"table.merge_columns({data}, {key!r})", f"dataset.merge({data}, {key!r})")


def drop_columns(model: TableModel) -> StatementPair | None:
    names = model.columns_without_key() if model.random.random() < 0.9 else list(model.columns)
    if not names or len(model.columns) < 2:
        return None
    dropped = model.random.sample(names, min(len(names), model.random.choice((1, 1, 2))))
    if len(dropped) == len(model.columns) or any(written <= set(dropped) for written in model.written_columns):
        return None
    for name in dropped:
        del model.columns[name]
        for written in model.written_columns:
            written.discard(name)
    return same_call(f"drop_columns({dropped})")


_NESTED_FIELDS = {
    "struct": ("x", "y"),
    "struct-null": ("x", "y"),
    "struct-nested": ("point", "point.x", "point.y"),
    "list-of-struct": ("item.x", "item.y"),
    "large_list-of-struct": ("item.x", "item.y"),
    "struct-empty-list": ("l",),
}


def _choose_nested_field(model: TableModel) -> tuple[str, str] | None:
    candidates = [
        (name, path)
        for name, spec in model.columns.items()
        if name.isidentifier()
        for path in _NESTED_FIELDS.get(spec.rstrip("!"), ())
        # Before 2.2 pylance drops the column instead of a field of its list items (test_pylance_defects.py).
        if model.storage_version >= "2.2" or not path.startswith("item.")
    ]
    return model.random.choice(candidates) if candidates else None


def drop_nested_field(model: TableModel) -> StatementPair | None:
    field = _choose_nested_field(model)
    if field is None:
        return None
    model.columns[field[0]] = UNKNOWN
    return same_call(f"drop_columns([{'.'.join(field)!r}])")


def add_nested_field(model: TableModel) -> StatementPair | None:
    """Add a field to a struct; it is null in every row."""
    candidates = [name for name, spec in model.columns.items() if spec.rstrip("!") in ("struct", "struct-nested")]
    if not candidates or model.storage_version < "2.2":
        return None
    name = model.random.choice(candidates)
    model.columns[name] = UNKNOWN
    return same_call(f"add_columns(pa.field({name!r}, pa.struct([pa.field('added', pa.list_(pa.int8()))])))")


def rename_column(model: TableModel) -> StatementPair:
    old, new = model.random.choice(list(model.columns)), model.new_name()
    model.columns = {new if name == old else name: spec for name, spec in model.columns.items()}
    model.annotated |= {new} if old in model.annotated else set()
    model.written_columns = [{new if name == old else name for name in names} for names in model.written_columns]
    return _alter(old, f"rename={new!r}", f'"name": {new!r}')


def rename_nested_field(model: TableModel) -> StatementPair | None:
    field = _choose_nested_field(model)
    if field is None:
        return None
    model.columns[field[0]] = UNKNOWN
    return _alter(".".join(field), "rename='renamed'", '"name": "renamed"')


def reorder_columns(model: TableModel) -> StatementPair | None:
    names = list(model.columns)
    if len(names) < 2:
        return None
    model.random.shuffle(names)
    model.columns = {name: model.columns[name] for name in names}
    # pylance cannot reorder columns, so our library does it in the table of pylance too.
    call = f"reorder_columns({names})"
    return StatementPair(f"table.{call}", f"Table.open(uri, durable=False).{call}")


def cast_column(model: TableModel) -> StatementPair | None:
    # pylance loses the metadata of a column that it casts (test_pylance_defects.py).
    names = [name for name in model.columns if name not in model.annotated]
    candidates = [(name, target) for name in names for target in CASTS.get(model.columns[name].rstrip("!"), ())]
    if not candidates:
        return None
    name, target = model.random.choice(candidates)
    model.columns[name] = target + ("!" if model.columns[name].endswith("!") else "")
    return _alter(name, f"type=arrow_type({target!r})", f'"data_type": arrow_type({target!r})')


def change_nullability(model: TableModel) -> StatementPair | None:
    names = [name for name, spec in model.columns.items() if spec != UNKNOWN]
    if not names:
        return None
    name = model.random.choice(names)
    spec = model.columns[name]
    nullable = spec.endswith("!")
    if nullable or has_non_null_values(spec):
        model.columns[name] = spec.rstrip("!") if nullable else f"{spec}!"
    return _alter(name, f"nullable={nullable}", f'"nullable": {nullable}')


def set_config(model: TableModel) -> StatementPair:
    return _set_entries(model, "config")


def set_table_metadata(model: TableModel) -> StatementPair:
    return _set_entries(model, "metadata")


def set_schema_metadata(model: TableModel) -> StatementPair:
    return _set_entries(model, "schema_metadata")


def set_field_metadata(model: TableModel) -> StatementPair:
    name = model.random.choice(list(model.columns))
    key = model.key
    if key is not None and model.columns[key].endswith("!") and model.random.random() < 0.3:
        model.annotated.add(key)
        call = f"field_metadata({{{key!r}: {_PRIMARY_KEY}}})"
        return StatementPair(f"table.set_{call}", f"dataset.update_{call}")
    model.annotated.add(name)
    return _set_entries(model, "field_metadata", name)


def _set_entries(model: TableModel, target: str, column: str | None = None) -> StatementPair:
    entries: object = model.random.choice(_METADATA)
    if column is not None:
        entries = {column: model.random.choice((entries, entries, _COMPRESSED))}
    arguments = f"{entries}, replace=True" if model.random.random() < 0.25 else f"{entries}"
    return StatementPair(f"table.set_{target}({arguments})", f"dataset.update_{target}({arguments})")


def _alter(path: str, ours: str, theirs: str) -> StatementPair:
    return StatementPair(
        f"table.alter_column({path!r}, {ours})", f'dataset.alter_columns({{"path": {path!r}, {theirs}}})'
    )


STEP_GENERATORS: tuple[tuple[str, int, Callable[[TableModel], StatementPair | None]], ...] = (
    ("add by SQL", 5, add_by_sql),
    ("add nulls", 4, add_nulls),
    ("add by function", 2, add_by_function),
    ("merge columns", 3, merge_columns),
    ("drop", 5, drop_columns),
    ("drop nested field", 4, drop_nested_field),
    ("add nested field", 4, add_nested_field),
    ("rename", 4, rename_column),
    ("rename nested field", 3, rename_nested_field),
    ("reorder", 2, reorder_columns),
    ("cast", 5, cast_column),
    ("nullability", 3, change_nullability),
    ("config", 2, set_config),
    ("table metadata", 2, set_table_metadata),
    ("schema metadata", 2, set_schema_metadata),
    ("field metadata", 3, set_field_metadata),
)

"""Steps that change columns, and what a table says about itself. See `data_steps.py`."""

from collections.abc import Callable

from tests.interop import sql_generator
from tests.interop.columns import may_be_full
from tests.interop.statement_pair import Told
from tests.interop.table_model import UNKNOWN, Model

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
_KEY = {"lance-schema:unenforced-primary-key": "true"}
_COMPRESSED = {"lance-encoding:compression": "zstd"}


def add_by_sql(model: Model) -> Told:
    given = {}
    for _ in range(model.random.randint(1, 2)):
        name = model.new_name()
        if name not in given:
            given[name], spec = sql_generator.new_value(model)
            model.computed(name, spec)
    return _both(f"add_columns({given})")


def add_nulls(model: Model) -> Told:
    name, spec = model.new_name(), model.new_spec(nullable=True)
    model.columns[name] = spec
    return _both(f"add_columns(field({name!r}, {spec!r}))")


def add_by_function(model: Model) -> Told | None:
    read = model.key
    if read is None:
        return None
    name, spec = model.new_name(), model.new_spec()
    model.computed(name, spec)
    seed = model.random.randrange(1000)
    columns = {name: spec}
    function = f"lambda given: batch({columns}, given, {seed})"
    return Told(
        f"table.add_columns({function}, read_columns=[{read!r}])",
        f"dataset.add_columns({function}, read_columns=[{read!r}])",
    )


def merge(model: Model) -> Told | None:
    key = model.key
    if key is None:
        return None
    name, spec = model.new_name(), model.new_spec(nullable=True)
    keys = model.random.sample(range(model.keys + 3), min(model.keys, model.random.choice((1, 3, 6))))
    data = model.rows_of({key: model.columns[key], name: spec}, str(keys))
    model.computed(name, spec)
    return Told(f"table.merge_columns({data}, {key!r})", f"dataset.merge({data}, {key!r})")


def drop(model: Model) -> Told | None:
    names = model.others() if model.random.random() < 0.9 else list(model.columns)
    if not names or len(model.columns) < 2:
        return None
    gone = model.random.sample(names, min(len(names), model.random.choice((1, 1, 2))))
    if len(gone) == len(model.columns) or any(written <= set(gone) for written in model.written):
        return None
    for name in gone:
        del model.columns[name]
        for written in model.written:
            written.discard(name)
    return _both(f"drop_columns({gone})")


_PARTS = {
    "struct": ("x", "y"),
    "struct-null": ("x", "y"),
    "struct-nested": ("point", "point.x", "point.y"),
    "list-of-struct": ("item.x", "item.y"),
    "large_list-of-struct": ("item.x", "item.y"),
    "struct-empty-list": ("l",),
}


def _part(model: Model) -> tuple[str, str] | None:
    found = [
        (name, part)
        for name, spec in model.columns.items()
        if name.isidentifier()
        for part in _PARTS.get(spec.rstrip("!"), ())
        # Before 2.2, told to drop a part of what is in a list, pylance drops the column (test_pylance_defects.py).
        if model.storage_version >= "2.2" or not part.startswith("item.")
    ]
    return model.random.choice(found) if found else None


def drop_part(model: Model) -> Told | None:
    found = _part(model)
    if found is None:
        return None
    model.columns[found[0]] = UNKNOWN
    return _both(f"drop_columns([{'.'.join(found)!r}])")


def add_part(model: Model) -> Told | None:
    """A field more in a struct, null in every row."""
    found = [name for name, spec in model.columns.items() if spec.rstrip("!") in ("struct", "struct-nested")]
    if not found or model.storage_version < "2.2":
        return None
    name = model.random.choice(found)
    model.columns[name] = UNKNOWN
    return _both(f"add_columns(pa.field({name!r}, pa.struct([pa.field('added', pa.list_(pa.int8()))])))")


def rename(model: Model) -> Told:
    old, new = model.random.choice(list(model.columns)), model.new_name()
    model.columns = {new if name == old else name: spec for name, spec in model.columns.items()}
    model.annotated |= {new} if old in model.annotated else set()
    model.written = [{new if name == old else name for name in names} for names in model.written]
    return _alter(old, f"rename={new!r}", f'"name": {new!r}')


def rename_part(model: Model) -> Told | None:
    found = _part(model)
    if found is None:
        return None
    model.columns[found[0]] = UNKNOWN
    return _alter(".".join(found), "rename='renamed'", '"name": "renamed"')


def reorder(model: Model) -> Told | None:
    names = list(model.columns)
    if len(names) < 2:
        return None
    model.random.shuffle(names)
    model.columns = {name: model.columns[name] for name in names}
    # pylance has no word for it; we do it in its table too.
    told = f"reorder_columns({names})"
    return Told(f"table.{told}", f"Table.open(uri, durable=False).{told}")


def cast(model: Model) -> Told | None:
    # Of a column with metadata pylance loses it (test_pylance_defects.py).
    names = [name for name in model.columns if name not in model.annotated]
    found = [(name, to) for name in names for to in CASTS.get(model.columns[name].rstrip("!"), ())]
    if not found:
        return None
    name, to = model.random.choice(found)
    model.columns[name] = to + ("!" if model.columns[name].endswith("!") else "")
    return _alter(name, f"type=arrow({to!r})", f'"data_type": arrow({to!r})')


def nullability(model: Model) -> Told | None:
    names = [name for name, spec in model.columns.items() if spec != UNKNOWN]
    if not names:
        return None
    name = model.random.choice(names)
    spec = model.columns[name]
    nullable = spec.endswith("!")
    if nullable or may_be_full(spec):
        model.columns[name] = spec.rstrip("!") if nullable else f"{spec}!"
    return _alter(name, f"nullable={nullable}", f'"nullable": {nullable}')


def config(model: Model) -> Told:
    return _settings(model, "config")


def table_metadata(model: Model) -> Told:
    return _settings(model, "metadata")


def schema_metadata(model: Model) -> Told:
    return _settings(model, "schema_metadata")


def field_metadata(model: Model) -> Told:
    name = model.random.choice(list(model.columns))
    key = model.key
    if key is not None and model.columns[key].endswith("!") and model.random.random() < 0.3:
        model.annotated.add(key)
        told = f"field_metadata({{{key!r}: {_KEY}}})"
        return Told(f"table.set_{told}", f"dataset.update_{told}")
    model.annotated.add(name)
    return _settings(model, "field_metadata", name)


def _settings(model: Model, what: str, column: str | None = None) -> Told:
    given: object = model.random.choice(_METADATA)
    if column is not None:
        given = {column: model.random.choice((given, given, _COMPRESSED))}
    entries = f"{given}, replace=True" if model.random.random() < 0.25 else f"{given}"
    return Told(f"table.set_{what}({entries})", f"dataset.update_{what}({entries})")


def _alter(path: str, ours: str, theirs: str) -> Told:
    return Told(f"table.alter_column({path!r}, {ours})", f'dataset.alter_columns({{"path": {path!r}, {theirs}}})')


def _both(call: str) -> Told:
    return Told(f"table.{call}", f"dataset.{call}")


KINDS: tuple[tuple[str, int, Callable[[Model], Told | None]], ...] = (
    ("add by SQL", 5, add_by_sql),
    ("add nulls", 4, add_nulls),
    ("add by function", 2, add_by_function),
    ("merge columns", 3, merge),
    ("drop", 5, drop),
    ("drop part", 4, drop_part),
    ("add part", 4, add_part),
    ("rename", 4, rename),
    ("rename part", 3, rename_part),
    ("reorder", 2, reorder),
    ("cast", 5, cast),
    ("nullability", 3, nullability),
    ("config", 2, config),
    ("table metadata", 2, table_metadata),
    ("schema metadata", 2, schema_metadata),
    ("field metadata", 3, field_metadata),
)

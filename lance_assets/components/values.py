"""Forms of compound values: functions, partitions, column types, options with secrets, dependencies.

Each is written like its Python counterpart. A template can supply any of them as an object, such as `{{
dg.DailyPartitionsDefinition(start_date='2026-01-01') }}`.
"""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import dagster as dg
import pyarrow as pa

from lance_assets.components.forms import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    TEXT,
    Form,
    choice,
    list_of,
    mapping_of,
    record,
    tagged_union,
    union_of,
)
from lance_assets.components.references import resolve_function, resolve_reference
from lance_assets.components.source_position import SourcePosition, environment_variable
from lance_assets.resources.lance import LanceResource
from lance_assets.spark.settings import mask_secret
from lance_core.tasks.credentials import exposes_secret

FUNCTION = Form(
    {"type": "string", "pattern": r"^\.?[\w.]+:\w+$|\{\{", "description": "module.path:name"}, resolve_function
)
TEXTS = list_of(TEXT)
TEXT_OR_TEXTS = union_of("a text, or a list of texts", (str, TEXT), (list, TEXTS))
TEXT_BY_NAME = mapping_of(TEXT)
FUNCTION_CALL = record(lambda fn: fn, {"fn": FUNCTION}, required=["fn"], what="a function of the context")
SCALAR = Form({"type": ["string", "number", "boolean", "null"]}, lambda raw, position: position.render(raw))
SCALARS = mapping_of(SCALAR)
FILES = union_of("a file, a list of them, or fn: module:name", (str, TEXT), (list, TEXTS), (dict, FUNCTION_CALL))


def _read_option(raw: object, position: SourcePosition) -> object:
    """Read a storage option. An environment variable stays a reference, so that Dagster's pages do not show its
    value."""
    return _read_public_text(raw, position, exposes_secret)


def _read_setting(raw: object, position: SourcePosition) -> object:
    """Read a setting of Spark. An environment variable stays a reference, and a literal secret is refused."""
    return _read_public_text(raw, position, lambda key, value: mask_secret(key, value) != value)


def _read_public_text(raw: object, position: SourcePosition, is_exposed: Callable[[str, str], bool]) -> object:
    name = environment_variable(raw)
    if name is not None:
        return dg.EnvVar(name)
    value = str(TEXT.read(raw, position))
    if is_exposed(str(position.context.path[-1]), value):
        raise position.error(
            "this is a literal secret; write {{ env.NAME }} instead, and set the variable NAME where this code runs"
        )
    return value


OPTION = Form({"type": "string"}, _read_option)
OPTIONS = mapping_of(OPTION)


def _read_source_option(raw: object, position: SourcePosition) -> object:
    """Read an option of source files, which may be a mapping or a list of options."""
    if isinstance(raw, Mapping):
        return {str(name): _read_source_option(item, position.child(name)) for name, item in raw.items()}
    if isinstance(raw, list):
        return [_read_source_option(item, position) for item in raw]
    return _read_option(raw, position) if isinstance(raw, str) else raw


SOURCE_OPTIONS = mapping_of(
    Form({"type": ["string", "number", "boolean", "null", "object", "array"]}, _read_source_option)
)
SETTING = Form({"type": "string"}, _read_setting)
SETTINGS = mapping_of(SETTING)


def _read_nested_setting(raw: object, position: SourcePosition) -> object:
    """Read the settings of a resource of dagster-pyspark: dotted keys, or mappings in mappings."""
    value = position.render(raw) if environment_variable(raw) is None else raw
    if isinstance(value, Mapping):
        return {str(name): _read_nested_setting(item, position.child(name)) for name, item in value.items()}
    if isinstance(value, str):
        return _read_setting(value, position)
    if isinstance(value, bool | int | float):
        return value
    raise position.error("a Spark setting is a text, a number, true or false, or a mapping of settings")


NESTED_SETTINGS = Form({"type": "object"}, _read_nested_setting)
STORAGE = record(
    LanceResource,
    {"root": OPTION, "storage_options": OPTIONS, "manifest_store": OPTION, "verify": OPTION, "trusted": BOOLEAN},
    required=[],
    what="a storage",
)


def _read_parameter(raw: object, position: SourcePosition) -> object:
    value = position.render(raw)
    return FUNCTION_CALL.read(value, position) if isinstance(value, Mapping) else value


def _read_json(raw: object, position: SourcePosition) -> object:
    """Read a value of any type. An environment variable stays a reference."""
    if (name := environment_variable(raw)) is not None:
        return dg.EnvVar(name)
    value = position.render(raw)
    if isinstance(value, Mapping):
        return {str(name): _read_json(item, position.child(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_read_json(item, position.child(number)) for number, item in enumerate(value)]
    return value


def _read_launch(raw: object, position: SourcePosition) -> object:
    value = position.render(raw)
    if not isinstance(value, Mapping):
        raise position.error("launch is a mapping of arguments of the client's run, or fn: module:name")
    return FUNCTION_CALL.read(value, position) if value.keys() == {"fn"} else _read_json(value, position)


LAUNCH = Form({"type": "object"}, _read_launch)
PARAMETERS = mapping_of(Form({"anyOf": [SCALAR.schema, FUNCTION_CALL.schema]}, _read_parameter))


def object_or_reference(kind: type, form: Form, *, what: str) -> Form:
    """Return a form that also accepts a Python object, as a template or as `module.path:name`."""

    def read(raw: object, position: SourcePosition) -> object:
        value = position.render(raw)
        if isinstance(value, str) and _REFERENCE.fullmatch(value):
            value = resolve_reference(value, position)
            if not isinstance(value, kind):
                raise position.error(f"{raw!r} has type {type(value).__name__}; it must be a {what}")
        return value if isinstance(value, kind) else form.read(value, position)

    reference = {"type": "string", "pattern": _REFERENCE.pattern}
    return Form({"if": {"type": "string", "pattern": ":"}, "then": reference, "else": form.schema}, read)


_REFERENCE = re.compile(r"^\.?[\w.]+:\w+$")
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>s|min|h|d|w)[a-z]*")
_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _read_duration(raw: object, position: SourcePosition) -> object:
    value = position.render(raw)
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise position.error("a duration is expected here, such as 90s, 30 min, 12h, 7 days or 2 weeks")
    return timedelta(**{_UNITS[match["unit"]]: float(match["number"])})


DURATION = Form({"type": "string"}, _read_duration)


def _read_version_reasons(raw: object, position: SourcePosition) -> object:
    reasons = TEXT_BY_NAME.read(raw, position)
    assert isinstance(reasons, Mapping)
    if invalid := [name for name in reasons if not name.isdecimal()]:
        raise position.child(invalid[0]).error("a version must be a whole number")
    return {int(name): reason for name, reason in reasons.items()}


VERSIONS_OR_REASONS = union_of(
    "a list of versions, or a mapping from versions to reasons",
    (list, list_of(INTEGER)),
    (dict, Form(TEXT_BY_NAME.schema, _read_version_reasons)),
)


# Partitions


def _time_partitions(kind: type, **forms: Form) -> Form:
    common = {"start_date": TEXT, "end_date": TEXT, "timezone": TEXT, "fmt": TEXT, "end_offset": INTEGER}
    return record(kind, {**common, **forms}, required=["start_date"], what="partitions")


_PARTITION_FORMS = {
    "hourly": _time_partitions(dg.HourlyPartitionsDefinition, minute_offset=INTEGER),
    "daily": _time_partitions(dg.DailyPartitionsDefinition, minute_offset=INTEGER, hour_offset=INTEGER),
    "weekly": _time_partitions(
        dg.WeeklyPartitionsDefinition, minute_offset=INTEGER, hour_offset=INTEGER, day_offset=INTEGER
    ),
    "monthly": _time_partitions(
        dg.MonthlyPartitionsDefinition, minute_offset=INTEGER, hour_offset=INTEGER, day_offset=INTEGER
    ),
    "static": record(
        dg.StaticPartitionsDefinition,
        {"partition_keys": TEXTS},
        required=["partition_keys"],
        what="partitions",
    ),
    "dynamic": record(dg.DynamicPartitionsDefinition, {"name": TEXT}, required=["name"], what="partitions"),
}
_PARTITIONS_BY_TYPE = tagged_union("type", _PARTITION_FORMS, what="a partitions definition")


def _read_partitions(raw: object, position: SourcePosition) -> object:
    value = position.render(raw)
    return value if isinstance(value, dg.PartitionsDefinition) else _PARTITIONS_BY_TYPE.read(value, position)


PARTITIONS = Form(_PARTITIONS_BY_TYPE.schema, _read_partitions)


# Dependencies and retries


def _newest_version_dep(table: str) -> dg.AssetDep:
    return dg.AssetDep(dg.AssetKey.from_user_string(table), partition_mapping=dg.LastPartitionMapping())


_TABLE = record(
    _newest_version_dep, {"table": TEXT}, required=["table"], what="a dependency on a table's newest version"
)


def _read_dependency(raw: object, position: SourcePosition) -> object:
    value = position.render(raw)
    if isinstance(value, Mapping):
        return _TABLE.read(value, position)
    return dg.AssetKey.from_user_string(value) if isinstance(value, str) else value


DEPENDENCIES = list_of(Form({"anyOf": [TEXT.schema, _TABLE.schema]}, _read_dependency))


def _input_of(
    key: str | None = None,
    key_prefix: object = None,
    metadata: Mapping[str, object] | None = None,
    input_manager_key: str | None = None,
    newest: bool = False,
) -> dg.AssetIn:
    """Return an input. `newest` selects the newest version of a Lance table for an asset with partitions."""
    return dg.AssetIn(
        key=None if key is None else dg.AssetKey.from_user_string(key),
        key_prefix=key_prefix,  # type: ignore[arg-type]  # a text or a list of texts
        metadata=metadata,
        input_manager_key=input_manager_key,
        partition_mapping=dg.LastPartitionMapping() if newest else None,
    )


def _read_plain(raw: object, position: SourcePosition) -> object:
    """Read a value of any type, with its templates rendered."""
    value = position.render(raw)
    if isinstance(value, Mapping):
        return {str(name): _read_plain(item, position.child(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_read_plain(item, position.child(number)) for number, item in enumerate(value)]
    return value


PLAIN_BY_NAME = mapping_of(Form({}, _read_plain))
_INPUT = record(
    _input_of,
    {
        "key": TEXT,
        "key_prefix": TEXT_OR_TEXTS,
        "metadata": PLAIN_BY_NAME,
        "input_manager_key": TEXT,
        "newest": BOOLEAN,
    },
    required=[],
    what="an input",
)


def _read_input(raw: object, position: SourcePosition) -> object:
    value = position.render(raw)
    if isinstance(value, Mapping):
        return _INPUT.read(value, position)
    if not isinstance(value, str):
        return value
    return resolve_reference(value, position) if _REFERENCE.fullmatch(value) else _input_of(value)


INPUTS = mapping_of(Form({"anyOf": [TEXT.schema, _INPUT.schema]}, _read_input))


def _read_object(raw: object, position: SourcePosition) -> object:
    value = position.render(raw)
    return resolve_reference(value, position) if isinstance(value, str) else value


OBJECT = Form({"type": "string"}, _read_object)
"""Object of Python, as `module.path:name` or as a template."""
OBJECTS = list_of(OBJECT)
OBJECT_BY_NAME = mapping_of(OBJECT)
AUTOMATION = object_or_reference(
    dg.AutomationCondition, choice(["eager", "on_missing", "on_new_version"]), what="dagster.AutomationCondition"
)
_BACKFILL_TYPES = tagged_union(
    "type",
    {
        "single_run": record(dg.BackfillPolicy.single_run, {}, required=[], what="a backfill policy"),
        "multi_run": record(
            dg.BackfillPolicy.multi_run, {"max_partitions_per_run": INTEGER}, required=[], what="a backfill policy"
        ),
    },
    what="a backfill policy",
)


def _read_backfill_policy(raw: object, position: SourcePosition) -> object:
    value = position.render(raw)
    return value if isinstance(value, dg.BackfillPolicy) else _BACKFILL_TYPES.read(value, position)


BACKFILL = Form(_BACKFILL_TYPES.schema, _read_backfill_policy)


def _make_retry_policy(
    max_retries: int = 1, delay: float | None = None, backoff: str | None = None, jitter: str | None = None
) -> Any:
    return dg.RetryPolicy(
        max_retries=max_retries,
        delay=delay,
        backoff=dg.Backoff[backoff.upper()] if backoff else None,
        jitter=dg.Jitter[jitter.upper()] if jitter else None,
    )


_RETRY_OPTIONS = record(
    _make_retry_policy,
    {
        "max_retries": INTEGER,
        "delay": NUMBER,
        "backoff": choice(["linear", "exponential"]),
        "jitter": choice(["full", "plus_minus"]),
    },
    required=[],
    what="a retry policy",
)


def _read_retry_policy(raw: object, position: SourcePosition) -> object:
    value = position.render(raw)
    return value if isinstance(value, dg.RetryPolicy) else _RETRY_OPTIONS.read(value, position)


RETRY = Form(_RETRY_OPTIONS.schema, _read_retry_policy)


# Types of columns

_VECTOR = re.compile(r"(?P<of>.+)\[(?P<size>[1-9]\d*)\]")
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_LIST = re.compile(r"list<(?P<of>.+)>")


def arrow_type(text: str) -> pa.DataType:
    """Parse the name of an Arrow type.

    >>> arrow_type("float32[3]")
    FixedSizeListType(fixed_size_list<item: float>[3])
    >>> arrow_type("list<decimal(10, 2)>")
    ListType(list<item: decimal128(10, 2)>)
    """
    text = text.strip()
    if found := _VECTOR.fullmatch(text):
        return pa.list_(arrow_type(found["of"]), int(found["size"]))
    if found := _LIST.fullmatch(text):
        return pa.list_(arrow_type(found["of"]))
    if found := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(found[1]), int(found[2]))
    return pa.type_for_alias(text)


def _read_column_type(raw: object, position: SourcePosition) -> object:
    text = str(TEXT.read(raw, position))
    try:
        return arrow_type(text)
    except ValueError as error:
        raise position.error(
            f"there is no type {text!r}; write a type name of pyarrow (int64, string, timestamp[us]), float32[256] for "
            "a vector, list<...>, decimal(10, 2), or schema: module.path:name for a pyarrow schema in Python"
        ) from error


_COLUMNS = mapping_of(Form({"type": "string"}, _read_column_type))


def _read_schema(raw: object, position: SourcePosition) -> object:
    value = position.render(raw)
    if isinstance(value, str):
        value = resolve_reference(value, position)
    if isinstance(value, pa.Schema):
        return value
    if not isinstance(value, Mapping):
        raise position.error(f"a mapping from column names to types is expected here, not {type(value).__name__}")
    columns = _COLUMNS.read(value, position)
    assert isinstance(columns, Mapping)
    return pa.schema(list(columns.items()))


COLUMN_TYPE = Form({"type": "string"}, _read_column_type)
SCHEMA = Form({"anyOf": [{"type": "string"}, _COLUMNS.schema]}, _read_schema)

"""Forms of what YAML has no word for: functions, partitions, types of columns, options with secrets, dependencies.

Each is what Python takes, written as one would guess. A template gives any of them as an object, such as
`{{ dg.DailyPartitionsDefinition(start_date='2026-01-01') }}`.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import dagster as dg
import pyarrow as pa

from lance_assets.components.forms import NUMBER, TEXT, WHOLE, Form, choice, either, listed, mapped, one_of, record
from lance_assets.components.references import function, referred
from lance_assets.components.source_position import SourcePosition, environment_name
from lance_assets.resources.lance import LanceResource
from lance_core.tasks.credentials import is_reference, is_secret

FUNCTION = Form({"type": "string", "pattern": r"^\.?[\w.]+:\w+$|\{\{", "description": "module.path:name"}, function)
TEXTS = listed(TEXT)
TEXT_OR_TEXTS = either("a text, or a list of texts", (str, TEXT), (list, TEXTS))
TEXT_BY_NAME = mapped(TEXT)
CALL = record(lambda fn: fn, {"fn": FUNCTION}, required=["fn"], what="a function of the context")
SCALAR = Form({"type": ["string", "number", "boolean", "null"]}, lambda raw, at: at.value(raw))
SCALARS = mapped(SCALAR)
FILES = either("a file, a list of them, or fn: module:name", (str, TEXT), (list, TEXTS), (dict, CALL))


def _option(raw: object, at: SourcePosition) -> object:
    """A variable of the environment stays a reference to it: Dagster's pages show none of what it holds."""
    name = environment_name(raw)
    if name is not None:
        return dg.EnvVar(name)
    value = str(TEXT.read(raw, at))
    key = str(at.context.path[-1])
    if is_secret(key) and not is_reference(value):
        raise at.wrong(
            "this is a secret, and whoever reads this file has it; write {{ env.NAME }}, and set NAME where this runs"
        )
    return value


OPTION = Form({"type": "string"}, _option)
OPTIONS = mapped(OPTION)
STORAGE = record(
    LanceResource,
    {"root": OPTION, "storage_options": OPTIONS, "manifest_store": OPTION},
    required=[],
    what="a storage",
)


def _parameter(raw: object, at: SourcePosition) -> object:
    value = at.value(raw)
    return CALL.read(value, at) if isinstance(value, Mapping) else value


PARAMETERS = mapped(Form({"anyOf": [SCALAR.schema, CALL.schema]}, _parameter))


def by_reference(kind: type, written: Form, *, what: str) -> Form:
    """What Python made is named by module.path:name, or is what a template gives."""

    def read(raw: object, at: SourcePosition) -> object:
        value = at.value(raw)
        if isinstance(value, str) and _REFERENCE.fullmatch(value):
            value = referred(value, at)
            if not isinstance(value, kind):
                raise at.wrong(f"{raw!r} is a {type(value).__name__}, and no {what}")
        return value if isinstance(value, kind) else written.read(value, at)

    reference = {"type": "string", "pattern": _REFERENCE.pattern}
    return Form({"if": {"type": "string", "pattern": ":"}, "then": reference, "else": written.schema}, read)


_REFERENCE = re.compile(r"^\.?[\w.]+:\w+$")
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>s|min|h|d|w)[a-z]*")
_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _duration(raw: object, at: SourcePosition) -> object:
    value = at.value(raw)
    if isinstance(value, timedelta):
        return value
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise at.wrong("a duration is expected here, such as 90s, 30 min, 12h, 7 days or 2 weeks")
    return timedelta(**{_UNITS[found["unit"]]: float(found["number"])})


DURATION = Form({"type": "string"}, _duration)


def _by_number(raw: object, at: SourcePosition) -> object:
    reasons = TEXT_BY_NAME.read(raw, at)
    assert isinstance(reasons, Mapping)
    if wrong := [name for name in reasons if not name.isdecimal()]:
        raise at.below(wrong[0]).wrong("a version is a whole number")
    return {int(name): why for name, why in reasons.items()}


NUMBERS_OR_REASONS = either(
    "a list of versions, or versions with why",
    (list, listed(WHOLE)),
    (dict, Form(TEXT_BY_NAME.schema, _by_number)),
)


# Partitions


def _partitions(kind: type, **forms: Form) -> Form:
    common = {"start_date": TEXT, "end_date": TEXT, "timezone": TEXT, "fmt": TEXT, "end_offset": WHOLE}
    return record(kind, {**common, **forms}, required=["start_date"], what="partitions")


_KINDS = {
    "hourly": _partitions(dg.HourlyPartitionsDefinition, minute_offset=WHOLE),
    "daily": _partitions(dg.DailyPartitionsDefinition, minute_offset=WHOLE, hour_offset=WHOLE),
    "weekly": _partitions(dg.WeeklyPartitionsDefinition, minute_offset=WHOLE, hour_offset=WHOLE, day_offset=WHOLE),
    "monthly": _partitions(dg.MonthlyPartitionsDefinition, minute_offset=WHOLE, hour_offset=WHOLE, day_offset=WHOLE),
    "static": record(
        dg.StaticPartitionsDefinition,
        {"partition_keys": TEXTS},
        required=["partition_keys"],
        what="partitions",
    ),
    "dynamic": record(dg.DynamicPartitionsDefinition, {"name": TEXT}, required=["name"], what="partitions"),
}
_WRITTEN_PARTITIONS = one_of("type", _KINDS, what="a kind of partitions")


def _partitions_of(raw: object, at: SourcePosition) -> object:
    value = at.value(raw)
    return value if isinstance(value, dg.PartitionsDefinition) else _WRITTEN_PARTITIONS.read(value, at)


PARTITIONS = Form(_WRITTEN_PARTITIONS.schema, _partitions_of)


# Dependencies and retries


def _newest(table: str) -> dg.AssetDep:
    return dg.AssetDep(dg.AssetKey.from_user_string(table), partition_mapping=dg.LastPartitionMapping())


_TABLE = record(_newest, {"table": TEXT}, required=["table"], what="a dependency on a table's newest version")


def _dependency(raw: object, at: SourcePosition) -> object:
    value = at.value(raw)
    if isinstance(value, Mapping):
        return _TABLE.read(value, at)
    return dg.AssetKey.from_user_string(value) if isinstance(value, str) else value


DEPENDENCIES = listed(Form({"anyOf": [TEXT.schema, _TABLE.schema]}, _dependency))


def _retry(
    max_retries: int = 1, delay: float | None = None, backoff: str | None = None, jitter: str | None = None
) -> Any:
    return dg.RetryPolicy(
        max_retries=max_retries,
        delay=delay,
        backoff=dg.Backoff[backoff.upper()] if backoff else None,
        jitter=dg.Jitter[jitter.upper()] if jitter else None,
    )


_WRITTEN_RETRY = record(
    _retry,
    {
        "max_retries": WHOLE,
        "delay": NUMBER,
        "backoff": choice(["linear", "exponential"]),
        "jitter": choice(["full", "plus_minus"]),
    },
    required=[],
    what="a retry policy",
)


def _retry_policy(raw: object, at: SourcePosition) -> object:
    value = at.value(raw)
    return value if isinstance(value, dg.RetryPolicy) else _WRITTEN_RETRY.read(value, at)


RETRY = Form(_WRITTEN_RETRY.schema, _retry_policy)


# Types of columns

_VECTOR = re.compile(r"(?P<of>.+)\[(?P<size>[1-9]\d*)\]")
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_LIST = re.compile(r"list<(?P<of>.+)>")


def arrow_type(text: str) -> pa.DataType:
    """
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


def _column_type(raw: object, at: SourcePosition) -> object:
    text = str(TEXT.read(raw, at))
    try:
        return arrow_type(text)
    except ValueError as error:
        raise at.wrong(
            f"there is no type {text!r}; write one of pyarrow's names (int64, string, timestamp[us]), float32[256] for "
            "a vector, list<...>, decimal(10, 2), or schema: module.path:name for a pyarrow schema of yours"
        ) from error


_COLUMNS = mapped(Form({"type": "string"}, _column_type))


def _schema(raw: object, at: SourcePosition) -> object:
    value = at.value(raw)
    if isinstance(value, str):
        value = referred(value, at)
    if isinstance(value, pa.Schema):
        return value
    if not isinstance(value, Mapping):
        raise at.wrong(f"names of columns with their types are expected here, not a {type(value).__name__}")
    columns = _COLUMNS.read(value, at)
    assert isinstance(columns, Mapping)
    return pa.schema(list(columns.items()))


SCHEMA = Form({"anyOf": [{"type": "string"}, _COLUMNS.schema]}, _schema)

"""What stands for what: the options of a table and of its writes, each with its form.

An option of a write that is new in Python is in YAML by itself if its annotation is in `TYPES`; a new option of
`lance_table` wants a line in `TABLE`. A test holds both against what Python takes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta

import dagster as dg
import pyarrow as pa

from lance_assets.checks import (
    Check,
    ForeignWriters,
    Fresh,
    FunctionCheck,
    IndexCoverage,
    KeysUnique,
    Nulls,
    RowChange,
    RowCount,
    SchemaStable,
    Severity,
    SmallFiles,
    SqlCheck,
)
from lance_assets.checks.custom_checks import CheckFunction
from lance_assets.components.forms import (
    NUMBER,
    TEXT,
    BOOLEAN,
    INTEGER,
    Form,
    choice,
    union_of,
    list_of,
    dataclass_form,
    tagged_union,
    enum_of,
)
from lance_assets.components.values import (
    DEPENDENCIES,
    DURATION,
    FILES,
    FUNCTION,
    VERSIONS_OR_REASONS,
    OPTIONS,
    PARAMETERS,
    PARTITIONS,
    RETRY,
    SCALARS,
    SCHEMA,
    STORAGE,
    TEXT_BY_NAME,
    TEXT_OR_TEXTS,
    TEXTS,
    object_or_reference,
)
from lance_assets.maintenance import Maintenance
from lance_assets.profiles import Profile
from lance_assets.writes.context import TableReference, WriteContext
from lance_assets.writes.dependencies import Dependency
from lance_assets.writes.row_writes import Files
from lance_assets.writes.write import Parameters, Rows
from lance_assets.writes.write_list import WRITES

_CHECKS: Mapping[str, type[Check]] = {
    "foreign_writers": ForeignWriters,
    "fresh": Fresh,
    "function": FunctionCheck,
    "index_coverage": IndexCoverage,
    "keys_unique": KeysUnique,
    "nulls": Nulls,
    "row_change": RowChange,
    "row_count": RowCount,
    "schema_stable": SchemaStable,
    "small_files": SmallFiles,
    "sql": SqlCheck,
}
_CHECK_TYPES: Mapping[object, Form] = {
    str: TEXT,
    int: INTEGER,
    float: NUMBER,
    bool: BOOLEAN,
    timedelta: DURATION,
    Sequence[str]: TEXTS,
    Severity: enum_of({each.value: each for each in Severity}),
    CheckFunction: FUNCTION,
}
CHECK = object_or_reference(
    Check,
    tagged_union(
        "check",
        {word: dataclass_form(kind, _CHECK_TYPES, what=f"the check {word}") for word, kind in _CHECKS.items()},
        what="a check",
    ),
    what="check",
)

TYPES: Mapping[object, Form] = {
    str: TEXT,
    int: INTEGER,
    float: NUMBER,
    bool: BOOLEAN,
    bool | str: union_of("true, false or a condition", (bool, BOOLEAN), (str, TEXT)),
    str | Sequence[str]: TEXT_OR_TEXTS,
    Sequence[str]: TEXTS,
    Mapping[str, str]: TEXT_BY_NAME,
    Mapping[str, object]: SCALARS,
    Parameters: PARAMETERS,
    Rows: FUNCTION,
    Callable[[pa.RecordBatch], pa.RecordBatch]: FUNCTION,
    Files | Callable[[WriteContext], Files]: FILES,
    Iterable[Dependency]: DEPENDENCIES,
    dg.PartitionsDefinition[str]: PARTITIONS,
    dg.RetryPolicy: RETRY,
    pa.Schema: SCHEMA,
    Sequence[Check]: list_of(CHECK),
    "source_options": OPTIONS,  # by its name, for what it may hold
}

WRITE = tagged_union(
    "op", {word: dataclass_form(kind, TYPES, what=f"the op {word}") for word, kind in WRITES.items()}, what="a write"
)

_MAINTENANCE = dataclass_form(
    Maintenance,
    {
        **TYPES,
        timedelta: DURATION,
        Collection[int] | Mapping[int, str]: VERSIONS_OR_REASONS,
        Sequence[TableReference | str]: TEXTS,
    },
    what="a maintenance",
)
_PROFILE = dataclass_form(Profile, {**TYPES, "columns": TEXTS}, what="a profile")


def _described(form: Form, text: str) -> Form:
    return Form({**form.schema, "description": text}, form.read)


TABLE: Mapping[str, Form] = {
    "name": _described(TEXT, "The last part of the asset key of the table; its partitions are the table's versions."),
    "uri": _described(
        TEXT, "The directory that the table is, or will be: a path, s3://, gs://, az:// ... without secrets."
    ),
    "key_prefix": _described(
        TEXT_OR_TEXTS, "What stands before the name in the asset keys of the table and its writes."
    ),
    "group": _described(TEXT, "The asset group; the name of the table unless it is given."),
    "description": _described(TEXT, "What is in the table, for its page."),
    "owners": _described(TEXTS, "E-mail addresses, or team:name."),
    "tags": _described(TEXT_BY_NAME, "Tags of the asset."),
    "writes": _described(list_of(WRITE), "What changes the table: each is an asset that makes versions."),
    "branches": _described(TEXTS, "Branches that are followed: each has a ledger of its own, name@branch."),
    "checks": _described(list_of(CHECK), "What has to hold of each version."),
    "maintenance": _described(_MAINTENANCE, "When it is compacted, indexed and cleaned up; {} for what is usual."),
    "profile": _described(
        union_of("true, false, or how", (bool, BOOLEAN), (dict, _PROFILE)),
        "Whether there is an asset with its figures.",
    ),
    "automation": _described(choice(["on_missing"]), "Whether the profile of each new version is computed by itself."),
    "freshness": _described(
        object_or_reference(dg.FreshnessPolicy, DURATION, what="policy"), "How old the newest may be."
    ),
    "discover": _described(BOOLEAN, "Whether a sensor finds the versions that others commit."),
    "storage": _described(STORAGE, "Where the table is reached by options, a manifest store, and a root for its uri."),
    "storage_options": _described(OPTIONS, "How to reach the store, as Lance spells it; secrets as {{ env.NAME }}."),
}
"""What `lance_table` takes."""

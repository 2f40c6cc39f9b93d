"""Option registry: the options of a table, of its writes and of its checks, each with its form.

A new option of a write is available in YAML if `TYPES` has its annotation; a new option of `lance_table` needs a line
in `TABLE`. A test compares both with the Python signatures.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta

import dagster as dg
import pyarrow as pa

from lance_assets.checks import (
    Check,
    ColumnFresh,
    ForeignWriters,
    Fresh,
    FunctionCheck,
    IndexCoverage,
    KeysUnique,
    Nulls,
    RecallCheck,
    RowChange,
    RowCount,
    SchemaStable,
    SearchCheck,
    Severity,
    SmallFiles,
    SqlCheck,
)
from lance_assets.checks.custom_checks import CheckFunction
from lance_assets.checks.recall import Query, QueryFunction
from lance_assets.checks.search_check import Expected, ExpectedFunction
from lance_assets.components.forms import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    TEXT,
    Form,
    choice,
    dataclass_form,
    enum_of,
    list_of,
    mapping_of,
    tagged_union,
    union_of,
)
from lance_assets.components.values import (
    AUTOMATION,
    BACKFILL,
    COLUMN_TYPE,
    DEPENDENCIES,
    DURATION,
    FILES,
    FUNCTION,
    INPUTS,
    LAUNCH,
    OBJECT,
    OBJECT_BY_NAME,
    OBJECTS,
    OPTIONS,
    PARAMETERS,
    PARTITIONS,
    PLAIN_BY_NAME,
    RETRY,
    SCALARS,
    SCHEMA,
    SOURCE_OPTIONS,
    STORAGE,
    TEXT_BY_NAME,
    TEXT_OR_TEXTS,
    TEXTS,
    VERSIONS_OR_REASONS,
    object_or_reference,
)
from lance_assets.maintenance import Maintenance, Scrub
from lance_assets.profiles import Profile
from lance_assets.writes.asset_options import REFUSED_BY_WRITES, Condition, ConditionName
from lance_assets.writes.computed_writes import SparkComputedColumn
from lance_assets.writes.context import TableReference
from lance_assets.writes.dependencies import Dependency, Input
from lance_assets.writes.remote_write import Launch
from lance_assets.writes.row_writes import Files
from lance_assets.writes.write import Parameters, Rows
from lance_assets.writes.write_list import WRITES
from lance_core.tasks.columns.computed_fill import Function, RetriedError

_CHECKS: Mapping[str, type[Check]] = {
    "column_fresh": ColumnFresh,
    "foreign_writers": ForeignWriters,
    "fresh": Fresh,
    "function": FunctionCheck,
    "index_coverage": IndexCoverage,
    "keys_unique": KeysUnique,
    "nulls": Nulls,
    "recall": RecallCheck,
    "row_change": RowChange,
    "row_count": RowCount,
    "schema_stable": SchemaStable,
    "search": SearchCheck,
    "small_files": SmallFiles,
    "sql": SqlCheck,
}
_ROW_KEY = union_of("a text or a whole number", (str, TEXT), (int, INTEGER))
_CHECK_TYPES: Mapping[object, Form] = {
    str: TEXT,
    int: INTEGER,
    float: NUMBER,
    bool: BOOLEAN,
    timedelta: DURATION,
    Sequence[str]: TEXTS,
    Severity: enum_of({severity.value: severity for severity in Severity}),
    CheckFunction: FUNCTION,
    QueryFunction | Sequence[Query]: FUNCTION,
    ExpectedFunction | Expected: union_of(
        "a function, or expected keys by query", (str, FUNCTION), (dict, mapping_of(list_of(_ROW_KEY)))
    ),
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

_FRESHNESS = object_or_reference(dg.FreshnessPolicy, DURATION, what="policy")

_SELECT = union_of("a list of columns, or SQL by name", (list, TEXTS), (dict, TEXT_BY_NAME))

TYPES: Mapping[object, Form] = {
    str: TEXT,
    int: INTEGER,
    float: NUMBER,
    bool: BOOLEAN,
    bool | str: union_of("true, false or a condition", (bool, BOOLEAN), (str, TEXT)),
    str | Sequence[str]: TEXT_OR_TEXTS,
    Sequence[str]: TEXTS,
    Mapping[str, str]: TEXT_BY_NAME,
    str | Mapping[str, str]: union_of("a text, or texts by name", (str, TEXT), (dict, TEXT_BY_NAME)),
    Mapping[str, object]: SCALARS,
    Parameters: PARAMETERS,
    Rows: FUNCTION,
    Callable[[pa.RecordBatch], pa.RecordBatch]: FUNCTION,
    Function: FUNCTION,
    Callable[[], object]: FUNCTION,
    Sequence[RetriedError]: TEXTS,
    Mapping[str, float]: mapping_of(NUMBER),
    TableReference | str: TEXT,
    Sequence[str] | Mapping[str, str]: _SELECT,
    pa.DataType: COLUMN_TYPE,
    Files | Callable[..., Files]: FILES,
    Iterable[Dependency]: DEPENDENCIES,
    dg.PartitionsDefinition[str]: PARTITIONS,
    dg.RetryPolicy: RETRY,
    dg.BackfillPolicy: BACKFILL,
    Mapping[str, Input]: INPUTS,
    Condition | ConditionName: AUTOMATION,
    dg.FreshnessPolicy | timedelta: _FRESHNESS,
    Collection[str]: TEXTS,
    Collection[dg.HookDefinition]: OBJECTS,
    pa.Schema: SCHEMA,
    Sequence[Check]: list_of(CHECK),
    Launch: LAUNCH,
    "config_schema": OBJECT,
    "metadata": PLAIN_BY_NAME,
    "op_tags": PLAIN_BY_NAME,
    "resource_defs": OBJECT_BY_NAME,
    # By name, since they may contain secrets.
    "remote_storage_options": OPTIONS,
    "source_options": SOURCE_OPTIONS,
}

WRITE = tagged_union(
    "op",
    {
        word: dataclass_form(kind, TYPES, what=f"the op {word}", refused=REFUSED_BY_WRITES)
        for word, kind in WRITES.items()
    },
    what="a write",
)

_COMPUTED = dataclass_form(SparkComputedColumn, TYPES, what="a computed column", refused=REFUSED_BY_WRITES)
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
_SCRUB = dataclass_form(Scrub, {**TYPES, "versions": TEXT}, what="a scrub")
_PROFILE = dataclass_form(Profile, {**TYPES, "columns": TEXTS}, what="a profile")


def _described(form: Form, text: str) -> Form:
    return Form({**form.schema, "description": text}, form.read)


TABLE: Mapping[str, Form] = {
    "name": _described(
        TEXT, "Last part of the table's asset key. The partitions of the asset are the table's versions."
    ),
    "uri": _described(TEXT, "Directory of the table: a path, or a URI such as s3://, gs:// or az://, without secrets."),
    "key_prefix": _described(TEXT_OR_TEXTS, "Prefix of the asset keys of the table and its writes."),
    "group": _described(TEXT, "Asset group (default: the name of the table)."),
    "stable_row_ids": _described(BOOLEAN, "Give a new table stable row ids (default: true)."),
    "storage_version": _described(TEXT, "Storage version of a new table, such as '2.2', the default."),
    "description": _described(TEXT, "Description of the table on its page."),
    "owners": _described(TEXTS, "E-mail addresses, or team:name."),
    "tags": _described(TEXT_BY_NAME, "Tags of the asset."),
    "writes": _described(list_of(WRITE), "Writes of the table. Each is an asset that commits versions."),
    "computed": _described(
        list_of(_COMPUTED), "Computed columns. Each is an asset that computes the rows that are new or have changed."
    ),
    "branches": _described(TEXTS, "Branches to follow. Each has a ledger of its own, name@branch."),
    "checks": _described(list_of(CHECK), "Checks that are evaluated on each version."),
    "maintenance": _described(_MAINTENANCE, "When to compact, index and clean up the table; {} for the defaults."),
    "scrub": _described(_SCRUB, "When to compare which share of the files with their checksums; {} for the defaults."),
    "profile": _described(
        union_of("true, false, or a mapping of options", (bool, BOOLEAN), (dict, _PROFILE)),
        "Asset with statistics of each version: true, false, or its options.",
    ),
    "automation": _described(choice(["on_missing"]), "Set to compute the profile of each new version automatically."),
    "freshness": _described(_FRESHNESS, "Maximum age of the newest version."),
    "kinds": _described(TEXTS, "Kinds of the table (default: lance)."),
    "deps": _described(DEPENDENCIES, "Assets that the table depends on besides its writes."),
    "metadata": _described(PLAIN_BY_NAME, "Metadata of the table."),
    "group_name": _described(TEXT, "Another name of group."),
    "automation_condition": _described(AUTOMATION, "Another name of automation."),
    "freshness_policy": _described(_FRESHNESS, "Another name of freshness."),
    "samples": _described(BOOLEAN, "Store the ten newest rows with each version that a run commits (default: false)."),
    "columns": _described(TEXT_BY_NAME, "Descriptions of columns."),
    "operator_job": _described(BOOLEAN, "Add a job that tags, promotes, rolls back and publishes (default: true)."),
    "discover": _described(BOOLEAN, "Run a sensor that records the versions of other writers (default: true)."),
    "storage": _described(STORAGE, "Storage options, manifest store, and the root of a relative uri."),
    "storage_options": _described(OPTIONS, "Options of the store, in Lance's spelling; secrets as {{ env.NAME }}."),
}
"""Options of `lance_table`."""

_OF_A_WRITE = ("stable_row_ids", "branches", "group_name", "automation_condition", "freshness_policy")
"""Options of a table that a view does not have, or has with another meaning."""

VIEW: Mapping[str, Form] = {
    **{name: form for name, form in TABLE.items() if name not in _OF_A_WRITE},
    "of": _described(TEXT, "Table that the view follows: its asset key, such as lake/pages, or a URI."),
    "select": _described(_SELECT, "Columns: names and 'SQL AS name', or SQL by name (default: all columns)."),
    "where": _described(TEXT, "Condition in Lance SQL that rows of the view meet (default: all rows)."),
    "uri": _described(TEXT, "Directory of the view (default: beside its source)."),
    "rebuild": _described(BOOLEAN, "Compute all rows in each run (default: false)."),
    "automation_condition": _described(AUTOMATION, "When Dagster refreshes the view by itself, such as eager."),
    "retry_policy": _described(RETRY, "Retry policy of the refresh."),
    "code_version": _described(TEXT, "Code version of the refresh."),
    "hooks": _described(OBJECTS, "Hooks of the refresh, as module.path:name."),
    "op_tags": _described(PLAIN_BY_NAME, "Tags of the step of the refresh."),
    "pool": _described(TEXT, "Pool of the refresh (default: that of the writes of the view)."),
}
"""Options of `lance_view`."""

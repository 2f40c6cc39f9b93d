"""Asset options: every argument of `@dg.asset` is taken or refused with a reason, by each way to declare a write."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from lance_assets import LanceTable, SparkAppend, SparkCompact, SparkDelete, lance_table, lance_write
from lance_assets.components.registry import TABLE, WRITE
from lance_assets.components.source_position import SourcePosition
from lance_assets.definitions.lance_table import lance_table as checked_lance_table
from lance_assets.writes import Write
from lance_assets.writes.asset_options import REFUSED_BY_TABLES, REFUSED_BY_WRITES, SYNONYMS, AssetOptions
from lance_assets.writes.write_list import create_write
from lance_core import InvalidInput

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01")
GUIDE = Path(__file__).parents[3] / "docs/dagster.md"
SCHEMA = {"limit": int}


@dg.success_hook
def notify(context: dg.HookContext) -> None: ...


def rows(spark: Any, ctx: Any) -> Any: ...


def table() -> LanceTable:
    return lance_table("t", uri="/lake/options.lance", key_prefix="lake", branches=["dev"])


def by_list(options: dict[str, Any], text: str) -> Write:
    return SparkAppend("w", rows, **options)


def by_decorator(options: dict[str, Any], text: str) -> Write:
    declared = table()
    lance_write(table=declared, op="append", name="w", **options)(rows)
    return declared.writes[0]


def by_yaml(options: dict[str, Any], text: str) -> Write:
    raw = {"op": "append", "name": "w", "fn": f"{__name__}:rows", **yaml.safe_load(text)}
    write = WRITE.read(raw, SourcePosition(dg.ResolutionContext.default()))
    assert isinstance(write, Write)
    return write


SURFACES = (by_list, by_decorator, by_yaml)


@dataclass(frozen=True)
class Option:
    """Option of a write, the same in YAML, and the value that the asset must have for it."""

    options: dict[str, Any]
    text: str
    shown: Callable[[dg.AssetsDefinition, dg.AssetSpec], object]
    expected: object


def option(text: str, shown: Callable[[Any, Any], object], expected: object, **options: Any) -> Option:
    return Option(options, text, shown, expected)


PARTITIONED = "partitions: {type: daily, start_date: '2026-01-01'}"
SINGLE = dg.BackfillPolicy.single_run()
FRESH = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=12))
EAGER, MISSING = dg.AutomationCondition.eager(), dg.AutomationCondition.on_missing()
API = dg.ResourceDefinition.none_resource()
KEYS = [dg.AssetKey("a"), dg.AssetKey(["x", "b"])]
DAYS_INPUT = dg.AssetIn(["x", "days"], metadata={"columns": ["id"]}, input_manager_key="lance")


def loaded_input(asset: dg.AssetsDefinition, _: dg.AssetSpec) -> object:
    definition = asset.node_def.input_dict["days"]
    return asset.keys_by_input_name["days"].path, definition.metadata, definition.input_manager_key


def spec(name: str) -> Callable[[Any, Any], object]:
    """Return a function of an asset that returns an attribute of its spec."""
    return lambda _, of_asset: getattr(of_asset, name)


OPTIONS = [
    option("deps: [a, x/b]", lambda _, spec: [dep.asset_key for dep in spec.deps], KEYS, deps=["a", KEYS[1]]),
    option(
        "ins: {days: {key: x/days, metadata: {columns: [id]}, input_manager_key: lance}}",
        loaded_input,
        (["x", "days"], {"columns": ["id"]}, "lance"),
        ins={"days": DAYS_INPUT},
    ),
    option(PARTITIONED, lambda asset, _: asset.partitions_def, DAYS, partitions=DAYS),
    option(PARTITIONED.replace(":", "_def:", 1), spec("partitions_def"), DAYS, partitions_def=DAYS),
    option(
        f"{PARTITIONED}\nbackfill_policy: {{type: single_run}}",
        lambda asset, _: asset.backfill_policy,
        SINGLE,
        partitions=DAYS,
        backfill_policy=SINGLE,
    ),
    option("description: Rows.", spec("description"), "Rows.", description="Rows."),
    option(
        "metadata: {more: {a: [b]}}",
        lambda _, spec: spec.metadata["more"],
        {"a": ["b"]},
        metadata={"more": {"a": ["b"]}},
    ),
    option("tags: {team: sales}", lambda _, spec: spec.tags["team"], "sales", tags={"team": "sales"}),
    option("op_tags: {a/b: '3'}", lambda asset, _: asset.op.tags["a/b"], "3", op_tags={"a/b": "3"}),
    option("owners: ['team:data', a@b.no]", spec("owners"), ["team:data", "a@b.no"], owners=["team:data", "a@b.no"]),
    option("kinds: [python, lance]", spec("kinds"), {"python", "lance"}, kinds={"python", "lance"}),
    option("{}", spec("kinds"), {"spark", "lance"}),
    option("{}", spec("group_name"), "t"),
    option("group_name: g", spec("group_name"), "g", group_name="g"),
    option("group: g", spec("group_name"), "g", group="g"),
    option("automation_condition: eager", spec("automation_condition"), EAGER, automation_condition=EAGER),
    option("automation: on_missing", spec("automation_condition"), MISSING, automation="on_missing"),
    option(
        "automation_condition: '{{ dg.AutomationCondition.eager() }}'",
        spec("automation_condition"),
        EAGER,
        automation_condition="eager",
    ),
    option("freshness_policy: 12h", spec("freshness_policy"), FRESH, freshness_policy=FRESH),
    option("freshness: 12h", spec("freshness_policy"), FRESH, freshness=timedelta(hours=12)),
    option("code_version: '3'", spec("code_version"), "3", code_version="3"),
    option(
        "retry_policy: {max_retries: 2}",
        lambda asset, _: asset.node_def.retry_policy,
        dg.RetryPolicy(2),
        retry_policy=dg.RetryPolicy(2),
    ),
    option(f"hooks: ['{__name__}:notify']", lambda asset, _: asset.hook_defs, {notify}, hooks={notify}),
    option("pool: gpu", lambda asset, _: asset.op.pool, "gpu", pool="gpu"),
    option("{}", lambda asset, _: asset.op.pool, "lance/lake/t"),
    option(
        f"config_schema: '{__name__}:SCHEMA'",
        lambda asset, _: list(asset.op.config_schema.config_type.fields),
        ["limit"],
        config_schema=SCHEMA,
    ),
    option(
        "required_resource_keys: [api]",
        lambda asset, _: asset.required_resource_keys - {"io_manager"},
        {"api", "spark"},
        required_resource_keys=["api"],
    ),
    option(
        f"resource_defs: {{api: '{__name__}:API'}}",
        lambda asset, _: asset.resource_defs["api"],
        API,
        resource_defs={"api": API},
    ),
]


@pytest.mark.parametrize("declare", SURFACES)
@pytest.mark.parametrize("case", OPTIONS, ids=lambda case: case.text)
def test_each_option_reaches_the_asset(declare: Callable[[dict[str, Any], str], Write], case: Option) -> None:
    write = declare(case.options, case.text)
    declared = table()
    declared.add_write(write)
    (asset,) = (
        each
        for each in declared.defs.assets or []
        if isinstance(each, dg.AssetsDefinition) and each.key == declared.write_key("w")
    )
    assert case.shown(asset, asset.get_asset_spec()) == case.expected


def test_every_field_has_a_case() -> None:
    assert {field.name for field in fields(AssetOptions)} <= {name for case in OPTIONS for name in case.options}


@pytest.mark.parametrize("declare", SURFACES)
@pytest.mark.parametrize("name", REFUSED_BY_WRITES)
def test_other_arguments_are_refused_with_a_reason(declare: Callable[[dict[str, Any], str], Write], name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        declare({name: "x"}, f"{name}: x")
    assert REFUSED_BY_WRITES[name] in str(refused.value)
    assert name in str(refused.value)


@pytest.mark.parametrize("name", REFUSED_BY_TABLES)
def test_tables_refuse_with_a_reason(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"takes no {name}=") as refused:
        lance_table("t", uri="t", **{name: "x"})  # type: ignore[arg-type]
    assert REFUSED_BY_TABLES[name] in str(refused.value)


def test_unknown_arguments_of_a_table_are_type_errors() -> None:
    with pytest.raises(TypeError, match="ownerz"):
        lance_table("t", uri="t", ownerz=[])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value"),
    [("partitions", DAYS), ("group_name", "g"), ("automation_condition", EAGER), ("freshness_policy", FRESH)],
)
def test_both_names_at_once_are_refused(name: str, value: Any) -> None:
    synonym = next(each for each, canonical in SYNONYMS.items() if canonical == name)
    with pytest.raises(InvalidInput, match=f"{synonym}= and {name}= are the same option"):
        SparkAppend("w", rows, **{name: value, synonym: value})
    if name != "partitions":
        given: Any = MISSING if value is EAGER else value
        with pytest.raises(InvalidInput, match=f"{synonym}= and {name}= are the same option"):
            lance_table("t", uri="t", **{name: given, synonym: given})


INVALID = [
    ({"backfill_policy": SINGLE}, "backfill_policy= needs partitions="),
    ({"commit_per": "run"}, "commit_per='run' needs partitions="),
    ({"commit_per": "day", "partitions": DAYS}, "commit_per must be 'run' or 'partition'"),
    ({"commit_per": "run", "once_per": "partition", "partitions": DAYS}, "needs a version for each"),
    ({"create_branch": True}, "create_branch=True needs branch="),
    ({"automation_condition": "hourly"}, "must be a dagster.AutomationCondition, 'eager', 'on_missing'"),
    ({"freshness_policy": 5}, "must be a timedelta or a FreshnessPolicy"),
    ({"owners": "me"}, "owners= is a text"),
    ({"ins": {"x": "key"}}, "must be a dagster.AssetIn or a table"),
]


@pytest.mark.parametrize(("options", "message"), INVALID)
def test_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SparkAppend("w", rows, **options)


def test_inputs_that_no_function_can_use_are_refused() -> None:
    loaded = {"x": dg.AssetIn()}
    for declare in (lambda: SparkCompact("w", ins=loaded), lambda: SparkDelete("w", "true", ins=loaded)):
        with pytest.raises(InvalidInput, match="the input 'x' would be loaded"):
            declare()
    SparkDelete("w", "id < :n", {"n": lambda ctx: str(ctx.input_values["x"])}, ins=loaded)
    SparkCompact("w", ins={"x": dg.AssetIn(dagster_type=dg.Nothing)})


def test_a_key_of_several_partitions_is_no_parameter() -> None:
    with pytest.raises(InvalidInput, match=":partition_key is one key, and with commit_per='run'"):
        SparkDelete("w", "day = :partition_key", partitions=DAYS, commit_per="run")


TABLE_OPTIONS: list[tuple[dict[str, Any], str, Callable[[dg.AssetSpec], object], object]] = [
    ({"group_name": "g"}, "group_name: g", lambda spec: spec.group_name, "g"),
    ({"freshness_policy": FRESH}, "freshness_policy: 12h", lambda spec: spec.freshness_policy, FRESH),
    ({"kinds": ["lance", "s3"]}, "kinds: [lance, s3]", lambda spec: spec.kinds, {"lance", "s3"}),
    ({"metadata": {"a": 1}}, "metadata: {a: 1}", lambda spec: spec.metadata["a"], 1),
    ({"deps": ["raw"]}, "deps: [raw]", lambda spec: [dep.asset_key for dep in spec.deps], [dg.AssetKey("raw")]),
]


@pytest.mark.parametrize(
    ("options", "text", "shown", "expected"), TABLE_OPTIONS, ids=[text for _options, text, *_rest in TABLE_OPTIONS]
)
def test_tables_take_the_names_of_dagster(
    options: dict[str, Any], text: str, shown: Callable[[dg.AssetSpec], object], expected: object
) -> None:
    raw, position = yaml.safe_load(text), SourcePosition(dg.ResolutionContext.default())
    read = {name: TABLE[name].read(value, position) for name, value in raw.items()}
    for given in (options, read):
        assert shown(lance_table("t", uri="/lake/t.lance", **given).spec) == expected


def test_automation_of_a_table_has_two_names() -> None:
    given: list[dict[str, Any]] = [{"automation": "on_missing"}, {"automation_condition": MISSING}]
    assert {lance_table("t", uri="t", **each).automation for each in given} == {"on_missing"}
    with pytest.raises(InvalidInput, match="give the condition of a write to the write"):
        lance_table("t", uri="t", automation_condition=EAGER)


def arguments_of_assets() -> list[str]:
    return [name for name in inspect.signature(dg.asset).parameters if name not in ("compute_fn", "kwargs")]


def test_every_argument_of_an_asset_is_taken_or_refused() -> None:
    taken_by_writes = {field.name for field in fields(AssetOptions)} | {"name"}
    taken_by_tables = set(inspect.signature(checked_lance_table).parameters)
    for name in arguments_of_assets():
        assert (name in taken_by_writes) != (name in REFUSED_BY_WRITES), name
        assert (name in taken_by_tables) != (name in REFUSED_BY_TABLES), name


def test_the_guide_lists_every_argument() -> None:
    """The guide has a line for each argument, as this function writes it."""
    assert "\n".join(guide_lines()) in GUIDE.read_text()


def guide_lines() -> list[str]:
    by_name = {canonical: synonym for synonym, canonical in SYNONYMS.items()}
    tables = set(inspect.signature(checked_lance_table).parameters)
    lines = ["| argument of `@dg.asset` | writes | `lance_table` |", "|---|---|---|"]
    for name in sorted({*arguments_of_assets(), "is_virtual"}):
        other = SYNONYMS.get(name) or by_name.get(name)
        taken = "yes" if other is None else f"yes, or `{other}`"
        cells = [
            f"no: {refused[name]}" if name in refused else taken for refused in (REFUSED_BY_WRITES, REFUSED_BY_TABLES)
        ]
        assert name in REFUSED_BY_TABLES or name in tables
        lines.append(f"| `{name}` | {cells[0]} | {cells[1]} |")
    return lines


def test_refused_names_come_before_unknown_ones() -> None:
    with pytest.raises(InvalidInput, match="takes no io_manager_key="):
        create_write(SparkAppend, {"name": "w", "fn": rows, "io_manager_key": "x"})


def test_annotations_for_type_checkers_are_no_types() -> None:
    def new_rows(spark: "pyspark.sql.SparkSession", ctx: "Missing", raw: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    declared = table()
    lance_write(table=declared, op="append")(new_rows)
    (asset,) = (
        each for each in declared.defs.assets or [] if getattr(each, "key", None) == declared.write_key("new_rows")
    )
    assert isinstance(asset, dg.AssetsDefinition)
    assert asset.keys_by_input_name == {"raw": dg.AssetKey("raw")}

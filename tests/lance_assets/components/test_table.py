"""Tables in YAML: equal to those in Python; errors name file, line and option, and secrets stay in the environment."""

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import (
    ForeignWriters,
    Fresh,
    FunctionCheck,
    IndexCoverage,
    KeysUnique,
    LanceTable,
    Maintenance,
    Nulls,
    Profile,
    RecallCheck,
    RowChange,
    RowCount,
    SchemaStable,
    SearchCheck,
    Severity,
    SmallFiles,
    SparkAppend,
    SparkBuildIndex,
    SparkCompact,
    SparkDelete,
    SparkIngest,
    SparkMapColumns,
    SparkMergeColumns,
    SparkOptimizeIndices,
    SparkOverwrite,
    SparkUpdate,
    SparkUpsert,
    SqlCheck,
    lance_table,
    lance_view,
)
from lance_assets.components.forms import Form, field_form
from lance_assets.components.registry import TABLE, TYPES, VIEW, WRITE
from lance_assets.components.values import arrow_type
from lance_assets.writes import WRITES
from lance_core import InvalidInput

CANARY = "canary-2b7e"
ROWS = """
import pyarrow as pa
from lance_assets import lance_check

WORDS = pa.schema([("words", pa.int32())])
number = 5

def new(spark, ctx): ...
def words(batch): ...
def landed(ctx): ...
def cutoff(ctx): ...

@lance_check()
def plausible(seen):
    return True
"""


@dataclass
class Project:
    """Package whose `defs/orders/defs.yaml` the tests write and load repeatedly."""

    root: Path

    @property
    def file(self) -> Path:
        return self.root / "yamlshop/defs/orders/defs.yaml"

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def defs(self) -> dg.Definitions:
        spark = dg.Definitions(resources={"spark": dg.ResourceDefinition.none_resource()})
        return dg.Definitions.merge(dg.load_from_defs_folder(path_within_project=self.root / "yamlshop"), spark)

    def table(self) -> LanceTable:
        tree = dg.ComponentTree.for_project(self.root / "yamlshop")
        table = tree.load_component("orders").table  # type: ignore[attr-defined]
        assert isinstance(table, LanceTable)
        return table

    def error(self, text: str) -> BaseException:
        self.write(text)
        with pytest.raises(Exception) as raised:  # Dagster wraps the error in exceptions of its own
            self.defs()
        error: BaseException = raised.value
        while not isinstance(error, InvalidInput) and error.__cause__ is not None:
            error = error.__cause__
        return error


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("project")
    orders = root / "yamlshop/defs/orders"
    orders.mkdir(parents=True)
    (root / "pyproject.toml").write_text(
        '[project]\nname = "yamlshop"\nversion = "1"\n'
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "yamlshop"\n'
    )
    (root / "yamlshop/__init__.py").touch()
    (root / "yamlshop/rows.py").write_text(ROWS)
    (root / "yamlshop/broken.py").write_text("import nothing_of_that_name\n")
    (orders / "beside.py").write_text(ROWS)
    sys.path.insert(0, str(root))
    yield Project(root)
    sys.path.remove(str(root))
    for name in [each for each in sys.modules if each.partition(".")[0] == "yamlshop"]:
        del sys.modules[name]


HEAD = 'type: lance_assets.LanceTableComponent\nattributes:\n  name: orders\n  uri: "/lake/orders.lance"\n'


def in_yaml(writes: str, more: str = "") -> str:
    return f"{HEAD}{more}  writes:\n{writes}"


EVERYTHING = """
    - op: append
      name: arrived
      fn: yamlshop.rows:new
      deps: [queue, shop/days, {table: shop/sales}]
      partitions: {type: daily, start_date: "2026-01-01", end_date: "2026-02-01", timezone: Europe/Oslo, hour_offset: 3}
      once_per: partition
      description: What has arrived.
      code_version: "3"
      tags: {team: sales}
      retry_policy: {max_retries: 3, delay: 1.5, backoff: exponential, jitter: plus_minus}
    - {op: ingest, name: landed, files: landing/*.json, format: json, mapping: {Id: id}, extra: drop,
       on_bad_record: bad.lance, changed: skip,
       source_options: {aws_region: north, aws_secret_access_key: "{{ env.SECRET }}"}}
    - {op: ingest, name: several, files: [a.json, b.json]}
    - {op: ingest, name: fetched, files: "sftp://host/*.csv",
       source_options: {sftp: {port: 2022, password: "{{ env.SECRET }}", look_for_keys: false}}}
    - {op: ingest, name: by_day, files: {fn: .beside:landed}, partitions: {type: static, partition_keys: [a, b]}}
    - {op: upsert, name: fixed, fn: .beside:new, "on": [id, day], matched_if: "source.at > target.at", insert: false,
       delete_unmatched: "day = 'x'"}
    - {op: upsert, name: mirrored, fn: .beside:new, "on": id, delete_unmatched: true}
    - {op: merge_columns, name: scores, fn: yamlshop.rows:new, "on": id, schema: {score: float32, v: "float32[3]"},
       missing: "null"}
    - {op: merge_columns, name: rescored, fn: yamlshop.rows:new, "on": id, replace: true}
    - {op: map_columns, name: refilled, fn: yamlshop.rows:words, schema: yamlshop.rows:WORDS, mode: fill,
       where: "city = 'Oslo'", code_version: "2"}
    - {op: map_columns, name: words, fn: yamlshop.rows:words, schema: yamlshop.rows:WORDS, read_columns: [text],
       resume_key: w1}
    - {op: delete, name: purged, predicate: "city = :city and at < :cutoff",
       parameters: {city: Oslo, cutoff: {fn: yamlshop.rows:cutoff}}}
    - op: update
      name: moved
      set: {city: "'Oslo'"}
      where: "'{{ 'Lima' }}' = city and n < :n"
      parameters: {n: 1.5}
      partitions: "{{ dg.HourlyPartitionsDefinition(start_date='2026-01-01-00:00') }}"
    - {op: compact, name: tidy, target_rows: 1000, branch: dev}
    - op: append
      name: audited
      fn: .beside:new
      audit: [{check: row_count, min: 1}, .beside:plausible]
    - {op: build_index, column: user.id, kind: BTREE}
    - {op: build_index, name: zones, column: at, kind: ZONEMAP, index: by_time, params: {rows_per_zone: 4096}}
    - {op: optimize_indices, name: kept_up, indices: [by_time], merge: all}
    - {op: overwrite, name: anew, fn: .beside:new, where: "day = :d", parameters: {d: 2026-01-02}}
"""


def test_code_references_lead_to_the_lines_of_the_file(project: Project) -> None:
    writes = "    - {op: compact, name: tidy}\n    - op: append\n      name: arrived\n      fn: yamlshop.rows:new\n"
    project.write(in_yaml(writes))
    lines = project.file.read_text().splitlines()
    found = {}
    for spec in project.defs().resolve_all_asset_specs():
        (reference,) = spec.metadata["dagster/code_references"].code_references
        assert Path(reference.file_path) == project.file
        found[spec.key.path[-1]] = lines[reference.line_number - 1].strip()
    of_table = found["orders"]
    assert of_table in ("attributes:", "name: orders")
    assert found == {
        "orders": of_table,
        "orders_profile": of_table,
        "tidy": "- {op: compact, name: tidy}",
        "arrived": "- op: append",
    }


def test_yaml_equals_python(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", CANARY)
    monkeypatch.setenv("LAKE", "/elsewhere")
    project.write(
        in_yaml(
            EVERYTHING,
            "  key_prefix: [lake, raw]\n  group: sales\n  description: All.\n  owners: [a@b.org]\n  branches: [dev]\n",
        ).replace("/lake/orders", "{{ env.LAKE }}/orders")
    )
    table = project.table()
    from yamlshop import rows  # type: ignore[import-not-found]
    from yamlshop.defs.orders import beside  # type: ignore[import-not-found]

    newest = dg.AssetDep(["shop", "sales"], partition_mapping=dg.LastPartitionMapping())
    expected = [
        SparkAppend(
            "arrived",
            fn=rows.new,
            deps=[dg.AssetKey("queue"), dg.AssetKey(["shop", "days"]), newest],
            partitions=dg.DailyPartitionsDefinition(
                start_date="2026-01-01", end_date="2026-02-01", timezone="Europe/Oslo", hour_offset=3
            ),
            once_per="partition",
            description="What has arrived.",
            code_version="3",
            tags={"team": "sales"},
            retry_policy=dg.RetryPolicy(
                max_retries=3, delay=1.5, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
            ),
        ),
        SparkIngest(
            "landed",
            files="landing/*.json",
            format="json",
            mapping={"Id": "id"},
            extra="drop",
            on_bad_record="bad.lance",
            changed="skip",
            source_options={"aws_region": "north", "aws_secret_access_key": dg.EnvVar("SECRET")},
        ),
        SparkIngest("several", files=["a.json", "b.json"]),
        SparkIngest(
            "fetched",
            files="sftp://host/*.csv",
            source_options={"sftp": {"port": 2022, "password": dg.EnvVar("SECRET"), "look_for_keys": False}},
        ),
        SparkIngest("by_day", files=beside.landed, partitions=dg.StaticPartitionsDefinition(["a", "b"])),
        SparkUpsert(
            "fixed",
            fn=beside.new,
            on=["id", "day"],
            matched_if="source.at > target.at",
            insert=False,
            delete_unmatched="day = 'x'",
        ),
        SparkUpsert("mirrored", fn=beside.new, on="id", delete_unmatched=True),
        SparkMergeColumns(
            "scores",
            fn=rows.new,
            on="id",
            schema=pa.schema([("score", pa.float32()), ("v", pa.list_(pa.float32(), 3))]),
            missing="null",
        ),
        SparkMergeColumns("rescored", fn=rows.new, on="id", replace=True),
        SparkMapColumns(
            "refilled", fn=rows.words, schema=rows.WORDS, mode="fill", where="city = 'Oslo'", code_version="2"
        ),
        SparkMapColumns("words", fn=rows.words, schema=rows.WORDS, read_columns=["text"], resume_key="w1"),
        SparkDelete(
            "purged", predicate="city = :city and at < :cutoff", parameters={"city": "Oslo", "cutoff": rows.cutoff}
        ),
        SparkUpdate(
            "moved",
            set={"city": "'Oslo'"},
            where="'Lima' = city and n < :n",
            parameters={"n": 1.5},
            partitions=dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00"),
        ),
        SparkCompact("tidy", target_rows=1000, branch="dev"),
        SparkAppend("audited", fn=beside.new, audit=[RowCount(min=1), beside.plausible]),
        SparkBuildIndex("user.id", "BTREE", name="orders_index_user_id"),
        SparkBuildIndex("at", "ZONEMAP", name="zones", index="by_time", params={"rows_per_zone": 4096}),
        SparkOptimizeIndices("kept_up", ["by_time"], "all"),
        SparkOverwrite("anew", fn=beside.new, where="day = :d", parameters={"d": "2026-01-02"}),
    ]
    for ours, theirs in zip(table.writes, expected, strict=True):
        assert ours == theirs
    assert (table.key, table.group, table.description) == (dg.AssetKey(["lake", "raw", "orders"]), "sales", "All.")
    assert (table.uri, table.owners) == ("/elsewhere/orders.lance", ("a@b.org",))
    assert CANARY not in repr(table)
    dg.Definitions.validate_loadable(project.defs())


CHECKS = """  checks:
    - {check: row_count, min: 1, max: 10}
    - {check: row_change, max_loss_share: 0.5, severity: warn}
    - {check: fresh, within: 36 h}
    - {check: keys_unique, columns: [id]}
    - {check: nulls, columns: [id], max_share: 0.1}
    - {check: small_files, max_small: 5}
    - {check: index_coverage, indices: [by_time], at_least: 0.99, severity: error}
    - {check: recall, column: v, k: 5, at_least: 0.9, nprobes: 8, queries: yamlshop.rows:words}
    - {check: search, queries: yamlshop.rows:words, k: 5, at_least: 0.9, measure: recall, columns: [body]}
    - {check: search, name: judged, queries: {table format: [7, 12], "2026": [a]}}
    - {check: foreign_writers}
    - {check: schema_stable, allow: [additions, drops]}
    - {check: sql, name: no_future, sql: select 1 where false}
    - {check: function, name: mine, fn: yamlshop.rows:words, reads_rows: false}
    - yamlshop.rows:plausible
  profile: {columns: [id], pictures: false}
  automation: on_missing
  freshness: 1.5 days
  maintenance:
    compact_when_small_files: 8
    compact_when_deleted: null
    index_when_uncovered: 0.05
    index_when_segments: null
    keep_for: 30 days
    pins: {5: of the report}
    downstream: [s3://lake/report.lance]
    every: 0 3 * * *
    interval_s: null
"""


def test_a_view_in_yaml_equals_python(project: Project) -> None:
    project.write(
        "type: lance_assets.LanceViewComponent\n\nattributes:\n  name: cheap\n  of: lake/orders\n"
        "  uri: /lake/cheap.lance\n"
        "  select: [id, price * 2 AS double]\n  where: price < 5\n  automation_condition: eager\n"
        "  retry_policy: {max_retries: 2}\n  pool: views\n  op_tags: {team: search}\n"
        "  checks: [{check: row_count, min: 1}]\n"
    )
    view = project.table()
    expected = lance_view(
        "cheap",
        "lake/orders",
        uri="/lake/cheap.lance",
        select=["id", "price * 2 AS double"],
        where="price < 5",
        automation_condition="eager",
        retry_policy=dg.RetryPolicy(max_retries=2),
        pool="views",
        op_tags={"team": "search"},
        checks=[RowCount(min=1)],
    )
    assert (list(view.writes), view.checks) == (list(expected.writes), expected.checks)
    assert project.defs().resolve_asset_graph().get(view.write_key("cheap_refresh")).parent_keys == {
        dg.AssetKey(["lake", "orders"])
    }


def test_checks_and_profiles_in_yaml(project: Project) -> None:
    project.write(f"{HEAD}{CHECKS}")
    table = project.table()
    from yamlshop import rows

    assert table.checks == (
        RowCount(min=1, max=10),
        RowChange(max_loss_share=0.5, severity=Severity.WARN),
        Fresh(within=timedelta(hours=36)),
        KeysUnique(columns=["id"]),
        Nulls(columns=["id"], max_share=0.1),
        SmallFiles(max_small=5),
        IndexCoverage(indices=["by_time"], at_least=0.99, severity=Severity.ERROR),
        RecallCheck("v", 5, 0.9, rows.words, nprobes=8),
        SearchCheck(rows.words, 5, 0.9, measure="recall", columns=["body"]),
        SearchCheck({"table format": [7, 12], "2026": ["a"]}, name="judged"),
        ForeignWriters(),
        SchemaStable(allow=["additions", "drops"]),
        SqlCheck("no_future", sql="select 1 where false"),
        FunctionCheck("mine", fn=rows.words, reads_rows=False),
        rows.plausible,
    )
    assert table.profile == Profile(columns=["id"], pictures=False)
    assert table.automation == "on_missing"
    assert table.maintenance == Maintenance(
        compact_when_small_files=8,
        compact_when_deleted=None,
        index_when_uncovered=0.05,
        index_when_segments=None,
        keep_for=timedelta(days=30),
        pins={5: "of the report"},
        downstream=["s3://lake/report.lance"],
        every="0 3 * * *",
        interval_s=None,
    )
    assert table.freshness == dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=36))
    dg.Definitions.validate_loadable(project.defs())


def test_secrets_stay_in_the_environment(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", CANARY)
    options = (
        "  storage_options:\n    aws_access_key_id: \"{{ env('KEY') }}\"\n    aws_secret_access_key: '{{ env.KEY }}'\n"
        "    aws_session_token: env:KEY\n    aws_region: north\n"
    )
    project.write(in_yaml("    - {op: compact, name: tidy}\n", options))
    table = project.table()
    assert CANARY not in repr(table)
    specs = [repr(vars(each)) for each in project.defs().resolve_all_asset_specs()]
    assert CANARY not in "".join(specs)
    reached = access(table)
    assert reached["aws_access_key_id"] == reached["aws_secret_access_key"] == CANARY
    assert reached["aws_region"] == "north"
    monkeypatch.delenv("KEY")
    project.table()  # the variable is read at use, not at declaration
    with pytest.raises(InvalidInput, match="environment variable KEY, which is not set in this process"):
        access(table)


def test_storage_in_yaml(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOT", "/lake/below")
    project.write(
        HEAD.replace("/lake/orders.lance", "orders.lance")
        + "  storage:\n    root: '{{ env.ROOT }}'\n    storage_options: {aws_region: north}\n"
    )
    table = project.table()
    assert table.uri == "/lake/below/orders.lance"
    assert access(table) == {"aws_region": "north"}


def access(table: LanceTable) -> dict[str, str]:
    return dict(table.access()["storage_options"])


TIDY = "    - {op: compact, name: tidy}\n"
MISTAKES: dict[str, tuple[str, int, str]] = {
    "unknown attribute": (in_yaml(TIDY, "  prefix: lake\n"), 5, "prefix: a Lance table has no 'prefix'"),
    "near": (in_yaml(TIDY, "  key_prefx: a\n"), 5, "(did you mean 'key_prefix'?)"),
    "no uri": (HEAD.replace('  uri: "/lake/orders.lance"\n', "  writes: []\n"), 2, "a Lance table: uri is missing"),
    "text": (HEAD.replace("name: orders", "name: 5"), 3, "name: a text is expected here, not a number"),
    "truth": (in_yaml(TIDY, "  discover: maybe\n"), 5, "discover: true or false is expected here, not a text"),
    "list": (f"{HEAD}  owners: me\n", 5, "owners: a list is expected here, not a text"),
    "names": (f"{HEAD}  tags: [a]\n", 5, "tags: a mapping is expected here, not a list"),
    "writes": (f"{HEAD}  writes: tidy\n", 5, "writes: a list is expected here, not a text"),
    "a write": (in_yaml("    - tidy\n"), 6, "writes[0]: a write is expected here, as a mapping of options"),
    "no op": (in_yaml("    - name: tidy\n"), 6, "writes[0]: op is missing; choose one of append, build_index"),
    "op": (in_yaml("    - name: x\n      op: apend\n"), 7, "writes[0].op: 'apend' is not one of append"),
    "option": (
        in_yaml("    - op: delete\n      name: x\n\n      predicat: 'true'\n"),
        9,
        "writes[0].predicat: the op delete has no 'predicat' (did you mean 'predicate'?); its options are audit",
    ),
    "bare on": (
        in_yaml("    - {op: upsert, name: x, fn: yamlshop.rows:new, on: id}\n"),
        6,
        'writes[0]: the op upsert: YAML reads a bare on as true; write it in quotes, as "on": [...]',
    ),
    "missing": (in_yaml(f"{TIDY}    - {{op: delete, name: x}}\n"), 7, "writes[1]: the op delete: predicate is missing"),
    "number": (in_yaml("    - op: compact\n      name: x\n      target_rows: '5'\n"), 8, "a whole number is expected"),
    "yes": (in_yaml("    - op: compact\n      name: x\n      target_rows: true\n"), 8, "not true or false"),
    "rule": (in_yaml("    - {op: compact, name: x, target_rows: 0}\n"), 6, "a file has at least one row"),
    "parameter": (in_yaml("    - {op: delete, name: x, predicate: 'a < :b'}\n"), 6, "there is no parameter :b"),
    "word": (
        in_yaml("    - {op: compact, name: x, once_per: day}\n"),
        6,
        "once_per: 'day' is not one of run, partition",
    ),
    "twice": (in_yaml(TIDY + TIDY), 2, "the Lance table 'orders': 2 writes are called 'tidy'"),
    "credentials": (HEAD.replace("/lake", f"s3://key:{CANARY}@lake"), 2, "contains credentials or parameters"),
    "secret": (
        f"{HEAD}  storage_options:\n    aws_secret_access_key: {CANARY}\n",
        6,
        "storage_options.aws_secret_access_key: this is a literal secret; write {{ env",
    ),
    "environment": (
        HEAD.replace("/lake", "{{ env.NOT_SET_HERE }}"),
        4,
        "uri: the environment variable NOT_SET_HERE is not set",
    ),
    "no module": (
        in_yaml("    - op: append\n      name: x\n      fn: yamlshop.nowhere:new\n"),
        8,
        "writes[0].fn: there is no module yamlshop.nowhere",
    ),
    "broken module": (
        in_yaml("    - op: append\n      name: x\n      fn: yamlshop.broken:new\n"),
        8,
        "the module yamlshop.broken cannot be imported: No module named 'nothing_of_that_name'",
    ),
    "no name": (
        in_yaml("    - op: append\n      name: x\n      fn: yamlshop.rows:nwe\n"),
        8,
        "the module yamlshop.rows has no 'nwe' (did you mean 'new'?)",
    ),
    "no function": (
        in_yaml("    - op: append\n      name: x\n      fn: yamlshop.rows:number\n"),
        8,
        "'yamlshop.rows:number' has type int; it must be a function",
    ),
    "no reference": (
        in_yaml("    - op: append\n      name: x\n      fn: yamlshop.rows.new\n"),
        8,
        "'yamlshop.rows.new' is not a Python reference; write module.path:name, or .module:name",
    ),
    "maintenance": (
        f"{HEAD}  maintenance:\n    keep_versions: 0\n",
        5,
        "maintenance: Maintenance: keep_versions=0 must be a whole number from 1",
    ),
    "cron": (f"{HEAD}  maintenance: {{every: at night}}\n", 5, "maintenance: Maintenance: every='at night'"),
    "pins": (f"{HEAD}  maintenance:\n    pins: {{last: kept}}\n", 6, "pins.last: a version must be a whole number"),
    "check": (f"{HEAD}  checks:\n    - {{check: rows}}\n", 6, "checks[0].check: 'rows' is not one of column_fresh"),
    "check's option": (
        f"{HEAD}  checks:\n    - {{check: row_count, mini: 3}}\n",
        6,
        "checks[0].mini: the check row_count has no 'mini' (did you mean 'min'?)",
    ),
    "duration": (f"{HEAD}  freshness: soon\n", 5, "freshness: a duration is expected here, such as 90s"),
    "no check": (f"{HEAD}  checks: [yamlshop.rows:new]\n", 5, "has type function; it must be a check"),
    "partitions": (
        in_yaml("    - op: compact\n      name: x\n      partitions: {type: daily}\n"),
        8,
        "writes[0].partitions: partitions: start_date is missing",
    ),
    "kind of partitions": (
        in_yaml("    - op: compact\n      name: x\n      partitions: {type: dayly}\n"),
        8,
        "partitions.type: 'dayly' is not one of hourly, daily, weekly",
    ),
    "no date": (
        in_yaml("    - op: compact\n      name: x\n      partitions: {type: daily, start_date: soon}\n"),
        8,
        "writes[0].partitions: time data 'soon' does not match",
    ),
    "type of a column": (
        in_yaml("    - {op: map_columns, name: x, fn: yamlshop.rows:words,\n       schema: {a: float31}}\n"),
        7,
        "writes[0].schema.a: there is no type 'float31'",
    ),
    "a kind of index": (
        in_yaml("    - {op: build_index, column: id, kind: TREE}\n"),
        6,
        "writes[0]: SparkBuildIndex('id'): kind='TREE' is not an index type; use one of BITMAP, ",
    ),
    "an option of a kind": (
        in_yaml("    - {op: build_index, column: id, kind: BTREE, params: {rows_per_zone: 1}}\n"),
        6,
        "SparkBuildIndex('id'): ",
    ),
    "an index of nothing": (
        in_yaml("    - {op: build_index, kind: BTREE}\n"),
        6,
        "writes[0]: the op build_index: column is missing",
    ),
    "an option of an index": (
        in_yaml("    - {op: build_index, column: id,\n       kind: BTREE, indx: x}\n"),
        7,
        "writes[0].indx: the op build_index has no 'indx' (did you mean 'index'?)",
    ),
    "an index twice": (
        in_yaml(
            "    - {op: build_index, column: id, kind: BTREE}\n"
            "    - {op: build_index, column: id, kind: BITMAP, name: x}\n"
        ),
        2,
        "'orders_index_id' and 'x' both build the index 'id_idx', and each would undo the other",
    ),
    "a share of an index": (
        f"{HEAD}  checks:\n    - {{check: index_coverage,\n       at_least: 90}}\n",
        6,
        "IndexCoverage('index_coverage'): at_least= must be a share of the rows, above 0 and up to 1, not 90",
    ),
    "a bound of indices": (
        f"{HEAD}  maintenance:\n    index_when_segments: many\n",
        6,
        "maintenance.index_when_segments: a whole number is expected here, not a text",
    ),
    "no schema": (
        in_yaml("    - {op: map_columns, name: x, fn: yamlshop.rows:words,\n       schema: 5}\n"),
        7,
        "writes[0].schema: a mapping from column names to types is expected here, not int",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_errors_name_file_line_and_option(project: Project, name: str) -> None:
    text, line, message = MISTAKES[name]
    error = project.error(text)
    assert isinstance(error, InvalidInput)
    assert str(error).startswith(f"{project.file}:{line}: ")
    assert message in str(error)
    assert CANARY not in str(error)


def test_unknown_template_variables_are_errors_of_dagster(project: Project) -> None:
    message = str(project.error(HEAD.replace("/lake", "{{ nothing.there }}")))
    assert f"{project.file}:4 - attributes.uri" in message
    assert "'nothing' not found in scope" in message


def test_two_tables_in_yaml_at_one_location(project: Project) -> None:
    message = project.error(f"{HEAD}---\n{HEAD.replace('name: orders', 'name: sales')}")
    assert isinstance(message, InvalidInput)
    assert "'orders' and 'sales' of this project have the same location, /lake/orders.lance" in str(message)


def test_yaml_has_every_option_of_python() -> None:
    assert set(TABLE) == set(inspect.signature(lance_table).parameters)
    assert set(VIEW) == set(inspect.signature(lance_view).parameters)
    for word, kind in WRITES.items():
        cases = {each["if"]["properties"]["op"]["const"]: each["then"] for each in WRITE.schema["allOf"]}
        assert set(cases[word]["properties"]) - {"op"} == set(inspect.signature(kind).parameters)
    json.dumps([each.schema for each in TABLE.values()])


def test_options_without_a_yaml_form_are_detected() -> None:
    @dataclass
    class Odd:
        callback: Callable[[], None] = field(default=lambda: None)

    with pytest.raises(InvalidInput, match="the option 'callback' has no YAML form"):
        field_form(Odd.__dataclass_fields__["callback"], TYPES)
    known: dict[object, Form] = {"callback": TABLE["name"]}
    assert field_form(Odd.__dataclass_fields__["callback"], known) is TABLE["name"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("int64", pa.int64()),
        ("float16[8]", pa.list_(pa.float16(), 8)),
        ("list<list<string>>", pa.list_(pa.list_(pa.string()))),
        ("decimal(10,2)", pa.decimal128(10, 2)),
        ("timestamp[us]", pa.timestamp("us")),
    ],
)
def test_types_of_columns(text: str, kind: pa.DataType) -> None:
    assert arrow_type(text) == kind

"""Examples: the projects in `examples/` run as a new user would run them, on one Spark session.

`make test` runs each with one of the Spark resources, and `make dagster-proofs` with all of them.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import lance
import numpy as np
import pyarrow as pa
import pytest
from dagster_pyspark import LazyPySparkResource, PySparkResource

import lance_assets
from lance_assets import SparkSessionResource
from lance_assets.cli.main import main
from lance_core import Table
from tests.lance_assets.instances import events, metadata_values

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RESOURCES = {kind.__name__: kind for kind in (SparkSessionResource, LazyPySparkResource, PySparkResource)}
QUIET: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def with_resources(*names: str) -> pytest.MarkDecorator:
    """Run a test with these Spark resources, or with all of them among the proofs."""
    return pytest.mark.parametrize("kind", RESOURCES if os.environ.get("PROOFS") == "all" else names)


def replace_resource(kind: str, patch: pytest.MonkeyPatch) -> None:
    """Give the example another Spark resource: one of dagster-pyspark has the name of the application as a setting."""

    def make(app_name: str) -> object:
        return RESOURCES[kind](spark_config={"spark.app.name": app_name})

    patch.setattr(lance_assets, "SparkSessionResource", make)


def load(name: str) -> ModuleType:
    """Load a project as `dagster dev -f` does."""
    spec = spec_from_file_location(f"example_{name}", EXAMPLES / name / "definitions.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Project:
    """Project with the instance of its runs."""

    defs: dg.Definitions
    instance: dg.DagsterInstance

    def run(self, key: dg.AssetKey | str, partition: str | None = None, **config: Any) -> dict[str, Any]:
        """Materialize an asset as the button does, and return what its page shows."""
        key = dg.AssetKey.from_user_string(key) if isinstance(key, str) else key
        job = self.defs.resolve_implicit_job_def_def_for_assets([key])
        assert job is not None
        done = job.execute_in_process(
            instance=self.instance,
            asset_selection=[key],
            partition_key=partition,
            run_config={**QUIET, **({"ops": {"__".join(key.path): {"config": config}}} if config else {})},
        )
        assert done.success
        return metadata_values(events(self.instance, key)[-1][1])

    def versions(self, key: str) -> list[str | None]:
        return [event.partition for _, event in events(self.instance, dg.AssetKey.from_user_string(key))]


@dataclass
class Automation:
    """Automation sensor of a project."""

    project: Project
    cursor: Any = None

    def tick(self) -> list[str]:
        """Evaluate all conditions, and return the assets of which a run is requested."""
        result = dg.evaluate_automation_conditions(self.project.defs, self.project.instance, cursor=self.cursor)
        self.cursor = result.cursor
        keys = {key for each in result.results if each.true_subset.size for key in [each.key]}
        return sorted(key.path[-1] for key in keys if isinstance(key, dg.AssetKey))


@contextmanager
def project(defs: dg.Definitions) -> Iterator[Project]:
    dg.Definitions.validate_loadable(defs)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Project(defs, instance)


def test_every_example_is_tested_and_documented() -> None:
    names = sorted(folder.name for folder in EXAMPLES.iterdir() if folder.is_dir())
    assert names == ["clickstream", "daily_orders", "data_frames", "embeddings", "yaml_only"]
    for name in names:
        assert name == "data_frames" or f"def test_{name}(" in Path(__file__).read_text()
        assert (EXAMPLES / name / "README.md").is_file()
        assert (EXAMPLES / name / f"{name}.ipynb").is_file()


@pytest.mark.usefixtures("spark")
@with_resources("LazyPySparkResource")
def test_daily_orders(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_resource(kind, monkeypatch)
    monkeypatch.setenv("DAILY_ORDERS_TABLES", str(tmp_path))
    example = load("daily_orders")
    defs: dg.Definitions = example.defs
    with project(defs) as shop:
        load_day = defs.resolve_job_def("load_day")
        for day in ("2026-01-01", "2026-01-02", "2026-01-01"):
            assert load_day.execute_in_process(instance=shop.instance, partition_key=day, run_config=QUIET).success
        assert shop.versions("shop/orders") == ["v0000000001", "v0000000002"]
        assert shop.run("shop/city_counts_append")["lance/version"] == 1
        ((_, counted),) = events(shop.instance, example.city_counts.key)
        assert metadata_values(counted)["lance/inputs"] == {example.orders.uri: 2}
        assert shop.run("shop/order_days")["days"] == ["2026-01-01", "2026-01-02"]
    counts = Table.open(example.city_counts.uri).to_table().to_pydict()
    assert dict(zip(counts["city"], counts["count"], strict=True)) == {"Lima": 667, "Oslo": 667, "Pune": 666}


@pytest.mark.usefixtures("spark")
@with_resources("PySparkResource")
def test_clickstream(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_resource(kind, monkeypatch)
    monkeypatch.setenv("CLICKSTREAM_TABLES", str(tmp_path))
    example = load("clickstream")
    in_time, late = 1800, 200
    with project(example.defs) as web:
        for hour in ("2026-01-01-00:00", "2026-01-01-01:00", "2026-01-01-00:00"):
            web.run("web/clicks_append", hour)
        assert example.clicks.ledger.open().count_rows() == 2 * in_time
        assert web.run("web/clicks_late", "2026-01-01-00:00")["lance/rows_added"] == late
        assert web.run("web/clicks_late", "2026-01-01-00:00")["lance/rows_added"] == 0

        built = web.run("web/clicks_index_user")
        assert (built["lance/index"], built["lance/index_kind"]) == ("user_idx", "BITMAP")
        assert built["lance/index_rows_covered"] == 2 * in_time + late
        before = example.clicks.ledger.open()
        theirs = before.count_rows("user = 'user-7'")
        web.instance.add_dynamic_partitions("users_to_forget", ["user-7"])
        assert web.run("web/clicks_forget", "user-7")["lance/rows_removed"] == theirs > 0
        before = before.refresh()
        kept_up = web.run("web/clicks_maintenance")
        assert kept_up["lance/fragments_after"] < kept_up["lance/fragments_before"] == len(before.fragments)
        after = before.refresh()
        assert sorted(after.to_table(["click_id"])["click_id"].to_pylist()) == sorted(
            before.to_table(["click_id"])["click_id"].to_pylist()
        )
        assert after.count_rows("user = 'user-7'") == 0
        assert [index.live_coverage for index in after.index_statistics()] == [1.0]
        pages = web.run("web/pages")
        assert sum(pages["seen"].values()) == after.count_rows() == 2 * in_time + late - theirs
        assert pages["lance/version"] == after.version
        recorded = web.versions("web/clicks")
        assert recorded[:5] == [f"v{version:010}" for version in range(1, 6)]
        assert recorded[-1] == f"v{after.version:010}"
    ids = after.to_table(["click_id"])["click_id"].to_pylist()
    assert len(ids) == len(set(ids))
    schedules = {schedule.name for schedule in example.defs.schedules}
    assert schedules == {"load_hour_schedule", "lance_maintain_on_schedule__web_clicks"}


def test_functions_of_clickstream_are_callable(spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user project can test its own functions in this way."""
    monkeypatch.setenv("CLICKSTREAM_TABLES", str(tmp_path))
    example = load("clickstream")

    @dataclass
    class Hour:
        partition_key: str

    clicks = example.clicks_append(spark, Hour("2026-01-01-03:00")).toArrow()
    assert clicks.num_rows == 1800
    assert {at.hour for at in clicks["at"].to_pylist()} == {3}


@pytest.mark.usefixtures("spark")
@with_resources("SparkSessionResource")
def test_embeddings(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_resource(kind, monkeypatch)
    landing = tmp_path / "landing"
    shutil.copytree(EXAMPLES / "embeddings/landing", landing)
    monkeypatch.setenv("EMBEDDINGS_TABLES", str(tmp_path))
    monkeypatch.setenv("EMBEDDINGS_LANDING", str(landing))
    example = load("embeddings")
    with project(example.defs) as desk:
        assert desk.run("help/documents_ingest")["lance/rows_added"] == 12
        desk.run("help/documents_embed")
        first = desk.run("help/answers")
        assert first["nearest"][0] == 1, first["answers"]  # "Refunds"
        assert (
            desk.run("help/answers", question="I lost my phone and cannot log in", topic="account")["nearest"][0] == 6
        )

        automation = Automation(desk)
        automation.tick()
        shutil.copy(EXAMPLES / "embeddings/february.jsonl", landing)
        assert desk.run("help/documents_ingest")["lance/rows_added"] == 2
        assert example.documents.ledger.open().count_rows("embedding is null") == 2
        assert automation.tick() == ["documents_embed"]
        assert desk.run("help/documents_embed")["lance/rows_computed"] == 2
        assert automation.tick() == ["documents_embed"]  # after its own version
        assert desk.run("help/documents_embed")["lance/rows_computed"] == 0
        assert automation.tick() == []
        question = "Can I send it back from the post office?"
        answers = desk.run("help/answers", question=question)
        assert answers["nearest"][0] == 13, answers["answers"]  # "Sending something back", which was added later
        assert answers["lance/version"] == 5  # the column is added by a version, and filled by the next
        assert desk.versions("help/documents") == [f"v{version:010}" for version in range(1, 6)]
    table = example.documents.ledger.open()
    assert table.schema.field("embedding").equals(example.EMBEDDING)
    assert table.count_rows("embedding is null") == 0
    vector = example.model().embed(question, norm=True)[0]
    nearest = {"column": "embedding", "q": vector, "k": 14, "metric": "cosine"}
    theirs = lance.dataset(table.uri).to_table(columns=["doc_id"], nearest=nearest)
    ours = table.search("embedding", vector, 14, metric="cosine", columns=["doc_id"])
    assert ours["doc_id"].to_pylist() == theirs["doc_id"].to_pylist()
    with project(example.defs) as desk:
        texts = desk.run("help/functions_ingest")["lance/rows_added"]
        assert texts > 1000
        desk.run("help/functions_embed")
        built = desk.run("help/functions_index_embedding")
        assert (built["lance/index_kind"], built["lance/index_rows_covered"]) == ("IVF_SQ", texts)
        found = desk.run("help/functions_found", task="remove a directory and everything in it")
        assert "os.removedirs" in found["nearest"], found["functions"]
        assert "IVF_SQ" in found["search"]
        (record,) = desk.instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(example.functions.ledger.key, "recall"), limit=1
        )
        assert record.event is not None
        assert record.event.dagster_event is not None
        evaluation = record.event.dagster_event.asset_check_evaluation_data
        assert evaluation.passed
        recall = evaluation.metadata["lance/recall"].value
        assert isinstance(recall, float)
        assert recall >= 0.95
        assert str(evaluation.metadata["lance/recall_curve"].value).startswith(
            "![recall of embedding by nprobes](data:"
        )
        indexed = desk.run("help/functions_index_text")
        assert (indexed["lance/index_kind"], indexed["lance/index_rows_covered"]) == ("INVERTED", texts)
    uri = example.functions.ledger.open().uri
    assert main(["search", uri, "delete tree", "--filter", "module = 'shutil'", "--show", "name", "-k", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].endswith("name shutil.rmtree")
    assert lines[-1].startswith("  text: Recursively [delete] a directory [tree].")
    batch = pa.record_batch({"title": ["Refunds"], "text": ["Money back."]})
    assert np.isclose(np.linalg.norm(example.embeddings(batch)[0].as_py()), 1)


@pytest.mark.usefixtures("spark")
@with_resources("LazyPySparkResource")
def test_yaml_only(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(EXAMPLES / "yaml_only", tmp_path / "project", ignore=shutil.ignore_patterns(".*"))
    monkeypatch.setenv("BOOKSHOP_TABLES", str(tmp_path / "tables"))
    resource = f"{{resource: {kind}, spark_config: {{spark.app.name: shop}}}}"
    (tmp_path / "project/bookshop/defs/spark/defs.yaml").write_text(
        f"type: lance_assets.SparkSessionComponent\nattributes: {resource}"
    )
    monkeypatch.syspath_prepend(tmp_path / "project")
    for name in [name for name in sys.modules if name.partition(".")[0] == "bookshop"]:
        monkeypatch.delitem(sys.modules, name)  # another project of this name was loaded before
    defs = dg.load_from_defs_folder(path_within_project=tmp_path / "project/bookshop")
    with project(defs) as shop:
        assert shop.run("shop/books_ingest")["lance/rows_added"] == 6
        assert shop.run("shop/books_ingest")["lance/rows_added"] == 0
        shop.run("shop/books_sale")
        assert shop.run("shop/books_withdraw")["lance/rows_removed"] == 2
        shop.run("shop/reviews_ingest")
        assert shop.run("shop/reviews_forget", "2026-02")["lance/rows_removed"] == 2
        assert shop.versions("shop/books") == ["v0000000001", "v0000000002", "v0000000003"]
    books = Table.open(tmp_path / "tables/books.lance").to_table(["title", "price"]).to_pydict()
    assert dict(zip(books["title"], books["price"], strict=True)) == {
        "Moby-Dick": 14.8,
        "Middlemarch": 14.0,
        "Emma": 9.0,
        "Dracula": 12.0,
    }
    assert Table.open(tmp_path / "tables/reviews.lance").count_rows("month = '2026-02'") == 0
    json.dumps([str(each.metadata) for each in defs.resolve_all_asset_specs()])

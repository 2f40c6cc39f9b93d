"""Materialized views in Dagster with real Spark: declared by `lance_view`, refreshed by runs from the change feed."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from lance_assets import LanceTable, RowCount, SparkAppend, SparkDelete, SparkSessionResource, lance_table, lance_view
from lance_assets.spark import refresh_view
from lance_core import InvalidInput, Table
from tests.lance_assets.instances import metadata_values


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


def new_pages(spark: SparkSession, _ctx: object) -> DataFrame:
    return spark.range(0, 100, 1, 2).selectExpr(
        "id", "if(id % 2 = 0, 'fr', 'en') AS lang", "cast(id AS string) AS title"
    )


def declare(folder: Path, where: str) -> tuple[LanceTable, LanceTable, LanceTable]:
    pages = lance_table(
        "pages",
        uri=str(folder / "pages.lance"),
        writes=[SparkAppend("pages_append", new_pages), SparkDelete("pages_delete", "id < 10")],
        profile=False,
    )
    recent = lance_view(
        "recent_fr",
        of="pages",
        select=["id", "upper(title) AS title"],
        where=where,
        checks=[RowCount(min=1)],
        profile=False,
        automation_condition="eager",
    )
    titles = lance_view("titles", of=recent, select={"text": "title || '!'"}, profile=False)
    return pages, recent, titles


def test_a_view_follows_its_source_in_dagster(
    tmp_path: Path, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    assert spark is not None

    def materialize(where: str, *names: str) -> dict[str, dict[str, object]]:
        tables = declare(tmp_path, where)
        definitions = dg.Definitions.merge(*(table.defs for table in tables))
        result = dg.materialize(
            list(definitions.assets or ()),  # type: ignore[arg-type]
            selection=[dg.AssetKey(name) for name in names],
            instance=instance,
            resources={"spark": SparkSessionResource()},
        )
        assert result.success
        events = {name: result.asset_materializations_for_node(name) for name in names}
        return {
            name: metadata_values(next(each for each in events[name] if each.asset_key == dg.AssetKey(name)))
            for name in names
        }

    def rows(name: str) -> int:
        return Table.open(str(tmp_path / f"{name}.lance")).count_rows()

    refreshes = ("recent_fr_refresh", "titles_refresh")
    first = materialize("lang = 'fr'", "pages_append", *refreshes)["recent_fr_refresh"]
    assert (first["lance/refresh"], first["lance/rebuild_reason"]) == ("rebuild", "the view is new")
    assert first["dagster/column_lineage"] == dg.TableColumnLineage(
        {column: [dg.TableColumnDep(dg.AssetKey("pages"), column)] for column in ("id", "title")}
    )
    assert (rows("recent_fr"), rows("titles")) == (50, 50)
    again = materialize("lang = 'fr'", "pages_append", "pages_delete", *refreshes)
    for name, source in (("recent_fr_refresh", 3), ("titles_refresh", 2)):
        metadata = again[name]
        assert (metadata["lance/refresh"], metadata["lance/source_version"]) == ("incremental", source)
    assert (rows("recent_fr"), rows("titles")) == (90, 90)
    changed = materialize("lang = 'en'", *refreshes)
    assert "definition changed" in str(changed["recent_fr_refresh"]["lance/rebuild_reason"])
    assert changed["titles_refresh"]["lance/refresh"] == "incremental"
    assert instance.get_dynamic_partitions("lance/titles") == [f"v{number:010}" for number in (1, 2, 3)]
    assert instance.get_dynamic_partitions("lance/recent_fr") == [f"v{number:010}" for number in (1, 2, 3)]


def test_a_view_is_refreshed_in_tasks(tmp_path: Path, spark: SparkSession) -> None:
    source, view = str(tmp_path / "pages.lance"), str(tmp_path / "fr.lance")
    Table.create(source, {"id": list(range(40)), "n": [1] * 40}, stable_row_ids=True, max_rows_per_file=10)

    def refresh() -> tuple[str, int]:
        report = refresh_view(spark, view, of=source, select=["id", "n * 2 AS m"], where="id % 2 = 0")
        return report.refresh, report.committed.rows_added - report.committed.rows_removed

    assert refresh() == ("rebuild", 20)
    Table.open(source).delete("id < 10")
    Table.open(source).update({"n": "3"}, where="id = 12")
    Table.open(source).append({"id": [100, 101], "n": [1, 1]})
    assert refresh() == ("incremental", -4)
    found = Table.open(view).to_table(["id", "m"]).sort_by("id").to_pylist()
    assert found == [{"id": number, "m": 6 if number == 12 else 2} for number in (*range(10, 40, 2), 100)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"of": 1}, "the URI of another table"),
        ({"of": "lake/unknown"}, "give the view a uri="),
        ({"of": "pages.lance", "select": ["a + b"], "where": "now() > day"}, "depends on the time"),
        ({"of": "pages.lance", "select": ["id", "id"]}, "twice"),
        ({"of": "pages.lance", "writes": [SparkAppend("more", new_pages)]}, "would change rows"),
        ({"of": "pages.lance", "partitions_def": None}, "partitions_def"),
        ({"of": "pages.lance", "backfill_policy": None}, "has no partitions"),
        ({"of": "pages.lance", "config_schema": None}, "no function of the user"),
    ],
)
def test_a_view_that_cannot_work_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        lance_view("view", **options)  # type: ignore[arg-type]


def test_the_refresh_takes_the_options_of_its_step() -> None:
    retry = dg.RetryPolicy(max_retries=3)
    view = lance_view(
        "tagged", of="pages.lance", code_version="7", op_tags={"team": "search"}, pool="views", retry_policy=retry
    )
    refresh = view.defs.get_assets_def("tagged_refresh")
    assert refresh.code_versions_by_key == {dg.AssetKey("tagged_refresh"): "7"}
    assert refresh.op.tags["team"] == "search"
    assert refresh.op.pool == "views"
    assert refresh.op.retry_policy == retry

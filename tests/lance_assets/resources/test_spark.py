"""Spark resource: the accepted values of the resource key `spark`; no setting is ignored silently."""

from collections.abc import Mapping
from pathlib import Path

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource, PySparkResource
from pyspark.sql import DataFrame, SparkSession

from lance_assets import SparkAppend, SparkSessionResource, WriteContext, lance_table
from lance_assets.resources.spark import session_of
from lance_core import InvalidInput, Table
from tests.lance_assets.instances import run

CANARY = "canary-3a71"
LATE: list[tuple[Mapping[str, object], str]] = [
    ({"spark.executor.memory": "9g"}, "spark.executor.memory: requested 9g, but it runs with"),
    ({"spark": {"executor": {"memory": "9g"}}}, "spark.executor.memory: requested 9g, but it runs with"),
    ({"spark.master": "yarn"}, "spark.master: requested yarn, but it runs with local[2,3]"),
    ({"spark.ui.enabled": False}, "spark.ui.enabled: requested false, but it runs with true"),
    ({"spark.hadoop.fs.s3a.secret.key": CANARY}, "spark.hadoop.fs.s3a.secret.key: requested ***, but it runs with"),
]
FINE: list[Mapping[str, object]] = [
    {},
    {"spark.app.name": "another name"},
    {"spark.sql.shuffle.partitions": 3},
    {"spark": {"sql": {"shuffle": {"partitions": "3"}}}},
    {"spark.master": "local[2,3]", "spark.ui.enabled": True},
]


@pytest.mark.parametrize(("conf", "message"), LATE)
@pytest.mark.parametrize("kind", [PySparkResource, LazyPySparkResource])
def test_late_settings_are_refused_by_name(
    spark: SparkSession, kind: type, conf: Mapping[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        session_of(initialize(kind, conf))
    assert message in str(refused.value)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize("conf", FINE)
@pytest.mark.parametrize("kind", [PySparkResource, LazyPySparkResource])
def test_settings_in_effect_are_accepted(spark: SparkSession, kind: type, conf: Mapping[str, object]) -> None:
    assert session_of(initialize(kind, conf)).range(3).count() == 3


def test_second_resource_must_match_the_running_application(spark: SparkSession) -> None:
    first = SparkSessionResource(conf={"spark.sql.shuffle.partitions": "3"})
    assert session_of(first).conf.get("spark.sql.shuffle.partitions") == "3"
    second = SparkSessionResource(conf={"spark.sql.warehouse.dir": "file:/elsewhere"})
    with pytest.raises(InvalidInput, match=r"spark\.sql\.warehouse\.dir: requested file:/elsewhere, but it runs with"):
        session_of(second)


def test_plain_session_is_accepted(tmp_path: Path, spark: SparkSession) -> None:
    def rows(session: SparkSession, ctx: WriteContext) -> DataFrame:
        return session.range(4)

    table = lance_table("t", uri=str(tmp_path / "t.lance"), writes=[SparkAppend("t_append", rows)])
    with dg.DagsterInstance.ephemeral() as instance:
        run(table, "t_append", instance, spark)
    assert Table.open(table.uri).count_rows() == 4


def test_resource_is_recognized_without_starting_java() -> None:
    class Costly:
        calls = 0

        @property
        def spark_session(self) -> SparkSession:
            self.calls += 1
            raise InvalidInput("no session today")

    costly = Costly()
    with pytest.raises(InvalidInput, match="no session today"):
        session_of(costly)
    assert costly.calls == 1


def settings_seen_by_a_step(resource: object) -> dict[str, str | None]:
    """Return the settings of the test in the session of a step that asks for a resource of dagster-pyspark."""
    seen = {}

    @dg.asset
    def step(spark: LazyPySparkResource) -> None:
        assert spark.spark_context is spark.spark_session.sparkContext
        for key in ("spark.sql.shuffle.partitions", "spark.sql.lake.token"):
            seen[key] = session_of(spark).conf.get(key, None)

    assert dg.materialize([step], resources={"spark": resource}).success
    return seen


@pytest.mark.usefixtures("spark")
def test_resource_replaces_one_of_dagster_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_TOKEN", CANARY)
    settings = {"spark": {"sql": {"shuffle": {"partitions": 5}, "lake.token": dg.EnvVar("LAKE_TOKEN")}}}
    resource = SparkSessionResource(spark_config=settings)
    assert isinstance(resource, LazyPySparkResource)
    assert CANARY not in repr(resource)
    assert settings_seen_by_a_step(resource) == {
        "spark.sql.shuffle.partitions": "5",
        "spark.sql.lake.token": CANARY,
    }


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", [PySparkResource, LazyPySparkResource])
def test_variable_that_dagster_does_not_resolve_is_refused(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_TOKEN", CANARY)
    with pytest.raises(InvalidInput, match=r"does not resolve the EnvVar of spark\.sql\.lake\.token"):
        settings_seen_by_a_step(kind(spark_config={"spark.sql.lake.token": dg.EnvVar("LAKE_TOKEN")}))


def test_settings_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(InvalidInput, match="looks like a secret") as refused:
        SparkSessionResource(spark_config={"spark": {"hadoop": {"fs.s3a.secret.key": CANARY}}})
    assert CANARY not in str(refused.value)
    twice = SparkSessionResource(conf={"spark.cores.max": "2"}, spark_config={"spark": {"cores.max": "3"}})
    with pytest.raises(InvalidInput, match=r"set spark\.cores\.max to different values"):
        _ = twice.spark_session
    with pytest.raises(InvalidInput, match=r"spark\.cores\.max has type list"):
        _ = SparkSessionResource(spark_config={"spark.cores.max": [2]}).spark_session


def initialize(kind: type, conf: Mapping[str, object]) -> object:
    """Initialize a resource as Dagster does for a run."""
    resource = kind(spark_config=dict(conf))
    resource.setup_for_execution(dg.build_init_resource_context())
    return resource

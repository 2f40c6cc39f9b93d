"""Component of the Spark session: each resource that it configures, and what it refuses."""

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource, PySparkResource

from lance_assets.components import SparkSessionComponent
from lance_assets.resources.spark import SparkSessionResource

VALID = {
    "{}": SparkSessionResource(),
    "{master: 'local[1]', conf: {spark.cores.max: '2'}}": SparkSessionResource(
        master="local[1]", conf={"spark.cores.max": "2"}
    ),
    "{spark_config: {spark: {executor: {cores: 2}}, spark.lake.token: '{{ env.TOKEN }}'}}": SparkSessionResource(
        spark_config={"spark": {"executor": {"cores": 2}}, "spark.lake.token": dg.EnvVar("TOKEN")}
    ),
    "{resource: PySparkResource, spark_config: {spark.master: 'local[1]'}}": PySparkResource(
        spark_config={"spark.master": "local[1]"}
    ),
    "{resource: LazyPySparkResource}": LazyPySparkResource(spark_config={}),
}
INVALID = {
    "{resource: PySpark}": "not one of LazyPySparkResource, PySparkResource, SparkSessionResource",
    "{resource: PySparkResource, master: local}": "no option 'master', only spark_config",
    "{resource: PySparkResource, spark_config: {spark.lake.token: '{{ env.TOKEN }}'}}": "does not resolve",
    "{spark_config: {spark.lake.token: verbatim}}": "this is a literal secret",
    "{resource: PySparkResource, spark_config: {spark: {lake: {token: verbatim}}}}": "literal secret",
    "{spark_config: {spark.cores: [1]}}": "a Spark setting is a text",
}


@pytest.mark.parametrize("yaml", VALID)
def test_component_configures_the_resource(yaml: str) -> None:
    session = SparkSessionComponent.resolve_from_yaml(yaml).session
    assert type(session) is type(VALID[yaml])
    assert session == VALID[yaml]


@pytest.mark.parametrize("yaml", INVALID)
def test_component_refuses(yaml: str) -> None:
    with pytest.raises(Exception, match=INVALID[yaml]) as refused:
        SparkSessionComponent.resolve_from_yaml(yaml)
    assert "verbatim" not in str(refused.value)

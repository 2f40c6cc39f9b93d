"""One Spark application for all tests: task retries as on a cluster, few partitions, tables in a temporary folder."""

import pytest
from pyspark.sql import SparkSession

from lance_assets.spark import SparkSettings, open_session

HIDDEN_SETTINGS = {
    "spark.executorEnv.LAKE_ACCESS": "canary-of-the-session-1",
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": "canary-of-the-session-2",
    "spark.lake.door": "https://me:canary-of-the-session-3@host",
}
"""Settings with secrets, which no page, log or file of Spark may show."""


@pytest.fixture(scope="session")
def spark_settings(tmp_path_factory: pytest.TempPathFactory) -> SparkSettings:
    return SparkSettings(
        master="local[2,3]",
        app_name="tests",
        conf={
            **HIDDEN_SETTINGS,
            "spark.eventLog.compress": False,
            "spark.eventLog.dir": f"file:{tmp_path_factory.mktemp('events')}",
            "spark.eventLog.enabled": True,  # some tests search it for secrets; it costs the others nothing
            "spark.local.dir": str(tmp_path_factory.mktemp("local")),
            "spark.sql.shuffle.partitions": 2,
            "spark.ui.enabled": True,
            "spark.ui.port": 0,
            "spark.sql.warehouse.dir": f"file:{tmp_path_factory.mktemp('warehouse')}",
        },
        log_level="ERROR",
    )


@pytest.fixture(scope="session")
def spark(spark_settings: SparkSettings) -> SparkSession:
    return open_session(spark_settings)

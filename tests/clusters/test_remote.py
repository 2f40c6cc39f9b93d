"""Remote writes by spark-submit: the Spark driver is a process of its own without Dagster, and is killed in some tests.

`make clusters` runs them. `tests/lance_assets/test_remote_writes.py` has the cases that need no Spark.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import dagster as dg
import pytest
from dagster_aws.pipes import PipesS3ContextInjector, PipesS3MessageReader

from lance_assets import RemoteWrite, lance_table
from lance_assets.spark.java import ensure_java
from lance_core import Table
from tests.clusters.deployments import DEPLOYMENTS, HOME, PROJECT, SparkAddress
from tests.clusters.remote_job import ROWS
from tests.lance_assets.instances import events, instance_in, metadata_values
from tests.lance_core.storage.buckets import KEY_ID, SECRET
from tests.lance_core.storage.object_servers import s3

EVERYTHING = os.environ.get("CLUSTERS") == "all"
JOB = str(Path(__file__).with_name("remote_job.py"))
pytestmark = pytest.mark.timeout(600)


def client_for(folder: Path, **channels: Any) -> dg.PipesSubprocessClient:
    ensure_java()
    hidden = folder / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "dagster.py").write_text("raise ModuleNotFoundError('there is no Dagster on a remote machine')")
    environment = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{hidden}:{PROJECT}", "SPARK_HOME": str(HOME)}
    return dg.PipesSubprocessClient(env=environment, cwd=str(PROJECT), **channels)


@contextmanager
def channels_on_s3() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the endpoint of an S3 emulator, and the channels of Pipes in a bucket of it."""
    with s3() as server:
        bucket = server.bucket().uri.removeprefix("s3://")
        keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
        client = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1", **keys)
        yield (
            server.endpoint,
            {
                "context_injector": PipesS3ContextInjector(bucket=bucket, client=client),
                "message_reader": PipesS3MessageReader(bucket=bucket, client=client, interval=1),
            },
        )


def submit(spark: SparkAddress, *arguments: str) -> list[str]:
    command = [str(HOME / "bin/spark-submit"), "--master", str(spark.master), "--conf", "spark.ui.enabled=false"]
    for key, value in spark.conf.items():
        command += ["--conf", f"{key}={value}"]
    return [*command, JOB, *arguments]


def materialize(
    folder: Path,
    instance: dg.DagsterInstance,
    command: list[str],
    client: dg.PipesSubprocessClient,
    *,
    checks: tuple[str, ...] = ("enough",),
    tags: Mapping[str, str] | None = None,
) -> dg.ExecuteInProcessResult:
    write = RemoteWrite("load", launch={"command": command}, remote_checks=checks)
    table = lance_table("t", uri=str(folder / "t.lance"), writes=[write])
    resources = dg.Definitions(
        resources={"pipes": client}, jobs=[dg.define_asset_job("job", [table.write_key("load")])]
    )
    job = dg.Definitions.merge(table.defs, resources).resolve_job_def("job")
    return job.execute_in_process(instance=instance, raise_on_error=False, tags=dict(tags or {}))


def versions(instance: dg.DagsterInstance) -> list[str | None]:
    return [event.partition for _, event in events(instance, dg.AssetKey("t"))]


if EVERYTHING:

    @pytest.mark.parametrize("place", ["local", "standalone"])
    def test_submitted_driver_reports_through_an_object_store(place: str, tmp_path: Path) -> None:
        with (
            DEPLOYMENTS[place]() as spark,
            instance_in(tmp_path) as instance,
            channels_on_s3() as (endpoint, channels),
        ):
            done = materialize(tmp_path, instance, submit(spark, "commit", endpoint), client_for(tmp_path, **channels))
            assert done.success
            ((_, written),) = events(instance, dg.AssetKey("load"))
            shown = metadata_values(written)
            assert (shown["lance/version"], shown["lance/rows_added"]) == (1, ROWS)
            assert shown["application"].startswith("app-" if place == "standalone" else "local-")
            assert "the Spark driver runs" in [entry.user_message for entry in instance.all_logs(done.run_id)]
            assert versions(instance) == ["v0000000001"]
            mapped = materialize(
                tmp_path, instance, submit(spark, "map", endpoint), client_for(tmp_path, **channels), checks=()
            )
            assert mapped.success
            assert versions(instance) == ["v0000000001", "v0000000002"]
            assert Table.open(tmp_path / "t.lance").count_rows("twice = 2 * id") == ROWS

    @pytest.mark.parametrize("point", ["before the version", "after the version"])
    @pytest.mark.parametrize("place", ["local", "standalone"])
    def test_killed_driver_and_its_retry_make_one_version(place: str, point: str, tmp_path: Path) -> None:
        with DEPLOYMENTS[place]() as spark, instance_in(tmp_path) as instance:
            client = client_for(tmp_path)
            first = materialize(tmp_path, instance, submit(spark, point), client)
            assert not first.success
            committed = point.startswith("after")
            assert versions(instance) == ["v0000000001"] * committed
            origin = {"dagster/parent_run_id": first.run_id, "dagster/root_run_id": first.run_id}
            # A driver that is launched again after the commit would end with an error here.
            command = ["false"] if committed else submit(spark, "commit")
            again = materialize(tmp_path, instance, command, client, tags=origin)
            assert again.success
            assert versions(instance) == ["v0000000001"]
            table = Table.open(tmp_path / "t.lance")
            assert (table.version, table.count_rows()) == (1, ROWS)
            ((_, written),) = events(instance, dg.AssetKey("load"))
            assert metadata_values(written)["lance/landed_before"] is committed
            properties = table.version_info().properties
            assert properties["dagster.run_id"] == (first.run_id if committed else again.run_id)

    def test_driver_gets_the_parameters_of_pipes_as_arguments(tmp_path: Path) -> None:
        """In cluster mode the driver does not inherit the environment of spark-submit: a shell writes the variables
        into its arguments."""
        with DEPLOYMENTS["local"]() as spark, instance_in(tmp_path) as instance:
            arguments = (
                '--dagster-pipes-context "$DAGSTER_PIPES_CONTEXT" --dagster-pipes-messages "$DAGSTER_PIPES_MESSAGES"'
            )
            words = " ".join(f"'{word}'" for word in submit(spark, "commit"))
            script = f"exec env -u DAGSTER_PIPES_CONTEXT -u DAGSTER_PIPES_MESSAGES {words} {arguments}"
            done = materialize(tmp_path, instance, ["sh", "-c", script], client_for(tmp_path))
            assert done.success
            assert versions(instance) == ["v0000000001"]

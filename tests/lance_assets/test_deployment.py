"""Deployment: webserver and daemon as processes of their own, on PostgreSQL, with tables on local disk and on S3.

The tests launch runs as a browser does, kill run workers and the daemon, and then search the database, pages and files
for secrets.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import lance
import psycopg
import pyarrow as pa
import pytest

from lance_core import Table
from tests.lance_assets import project
from tests.lance_assets.deployment import Deployment, GraphqlClient, wait_until
from tests.lance_assets.instances import events, tags
from tests.lance_core.storage.buckets import SECRET, Bucket
from tests.lance_core.storage.object_servers import s3
from tests.postgres import PASSWORD, for_dagster, postgres_server

LOCATION = project.__name__
CONFIG = """
telemetry:
  enabled: false
storage:
  postgres:
    postgres_url:
      env: PROOFS_DATABASE
run_monitoring:
  enabled: true
  poll_interval_seconds: 1
run_retries:
  enabled: true
  max_retries: 1
"""
PAGES = """{ runsOrError { ... on Runs { results { runId status runConfigYaml tags { key value }
        eventConnection { events { __typename ... on MessageEvent { message }
            ... on ExecutionStepFailureEvent { error { message stack causes { message stack } } }
            ... on MaterializationEvent { metadataEntries { label description ... on TextMetadataEntry { text }
                ... on JsonMetadataEntry { jsonString } } } } } } } }
    repositoriesOrError { ... on RepositoryConnection { nodes { name
        allTopLevelResourceDetails { name configFields { name } configuredValues { key value type } }
        sensors { name description sensorState { ticks { status skipReason cursor } } }
        assetNodes { description opVersion metadataEntries { label ... on TextMetadataEntry { text } }
            configField { configType { recursiveConfigTypes { key description } } } } } } }
    instance { info daemonHealth { allDaemonStatuses { daemonType lastHeartbeatErrors { message stack } } } } }"""
STATS = """{ assetNodeOrError(assetKey: {path: ["lake", "orders"]}) { ... on AssetNode {
    partitionKeys partitionStats { numPartitions numMaterialized } } } }"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deployed")


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3() as server:
        yield server.bucket()


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres_server() as url:
        name = url.format(database="dagster")
        with psycopg.connect(url.format(database="postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE dagster")
        yield name


@pytest.fixture(scope="module")
def deployment(folder: Path, bucket: Bucket, database: str) -> Iterator[Deployment]:
    environment = {
        "PROOFS_DATABASE": for_dagster(database),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        project.ROOT: str(folder),
        project.BUCKET: bucket.uri,
        project.SECRET: SECRET,
        project.ENDPOINT: bucket.options["aws_endpoint"],
    }
    home = folder / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield Deployment(home, environment, LOCATION)


@pytest.fixture(scope="module")
def client(deployment: Deployment) -> Iterator[GraphqlClient]:
    with deployment.webserver() as each:
        yield each


@pytest.fixture(scope="module")
def instance(deployment: Deployment) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(deployment.home)) as each:
        each.get_runs(limit=1)
        yield each


def final_status(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus | None:
    run = instance.get_run_by_id(run_id)
    ends = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
    return run.status if run and run.status in ends else None


def retry_of(instance: dg.DagsterInstance, run_id: str) -> str | None:
    retries = instance.get_runs(dg.RunsFilter(tags={"dagster/parent_run_id": run_id}))
    return retries[0].run_id if retries else None


def ticks_done(instance: dg.DagsterInstance, sensor: str) -> int:
    (state,) = [each for each in instance.all_instigator_state() if each.instigator_name == sensor]
    ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=10_000)
    return sum(tick.end_timestamp is not None for tick in ticks)


@pytest.mark.timeout(900)
def test_deployment_survives_crashes_of_its_processes(
    folder: Path,
    deployment: Deployment,
    client: GraphqlClient,
    instance: dg.DagsterInstance,
    bucket: Bucket,
    database: str,
) -> None:
    orders = dg.AssetKey(["lake", "orders"])
    uri = str(folder / "orders.lance")

    def recorded() -> list[tuple[str, str | None]]:
        return [(run_id, event.partition) for run_id, event in events(instance, orders)]

    with deployment.daemon("daemon") as daemon:
        # The worker dies after its commit, before the version is recorded.
        (folder / "kill.json").write_text(json.dumps({"at": "after create _versions 1", "process": "run"}))
        killed = client.launch(LOCATION, "load")
        on_s3 = client.launch(LOCATION, "load_s3")
        daemon_log = lambda: deployment.log("daemon")  # noqa: E731
        assert wait_until(lambda: final_status(instance, killed), daemon_log) is dg.DagsterRunStatus.FAILURE
        retry = wait_until(lambda: retry_of(instance, killed), daemon_log)
        assert wait_until(lambda: final_status(instance, retry), daemon_log) is dg.DagsterRunStatus.SUCCESS, run_log(
            instance, retry
        )
        assert wait_until(lambda: final_status(instance, on_s3), daemon_log) is dg.DagsterRunStatus.SUCCESS, run_log(
            instance, on_s3
        )
        ((recorder, event),) = events(instance, orders)
        assert recorder in (retry, "")
        assert (event.partition, tags(event)["lance/run_id"]) == ("v0000000001", killed)
        assert Table.open(uri).count_rows() == project.ROWS
        lance.write_dataset(pa.table({"id": [77]}), uri, mode="append")
        wait_until(lambda: len(recorded()) == 2, daemon_log)
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
    for number in range(3):
        lance.write_dataset(pa.table({"id": [78 + number]}), uri, mode="append")
    with deployment.daemon("second_daemon"):
        second_daemon_log = lambda: deployment.log("second_daemon")  # noqa: E731
        wait_until(lambda: len(recorded()) >= 5, second_daemon_log)
        # A duplicate event would appear in the next tick.
        tick_count = ticks_done(instance, "lance_discover__lake")
        wait_until(lambda: ticks_done(instance, "lance_discover__lake") >= tick_count + 2, second_daemon_log)
    assert [partition for _, partition in recorded()] == [f"v{number:010}" for number in range(1, 6)]
    assert [run_id for run_id, _ in recorded()][1:] == [""] * 4
    stats = client.query(STATS)["assetNodeOrError"]
    assert stats["partitionStats"] == {"numPartitions": 5, "numMaterialized": 5}
    check_on_s3(instance, on_s3, bucket)
    pages = json.dumps(client.query(PAGES))
    assert on_s3 in pages
    check_no_secrets(folder, pages, database)


@pytest.mark.timeout(900)
def test_terminated_run_cancels_its_spark_tasks(
    folder: Path, deployment: Deployment, client: GraphqlClient, instance: dg.DagsterInstance
) -> None:
    uri = str(folder / "orders.lance")
    before = lance.write_dataset(pa.table({"id": [1]}), uri, mode="append").version
    daemon_log = lambda: deployment.log("third_daemon") + deployment.log("webserver")  # noqa: E731
    (folder / "wait").touch()
    with deployment.daemon("third_daemon"):
        run_id = client.launch(LOCATION, "load")
        wait_until((folder / "waiting").exists, daemon_log)
        processes = json.loads((folder / "waiting").read_text())
        assert all(map(is_alive, processes))
        client.terminate(run_id)
        assert wait_until(lambda: final_status(instance, run_id), daemon_log) is dg.DagsterRunStatus.CANCELED
        wait_until(lambda: not any(map(is_alive, processes)), lambda: f"{processes} are still alive")
        assert Table.open(uri).version == before
        assert Table.open(uri).fsck().is_sound
        (folder / "wait").unlink()
        second_run = client.launch(LOCATION, "load")
        assert wait_until(lambda: final_status(instance, second_run), daemon_log) is dg.DagsterRunStatus.SUCCESS, (
            run_log(instance, second_run)
        )
    table = Table.open(uri)
    assert (table.version, table.transaction().properties["dagster.run_id"]) == (before + 1, second_run)  # type: ignore[union-attr]
    recorded = [(run_id, event.partition) for run_id, event in events(instance, dg.AssetKey(["lake", "orders"]))]
    assert [each for each in recorded if each[0] == second_run] == [(second_run, f"v{table.version:010}")]
    assert retry_of(instance, run_id) is None  # a terminated run is not retried


def is_alive(process: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def check_on_s3(instance: dg.DagsterInstance, run_id: str, bucket: Bucket) -> None:
    for name in ("clicks", "views"):
        table = Table.open(f"{bucket.uri}/{name}.lance", storage_options=bucket.options)
        assert table.count_rows() == project.ROWS
        assert table.versions()[0].properties["dagster.run_id"] == run_id
        ((recorder, event),) = events(instance, dg.AssetKey(name))
        assert (recorder, event.partition) == (run_id, "v0000000001")


def check_no_secrets(folder: Path, pages: str, database: str) -> None:
    """Check that Dagster's database, its pages and all written files contain no secret."""
    assert SECRET not in pages
    assert PASSWORD not in pages
    rows = 0
    with psycopg.connect(database) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (name,) in tables:
            for (row,) in connection.execute(f'SELECT row_to_json(t)::text FROM "{name}" t'.encode()):
                rows += 1
                assert SECRET not in row, name
                assert PASSWORD not in row, name
    assert rows > 100
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert any("compute_logs" in file.parts or file.suffix in (".err", ".out") for file in files)
    for file in files:
        assert SECRET.encode() not in file.read_bytes(), file
        assert PASSWORD.encode() not in file.read_bytes(), file


def run_log(instance: dg.DagsterInstance, run_id: str) -> str:
    entries: list[Any] = [entry.to_json() for entry in instance.all_logs(run_id)][-8:]
    return "\n".join(map(str, entries))

"""Recipes of docs/platforms.md with the client libraries of the platforms, in the environment of `make platforms`.

The clients of Dagster Pipes launch `deploy/load_orders.py` as the recipes say: emulators of the services run it as a
local process with Spark, without Dagster.
"""

import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest
from dagster_databricks.pipes import PipesDatabricksServerlessClient
from dagster_gcp.pipes import PipesDataprocJobClient, PipesGCSContextInjector, PipesGCSMessageReader
from dagster_k8s import PipesK8sClient
from databricks.sdk import WorkspaceClient
from databricks.sdk.service import jobs
from google.auth.credentials import AnonymousCredentials
from google.cloud import dataproc_v1, storage

from lance_assets import LanceTable, RemoteWrite, lance_table
from lance_assets.spark.java import ensure_java
from lance_core import Table
from tests.lance_assets.instances import events, instance_in, metadata_values, partitions
from tests.lance_core.storage.gcs_server import GcsEmulator, create_server
from tests.platforms.databricks_workspace import open_workspace
from tests.test_platforms import ROOT, declared_writes, json_block

ORDERS, DAY = 1_000, "2026-01-01"
SCRIPT = ROOT / "deploy" / "load_orders.py"
pytestmark = pytest.mark.timeout(600)


def test_compose_file_follows_the_schema(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("service: {}\n")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    for path, is_valid in ((ROOT / "deploy" / "compose" / "compose.yaml", True), (wrong, False)):
        done = subprocess.run([*command, path], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is is_valid, done.stdout


def test_kubernetes_client_takes_the_arguments_of_the_recipe() -> None:
    write = next(each for each in declared_writes() if isinstance(each.launch, Mapping) and "image" in each.launch)
    assert isinstance(write.launch, Mapping)
    inspect.signature(PipesK8sClient.run).bind(None, context=None, extras={}, **write.launch)


@pytest.mark.timeout(600)
def test_databricks_job_reports_through_a_volume(tmp_path: Path) -> None:
    """The task of the recipe has only fields that the SDK knows, and its script finds the channels in a volume."""
    task = json_block("Databricks")
    assert jobs.SubmitTask.from_dict(task).as_dict() == task
    task["spark_python_task"]["python_file"] = str(SCRIPT)
    with open_workspace(tmp_path, remote_environment(tmp_path)) as workspace:
        client = PipesDatabricksServerlessClient(
            WorkspaceClient(host=workspace.host, token="not-a-token"),
            volume_path=str(tmp_path / "volume"),
            poll_interval_seconds=1,
        )
        check_two_days(tmp_path, client, {"task": jobs.SubmitTask.from_dict(task)})
        assert [each["new_cluster"] for each in workspace.tasks] == [task["new_cluster"]] * 2


def test_dataproc_job_reports_through_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = json_block("Dataproc")
    dataproc_v1.SubmitJobRequest(params)  # a field that the service does not have is an error
    params["job"]["pyspark_job"]["main_python_file_uri"] = str(SCRIPT)

    def launch(ctx: object) -> Mapping[str, object]:
        return {"submit_job_params": {**params, "job": dataproc_v1.Job(params["job"])}}

    with gcs_bucket() as endpoint:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
        bucket = storage.Client("lake", AnonymousCredentials())
        service = JobService(remote_environment(tmp_path))
        client = PipesDataprocJobClient(
            PipesGCSMessageReader(bucket="messages", client=bucket, interval=1),
            client=service,
            context_injector=PipesGCSContextInjector(bucket="messages", client=bucket),
            poll_interval=0.5,
        )
        check_two_days(tmp_path, client, launch)


def remote_environment(folder: Path) -> dict[str, str]:
    """Return the variables of processes that find no Dagster, as on another machine."""
    ensure_java()
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "dagster.py").write_text("raise ModuleNotFoundError('there is no Dagster on a remote machine')")
    return {**os.environ, "PYTHONPATH": f"{hidden}:{ROOT}", "PYSPARK_PYTHON": sys.executable}


def check_two_days(
    folder: Path, client: object, launch: Mapping[str, object] | Callable[[object], Mapping[str, object]]
) -> None:
    """Materialize two partitions with one declaration, and read what the processes report."""
    days = dg.StaticPartitionsDefinition([DAY, "2026-01-02"])
    write = RemoteWrite("load", launch=launch, remote_checks=["not_empty"], partitions=days)
    table = lance_table("orders", uri=str(folder / "orders.lance"), writes=[write])
    with instance_in(folder) as instance:
        for number, day in enumerate(days.get_partition_keys(), 1):
            assert materialize(table, instance, client, day).success
            assert Table.open(table.uri).count_rows() == number * ORDERS
        shown = [metadata_values(event) for _, event in events(instance, table.write_key("load"))]
        assert [each["lance/rows_added"] for each in shown] == [ORDERS, ORDERS]
        assert all(each["spark"] for each in shown)
        assert len(partitions(instance, table)) == Table.open(table.uri).version


def materialize(table: LanceTable, instance: dg.DagsterInstance, client: object, day: str) -> dg.ExecuteInProcessResult:
    resources = dg.Definitions(
        resources={"pipes": client}, jobs=[dg.define_asset_job("job", [table.write_key("load")])]
    )
    job = dg.Definitions.merge(table.defs, resources).resolve_job_def("job")
    return job.execute_in_process(instance=instance, partition_key=day)


class JobService:
    """Job service of Dataproc that runs each submitted file as a local process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def submit_job(self, *, project_id: str, region: str, job: dataproc_v1.Job) -> dataproc_v1.Job:
        assert (project_id, region) == ("lake", "europe-west1")
        work = job.pyspark_job
        command = [sys.executable, work.main_python_file_uri, *work.args]
        number = str(len(self._processes))
        self._processes[number] = subprocess.Popen(command, env=dict(self._environment))
        return dataproc_v1.Job(job_uuid=number)

    def get_job(self, *, job_id: str, project_id: str, region: str) -> dataproc_v1.Job:
        code = self._processes[job_id].poll()
        states = dataproc_v1.JobStatus.State
        state = states.RUNNING if code is None else states.ERROR if code else states.DONE
        return dataproc_v1.Job(job_uuid=job_id, status={"state": state}, done=code is not None)


@contextmanager
def gcs_bucket() -> Iterator[str]:
    """Serve an emulator of Cloud Storage with the bucket `messages`, and yield its address."""
    server = create_server(GcsEmulator({"messages": {}}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()

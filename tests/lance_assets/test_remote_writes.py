"""Remote writes: processes without Dagster write tables and report through Pipes; some are killed on the way.

The processes of this module write without Spark, so that each takes a second or two. `make test` launches the most
important ones and `make dagster-proofs` all. `tests/clusters/test_remote.py` launches spark-submit.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster_pipes import encode_param

from lance_assets import LanceResource, LanceTable, RemoteWrite, RowCount, SparkAppend, WriteContext, lance_table
from lance_assets.components import LanceTableComponent
from lance_core import InvalidInput, Table
from tests.lance_assets.instances import events, instance_in, metadata_values, partitions
from tests.lance_assets.remote_script import ROWS

PROJECT = Path(__file__).resolve().parents[2]
CANARY = "canary-of-the-lake"
EVERYTHING = os.environ.get("PROOFS") == "all"
FATES = [("die_before_report", 0), *([("die_before_commit", 1)] if EVERYTHING else [])]
DAYS = dg.StaticPartitionsDefinition(["2026-01-01", "2026-01-02"])


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with instance_in(tmp_path) as each:
        yield each


class Launches(dg.PipesSubprocessClient):
    """Client that stores what it passes on. Its processes cannot import Dagster."""

    def __init__(self, folder: Path, reader: "FolderReader | None" = None) -> None:
        hidden = folder / "hidden"
        hidden.mkdir(exist_ok=True)
        (hidden / "dagster.py").write_text("raise ModuleNotFoundError('there is no Dagster on a remote machine')")
        environment = {"PYTHONPATH": f"{hidden}:{PROJECT}", **({"MESSAGES_IN_FILES": "yes"} if reader else {})}
        super().__init__(env=environment, cwd=str(PROJECT), message_reader=reader)
        self.extras: list[Mapping[str, Any]] = []

    def run(self, **arguments: Any) -> dg.PipesClientCompletedInvocation:
        self.extras.append(arguments["extras"])
        return super().run(**arguments)


class FolderReader(dg.PipesBlobStoreMessageReader):
    """Reader of messages in numbered files, of which each launch has its own, as in a bucket."""

    def __init__(self, folder: Path) -> None:
        super().__init__(interval=0.1)
        self.folder = folder

    @contextmanager
    def get_params(self) -> Iterator[dict[str, Any]]:
        with tempfile.TemporaryDirectory(dir=self.folder) as path:
            yield {"path": path}

    def download_messages_chunk(self, index: int, params: Mapping[str, Any]) -> str | None:
        file = Path(params["path"], f"{index}.json")
        return file.read_text() or None if file.exists() else None

    def messages_are_readable(self, params: Mapping[str, Any]) -> bool:
        return True

    def no_messages_debug_text(self) -> str:
        return "no messages in numbered files"


def scene(ctx: WriteContext) -> Mapping[str, object]:
    """Return the command of the scene that a tag of the run names; further launches of a run commit."""
    scenes = ctx.dagster.run.tags["scenes"].split(",")
    number = min(ctx.dagster.retry_number, len(scenes) - 1)
    return {"command": [sys.executable, "-m", "tests.lance_assets.remote_script", scenes[number]]}


def declare(folder: Path, **options: Any) -> LanceTable:
    options = {"remote_checks": ["ids", "size"], **options}
    write = RemoteWrite("load", launch=scene, **options)
    storage = LanceResource(storage_options={"aws_secret_access_key": dg.EnvVar("LAKE_KEY")})
    return lance_table("t", uri=str(folder / "t.lance"), writes=[write], checks=[RowCount(min=1)], storage=storage)


def run(
    table: LanceTable,
    instance: dg.DagsterInstance,
    scenes: str,
    *,
    partition: str | None = None,
    client: Launches | None = None,
    tags: Mapping[str, str] | None = None,
) -> tuple[dg.ExecuteInProcessResult, Launches]:
    client = client or Launches(Path(table.uri).parent)
    resources = dg.Definitions(
        resources={"pipes": client}, jobs=[dg.define_asset_job("job", [table.write_key("load")])]
    )
    job = dg.Definitions.merge(table.defs, resources).resolve_job_def("job")
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    done = job.execute_in_process(
        instance=instance,
        partition_key=partition,
        run_config=quiet,
        tags={"scenes": scenes, **(tags or {})},
        raise_on_error=False,
    )
    return done, client


def check_evaluations(
    instance: dg.DagsterInstance, done: dg.ExecuteInProcessResult
) -> dict[str, tuple[bool, str | None]]:
    """Return the results of the checks of the write, which a failed step has logged as events."""
    entries = instance.all_logs(done.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    evaluations = [entry.dagster_event.event_specific_data for entry in entries if entry.dagster_event]
    return {
        each.check_name: (each.passed, each.description)
        for each in evaluations
        if isinstance(each, dg.AssetCheckEvaluation) and each.asset_key.path[-1] == "load"
    }


def failure_of(done: dg.ExecuteInProcessResult) -> str:
    (failed,) = done.filter_events(lambda event: event.is_step_failure)
    return str(failed.step_failure_data.error)


def versions(table: LanceTable, instance: dg.DagsterInstance) -> list[str | None]:
    assert [event.partition for _, event in events(instance, table.key)] == partitions(instance, table)
    return [event.partition for _, event in events(instance, table.key)]


def test_a_backfill_launches_a_process_for_each_partition(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_KEY", CANARY)
    table = declare(tmp_path, partitions=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
    days = ["2026-01-01", "2026-01-02"]
    ends = {"dagster/asset_partition_range_start": days[0], "dagster/asset_partition_range_end": days[1]}
    launches = Launches(tmp_path, FolderReader(tmp_path))
    done, client = run(table, instance, "commit", tags=ends, client=launches)
    assert done.success, failure_of(done)
    assert len(client.extras) == 2
    assert set(Table.open(table.uri).to_table()["day"].to_pylist()) == set(days)
    assert sorted(str(event.partition) for _, event in events(instance, table.write_key("load"))) == days


def test_what_the_process_reports_is_on_the_pages(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_KEY", CANARY)
    table = declare(tmp_path, partitions=DAYS)
    done, client = run(table, instance, "commit", partition="2026-01-02")
    assert done.success
    assert check_evaluations(instance, done) == {
        "ids": (True, "passed before the version was published"),
        "size": (False, "a little small"),
    }
    ((run_id, written),) = events(instance, table.write_key("load"))
    (info,) = (each for each in Table.open(table.uri).versions() if each.rows_added)
    shown = metadata_values(written)
    assert (shown["lance/version"], shown["lance/rows_added"], shown["cluster"]) == (info.version, ROWS, "local")
    assert (shown["lance/attempts"], shown["lance/landed_before"]) == (1, False)
    assert info.properties["dagster.run_id"] == run_id
    assert info.properties["dagster.partition"] == "2026-01-02"
    # The process created the table before it appended; the sensor or the run records that version too.
    assert versions(table, instance) == ["v0000000001", "v0000000002"]
    messages = [entry.user_message for entry in instance.all_logs(run_id)]
    assert "1 of 2" in messages
    (extras,) = client.extras
    assert extras["lance_assets"]["storage_options"] == {"aws_secret_access_key": "env:LAKE_KEY"}
    assert CANARY not in json.dumps(extras)
    assert extras["lance_assets"]["creation"] == {"stable_row_ids": True, "storage_version": None}
    assert Table.open(table.uri).manifest.has_stable_row_ids


@pytest.mark.parametrize(("fate", "launches"), FATES)
def test_killed_process_and_its_retry_make_one_version(
    tmp_path: Path, instance: dg.DagsterInstance, fate: str, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_KEY", CANARY)
    table = declare(tmp_path)
    first, _ = run(table, instance, fate)
    assert not first.success
    assert "process failed with code" in failure_of(first)
    # The ledger shows what the table has, also after the failure.
    assert versions(table, instance) == ([] if launches else ["v0000000001", "v0000000002"])
    origin = {"dagster/parent_run_id": first.run_id, "dagster/root_run_id": first.run_id}
    again, client = run(table, instance, "commit", tags=origin)
    assert again.success
    assert len(client.extras) == launches
    assert Table.open(table.uri).count_rows() == ROWS
    assert versions(table, instance) == ["v0000000001", "v0000000002"]
    ((_, written),) = events(instance, table.write_key("load"))
    assert metadata_values(written)["lance/landed_before"] is not bool(launches)
    assert metadata_values(written)["lance/version"] == 2


class Abandoned(Launches):
    """Client whose Dagster process ends after the launch, so that the launched process goes on alone."""

    process: "subprocess.Popen[bytes]"

    def run(self, **arguments: Any) -> dg.PipesClientCompletedInvocation:
        with dg.open_pipes_session(
            arguments["context"], self.context_injector, self.message_reader, arguments["extras"]
        ) as session:
            messages = Path(self.env["PYTHONPATH"].partition(":")[0], "messages")
            params = {
                "DAGSTER_PIPES_CONTEXT": {"data": session.context_data},
                "DAGSTER_PIPES_MESSAGES": {"path": str(messages)},
            }
            environment = {**os.environ, **self.env, **{name: encode_param(value) for name, value in params.items()}}
            self.process = subprocess.Popen(arguments["command"], cwd=self.cwd, env=environment)
        raise RuntimeError("the Dagster process ended")


if EVERYTHING:

    def test_process_that_goes_on_without_dagster_commits_no_second_version(
        tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LAKE_KEY", CANARY)
        table = declare(tmp_path, remote_checks=[])
        Table.create(table.uri, pa.table({"id": pa.array([], pa.int64()), "day": pa.array([], pa.string())}))
        abandoned = Abandoned(tmp_path)
        first, _ = run(table, instance, "wait_and_commit", client=abandoned)
        assert not first.success
        again, client = run(table, instance, "lose_report", tags={"dagster/parent_run_id": first.run_id})
        assert again.success
        assert len(client.extras) == 1
        assert abandoned.process.wait() == 0
        assert Table.open(table.uri).count_rows() == ROWS
        assert versions(table, instance) == ["v0000000001", "v0000000002"]


def test_error_of_the_core_is_retried_in_the_same_run(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_KEY", CANARY)
    table = declare(tmp_path)
    done, client = run(table, instance, "conflict,commit")
    assert done.success
    assert len(client.extras) == 2
    assert versions(table, instance) == ["v0000000001", "v0000000002"]


def test_lost_report_and_refused_change(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_KEY", CANARY)
    table = declare(tmp_path, remote_checks=[])
    done, _ = run(table, instance, "lose_report")
    assert done.success
    assert versions(table, instance) == ["v0000000001", "v0000000002"]
    audited = declare(tmp_path)
    refused, _ = run(audited, instance, "refuse")
    assert not refused.success
    assert "an audit refused the change" in failure_of(refused)
    assert check_evaluations(instance, refused) == {"ids": (False, f"{2 * ROWS} ids")}
    assert Table.open(table.uri).count_rows() == ROWS


if EVERYTHING:

    def test_report_without_a_commit(
        tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LAKE_KEY", CANARY)
        table = declare(tmp_path, remote_checks=[])
        forgot, _ = run(table, instance, "forget_options")
        assert "reported version 2, which has no write with the intent of this run" in failure_of(forgot)
        messages = [entry.user_message for entry in instance.all_logs(forgot.run_id)]
        assert any("declared with stable_row_ids=True and created otherwise" in each for each in messages)
        done, _ = run(table, instance, "unchanged")
        assert done.success
        *_, (_, written) = events(instance, table.write_key("load"))
        assert metadata_values(written)["lance/rows_added"] == 0


def test_process_that_dagster_did_not_launch_is_refused() -> None:
    from lance_assets.pipes import open_remote_write

    assert "DAGSTER_PIPES_CONTEXT" not in os.environ
    with pytest.raises(InvalidInput, match="Dagster Pipes did not launch this process"), open_remote_write():
        pass


INVALID: list[tuple[Mapping[str, Any], str]] = [
    ({"launch": "spark-submit"}, "launch= must be a mapping"),
    ({"launch": {"context": 1}}, "launch= has 'context'"),
    ({"launch": {}, "remote_checks": "size"}, "remote_checks= must be a list"),
    ({"launch": {}, "remote_uri": "s3://key:pass@lake/t"}, "remote_uri= contains a secret"),
    ({"launch": {}, "remote_storage_options": {"aws_secret_access_key": CANARY}}, "is a literal secret"),
    ({"launch": {}, "audit": [RowCount(min=1)]}, "audit="),
]


@pytest.mark.parametrize(("options", "message"), INVALID)
def test_declaration_is_refused(options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        RemoteWrite("load", **options)
    assert CANARY not in str(refused.value)


def test_remote_write_in_yaml() -> None:
    yaml = """
name: t
uri: s3://lake/t.lance
writes:
  - op: remote
    name: load
    client: submit
    remote_checks: [ids]
    remote_storage_options: { aws_region: eu-west-1 }
    launch:
      command: [spark-submit, load.py]
      env: { TOKEN: "{{ env.TOKEN }}", LEVEL: "1" }
"""
    (write,) = LanceTableComponent.resolve_from_yaml(yaml).table.writes
    launch = {"command": ["spark-submit", "load.py"], "env": {"TOKEN": dg.EnvVar("TOKEN"), "LEVEL": "1"}}
    assert write == RemoteWrite(
        "load",
        launch=launch,
        client="submit",
        remote_checks=["ids"],
        remote_storage_options={"aws_region": "eu-west-1"},
    )
    asset = lance_table("t", uri="t", writes=[write]).defs.get_assets_def("load")
    assert asset.required_resource_keys == {"submit", "io_manager"}


def test_remote_write_has_no_session_in_the_dagster_process(tmp_path: Path) -> None:
    def launch(ctx: WriteContext) -> Mapping[str, object]:
        return {"command": ctx.spark.range(3)}

    table = lance_table("t", uri=str(tmp_path), writes=[RemoteWrite("load", launch=launch)])
    with dg.DagsterInstance.ephemeral() as instance:
        done, _ = run(table, instance, "commit")
    assert "has no Spark session in the Dagster process" in failure_of(done)
    assert SparkAppend("x", launch).resource_key == "spark"  # type: ignore[arg-type]

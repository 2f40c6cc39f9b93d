"""Concurrent recording: several processes record one version at the same moment and make one event for each version.

The file lock of SQLite serializes them; on PostgreSQL a key that was added first may become visible last. `make test`
runs on SQLite, `make dagster-proofs` on both.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import psycopg
import pyarrow as pa
import pytest
from dagster import DagsterInstance

from lance_assets import lance_table
from lance_assets.ledger.recording_lock import RecordingLock
from lance_core import Table
from tests.lance_assets.concurrent_recording import record_at_once
from tests.lance_assets.instances import events, partitions, version_claims
from tests.postgres import for_dagster, postgres_server

ALL = os.environ.get("PROOFS") == "all"
PROCESSES, VERSIONS = 3, 200 if ALL else 10
_numbers = itertools.count()
Home = Callable[[Path], Path]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"] if ALL else ["sqlite"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """DAGSTER_HOME with its own database."""
    home_path = tmp_path / "home"
    home_path.mkdir()
    config = "telemetry:\n  enabled: false\n"
    if request.param == "postgresql":
        url, name = request.getfixturevalue("postgres"), f"dagster_{next(_numbers)}"
        with psycopg.connect(url.format(database="postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        config += f'storage:\n  postgres:\n    postgres_url: "{for_dagster(url.format(database=name))}"\n'
    (home_path / "dagster.yaml").write_text(config)
    with DagsterInstance.from_config(str(home_path)) as instance:
        instance.get_runs(limit=1)
    return home_path


@pytest.mark.timeout(900)
def test_concurrent_recorders_make_one_event(home: Path, tmp_path: Path) -> None:
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"))
    at = Table.create(table.uri, pa.table({"id": [1]}), durable=False)
    for turn in range(VERSIONS - 1):
        at = at.set_config({"turn": str(turn)}).table
    assert list(record_at_once(home, table.uri, PROCESSES)) == [0] * PROCESSES
    with DagsterInstance.from_config(str(home)) as instance:
        recorded = Counter(event.partition for _, event in events(instance, table.key))
        assert recorded == {f"v{number:010}": 1 for number in range(1, VERSIONS + 1)}
        in_order = [f"v{number:010}" for number in range(1, VERSIONS + 1)]
        assert partitions(instance, table) == in_order
        assert [event.partition for _, event in events(instance, table.key)] == in_order
        assert len(instance.get_dynamic_partitions(table.ledger.table_set)) == 1
        assert version_claims(instance, table) == []


def test_first_recorder_waits_for_a_later_claim(tmp_path: Path, home: Path) -> None:
    """The database shows the claim of the first only after the second has read the claims."""
    ledger = lance_table("orders", uri=str(tmp_path / "orders.lance")).ledger
    with DagsterInstance.from_config(str(home)) as instance:
        locks = [RecordingLock(instance, ledger, f"{add_run(instance)}:v{number}") for number in range(2)]
        all_partitions, add_partitions = instance.get_dynamic_partitions, instance.add_dynamic_partitions
        hidden: list[str] = []
        waits: list[float] = []

        def acquire_second() -> None:
            """Acquire the second lock while the claim of the first is stored and not visible."""
            hidden[:] = all_partitions(ledger.claim_set)
            assert locks[1].acquire("v1")
            hidden.clear()

        def add_and_become_visible_late(name: str, keys: list[str]) -> None:
            add_partitions(name, keys)
            if not waits and not hidden:
                waits.append(0.0)
                acquire_second()

        def end_second_run_after_waits(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 5:
                second_run = instance.get_run_by_id(locks[1].claimant.partition(":")[0])
                assert second_run is not None
                instance.report_run_failed(second_run)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                instance,
                "get_dynamic_partitions",
                lambda name: [key for key in all_partitions(name) if key not in hidden],
            )
            patch.setattr(instance, "add_dynamic_partitions", add_and_become_visible_late)
            patch.setattr("lance_assets.ledger.recording_lock.sleep", end_second_run_after_waits)
            assert locks[0].acquire("v0")
        assert len(waits) >= 5
        assert [lock.is_held() for lock in locks] == [True, False]


def add_run(instance: dg.DagsterInstance) -> str:
    run = dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.STARTED)
    return instance.add_run(run).run_id

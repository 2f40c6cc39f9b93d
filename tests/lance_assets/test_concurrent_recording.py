"""Several recorders of one version, in processes of their own and at the same moment: one event for each version.

On SQLite they are kept apart by the lock of its file, on PostgreSQL a key that was added first may show last.
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
from lance_assets.ledger.recording_claims import ClaimResult, claim_partitions, wait_for_others
from lance_core import Table
from tests.lance_assets.concurrent_recording import record_at_once
from tests.lance_assets.instances import claims, events, partitions
from tests.postgres import for_dagster, postgres_server

PROCESSES, VERSIONS = 3, 200 if os.environ.get("PROOFS") == "all" else 20
_numbers = itertools.count()
Home = Callable[[Path], Path]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """DAGSTER_HOME, with a database of its own."""
    place = tmp_path / "home"
    place.mkdir()
    config = "telemetry:\n  enabled: false\n"
    if request.param == "postgresql":
        url, name = request.getfixturevalue("postgres"), f"dagster_{next(_numbers)}"
        with psycopg.connect(url.format(database="postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        config += f'storage:\n  postgres:\n    postgres_url: "{for_dagster(url.format(database=name))}"\n'
    (place / "dagster.yaml").write_text(config)
    with DagsterInstance.from_config(str(place)) as instance:
        instance.get_runs(limit=1)
    return place


@pytest.mark.timeout(900)
def test_recorders_at_the_same_moment_make_one_event(home: Path, tmp_path: Path) -> None:
    table = lance_table("orders", uri=str(tmp_path / "orders.lance"))
    at = Table.create(table.uri, pa.table({"id": [1]}), durable=False)
    for turn in range(VERSIONS - 1):
        at = at.set_config({"turn": str(turn)}).table
    assert list(record_at_once(home, table.uri, PROCESSES)) == [0] * PROCESSES
    with DagsterInstance.from_config(str(home)) as instance:
        recorded = Counter(event.partition for _, event in events(instance, table.key))
        assert recorded == {f"v{number:010}": 1 for number in range(1, VERSIONS + 1)}
        assert set(partitions(instance, table)) == set(recorded)
        assert len(instance.get_dynamic_partitions(table.ledger.table_set)) == 1
        assert claims(instance, table) == []


def test_of_two_that_may_not_have_seen_each_other_the_first_waits(tmp_path: Path, home: Path) -> None:
    """As where a database shows the first's claim when the second has looked already."""
    ledger = lance_table("orders", uri=str(tmp_path / "orders.lance")).ledger
    with DagsterInstance.from_config(str(home)) as instance:
        first, second = (add_run(instance) for _ in range(2))
        shown = instance.get_dynamic_partitions
        hidden = claim_partitions(instance, ledger, ["v1"], first)
        assert hidden == ClaimResult(frozenset({"v1"}), frozenset())
        with pytest.MonkeyPatch.context() as patch:
            without = [key for key in shown(ledger.claim_set) if first in key]
            patch.setattr(
                instance, "get_dynamic_partitions", lambda name: [key for key in shown(name) if key not in without]
            )
            assert claim_partitions(instance, ledger, ["v1"], second).held == {"v1"}
        late = claim_partitions(instance, ledger, ["v1"], first)
        assert late == ClaimResult(frozenset({"v1"}), frozenset({"v1"}))
        # Until the second lets go, or its run ends.
        instance.report_run_failed(instance.get_run_by_id(second))  # type: ignore[arg-type]
        wait_for_others(instance, ledger, "v1", first)
        assert claim_partitions(instance, ledger, ["v1"], first).contested == frozenset()


def add_run(instance: dg.DagsterInstance) -> str:
    run = dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.STARTED)
    return instance.add_run(run).run_id

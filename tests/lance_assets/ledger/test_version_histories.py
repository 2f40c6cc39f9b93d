"""Random histories: the keys and events of a ledger are always in the order of versions, and complete at the end."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psycopg
import pytest

from lance_assets.ledger import recording_lock
from lance_assets.ledger.recording_lock import RecordingLock
from tests.lance_assets.instances import events, instance_in
from tests.lance_assets.ledger.histories import History
from tests.postgres import for_dagster, postgres_server

IS_PROOF = os.environ.get("PROOFS") == "all"
SEEDS, STEPS = (100, 40) if IS_PROOF else (8, 20)
DATABASE_SEEDS = 20 if IS_PROOF else 2


@pytest.fixture(autouse=True)
def _sleep_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the waits of recorders, since a history is played by one thread."""
    for module in ("recording", "recording_lock"):
        monkeypatch.setattr(f"lance_assets.ledger.{module}.sleep", lambda _: None)
    monkeypatch.setattr(recording_lock, "RUN_CHECKS_MAX", 3)
    monkeypatch.setattr(recording_lock, "CHECKS_MAX", 3)
    monkeypatch.setattr("lance_assets.ledger.recording.ACTIVE_RUN_CHECKS_MAX", 2)


def play_history(
    instance: dg.DagsterInstance, folder: Path, seed: int, steps: int = STEPS, database: Path | None = None
) -> None:
    folder.mkdir()
    history = History(instance, folder, random.Random(seed), database)
    for _ in range(steps):
        history.play_step()
        check_order(history, seed)
    history.settle_ledger()
    keys = history.keys_of_table()
    assert history.listed_keys() == keys, (seed, history.step_names)
    assert set(keys) <= set(history.recorded_partitions()), (seed, history.step_names)
    assert events(instance, history.table.key)[-1][1].partition == keys[-1], (seed, history.step_names)
    check_order(history, seed)


def check_order(history: History, seed: int) -> None:
    """Assert that no version is recorded twice, nor after a later version of its table."""
    for partitions in (history.listed_keys(), history.recorded_partitions()):
        by_table: dict[str, list[str]] = {}
        for key in partitions:
            assert key is not None
            by_table.setdefault(key.rpartition("v")[0], []).append(key)
        for keys in by_table.values():
            assert keys == sorted(set(keys)), (seed, history.step_names)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_history_in_memory(seed: int, tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        play_history(instance, tmp_path / "history", seed)


@pytest.mark.parametrize("seed", range(1_000, 1_000 + DATABASE_SEEDS))
def test_history_on_sqlite(seed: int, tmp_path: Path) -> None:
    with instance_in(tmp_path) as instance:
        (database,) = tmp_path.rglob("index.db")
        play_history(instance, tmp_path / "history", seed, database=database)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.mark.parametrize("seed", range(2_000, 2_000 + DATABASE_SEEDS))
def test_history_on_postgresql(seed: int, tmp_path: Path, postgres: str) -> None:
    with psycopg.connect(postgres.format(database="postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE history_{seed}".encode())
    database = for_dagster(postgres.format(database=f"history_{seed}"))
    (tmp_path / "dagster.yaml").write_text(
        f'telemetry:\n  enabled: false\nstorage:\n  postgres:\n    postgres_url: "{database}"\n'
    )
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        play_history(instance, tmp_path / "history", seed, STEPS // 2)


def test_histories_need_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordingLock, "acquire", lambda *_, **__: True)
    monkeypatch.setattr(RecordingLock, "is_held", lambda _: True)
    with pytest.raises(AssertionError):  # noqa: PT012 - one of the histories fails
        for seed in range(50):
            with dg.DagsterInstance.ephemeral() as instance:
                play_history(instance, tmp_path / f"history-{seed}", seed)

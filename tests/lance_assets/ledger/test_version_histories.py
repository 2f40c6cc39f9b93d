"""Random histories of a ledger: at every moment its keys and events are in the order of versions, and in the end it has
every version once, the newest last."""

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
SEEDS_OF_DATABASES = 20 if IS_PROOF else 2


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process continues while a recorder waits."""
    for module in ("recording", "recording_lock"):
        monkeypatch.setattr(f"lance_assets.ledger.{module}.sleep", lambda _: None)
    monkeypatch.setattr(recording_lock, "RUN_CHECKS_MAX", 3)
    monkeypatch.setattr(recording_lock, "CHECKS_MAX", 3)
    monkeypatch.setattr("lance_assets.ledger.recording.ACTIVE_RUN_CHECKS_MAX", 2)


def play(
    instance: dg.DagsterInstance, folder: Path, seed: int, steps: int = STEPS, database: Path | None = None
) -> None:
    folder.mkdir()
    history = History(instance, folder, random.Random(seed), database)
    for _ in range(steps):
        history.step()
        check_order(history, seed)
    history.settle()
    keys = history.current_keys()
    assert history.listed() == keys, (seed, history.told)
    assert set(keys) <= set(history.recorded()), (seed, history.told)
    assert events(instance, history.table.key)[-1][1].partition == keys[-1], (seed, history.told)
    check_order(history, seed)


def check_order(history: History, seed: int) -> None:
    """No version is recorded twice, and none after a later one of its table."""
    for partitions in (history.listed(), history.recorded()):
        by_table: dict[str, list[str]] = {}
        for key in partitions:
            assert key is not None
            by_table.setdefault(key.rpartition("v")[0], []).append(key)
        for keys in by_table.values():
            assert keys == sorted(set(keys)), (seed, history.told)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_in_memory(seed: int, tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        play(instance, tmp_path / "history", seed)


@pytest.mark.parametrize("seed", range(1_000, 1_000 + SEEDS_OF_DATABASES))
def test_on_sqlite(seed: int, tmp_path: Path) -> None:
    with instance_in(tmp_path) as instance:
        (database,) = tmp_path.rglob("index.db")
        play(instance, tmp_path / "history", seed, database=database)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.mark.parametrize("seed", range(2_000, 2_000 + SEEDS_OF_DATABASES))
def test_on_postgresql(seed: int, tmp_path: Path, postgres: str) -> None:
    with psycopg.connect(postgres.format(database="postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE history_{seed}".encode())
    database = for_dagster(postgres.format(database=f"history_{seed}"))
    (tmp_path / "dagster.yaml").write_text(
        f'telemetry:\n  enabled: false\nstorage:\n  postgres:\n    postgres_url: "{database}"\n'
    )
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        play(instance, tmp_path / "history", seed, STEPS // 2)


def test_the_histories_need_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordingLock, "acquire", lambda *_, **__: True)
    monkeypatch.setattr(RecordingLock, "is_held", lambda _: True)
    with pytest.raises(AssertionError):  # noqa: PT012 - one of them fails
        for seed in range(50):
            with dg.DagsterInstance.ephemeral() as instance:
                play(instance, tmp_path / f"history-{seed}", seed)

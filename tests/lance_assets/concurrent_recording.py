"""Processes that record the same versions of one table at the same moments. Not a test: `test_concurrent_recording.py`
starts them."""

import multiprocessing
from collections.abc import Sequence
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path

import dagster as dg

from lance_assets import lance_table
from lance_assets.ledger.dynamic_partitions import incarnation_of
from lance_assets.ledger.recording import record_in_run
from lance_assets.ledger.version_metadata import VersionFacts, discovered_facts
from lance_core import Table

SECONDS_MAX = 800
"""Two hundred versions, on a machine that has other things to do."""


def record_at_once(home: Path, uri: str, processes: int) -> Sequence[int]:
    """Answers their exit codes."""
    spawning = multiprocessing.get_context("spawn")
    barrier = spawning.Barrier(processes)
    started = [spawning.Process(target=record_all, args=(str(home), uri, barrier)) for _ in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join(SECONDS_MAX)
    codes = [process.exitcode for process in started]
    for process in started:
        process.kill()
    return [-1 if code is None else code for code in codes]


def record_all(home: str, uri: str, barrier: Barrier) -> None:
    ledger = lance_table("orders", uri=uri).ledger
    table = Table.open(uri)

    @dg.asset
    def recording(context: dg.AssetExecutionContext) -> None:
        instance = context.instance
        barrier.wait(SECONDS_MAX)
        epoch = incarnation_of(instance, ledger, table.id)
        for info in table.versions():
            facts: VersionFacts = discovered_facts(table.at(info.version), info, epoch)
            barrier.wait(SECONDS_MAX)
            record_in_run(context, ledger, facts)

    with dg.DagsterInstance.from_config(home) as instance:
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        began = datetime.now(UTC)
        assert dg.materialize([recording], instance=instance, run_config=quiet).success, began

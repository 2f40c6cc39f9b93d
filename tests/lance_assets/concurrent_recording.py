"""Concurrent recording: processes that record the same versions of one table at the same moments.

`test_concurrent_recording.py` starts them.
"""

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

TIMEOUT_S = 800
"""Time limit for two hundred versions on a busy machine."""


def record_at_once(home: Path, uri: str, processes: int) -> Sequence[int]:
    """Record all versions in this many processes, and return their exit codes."""
    spawn_context = multiprocessing.get_context("spawn")
    barrier = spawn_context.Barrier(processes)
    started = [spawn_context.Process(target=record_all, args=(str(home), uri, barrier)) for _ in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join(TIMEOUT_S)
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
        barrier.wait(TIMEOUT_S)
        epoch = incarnation_of(instance, ledger, table.id)
        for info in table.versions():
            facts: VersionFacts = discovered_facts(table.at(info.version), info, epoch)
            barrier.wait(TIMEOUT_S)
            record_in_run(context, ledger, facts, table)

    with dg.DagsterInstance.from_config(home) as instance:
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        started_at = datetime.now(UTC)
        assert dg.materialize([recording], instance=instance, run_config=quiet).success, started_at

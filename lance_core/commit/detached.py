"""Detached versions: commits an operation outside every branch, and publishes it later.

    commit_detached    creates a version under a number of its own, without checking conflicts
    publish            commits the same transaction to the branch, judged like any other, at most once

A detached version is found by its number alone, and no write is based on it. A cleanup removes an old one that was not
published and that no tag references (`maintenance/cleanup.py`).
"""

from collections.abc import Mapping
from dataclasses import replace

from lance_core import validation
from lance_core.commit.data_files import check_files
from lance_core.commit.detached_manifest import put_detached
from lance_core.commit.fencing import ClockReading
from lance_core.commit.write_protocol import (
    Change,
    StartedWrite,
    WriteResult,
    check_not_detached,
    record_result,
    resume,
)
from lance_core.errors import InvalidInput, NotFound
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.operations import Merge, Operation, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.transactions.apply import NewTable
from lance_core.transactions.change_summary import files_written
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_at, load_transaction


def commit_detached(
    base: Snapshot, operation: Operation, *, properties: Mapping[str, str], runtime: Runtime
) -> WriteResult:
    """Commit an operation whose files are written as a detached version based on `base`."""
    check_not_detached(base)
    location = base.location
    check_files(location, files_written(operation, base.manifest))
    ours = Transaction(base.version, str(runtime.new_uuid()), operation, properties)
    committed = put_detached(location, base, ours, started_at=ClockReading.distant_past(), runtime=runtime)
    return record_result(StartedWrite(location, base, ours.uuid, None, runtime), committed)


def publish(location: Location, version: Version, *, retries: int, runtime: Runtime) -> WriteResult:
    """Commit the transaction of a detached version to its branch."""
    validation.check_intent_and_retries(retries=retries)
    if not naming.is_detached(version):
        raise InvalidInput(f"{location.uri}: version {version} is not detached; only a detached version is published")
    detached = load_at(location, version)
    ours = load_transaction(detached.location, detached.manifest)
    if ours is None:
        raise NotFound(
            f"{location.uri}: the transaction of the detached version {version} is not recorded; write the change again"
        )
    if naming.is_detached(ours.read_version):
        raise InvalidInput(
            f"{location.uri}: version {version} is based on {ours.read_version}, which is detached too, and publishing "
            "it would lose the changes of that version. Repeat both changes on a version of the table"
        )
    base = _planned_base(location, detached, ours)
    started = StartedWrite(location, base, ours.uuid, None, runtime, verb=ours.verb)
    operation = _with_schema_metadata(ours.operation, detached.manifest.schema)
    is_first = isinstance(base, NewTable)
    change = Change(
        "publish",
        plan=None if is_first else lambda _base: operation,
        create=(lambda _started: operation) if is_first else None,
        can_replan=False,
        files_exist=True,  # they may be old, and a cleanup may be about to remove them
    )
    return resume(change, started, properties=ours.properties, retries=retries)


def _planned_base(location: Location, detached: Snapshot, ours: Transaction) -> Snapshot | NewTable:
    """Return the version that the transaction was planned on, or a new table for a first version that was audited."""
    if ours.read_version:
        return load_at(location, ours.read_version)
    return NewTable(detached.manifest.storage_version, detached.manifest.has_stable_row_ids)


def _with_schema_metadata(operation: Operation, schema: TableSchema) -> Operation:
    """Add the metadata of the schema from the version, since pylance leaves it out of transactions."""
    if isinstance(operation, Overwrite | Merge):
        return replace(operation, schema=TableSchema(operation.schema.fields, schema.metadata))
    return operation

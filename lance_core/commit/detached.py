"""Versions beside the line: written, looked at, and published or forgotten.

    commit     the operation on a version of the table, under a number that nobody else has; no conflict is looked for
    publish    the same transaction on the line, judged like any other; it lands once however often it is published

Nobody meets a detached version who does not have its number. Nothing is written upon one. One that is neither published
nor named goes with a cleanup, when it is old (`maintenance/cleanup.py`).
"""

from collections.abc import Mapping
from dataclasses import replace

from lance_core import validation
from lance_core.commit.change import Change, resume
from lance_core.commit.data_files import check_files
from lance_core.commit.detached_manifest import put_detached
from lance_core.commit.fencing import ClockReading
from lance_core.commit.write_protocol import StartedWrite, WriteResult, check_not_detached, record_result
from lance_core.errors import InvalidInput, NotFound
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.operations import Merge, Operation, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.transactions.apply import NewTable
from lance_core.transactions.change_stats import files_written
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_at, load_transaction


def commit_detached(
    base: Snapshot, operation: Operation, *, properties: Mapping[str, str], runtime: Runtime
) -> WriteResult:
    check_not_detached(base)
    location = base.location
    check_files(location, files_written(operation, base.manifest))
    ours = Transaction(base.version, str(runtime.new_uuid()), operation, properties)
    outcome = put_detached(location, base, ours, started_at=ClockReading.distant_past(), runtime=runtime)
    return record_result(StartedWrite(location, base, ours.uuid, None, runtime), outcome)


def publish(location: Location, version: Version, *, retries: int, runtime: Runtime) -> WriteResult:
    validation.check_intent_and_retries(retries=retries)
    if not naming.is_detached(version):
        raise InvalidInput(f"version {version} is on the line already; a detached one is published")
    found = load_at(location, version)
    ours = load_transaction(found.location, found.manifest)
    if ours is None:
        raise NotFound(f"{location.uri}: what made the detached version {version} is not recorded; write it again")
    if naming.is_detached(ours.read_version):
        raise InvalidInput(
            f"{location.uri}: version {version} was built on {ours.read_version}, which is detached too, and would "
            "leave its changes behind. Make the changes of both anew, on a version of the table"
        )
    started = StartedWrite(location, _planned_base(location, found, ours), ours.uuid, None, runtime)
    operation = _with_schema_metadata(ours.operation, found.manifest.schema)
    is_first = isinstance(started.base, NewTable)
    change = Change(
        "publish",
        plan=None if is_first else lambda _base: operation,
        create=(lambda _started: operation) if is_first else None,
        can_replan=False,
        files_exist=True,  # they may be old, and a cleanup may be about to remove them
    )
    return resume(change, started, properties=ours.properties, retries=retries)


def _planned_base(location: Location, found: Snapshot, ours: Transaction) -> Snapshot | NewTable:
    """What it was planned on. Of the first version of a table, which an audit has kept beside the line: on none."""
    if ours.read_version:
        return load_at(location, ours.read_version)
    return NewTable(found.manifest.storage_version, found.manifest.has_stable_row_ids)


def _with_schema_metadata(operation: Operation, schema: TableSchema) -> Operation:
    """With the metadata of the schema, which pylance leaves out of transactions; the version has it."""
    if isinstance(operation, Overwrite | Merge):
        return replace(operation, schema=TableSchema(operation.schema.fields, schema.metadata))
    return operation

"""OpenLineage events: reports each version that this process commits to the lineage service of the caller.

    commit loop ──► announce(...)  a few fields into a bounded queue      never waits, never raises
    thread      ──► RunEvent of `openlineage-python` ──► its configured transport (OPENLINEAGE_URL, openlineage.yml)

Events are off unless the environment has `LANCE_ASSETS_OPENLINEAGE=1`. The package (extra `openlineage`) is imported by
the thread. An event that cannot be sent is dropped with a warning. At process exit, a few seconds remain for pending
events and for versions that exit handlers commit. `005-openlineage-events.md` has the reasons. Start with `announce`.
"""

import atexit
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid5

import pyarrow as pa

from lance_core.errors import LanceError
from lance_core.format.manifest import Manifest
from lance_core.format.operations import Clone, Overwrite
from lance_core.format.transaction import Transaction
from lance_core.format.view_records import VIEW, ViewRecord
from lance_core.package_version import LIBRARY_VERSION
from lance_core.storage.factory import without_secrets
from lance_core.storage.optional_packages import import_package

SWITCH = "LANCE_ASSETS_OPENLINEAGE"
"""Environment variable that turns the events on."""
NAMESPACE = "OPENLINEAGE_NAMESPACE"
"""Environment variable of OpenLineage with the namespace of jobs."""
INPUTS = "lance_assets.inputs"
"""Property with the versions of other tables that were read, as `{uri: version}`; Dagster runs record it, and any
writer can."""
COLUMNS = "lance_assets.columns"
"""Property with the columns from which those of the version were computed."""
GIVEN_ROWS = ""
"""URI in that property for rows that the caller passes and whose origin is unknown."""
QUEUED_MAX = 1000
FLUSH_SECONDS = 5.0
"""Total time at process exit for sending pending events and those of later commits."""
_WARNING_SECONDS = 60.0
_PRODUCER = f"https://pypi.org/project/lance-assets/{LIBRARY_VERSION}"
_RUN_NAMESPACE = UUID("5b1d0f52-3c1e-4c56-9b0e-8f3f3a0f9c11")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommittedVersion:
    """Facts of one version that its event reports."""

    uri: str
    version: int
    committed_at: datetime
    transaction: Transaction
    schema: pa.Schema
    is_first: bool


@dataclass(frozen=True, slots=True)
class Dataset:
    """Name of a table by the naming rules of OpenLineage."""

    namespace: str
    name: str

    @classmethod
    def of(cls, uri: str) -> "Dataset":
        """Return the name of a table, without any secret of its URI.

        >>> Dataset.of("s3://key:word@lake/raw/orders.lance?token=1")
        Dataset(namespace='s3://lake', name='raw/orders.lance')
        >>> Dataset.of("/lake/orders.lance")
        Dataset(namespace='file', name='/lake/orders.lance')
        """
        shown = without_secrets(uri)
        scheme, separator, rest = shown.partition("://")
        if not separator or scheme == "file":
            return cls("file", rest if separator else shown)
        authority, _, path = rest.partition("/")
        return cls(f"{scheme}://{urlsplit(f'//{authority}').netloc.rpartition('@')[2]}", path or "/")


def is_enabled() -> bool:
    """Return whether the environment turns the events on."""
    return os.environ.get(SWITCH, "").lower() in ("1", "true", "yes", "on")


def announce(uri: str, manifest: Manifest, transaction: Transaction, *, is_first: bool) -> None:
    """Queue the event of a committed version. Never raises: the version exists, whatever happens to its event."""
    try:
        event = CommittedVersion(
            uri, int(manifest.version), manifest.timestamp, transaction, manifest.schema.arrow, is_first
        )
    except LanceError as error:
        _log.warning("%s: no OpenLineage event of version %d: %s", without_secrets(uri), manifest.version, error)
        return
    _sender().put(event)


def flush(seconds: float = FLUSH_SECONDS) -> bool:
    """Wait until all queued events are sent or dropped, at most this long. Return whether they are."""
    return _sender().flush(seconds)


class _Sender:
    """Thread of one process that sends events, and the number of those that wait for it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._thread: threading.Thread | None = None
        self._events: SimpleQueue[CommittedVersion] = SimpleQueue()
        self._client: Any = None
        self._pending, self._idle = 0, threading.Condition()
        self._warned_at = -_WARNING_SECONDS

    def put(self, event: CommittedVersion) -> None:
        try:
            self._queue(event)
        except RuntimeError as error:  # no thread can be started
            if not _exit.has_begun:
                self._warn(event, str(error))
            elif _exit.seconds_left > 0:
                self._send(event)
            return
        if _exit.has_begun:  # the exit handler does not wait for this event
            self.flush(_exit.seconds_left)

    def _queue(self, event: CommittedVersion) -> None:
        with self._idle:
            if self._pending >= QUEUED_MAX:
                self._warn(event, f"{QUEUED_MAX} earlier ones are not sent yet")
                return
            if self._thread is None:
                self._thread = start_thread(self._send_all)
            self._events.put(event)
            self._pending += 1

    def flush(self, seconds: float) -> bool:
        if self.process != os.getpid():
            return True  # a fork has no thread and no events of its own
        with self._idle:
            return self._idle.wait_for(lambda: not self._pending, seconds)

    def _send_all(self) -> None:
        while True:
            self._send(self._events.get())
            with self._idle:
                self._pending -= 1
                self._idle.notify_all()

    def _send(self, event: CommittedVersion) -> None:
        """Send an event. Any error of the transport is logged, and the event is dropped."""
        with ExitStack() as stack:
            stack.push(lambda _kind, error, _trace: self._log_error(event, error))
            if self._client is None:
                self._client = open_client()
            self._client.emit(run_event(event))

    def _log_error(self, event: CommittedVersion, error: BaseException | None) -> bool:
        """Log why an event is dropped. Return True if the error is handled, and False if it has to propagate."""
        if not isinstance(error, Exception):
            return False
        self._warn(event, str(error) if isinstance(error, LanceError) else type(error).__name__)
        return True

    def _warn(self, event: CommittedVersion, reason: str) -> None:
        """Log a dropped event, at most once a minute. Messages of the transport are left out, since they may contain
        its credentials."""
        now = time.monotonic()
        if now - self._warned_at >= _WARNING_SECONDS:
            self._warned_at = now
            uri = without_secrets(event.uri)
            _log.warning("%s: the OpenLineage event of version %d was not sent: %s", uri, event.version, reason)


def start_thread(run: Callable[[], None]) -> threading.Thread:
    """Start a thread that does not keep the process alive."""
    thread = threading.Thread(target=run, name="lance-openlineage", daemon=True)
    thread.start()
    return thread


class _ProcessExit:
    """State of the process exit. Exit handlers that were registered before the one of this module run after it, and may
    commit versions."""

    def __init__(self) -> None:
        self._ends_at: float | None = None

    @property
    def has_begun(self) -> bool:
        return self._ends_at is not None

    @property
    def seconds_left(self) -> float:
        return 0.0 if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())

    def begin(self) -> None:
        """Begin the exit, and wait until pending events are sent. Later calls do nothing."""
        if self._ends_at is None:
            self._ends_at = time.monotonic() + FLUSH_SECONDS
            if _current:
                _current[0].flush(FLUSH_SECONDS)


_exit = _ProcessExit()
atexit.register(_exit.begin)
_lock = threading.Lock()
_current: list[_Sender] = []
"""The sender of this process, once there is one."""


def _sender() -> _Sender:
    with _lock:
        if not _current or _current[0].process != os.getpid():
            _current[:] = [_Sender()]
        return _current[0]


def reset() -> None:
    """Forget the client, so that the next event reads the configuration of OpenLineage again."""
    with _lock:
        _current.clear()


def open_client() -> Any:
    """Return the client of OpenLineage for the configuration that it finds."""
    client = import_package("openlineage.client", extra="openlineage", needed_for="sending OpenLineage events")
    return client.OpenLineageClient()


def run_event(event: CommittedVersion) -> Any:
    """Return the event as an object of `openlineage-python`."""
    ol = import_package("openlineage.client.event_v2", extra="openlineage", needed_for="sending OpenLineage events")
    transaction = event.transaction
    properties = transaction.properties
    name = Dataset.of(event.uri)
    output = ol.OutputDataset(
        namespace=name.namespace,
        name=name.name,
        facets=_output_facets(event),
    )
    inputs = [
        ol.InputDataset(namespace=each.namespace, name=each.name, facets=_version_facet(version))
        for each, version in _inputs(properties)
    ]
    verb = transaction.verb or transaction.operation.name.lower()
    job = properties.get("dagster.asset_key") or f"{name.name.strip('/').rpartition('/')[2]}.{verb}"
    namespace = os.environ.get(NAMESPACE) or "lance-assets"
    return ol.RunEvent(
        eventType=ol.RunState.COMPLETE,
        eventTime=event.committed_at.isoformat(),
        run=ol.Run(runId=str(_run_id(transaction.uuid)), facets=_run_facets(properties, namespace, job)),
        job=ol.Job(namespace=namespace, name=job),
        inputs=inputs,
        outputs=[output],
        producer=_PRODUCER,
    )


def _run_id(uuid: str) -> UUID:
    """Return the uuid of the transaction: all attempts of one change are one run."""
    try:
        return UUID(uuid)
    except ValueError:
        return uuid5(_RUN_NAMESPACE, uuid)


def _facets(module: str) -> Any:
    """Return a module of the facets of `openlineage-python`."""
    facets = import_package("openlineage.client.facet_v2", extra="openlineage", needed_for="sending OpenLineage events")
    return getattr(facets, module)


def _facet(module: str, kind: str, **values: Any) -> Any:
    return getattr(_facets(module), kind)(**values)


def _run_facets(properties: Mapping[str, str], namespace: str, job: str) -> dict[str, Any]:
    engine = _facet("processing_engine_run", "ProcessingEngineRunFacet", version=LIBRARY_VERSION, name="lance-assets")
    facets = {"processing_engine": engine}
    try:
        dagster_run = UUID(properties.get("dagster.run_id", ""))
    except ValueError:
        return facets
    run = _facet("parent_run", "Run", runId=str(dagster_run))
    parent_job = _facet("parent_run", "Job", namespace=namespace, name=job)
    return {**facets, "parent": _facet("parent_run", "ParentRunFacet", run=run, job=parent_job)}


def _version_facet(version: int) -> dict[str, Any]:
    return {"version": _facet("dataset_version_dataset", "DatasetVersionDatasetFacet", datasetVersion=str(version))}


def _output_facets(event: CommittedVersion) -> dict[str, Any]:
    operation = event.transaction.operation
    facets = {
        **_version_facet(event.version),
        "schema": _facet("schema_dataset", "SchemaDatasetFacet", fields=_schema_fields(event.schema)),
        "storage": _facet("storage_dataset", "StorageDatasetFacet", storageLayer="lance", fileFormat="lance"),
    }
    lifecycle = "CREATE" if event.is_first else "OVERWRITE" if isinstance(operation, Overwrite) else None
    if lifecycle and not isinstance(operation, Clone):
        module = "lifecycle_state_change_dataset"
        facets["lifecycleStateChange"] = _facet(
            module,
            "LifecycleStateChangeDatasetFacet",
            lifecycleStateChange=_facets(module).LifecycleStateChange[lifecycle],
        )
    if columns := _column_sources(event.transaction.properties):
        fields = {
            column: _facet("column_lineage_dataset", "Fields", inputFields=[_input_field(*each) for each in sources])
            for column, sources in columns.items()
        }
        facets["columnLineage"] = _facet("column_lineage_dataset", "ColumnLineageDatasetFacet", fields=fields)
    return facets


def _input_field(uri: str, column: str) -> Any:
    name = Dataset.of(uri)
    return _facet("column_lineage_dataset", "InputField", namespace=name.namespace, name=name.name, field=column)


def _schema_fields(fields: Iterable[pa.Field]) -> list[Any]:
    described = []
    for field in fields:
        children = list(field.type) if pa.types.is_struct(field.type) else []
        described.append(
            _facet(
                "schema_dataset",
                "SchemaDatasetFacetFields",
                name=field.name,
                type="struct" if children else str(field.type),
                fields=_schema_fields(children),
            )
        )
    return described


def _inputs(properties: Mapping[str, str]) -> list[tuple[Dataset, int]]:
    """Return the versions of other tables that the change has read, without those of a malformed property."""
    found = dict.fromkeys((Dataset.of(uri), version) for uri, version in _recorded_versions(properties))
    if record := ViewRecord.decode(properties.get(VIEW)):
        found[Dataset.of(record.source), record.source_version] = None
    return list(found)


def _recorded_versions(properties: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    try:
        recorded = json.loads(properties.get(INPUTS, "{}"))
        for uri, versions in recorded.items():
            for version in versions if isinstance(versions, list) else [versions]:
                if isinstance(version, int) and not isinstance(version, bool) and isinstance(uri, str):
                    yield uri, version
    except (ValueError, TypeError, AttributeError, RecursionError):
        return


def _column_sources(properties: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Return the columns, as pairs of URI and name, from which those of the version were computed. Rows that the caller
    passes have no dataset, and are left out."""
    try:
        recorded = json.loads(properties.get(COLUMNS, "{}"))
        tables: Sequence[Any] = recorded.get("tables", ())
        return {
            str(column): named
            for column, each in recorded.get("columns", {}).items()
            if (named := [(str(tables[number][0]), str(name)) for number, name in each if tables[number][0]])
        }
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}

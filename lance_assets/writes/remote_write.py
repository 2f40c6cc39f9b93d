"""Remote write: launches a Spark driver on another machine through Dagster Pipes, and records what it committed.

    intent -> already committed?  -> no: client.run(extras=..., **launch) -> the version of the intent -> record

The remote process (`lance_assets/pipes.py`) commits with the intent of this run. Its report is used only for
metadata; the version comes from the table, where it is found by the intent. So a lost report loses nothing, a
repeated launch finds the same version, and the ledger is the one of a write in this process. The reasons are in
`002-remote-writes.md`. Start with `RemoteWrite`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import time
from typing import Any, ClassVar, Protocol, cast

import dagster as dg

import lance_core
from lance_assets.failures.remote_failure import RemoteFailure
from lance_assets.pipes import DESCRIPTION, MESSAGE_KEY, PROTOCOL, RefusedByAudits
from lance_assets.resources.lance import resolve_nested_env_vars
from lance_assets.resources.literal_secrets import check_storage_options
from lance_assets.writes.context import WriteContext
from lance_assets.writes.dependencies import accepted_values
from lance_assets.writes.write import SparkWriteOptions, Write
from lance_core import Committed, InvalidInput, LanceError, NotFound, Table
from lance_core.tasks.credentials import contains_secret

Launch = Mapping[str, object] | Callable[..., Mapping[str, object]]
PIPES_RESOURCE_KEY = "pipes"
"""Default resource key of the client."""
_CLOSED = "[pipes] external process pipes closed with exception"
"""Beginning of Dagster's event for an error of the remote process."""
_REFUSED_CHECK = re.compile(r"^check (?P<name>\w+): (?P<problem>.*)$", re.MULTILINE)


class _Client(Protocol):
    """Client of Dagster Pipes. Dagster 1.12 does not export the type of its answer."""

    def run(
        self, *, context: dg.AssetExecutionContext, extras: Mapping[str, Any], **launch: object
    ) -> "dg.PipesClientCompletedInvocation": ...


@dataclass(frozen=True, slots=True)
class RemoteWrite(Write):
    """Launch a process that writes the table with `lance_assets.pipes`, through a client of Dagster Pipes.

        RemoteWrite("orders_append", launch={"command": ["spark-submit", "s3://code/load"]})

    `client` is the resource key of a `PipesClient`, and `launch` has the arguments of its method `run`, or is a
    function of the context that returns them; a `dagster.EnvVar` in it is resolved. `remote_checks` names the checks
    that the process reports. `remote_uri` and `remote_storage_options` replace those of the table where the process
    has another name for the location or other access to it. The process gets references to secrets, such as
    `env:NAME`, and never a secret itself.
    """

    launch: Launch
    client: str = PIPES_RESOURCE_KEY
    remote_checks: Sequence[str] = ()
    remote_uri: str | None = None
    remote_storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    summary: ClassVar[str] = "Launches a remote write of"
    commits_several_versions: ClassVar[bool] = True
    is_remote: ClassVar[bool] = True
    context_arguments: ClassVar[int] = 1

    def check(self) -> None:
        if not callable(self.launch) and not isinstance(self.launch, Mapping):
            raise self.declaration_error("launch= must be a mapping of arguments of the client's run(), or a function")
        reserved = {"context", "extras"} & set(() if callable(self.launch) else self.launch)
        if reserved:
            raise self.declaration_error(f"launch= has {min(reserved)!r}, which the write asset passes itself")
        if isinstance(self.remote_checks, str) or len(set(self.remote_checks)) != len(self.remote_checks):
            raise self.declaration_error("remote_checks= must be a list of different names")
        if self.remote_uri is not None and contains_secret(self.remote_uri):
            raise self.declaration_error("remote_uri= contains a secret; pass the plain location")
        check_storage_options(self.remote_storage_options, f"remote_storage_options= of {self.name}")

    @property
    def function(self) -> object:
        return self.launch if callable(self.launch) else None

    @property
    def reported_checks(self) -> Sequence[str]:
        return self.remote_checks

    @property
    def resource_key(self) -> str:
        return self.client

    def execute(self, ctx: WriteContext, make_options: Callable[[], SparkWriteOptions]) -> Committed:
        options = make_options()
        if committed := _find_intent(ctx, options["intent"]):
            self._skip_checks(ctx, f"not evaluated again: already committed as version {committed.version}")
            return committed
        client = cast("_Client", getattr(ctx.dagster.resources, self.client))
        launch = self.launch
        if callable(launch):
            launch = launch(ctx, **accepted_values(launch, self.context_arguments, ctx.input_values))
        _expect_first_message(client)
        launched_at = time()
        try:
            invocation = client.run(
                context=ctx.dagster,
                extras={MESSAGE_KEY: self._extras(ctx, options)},
                **{name: resolve_nested_env_vars(value, "an argument of launch=") for name, value in launch.items()},
            )
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except Exception as error:
            if failure := _reported_failure(ctx, launched_at):
                raise failure from error
            raise
        reported = [
            message[MESSAGE_KEY]
            for message in invocation.get_custom_messages()
            if isinstance(message, Mapping) and MESSAGE_KEY in message
        ]
        self._take_results(ctx, invocation)
        return self._committed(ctx, options["intent"], reported[-1] if reported else None)

    def find_committed(self, ctx: WriteContext, intent: str) -> Committed | None:
        """Return what a failed process has committed before it failed."""
        return _find_intent(ctx, intent)

    def _extras(self, ctx: WriteContext, options: SparkWriteOptions) -> dict[str, object]:
        configured = getattr(ctx.table, "storage", None)
        storage_options = self.remote_storage_options
        if storage_options is None:
            storage_options = configured.storage_options if configured else {}
        manifest_store = configured.manifest_store if configured else None
        return {
            "protocol": PROTOCOL,
            "uri": self.remote_uri or ctx.table.uri,
            "intent": options["intent"],
            "properties": dict(options["properties"]),
            "storage_options": {name: _as_reference(value) for name, value in storage_options.items()},
            "manifest_store": None if manifest_store is None else _as_reference(manifest_store),
            "branch": options["branch"],
            "partition_keys": list(ctx.partition_keys),
            "verify": options["verify"],
            "trusted": options["trusted"],
            "creation": dict(ctx.table.creation()),
            "checks": list(self.remote_checks),
        }

    def _take_results(self, ctx: WriteContext, invocation: "dg.PipesClientCompletedInvocation") -> None:
        """Move the reported metadata and check results to the context."""
        ctx.metadata.update(invocation.metadata)
        results: dict[str, dg.AssetCheckResult] = {}
        for result in invocation.get_results(implicit_materializations=False):
            if isinstance(result, dg.AssetCheckResult):
                assert result.check_name is not None
                results[result.check_name] = _with_description(result)
            else:
                ctx.metadata.update(cast("Mapping[str, dg.MetadataValue]", result.metadata or {}))
        if missing := [name for name in self.remote_checks if name not in results]:
            raise InvalidInput(
                f"the remote process of {self.name} did not report the check {missing[0]!r}, or its "
                f"messages were lost; call write.report_check({missing[0]!r}, ...), pass it in audit= of "
                "write.options(), or remove it from remote_checks="
            )
        ctx.check_results.extend(results[name] for name in self.remote_checks)

    def _skip_checks(self, ctx: WriteContext, description: str) -> None:
        ctx.check_results.extend(
            dg.AssetCheckResult(check_name=name, passed=True, description=description) for name in self.remote_checks
        )

    def _committed(self, ctx: WriteContext, intent: str, reported: Mapping[str, Any] | None) -> Committed:
        """Return the version of the intent, with the numbers that only its writer knows."""
        committed = _find_intent(ctx, intent)
        if committed is None and reported is not None and not reported["attempts"]:
            return _unchanged(ctx, reported["version"])
        if committed is None:
            version = f"reported version {reported['version']}, which" if reported else "ended without a report, and"
            raise InvalidInput(
                f"the remote process of {self.name} {version} has no write with the intent of this run; pass "
                "**write.options() to the write, and call write.report(...) with its result"
            )
        if reported is None or reported["version"] != committed.version or reported["already_committed"]:
            # The report was lost, or another launch committed it. There was no version before the launch.
            return replace(committed, already_committed=False, attempts=1)
        return replace(
            committed,
            already_committed=False,
            attempts=max(1, reported["attempts"]),
            rebased_over=tuple(reported["rebased_over"]),
        )


def _expect_first_message(client: _Client) -> None:
    """Reset the message counter of the client's reader.

    A reader of messages in a bucket counts on after a launch, but each launch has messages of its own from number 1:
    the second launch of one process, by a retry or for the next partition, would lose them all.
    """
    reader = getattr(client, "message_reader", None)
    if isinstance(reader, dg.PipesBlobStoreMessageReader):
        reader.counter = 1


def _with_description(result: dg.AssetCheckResult) -> dg.AssetCheckResult:
    metadata = dict(result.metadata)
    description = metadata.pop(DESCRIPTION, None)
    return dg.AssetCheckResult(
        check_name=result.check_name,
        passed=result.passed,
        severity=result.severity,
        metadata=metadata,
        description=str(description.value) if description else None,
    )


def _find_intent(ctx: WriteContext, intent: str) -> Committed | None:
    try:
        return Table.open(ctx.table.uri, **ctx.table.access()).find_intent(intent)
    except NotFound:
        return None


def _unchanged(ctx: WriteContext, version: int) -> Committed:
    table = Table.open(ctx.table.uri, version=version, **ctx.table.access())
    return Committed(
        version=table.version,
        table=table,
        operation="Append",
        rows_added=0,
        rows_removed=0,
        files=0,
        bytes=0,
        attempts=0,
        rebased_over=(),
        already_committed=False,
    )


def _as_reference(value: str) -> str:
    """Return an `EnvVar` as the reference `env:NAME`, which the remote process resolves; other values as they are.

    Literal secrets never get here, since they are refused at declaration.
    """
    return f"env:{value.env_var_name}" if isinstance(value, dg.EnvVar) else str(value)


def _reported_failure(ctx: WriteContext, launched_at: float) -> RemoteFailure | None:
    """Return the error of the core that the remote process reported when it closed its Pipes session.

    A client raises only that its process failed; Dagster stores the error of the process as an event of this step.
    """
    context = ctx.dagster
    step = context.op_execution_context.get_step_execution_context().step.key
    for entry in reversed(context.instance.all_logs(context.run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)):
        event = entry.dagster_event
        if entry.timestamp < launched_at or entry.step_key != step or event is None:
            continue
        error = getattr(event.event_specific_data, "error", None)
        if error is None or not (event.message or "").startswith(_CLOSED):
            continue
        error_class = getattr(lance_core, str(error.cls_name), None)
        if isinstance(error_class, type) and issubclass(error_class, LanceError):
            _log_refused_checks(ctx, getattr(error, "cause", None))
            return RemoteFailure(error_class, _without_class(error.message))
    return None


def _log_refused_checks(ctx: WriteContext, cause: Any) -> None:
    """Log the checks that refused a change as events, since a failed step returns no result to put them into."""
    if cause is None or cause.cls_name != RefusedByAudits.__name__:
        return
    for match in _REFUSED_CHECK.finditer(_without_class(cause.message)):
        ctx.dagster.log_event(
            dg.AssetCheckEvaluation(
                asset_key=ctx.dagster.asset_key, check_name=match["name"], passed=False, description=match["problem"]
            )
        )


def _without_class(message: str) -> str:
    """Return the message of an error without the name of its class, which precedes it."""
    return message.strip().partition(": ")[2] or message.strip()


__all__ = ["Launch", "RemoteWrite"]

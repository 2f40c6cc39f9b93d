"""Remote write: a Spark driver on another machine writes a table for Dagster and reports the version through Pipes.

    from lance_assets.pipes import open_remote_write
    from lance_assets.spark import append

    with open_remote_write() as write:
        rows = write.spark.read.parquet(f"s3://landing/{write.partition_key}")
        write.report(append(rows, write.uri, **write.creation, **write.options()))

The process was launched by the write asset of a `RemoteWrite` (`writes/remote_write.py`) through any client of Dagster
Pipes: spark-submit, a Databricks job, an EMR step, a Kubernetes job. It needs dagster-pipes, but neither Dagster nor
access to its database. `options()` returns the intent of the Dagster run, so a repeated launch commits one version, and
`report` sends the number of that version. A lost report does no harm: Dagster finds the version by the intent. Start
with `open_remote_write`; `writes/002-remote-writes.md` gives the reasons.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from dagster_pipes import (
    PipesCliArgsParamsLoader,
    PipesContext,
    PipesContextLoader,
    PipesEnvVarParamsLoader,
    PipesMessageWriter,
    PipesParamsLoader,
    open_dagster_pipes,
)

from lance_assets.provenance.properties import INPUTS, group_inputs
from lance_assets.spark.cancellation import cancel_with_caller
from lance_assets.spark.reader import read
from lance_assets.spark.session import live_session, open_session
from lance_core import Committed, InvalidInput, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGE_KEY = "lance_assets"
"""Key of the extras that Dagster sends, and of the messages that this module sends."""
PROTOCOL = 1
"""Version of the fields in the extras and messages."""
DESCRIPTION = "lance/description"
"""Metadata of a reported check that becomes its description."""
_LAST_READ_S = 0.3
"""Time for Dagster to read the last messages from a file. Its reader stops when the process ends, and loses messages
that were written after its last read."""

RemoteAudit = Callable[[Table, Table | None], str | None]
"""Function that receives the table after the change, before it is published, and the table before it (`None` for a
first version). It returns the problem if it refuses the change, else `None`."""
CheckSeverity = Literal["ERROR", "WARN"]


class RemoteOptions(TypedDict):
    """Options that every writing operation of `lance_assets.spark` takes."""

    intent: str
    properties: Mapping[str, str]
    audit: Callable[[Table, Table | None], None] | None
    storage_options: Mapping[str, str]
    manifest_store: str | None
    branch: str | None
    verify: str
    trusted: bool


class RemoteCreation(TypedDict, total=False):
    """Options of the operations of `lance_assets.spark` that may create the table."""

    stable_row_ids: bool
    storage_version: str | None


class RefusedByAudits(Exception):
    """Audits refused a change. The core raises `AuditFailed` with this exception as its cause."""


@dataclass(slots=True)
class PipesWrite:
    """Write that this process performs for Dagster. Its `partition_key`, `read` and `log` are those of a
    `WriteContext`, so that a function of a write works here too."""

    pipes: PipesContext
    """Context of Dagster Pipes, for messages of your own."""
    uri: str
    """Location of the table."""
    intent: str
    properties: Mapping[str, str]
    storage_options: Mapping[str, str] = field(repr=False)
    manifest_store: str | None = field(repr=False)
    branch: str | None
    verify: str
    trusted: bool
    checks: Sequence[str]
    """Names of the checks that this process has to report."""
    partition_keys: Sequence[str] = ()
    """Partitions that the version is for; empty without partitions."""
    inputs: dict[str, int] = field(default_factory=dict)
    """Versions of the tables read so far, by URI. The transaction records them."""
    creation: RemoteCreation = field(default_factory=RemoteCreation)
    """Row ids and storage version of a table that this write creates, for `append`, `overwrite` and `ingest`:
    `append(rows, write.uri, **write.creation, **write.options())`. Empty if the table existed at the launch."""
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)
    _session: "SparkSession | None" = None

    @property
    def spark(self) -> "SparkSession":
        """Session that was passed to `open_remote_write`, or a new one on the application of spark-submit."""
        if self._session is None:
            self.use_session(open_session())
        assert self._session is not None
        return self._session

    def use_session(self, session: "SparkSession") -> None:
        """Use this session. Its jobs are cancelled if the block of `open_remote_write` ends with an error."""
        self._session = live_session(session)
        self._stack.enter_context(cancel_with_caller(self._session))

    @property
    def partition_key(self) -> str | None:
        """Key of the partition; `None` without partitions. Raise `InvalidInput` if there are several."""
        if len(self.partition_keys) > 1:
            raise InvalidInput(f"this version is for {len(self.partition_keys)} partitions; use write.partition_keys")
        return self.partition_keys[0] if self.partition_keys else None

    @property
    def log(self) -> logging.Logger:
        """Logger whose messages appear in the log of the Dagster run."""
        return self.pipes.log

    def read(
        self,
        uri: str | None = None,
        version: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        with_row_address: bool = False,
        storage_options: Mapping[str, str] | None = None,
        manifest_store: str | None = None,
    ) -> "DataFrame":
        """Read one version of a Lance table; `uri=None` reads the table that this write changes.

        Without `version`, the first read of a table chooses its newest version, and later reads of this write use the
        same one. Raise `InvalidInput` if one write reads two versions of a table.
        """
        access: dict[str, Any] = {"storage_options": storage_options, "manifest_store": manifest_store}
        if uri is None:
            uri, access = self.uri, self._access()
        pinned_version = version or self.inputs.get(Table.open(uri, **access).uri)
        opened = Table.open(uri, version=pinned_version, **access)
        if self.inputs.setdefault(opened.uri, opened.version) != opened.version:
            raise InvalidInput(
                f"this write has already read version {self.inputs[opened.uri]} of {opened.uri} and cannot also read "
                f"version {opened.version}; read one version of each table in a write, so that its inputs are clear"
            )
        return read(
            self.spark,
            uri,
            columns=columns,
            filter=filter,
            version=opened.version,
            with_row_address=with_row_address,
            **access,
        )

    def options(self, *, audit: Mapping[str, RemoteAudit] | None = None) -> RemoteOptions:
        """Return the options of the write: `append(rows, write.uri, **write.creation, **write.options())`.

        Call this last, since the properties record the tables that were read until then. `audit` has a function for
        each check that must pass before the version is published; `remote_checks` of the `RemoteWrite` names them.
        """
        if unknown := sorted(set(audit or {}) - set(self.checks)):
            raise InvalidInput(
                f"the check {unknown[0]!r} is not declared; add it to remote_checks= of the RemoteWrite, so that "
                "Dagster shows its result"
            )
        properties = dict(self.properties)
        if self.inputs:
            properties[INPUTS] = json.dumps(group_inputs(self.inputs.items()), sort_keys=True)
        return RemoteOptions(
            intent=self.intent,
            properties=properties,
            audit=_Audits(self, audit) if audit else None,
            storage_options=self.storage_options,
            manifest_store=self.manifest_store,
            branch=self.branch,
            verify=self.verify,
            trusted=self.trusted,
        )

    def _access(self) -> dict[str, Any]:
        return {
            "storage_options": self.storage_options,
            "manifest_store": self.manifest_store,
            "branch": self.branch,
            "verify": self.verify,
            "trusted": self.trusted,
        }

    def progress(self, done: int, total: int) -> None:
        """Log the progress to the Dagster run: `map_columns(..., progress=write.progress)`."""
        self.log.info(f"{done} of {total}")

    def report(self, committed: Committed, metadata: Mapping[str, Any] | None = None) -> None:
        """Report the committed version, and metadata of your own, which the page of the write asset shows."""
        declared = self.creation.get("stable_row_ids")
        if declared not in (None, committed.table.manifest.has_stable_row_ids):
            self.log.warning(
                f"{self.uri} was declared with stable_row_ids={declared} and created otherwise, which cannot be "
                "changed; pass **write.creation to the write that creates a table"
            )
        self.pipes.report_custom_message(
            {
                MESSAGE_KEY: {
                    "protocol": PROTOCOL,
                    "version": committed.version,
                    "attempts": committed.attempts,
                    "rebased_over": list(committed.rebased_over),
                    "already_committed": committed.already_committed,
                }
            }
        )
        self.pipes.report_asset_materialization(
            metadata={**(metadata or {}), "lance/version": int(committed.version)}, asset_key=self.pipes.asset_keys[0]
        )

    def report_check(
        self,
        name: str,
        passed: bool,
        description: str = "",
        *,
        severity: CheckSeverity = "ERROR",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Report the result of a check of `remote_checks`."""
        self.pipes.report_asset_check(
            check_name=name,
            passed=passed,
            severity=severity,
            metadata={**(metadata or {}), **({DESCRIPTION: description} if description else {})},
            asset_key=self.pipes.asset_keys[0],
        )


@dataclass(frozen=True, slots=True)
class _Audits:
    """Audit function for the core: calls all functions, reports their results, and refuses the change if one does."""

    write: PipesWrite
    functions: Mapping[str, RemoteAudit]

    def __call__(self, table: Table, parent: Table | None) -> None:
        problems = {name: function(table, parent) for name, function in self.functions.items()}
        for name, problem in problems.items():
            self.write.report_check(name, not problem, problem or "passed before the version was published")
        if refused := [f"check {name}: {problem}" for name, problem in problems.items() if problem]:
            raise RefusedByAudits("\n".join(refused))


@contextmanager
def open_remote_write(
    *,
    spark: "SparkSession | None" = None,
    context_loader: PipesContextLoader | None = None,
    message_writer: PipesMessageWriter[Any] | None = None,
    params_loader: PipesParamsLoader | None = None,
) -> Iterator[PipesWrite]:
    """Open the write that Dagster launched this process for.

    `spark` is the session of a platform that has one already, such as a notebook. The other arguments are those of
    `open_dagster_pipes`, such as `PipesS3ContextLoader(client)` and `PipesS3MessageWriter(client)`. The parameters of
    Pipes come from the command line if it contains them, else from the environment.
    """
    params_loader = params_loader or _find_params()
    if not params_loader.is_dagster_pipes_process():
        raise InvalidInput(
            "Dagster Pipes did not launch this process: neither its environment nor its command line has "
            "DAGSTER_PIPES_CONTEXT. Launch it by a RemoteWrite, and pass the variable on to the Spark driver if it "
            "runs elsewhere (spark.yarn.appMasterEnv, spark.kubernetes.driverEnv, or command-line arguments)"
        )
    with (
        open_dagster_pipes(
            context_loader=context_loader, message_writer=message_writer, params_loader=params_loader
        ) as pipes,
        ExitStack() as stack,
    ):
        write = _write_of(pipes, stack)
        if spark is not None:
            write.use_session(spark)
        yield write
    if message_writer is None:
        time.sleep(_LAST_READ_S)


def _find_params() -> PipesParamsLoader:
    loaders: tuple[type[PipesParamsLoader], ...] = (PipesCliArgsParamsLoader, PipesEnvVarParamsLoader)
    from_arguments, from_environment = (loader() for loader in loaders)
    return from_arguments if from_arguments.is_dagster_pipes_process() else from_environment


def _write_of(pipes: PipesContext, stack: ExitStack) -> PipesWrite:
    sent = cast("Mapping[str, Any] | None", (pipes.extras or {}).get(MESSAGE_KEY))
    if sent is None:
        raise InvalidInput(
            "the Dagster asset that launched this process is not a RemoteWrite of a Lance table, so there is no table "
            "to write; declare RemoteWrite(...) among the writes of the table"
        )
    if sent["protocol"] != PROTOCOL:
        raise InvalidInput(
            f"Dagster launched this process with protocol {sent['protocol']} of lance-assets, and this process has "
            f"protocol {PROTOCOL}; install the same release of lance-assets in both"
        )
    return PipesWrite(
        pipes=pipes,
        uri=sent["uri"],
        intent=sent["intent"],
        properties=sent["properties"],
        storage_options=sent["storage_options"],
        manifest_store=sent["manifest_store"],
        branch=sent["branch"],
        verify=sent["verify"],
        trusted=sent["trusted"],
        checks=sent["checks"],
        creation=sent["creation"],
        partition_keys=sent["partition_keys"],
        _stack=stack,
    )


__all__ = ["PipesWrite", "RemoteAudit", "RemoteOptions", "open_remote_write"]

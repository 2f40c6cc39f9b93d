"""`LanceResource`: location of tables and access to them, with storage options, manifest store and a common root.

Secrets stay references: a `dagster.EnvVar`, or `env:NAME` and `provider`, which the core resolves in each process that
uses them, Spark's workers included. A literal secret is refused, since Dagster displays the configuration of resources.
This module does not depend on assets; each `Ledger` (`ledger/ledger.py`) holds one resource.
"""

import os
from collections.abc import Mapping
from datetime import datetime
from typing import TypedDict

import dagster as dg
from pydantic import Field

from lance_assets.provenance.run_provenance import inputs_of_step, open_for_run, pin_committed_version
from lance_assets.resources.literal_secrets import check_arguments, check_storage_options
from lance_core import Committed, InvalidInput, Table


class Access(TypedDict):
    """Arguments for access to a table, as `Table.open` and the functions of `lance_assets.spark` take them."""

    storage_options: Mapping[str, str]
    manifest_store: str | None
    branch: str | None
    verify: str
    trusted: bool


class Creation(TypedDict, total=False):
    """Arguments for a table that a write creates, as the functions of `lance_assets.spark` take them. Empty if the
    table exists, since they apply to new tables only."""

    stable_row_ids: bool
    storage_version: str | None


class LanceResource(dg.ConfigurableResource["LanceResource"]):
    """Access to Lance tables, for `lance_table(storage=...)`, `LanceIOManager(storage=...)` and your own assets.

    >>> LanceResource(root="s3://lake", storage_options={"aws_region": "eu-west-1"}).resolve_uri("orders.lance")
    's3://lake/orders.lance'

    The keys of `storage_options` are those of Lance.
    """

    root: str | None = Field(default=None, description="Location that relative table locations are resolved against.")
    storage_options: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Options of the object store; give secrets as dagster.EnvVar or env:NAME.",
    )
    manifest_store: str | None = Field(
        default=None,
        repr=False,
        description="Store that decides commits, if the object store has no conditional put: dynamodb://table.",
    )

    verify: str = Field(
        default="off",
        description="Files that are compared with their checksums before they are read: off, sample or read.",
    )
    trusted: bool = Field(
        default=True,
        description="False decodes files in processes of their own, for tables of unknown origin.",
    )

    def __init__(self, **data: object) -> None:
        check_arguments("LanceResource", type(self).model_fields, data)
        check_storage_options(data.get("storage_options"), "storage_options= of LanceResource")
        super().__init__(**data)

    def resolve_uri(self, uri: str | os.PathLike[str]) -> str:
        """Return the URI, resolved against the root if it is a relative path."""
        uri = os.fspath(uri)
        root = resolve_env_var(self.root, "root=")
        if root is None or "://" in uri or os.path.isabs(uri):
            return uri
        return f"{root.rstrip('/')}/{uri}"

    def access(self, branch: str | None = None) -> Access:
        """Return the access arguments with the current values of `EnvVar`s."""
        options = {
            name: str(resolve_env_var(value, f"the storage option {name!r}"))
            for name, value in self.storage_options.items()
        }
        return Access(
            storage_options=options,
            manifest_store=resolve_env_var(self.manifest_store, "manifest_store="),
            branch=branch,
            verify=str(resolve_env_var(self.verify, "verify=")),
            trusted=self.trusted,
        )

    def open(
        self,
        uri: str | os.PathLike[str],
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        timestamp: datetime | None = None,
        refresh: bool = False,
    ) -> Table:
        """Open a table at its newest version, or at a version, tag or time.

        Within a step of a run, the first reader of the run chooses the newest version, and all later ones get the same
        one, or one that the run has committed since: as an asset, or by your code through a table that this method
        returned. A version that your code commits in another way is not noticed: `refresh=True` chooses the newest
        version again. The versions that are opened count as inputs of the step. A thread that your code starts does not
        belong to the step.
        """
        access = self.access(branch)
        uri = self.resolve_uri(uri)
        step = _current_step()
        if step is None:
            return Table.open(uri, version=version, tag=tag, timestamp=timestamp, **access)

        def pin_commit(committed: Committed) -> None:
            if committed.table.branch == table.branch and committed.table.uri == table.uri:
                pin_committed_version(step.instance, step.run_id, committed.table, branch)

        table = Table.open(uri, version=version, tag=tag, timestamp=timestamp, on_commit=pin_commit, **access)
        if version is None and tag is None and timestamp is None:

            def open_version(number: int) -> Table:
                return Table.open(uri, version=number, on_commit=pin_commit, **access)

            table = open_for_run(step.instance, step.run_id, table, open_version, branch=branch, refresh=refresh)
        inputs_of_step(step.run_id, step.get_step_execution_context().step.key).add((table.uri, table.version))
        return table

    def exists(self, uri: str | os.PathLike[str]) -> bool:
        return table_exists(self.resolve_uri(uri), self.access())


def table_exists(uri: str, access: Access) -> bool:
    """Return whether a table exists at this URI, which is resolved already."""
    return Table.exists(uri, access["storage_options"], manifest_store=access["manifest_store"])


def creation_of(uri: str, access: Access, declared: Creation) -> Creation:
    """Return the declared arguments if no table exists at this URI, which is resolved already, and none otherwise."""
    return Creation() if table_exists(uri, access) else declared


def _current_step() -> dg.OpExecutionContext | None:
    """Return the context of the step whose function is running; `None` outside a run."""
    try:
        return dg.OpExecutionContext.get()
    except dg.DagsterInvariantViolationError:
        return None


def resolve_env_var(value: str | None, subject: str) -> str | None:
    """Return the value, or the current value of its variable if it is an `EnvVar`."""
    if not isinstance(value, dg.EnvVar):
        return value
    resolved = value.get_value()
    if resolved is None:
        raise InvalidInput(
            f"{subject} comes from the environment variable {value.env_var_name}, which is not set in this process; "
            "set it where this code runs"
        )
    return resolved


def resolve_nested_env_vars(value: object, subject: str) -> object:
    """Return a value, mapping or list with the current values of its `EnvVar`s."""
    if isinstance(value, Mapping):
        return {name: resolve_nested_env_vars(item, f"{subject}, {name!r}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve_nested_env_vars(item, subject) for item in value]
    return resolve_env_var(value, subject) if isinstance(value, dg.EnvVar) else value

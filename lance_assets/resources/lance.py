"""Where tables are and how they are reached, as a resource: options of the store, the manifest store, a common root.

Secrets stay references: a `dagster.EnvVar`, or `env:NAME` and `provider`, which the core looks up in each process that
uses them, Spark's workers too. What is written out is refused, since Dagster shows the configuration of resources.
Nothing here knows of assets; `ledger/ledger.py` holds one of these for each table.
"""

import os
from collections.abc import Mapping
from datetime import datetime
from typing import TypedDict

import dagster as dg
from pydantic import Field

from lance_core import InvalidInput, Table
from lance_core.tasks.credentials import has_password, is_key_id, is_reference, is_secret


class Access(TypedDict):
    """How to reach a table, as `Table.open` and every op of `lance_assets.spark` take it."""

    storage_options: Mapping[str, str]
    manifest_store: str | None
    branch: str | None


class LanceResource(dg.ConfigurableResource["LanceResource"]):
    """
    >>> LanceResource(root="s3://lake", storage_options={"aws_region": "eu-west-1"}).place("orders.lance")
    's3://lake/orders.lance'

    For `lance_table(storage=...)` and `LanceIOManager(storage=...)`, and for assets of your own, which open tables with
    it. `storage_options` are spelt as Lance spells them.
    """

    root: str | None = Field(default=None, description="The place that places without a scheme are below.")
    storage_options: dict[str, str] = Field(
        default_factory=dict, repr=False, description="How to reach the store; secrets as dagster.EnvVar or env:NAME."
    )
    manifest_store: str | None = Field(
        default=None, repr=False, description="Where versions are reserved, if the store itself cannot decide."
    )

    def __init__(self, **data: object) -> None:
        options = data.get("storage_options")
        for name, value in options.items() if isinstance(options, Mapping) else ():
            _check_storage_option(str(name), value)
        for name in ("manifest_store", "root"):
            value = data.get(name)
            if is_literal(value) and has_password(str(value)):
                raise InvalidInput(
                    f"{name}= of LanceResource has a password in it, and Dagster shows the configuration of resources; "
                    'give it as dagster.EnvVar("NAME") and set that variable where this code runs'
                )
        super().__init__(**data)

    def resolve_uri(self, uri: str | os.PathLike[str]) -> str:
        """Below the root, where the place has no scheme and is not absolute."""
        uri = os.fspath(uri)
        root = resolve_env_var(self.root, "root=")
        if root is None or "://" in uri or os.path.isabs(uri):
            return uri
        return f"{root.rstrip('/')}/{uri}"

    def access(self, branch: str | None = None) -> Access:
        """With the values of `EnvVar`s, looked up now."""
        options = {
            name: str(resolve_env_var(value, f"the storage option {name!r}"))
            for name, value in self.storage_options.items()
        }
        return Access(
            storage_options=options,
            manifest_store=resolve_env_var(self.manifest_store, "manifest_store="),
            branch=branch,
        )

    def open(
        self,
        uri: str | os.PathLike[str],
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        timestamp: datetime | None = None,
    ) -> Table:
        return Table.open(self.resolve_uri(uri), version=version, tag=tag, timestamp=timestamp, **self.access(branch))

    def exists(self, uri: str | os.PathLike[str]) -> bool:
        access = self.access()
        return Table.exists(self.resolve_uri(uri), access["storage_options"], manifest_store=access["manifest_store"])


_env_var_names: set[str] = set()
"""Variables of the environment that an `EnvVar` has named in this process."""


def is_literal(value: object) -> bool:
    """Whether Dagster would show it: it stands in the code, or the code has taken it out of the environment by itself.
    Dagster also makes a resource anew with what an `EnvVar` stands for; by the name that this had it is known again."""
    if isinstance(value, dg.EnvVar):
        _env_var_names.add(value.env_var_name)
        return False
    return isinstance(value, str) and all(value != os.environ.get(name) for name in _env_var_names)


def _check_storage_option(name: str, value: object) -> None:
    if is_secret(name) and not is_key_id(name) and is_literal(value) and not is_reference(value):
        raise InvalidInput(
            f"the storage option {name!r} is a secret that is written out, and Dagster shows the configuration of "
            f'resources; give it as dagster.EnvVar("NAME") or as "env:NAME", and set that variable where this code '
            "runs and where Spark's workers do"
        )


def resolve_env_var(value: str | None, what: str) -> str | None:
    if not isinstance(value, dg.EnvVar):
        return value
    found = value.get_value()
    if found is None:
        raise InvalidInput(
            f"{what} comes from the environment variable {value.env_var_name}, which is not set here; set it where "
            "this code runs"
        )
    return found

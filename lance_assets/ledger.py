"""The ledger of a table: the one Dagster asset whose partitions are the table's versions, and every name made from it.

A `Ledger` says where the table is and what Dagster calls it; it holds no versions. Recording them is `recording.py`,
finding those of others is `discovery.py`. What is wrong with a declaration is said here, when it is declared.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import dagster as dg

from lance_core import InvalidInput, Table

_WORD = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Ledger:
    name: str
    prefix: tuple[str, ...]
    uri: str
    """As it is opened; checked to carry no credentials, so it may be shown."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How to reach an object store. A value may be a `dagster.EnvVar`, which is looked up when it is used."""

    def __post_init__(self) -> None:
        for part in (*self.prefix, self.name):
            check_word(part, what="a Lance table's name and key prefix")
        _check_uri(self.uri, self.label)

    @property
    def key(self) -> dg.AssetKey:
        return dg.AssetKey([*self.prefix, self.name])

    @property
    def label(self) -> str:
        return "/".join((*self.prefix, self.name))

    @property
    def word(self) -> str:
        """The label, where Dagster takes letters, digits and underscores only."""
        return "_".join((*self.prefix, self.name))

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        return dg.DynamicPartitionsDefinition(name=self.partition_set)

    @property
    def partition_set(self) -> str:
        return f"lance/{self.label}"

    @property
    def table_set(self) -> str:
        """What `epochs.py` remembers. The sign is in no name of a table, so this set is no other table's."""
        return f"{self.partition_set}#tables"

    @property
    def claim_set(self) -> str:
        """What `claims.py` holds."""
        return f"{self.partition_set}#claims"

    @property
    def pool(self) -> str:
        return f"lance/{self.label}"

    @property
    def run_tag(self) -> str:
        """On a run: the version it made. Dagster's tags have one slash, so that the prefix is set off by dots."""
        return f"lance/{'.'.join((*self.prefix, self.name))}"

    @property
    def shown_uri(self) -> str:
        return self.uri if "://" in self.uri else os.path.abspath(os.path.expanduser(self.uri))

    def options(self) -> Mapping[str, str]:
        return {name: _looked_up(value, name, self.label) for name, value in self.storage_options.items()}

    def open(self, version: int | None = None) -> Table:
        return Table.open(self.uri, version=version, storage_options=self.options())

    def exists(self) -> bool:
        return Table.exists(self.uri, self.options())


def check_word(text: str, *, what: str) -> None:
    if not _WORD.fullmatch(text):
        raise InvalidInput(f"{text!r} will not do: {what} may have letters, digits and underscores only")


def _check_uri(uri: str, label: str) -> None:
    """Credentials in a URI would be shown on every page that names the table."""
    if not uri:
        raise InvalidInput(f"the Lance table {label!r} has no uri; give the directory that it is, or will be")
    _, is_remote, rest = uri.partition("://")
    if not is_remote:
        return
    authority = rest.partition("/")[0]
    if ":" in authority.rpartition("@")[0] or "?" in rest or "#" in rest:
        raise InvalidInput(
            f"the uri of the Lance table {label!r} carries credentials or parameters, and it is shown to everyone; "
            "give the plain location as uri= and the rest as storage_options= with dagster.EnvVar values"
        )


def _looked_up(value: str, name: str, label: str) -> str:
    if not isinstance(value, dg.EnvVar):
        return value
    found = value.get_value()
    if found is None:
        raise InvalidInput(
            f"the storage option {name!r} of the Lance table {label!r} comes from the environment variable "
            f"{value.env_var_name}, which is not set here; set it where this code runs"
        )
    return found

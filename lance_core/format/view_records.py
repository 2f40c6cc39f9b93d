"""View records: the config entry that says which version of its source a materialized view contains.

    config["lance_assets.view"] = '{"source": "/lake/pages.lance", "source_version": 42, ...}'

The entry is part of the version: it is committed atomically with the rows, reverts when an older version is restored,
and is inherited by branches. A refresh also names the previous record in the properties of its transaction,
and is valid only on a version that has exactly that record, so that of two concurrent refreshes from one record only
one is committed. `tasks/views/` computes the rows; this module does no I/O. Start with `ViewRecord`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from lance_core.errors import RetryableConflict

VIEW = "lance_assets.view"
"""The config key of the record, and the transaction property that holds its new value."""
VIEW_FOLLOWS = "lance_assets.view_follows"
"""The transaction property that holds the previous value of the record."""


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """Contents of a version of a view: the rows of one version of the source under one definition."""

    source: str
    """URI of the source."""
    branch: str | None
    source_version: int
    source_hash: str
    """Hash of the manifest of that version, by which a table that was created again at the same URI is detected."""
    definition: str
    """Fingerprint of the columns and the condition, resolved against the columns of the source."""
    select: Mapping[str, str]
    """Columns of the view, each with its SQL."""
    where: str | None
    planned_on: int = 0
    """Version of the view on which the refresh was planned; 0 for a new view. Changes of other writers after it are
    not known to the refresh."""
    refresh: str = "rebuild"
    """Method by which the version was computed: "rebuild" or "incremental"."""
    reason: str = ""
    """Why all rows were computed again; empty for an incremental refresh."""
    since: int | None = None
    """Version of the source whose rows the previous version of the view contained, for an incremental refresh."""

    def encode(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def decode(cls, text: str | None) -> "ViewRecord | None":
        """Return the record; `None` if there is none, or none that can be read.

        >>> ViewRecord.decode("written by another engine") is None
        True
        """
        try:
            return None if text is None else cls._of(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    @classmethod
    def _of(cls, value: Mapping[str, object]) -> "ViewRecord":
        select, branch, where, since = value["select"], value["branch"], value["where"], value["since"]
        if not isinstance(select, dict):
            raise TypeError("select is an object")
        return cls(
            source=str(value["source"]),
            branch=None if branch is None else str(branch),
            source_version=int(str(value["source_version"])),
            source_hash=str(value["source_hash"]),
            definition=str(value["definition"]),
            select={str(name): str(sql) for name, sql in select.items()},
            where=None if where is None else str(where),
            planned_on=int(str(value["planned_on"])),
            refresh=str(value["refresh"]),
            reason=str(value["reason"]),
            since=None if since is None else int(str(since)),
        )


def config_after(
    config: Mapping[str, str], properties: Mapping[str, str], *, ours: str, version: int
) -> dict[str, str] | None:
    """Return the config after a change with these properties, or `None` if the change is no refresh of a view. Raise
    `RetryableConflict` if another refresh was committed up to `version`, after it was planned."""
    record = properties.get(VIEW)
    if record is None:
        return None
    if config.get(VIEW, "") != properties.get(VIEW_FOLLOWS, ""):
        raise RetryableConflict(
            f"another refresh of the view was committed up to version {version}, after this {ours} was planned; "
            "repeat it on that version",
            ours=ours,
            theirs="refresh",
            version=version,
            rule="refreshed_meanwhile",
        )
    return {**config, VIEW: record}

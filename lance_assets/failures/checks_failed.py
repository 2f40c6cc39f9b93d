"""Failed checks: the exception of an audit, with the checks that refused a change and the result of each."""

from collections.abc import Mapping
from typing import Protocol

import dagster as dg


class FailedCheck(Protocol):
    """The part of a check result that a failure shows."""

    @property
    def description(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, dg.MetadataValue]: ...


class ChecksFailed(Exception):
    """Checks refused a change. The core raises `AuditFailed` with this exception as its cause."""

    def __init__(self, failed: Mapping[str, FailedCheck]) -> None:
        super().__init__("; ".join(f"check {name}: {result.description}" for name, result in failed.items()))
        self.failed = dict(failed)

    @property
    def metadata(self) -> dict[str, dg.MetadataValue]:
        """The description and the metadata of each failed check, under the name of the check."""
        metadata: dict[str, dg.MetadataValue] = {}
        for name, result in self.failed.items():
            metadata[f"lance/check/{name}"] = dg.MetadataValue.text(result.description)
            metadata |= {f"lance/check/{name}/{key}": value for key, value in result.metadata.items()}
        return metadata

"""Transaction: the version that was read, the operation, free properties and, once applied, the parent's hash.

`uuid` identifies the intended change and is the same in every attempt of a commit. A writer that finds its uuid in
the history knows that one of its earlier puts succeeded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt
from lance_core.format import operation_codec, size_guard
from lance_core.format._pb import transaction_pb2
from lance_core.format.ids import Version
from lance_core.format.manifest import PARENT, ParentHash
from lance_core.format.operations import Operation
from lance_core.limits import TRANSACTION_BYTES

_DIGITS_MAX = 20
INLINE_BYTES_MAX = 20 * 1024 * 1024
"""A larger transaction is stored only in its own file."""
PLANNED_ON = "lance_assets.planned_on"
"""The property that records the version on which a transaction was planned, if its `read_version` is a newer one, as
the format requires after a rebase has merged deletion vectors."""

VERB = "lance_assets.verb"
"""The property that names the caller's action, such as "upsert", which the format's operation does not identify."""


@dataclass(frozen=True, slots=True)
class Transaction:
    read_version: Version
    uuid: str
    operation: Operation
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties that the caller set. On the wire the verb and the parent hash are two of them."""
    parent: ParentHash | None = None
    """`None` before the transaction is applied, for the first version of a table, and if its writer did not record
    it."""
    verb: str | None = None
    """The caller's action, such as "upsert" or "compact"; `None` if the writer did not record it."""

    @property
    def planned_on(self) -> Version:
        """The version on which the transaction was planned; 0 if it creates a table."""
        recorded = self.properties.get(PLANNED_ON, "")
        return Version(int(recorded)) if recorded.isdecimal() and len(recorded) < _DIGITS_MAX else self.read_version

    def encode(self) -> bytes:
        properties = dict(self.properties)
        if self.parent is not None:
            properties[PARENT] = str(self.parent)
        if self.verb is not None:
            properties[VERB] = self.verb
        message = transaction_pb2.Transaction(
            read_version=self.read_version, uuid=self.uuid, transaction_properties=properties
        )
        operation_codec.encode_into(message, self.operation)
        return message.SerializeToString(deterministic=True)

    @classmethod
    def check_caps(cls, data: bytes, *, path: str) -> None:
        """Raise `Unsupported` if a reader with the caps of this process refuses an encoded transaction."""
        TRANSACTION_BYTES.check(len(data), path=path)
        size_guard.check_message(data, path=path, kind=transaction_pb2.Transaction)

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> "Transaction":
        cls.check_caps(data, path=path)
        try:
            message = transaction_pb2.Transaction.FromString(data)
        except DecodeError as error:
            raise Corrupt("the transaction does not parse", path=path, field="transaction") from error
        properties = dict(message.transaction_properties)
        parent, verb = properties.pop(PARENT, None), properties.pop(VERB, None)
        return cls(
            read_version=Version(message.read_version),
            uuid=message.uuid,
            operation=operation_codec.decode(message),
            properties=properties,
            parent=None if parent is None else ParentHash.of(parent),
            verb=verb,
        )

"""The envelope of a change: what was read, who made it, which operation, and free properties; and, once it has become a
version, upon which bytes.

`uuid` names the intention and stays the same through every turn of a commit: finding it in the history is how
a writer learns that an earlier put of its own landed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt
from lance_core.format import operation_codec, size_guard
from lance_core.format._pb import transaction_pb2
from lance_core.format.hash_chain import PARENT, ParentHash
from lance_core.format.ids import Version
from lance_core.format.operations import Operation
from lance_core.limits import TRANSACTION_BYTES

_DIGITS_MAX = 20
INLINE_BYTES_MAX = 20 * 1024 * 1024
"""A larger transaction is kept only in its own file."""
PLANNED_ON = "lance_assets.planned_on"
"""The property that says which version a transaction was planned on, where its `read_version` is another: so the format
has it where sets of deleted rows were joined."""


@dataclass(frozen=True, slots=True)
class Transaction:
    read_version: Version
    uuid: str
    operation: Operation
    properties: Mapping[str, str] = field(default_factory=dict)
    """The caller's. On the wire the parent is among them."""
    parent: ParentHash | None = None
    """None before it is applied, of the first version of a table, and where its writer did not tell."""

    @property
    def planned_on(self) -> Version:
        """0 of one that creates a table."""
        noted = self.properties.get(PLANNED_ON, "")
        return Version(int(noted)) if noted.isdecimal() and len(noted) < _DIGITS_MAX else self.read_version

    def encode(self) -> bytes:
        properties = dict(self.properties)
        if self.parent is not None:
            properties[PARENT] = str(self.parent)
        message = transaction_pb2.Transaction(
            read_version=self.read_version, uuid=self.uuid, transaction_properties=properties
        )
        operation_codec.encode_into(message, self.operation)
        return message.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> "Transaction":
        TRANSACTION_BYTES.check(len(data), path=path)
        size_guard.check_message(data, path=path)
        try:
            message = transaction_pb2.Transaction.FromString(data)
        except DecodeError as error:
            raise Corrupt("the transaction does not parse", path=path, field="transaction") from error
        properties = dict(message.transaction_properties)
        parent = properties.pop(PARENT, None)
        return cls(
            read_version=Version(message.read_version),
            uuid=message.uuid,
            operation=operation_codec.decode(message),
            properties=properties,
            parent=None if parent is None else ParentHash.of(parent),
        )

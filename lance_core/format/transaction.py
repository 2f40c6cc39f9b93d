"""The envelope of a change: what was read, who made it, which operation, and free properties.

`uuid` names the intention and stays the same through every turn of a commit: finding it in the history is how
a writer learns that an earlier put of its own landed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt
from lance_core.format import operation_codec
from lance_core.format._pb import transaction_pb2
from lance_core.format.ids import Version
from lance_core.format.operations import Operation

INLINE_BYTES_MAX = 20 * 1024 * 1024
"""A larger transaction is kept only in its own file."""


@dataclass(frozen=True, slots=True)
class Transaction:
    read_version: Version
    uuid: str
    operation: Operation
    properties: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        message = transaction_pb2.Transaction(
            read_version=self.read_version, uuid=self.uuid, transaction_properties=dict(self.properties)
        )
        operation_codec.encode_into(message, self.operation)
        return message.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> "Transaction":
        try:
            message = transaction_pb2.Transaction.FromString(data)
        except DecodeError as error:
            raise Corrupt("the transaction does not parse", path=path, field="transaction") from error
        return cls(
            read_version=Version(message.read_version),
            uuid=message.uuid,
            operation=operation_codec.decode(message),
            properties=dict(message.transaction_properties),
        )

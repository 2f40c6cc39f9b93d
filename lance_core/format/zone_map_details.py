"""Zone map details: the message that the index section holds for a zone map. The other index types store no details
there.
"""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt
from lance_core.format._pb import table_pb2
from lance_core.format.index_metadata import IndexMetadata


@dataclass(frozen=True, slots=True)
class ZoneMapDetails:
    rows_per_zone: int | None
    """`None` if an older writer did not record it."""
    has_null_bitmap: bool
    """True if the index knows exactly which rows are null."""

    def encode(self) -> bytes:
        """Encode the details. `use_seeds` is false because this library stores no seeds in data files."""
        return table_pb2.ZoneMapIndexDetails(
            rows_per_zone=self.rows_per_zone, use_seeds=False, has_null_bitmap=self.has_null_bitmap
        ).SerializeToString()

    @classmethod
    def of(cls, metadata: IndexMetadata) -> "ZoneMapDetails":
        """Return the details of an index segment."""
        try:
            message = table_pb2.ZoneMapIndexDetails.FromString(metadata.message.index_details.value)
        except DecodeError as error:
            raise Corrupt("does not parse", path=f"index {metadata.name}", field="index_details") from error
        return cls(message.rows_per_zone if message.HasField("rows_per_zone") else None, message.has_null_bitmap)

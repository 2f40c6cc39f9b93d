"""What the index section says of a zone map. Other kinds of ours say nothing there."""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt
from lance_core.format._pb import table_pb2
from lance_core.format.index_metadata import IndexMetadata


@dataclass(frozen=True, slots=True)
class ZoneMapDetails:
    rows_per_zone: int | None
    """None where an older writer did not say."""
    has_null_bitmap: bool
    """Whether it knows exactly which rows have no value."""

    def encode(self) -> bytes:
        """No seeds: nobody here keeps those in data files."""
        return table_pb2.ZoneMapIndexDetails(
            rows_per_zone=self.rows_per_zone, use_seeds=False, has_null_bitmap=self.has_null_bitmap
        ).SerializeToString()

    @classmethod
    def of(cls, metadata: IndexMetadata) -> "ZoneMapDetails":
        try:
            message = table_pb2.ZoneMapIndexDetails.FromString(metadata.message.index_details.value)
        except DecodeError as error:
            raise Corrupt("does not parse", path=f"index {metadata.name}", field="index_details") from error
        return cls(message.rows_per_zone if message.HasField("rows_per_zone") else None, message.has_null_bitmap)

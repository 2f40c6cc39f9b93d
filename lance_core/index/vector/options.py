"""Vector index options: the parameters of a build, with the names that pylance gives them, and their checks."""

from dataclasses import dataclass, field, fields

from lance_core.index.index_type import IndexOptions
from lance_core.index.vector.model import Model
from lance_core.scan.vector_search import Metric


@dataclass(frozen=True, slots=True, eq=False)
class VectorOptions:
    """Options of a vector index. An option that is `None` equals any value: a segment does not record which options
    its builder left out."""

    metric: Metric | None = None
    num_partitions: int | None = None
    num_sub_vectors: int | None = None
    num_bits: int | None = None
    max_iters: int | None = None
    sample_rate: int = 256
    target_partition_size: int | None = None
    m: int | None = None
    """Links of a row in the graph; twice as many at its lowest level."""
    ef_construction: int | None = None
    """Candidates from which the links of a row are chosen."""
    model: Model | None = field(default=None, repr=False)
    """Model that is used instead of training one: that of an existing segment of the index, so that their codes can be
    merged, or one that was trained before its pieces are built."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VectorOptions):
            return NotImplemented
        pairs = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self) if each.name != "model")
        return all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)

    @property
    def bits(self) -> int:
        """Number of bits, which a plan has chosen."""
        assert self.num_bits is not None
        return self.num_bits

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of(cls, options: IndexOptions) -> "VectorOptions":
        assert isinstance(options, cls)
        return options

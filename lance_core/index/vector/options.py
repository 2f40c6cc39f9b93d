"""Vector index options: the parameters of a build, with the names that pylance gives them, and their checks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from lance_core.format.vector_index import VectorDetails
from lance_core.index.index_type import IndexOptions
from lance_core.index.vector.model import Model
from lance_core.scan.vector_search import Metric

ITERATIONS = 50
"""Largest number of iterations of a k-means that starts with random vectors, as in pylance, unless the caller sets
`max_iters`."""
SAMPLE_RATE = 256
"""Vectors for each partition in the sample that centroids are trained on."""
_MAX_ITERS, _SAMPLE_RATE = "lance.ivf.max_iters", "lance.ivf.sample_rate"


@dataclass(frozen=True, slots=True, eq=False)
class VectorOptions:
    """Options of a vector index. An option that is `None` equals any value: a segment does not record which options
    its builder left out."""

    metric: Metric | None = None
    num_partitions: int | None = None
    num_sub_vectors: int | None = None
    num_bits: int | None = None
    max_iters: int | None = None
    sample_rate: int = SAMPLE_RATE
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

    def to_hints(self) -> Mapping[str, str]:
        """Return the training options of an index that is not built yet, as entries with the names of pylance."""
        recorded = {_MAX_ITERS: self.max_iters, _SAMPLE_RATE: self.sample_rate}
        return {name: str(number) for name, number in recorded.items() if number is not None}

    @classmethod
    def of_details(cls, details: VectorDetails) -> "VectorOptions":
        """Return the options that the details of an index record. pylance also records the default number of
        iterations, which therefore counts as not chosen."""
        graph = details.graph
        max_iters = _number(details.hints, _MAX_ITERS)
        return cls(
            Metric(details.metric),
            details.num_partitions,
            details.num_sub_vectors or None,
            details.num_bits if details.kind.endswith(("PQ", "RQ")) else None,
            None if max_iters == ITERATIONS else max_iters,
            _number(details.hints, _SAMPLE_RATE) or SAMPLE_RATE,
            details.target_partition_size,
            None if graph is None else graph[0],
            None if graph is None else graph[1],
        )

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


def _number(hints: Mapping[str, str], name: str) -> int | None:
    """Return the positive number that the hints record under this name; `None` without one."""
    text = hints.get(name, "")
    return int(text) if text.isdecimal() and 0 < int(text) < 1 << 31 else None

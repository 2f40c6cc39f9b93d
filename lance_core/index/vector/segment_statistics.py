"""Statistics of a vector segment, recorded in its details: the sizes of its partitions, and how far its vectors are
from their centroids, now and when these were trained.

They are entries of the hints that the format reserves for parameters of the build; other readers ignore unknown ones.
For segments of other engines the sizes and the loss in their files take their place. Start with `statistics_of`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from uuid import UUID

from lance_core.errors import Corrupt, NotFound, StorageError, Unsupported
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.vector_index import VectorDetails
from lance_core.index.index_type import Segment
from lance_core.index.vector.model import Model, StoredModel, open_segment_files, read_model
from lance_core.index.vector.options import SAMPLE_RATE, VectorOptions
from lance_core.scan.vector_search import Metric
from lance_core.storage.lru_cache import LruCache

_PREFIX = "lance_assets."
_SEGMENTS_CACHED_MAX = 1024
_read_statistics: "LruCache[UUID, VectorStatistics]" = LruCache(_SEGMENTS_CACHED_MAX)
"""Statistics of segments of other engines."""
LOSS_GROWTH_MAX = 1.2
"""Mean loss of the rows of an index, relative to that at training, from which its model is trained again. When half of
40,000 clustered vectors came from other clusters, the ratio was 1.23 and recall@10 at 2 of 40 partitions 0.86, against
0.95 with a new model; at a ratio of 1.03 both were equal."""
ROW_GROWTH_MAX = 4.0
"""Rows of a table, relative to those at training, from which the model is trained again: a new model then has the same
recall with a quarter of the comparisons (record 6)."""
SKEW_MAX, SKEWED_GROWTH_MIN = 16.0, 2.0
"""Rows of the largest partition, relative to the mean, from which the model is trained again once the table has this
number of times the rows at training: partitions that were unequal then would be so again."""


@dataclass(frozen=True, slots=True)
class VectorStatistics:
    """Statistics of one segment of a vector index. A field is `None` if the segment does not record it."""

    partitions: int | None = None
    rows: int | None = None
    """Vectors in its files, including those deleted later."""
    largest_partition: int | None = None
    """Rows of its largest partition."""
    loss: float | None = None
    """Mean squared distance of its vectors from their centroids; for dot the mean cosine distance."""
    training_loss: float | None = None
    """The same of the sample that the centroids were trained on."""
    trained_rows: int | None = None
    """Rows of the table when they were trained."""

    @classmethod
    def of(cls, metadata: IndexMetadata) -> "VectorStatistics":
        details = VectorDetails.of(metadata)
        return cls() if details is None else cls.from_hints(details.hints)

    @classmethod
    def of_files(cls, stored: StoredModel) -> "VectorStatistics":
        """Return the statistics of a segment that records none: its loss counts as that of the training, and its rows
        as those at training. pylance records the sum of the losses of all rows, for dot by another distance; after
        merging segments it records 0, or the sum of some of them."""
        lengths, loss, metric = stored.partitions.lengths, stored.model.loss, stored.model.metric
        rows = int(lengths.sum())
        mean = loss / rows if loss and loss > 0 and rows and metric in (Metric.L2, Metric.COSINE) else None
        return cls(len(lengths), rows, int(lengths.max(initial=0)), mean, mean, rows)

    @classmethod
    def from_hints(cls, hints: Mapping[str, str]) -> "VectorStatistics":
        found: dict[str, float] = {}
        for each in fields(cls):
            try:
                found[each.name] = (float if "loss" in each.name else int)(hints[_PREFIX + each.name])
            except (KeyError, ValueError):
                continue
        return cls(**found)  # type: ignore[arg-type]

    def to_hints(self) -> Mapping[str, str]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {_PREFIX + name: repr(value) for name, value in values.items() if value is not None}

    def complete(self, model: Model) -> Model:
        """Return a model that was read from the files of a segment, with what its details record."""
        return replace(model, mean_loss=self.training_loss, trained_rows=self.trained_rows)

    @property
    def skew(self) -> float:
        """Rows of the largest partition, relative to the mean; 1 if they are not recorded."""
        if not self.rows or not self.partitions or self.largest_partition is None:
            return 1.0
        return self.largest_partition * self.partitions / self.rows


def statistics_of(segment: Segment) -> VectorStatistics:
    """Return the statistics that a segment records, or else those of its files; without fields if they cannot be
    read."""
    recorded = VectorStatistics.of(segment.metadata)
    if recorded.rows is not None:
        return recorded

    def read() -> VectorStatistics:
        files, path = segment.files, segment.metadata.qualified_path
        return VectorStatistics.of_files(read_model(*open_segment_files(files, path=path), path=path))

    try:
        return _read_statistics.get_or_create(segment.metadata.uuid, read)
    except (NotFound, StorageError, Corrupt, Unsupported):
        return recorded


def mean_of(*parts: tuple[int | None, float | None]) -> float | None:
    """Return the mean of the means of parts with some number of rows; `None` if that of any row is unknown."""
    occupied = [(rows, mean) for rows, mean in parts if rows is None or rows > 0]
    total, sum_ = 0, 0.0
    for rows, mean in occupied:
        if rows is None or mean is None:
            return None
        total, sum_ = total + rows, sum_ + rows * mean
    return sum_ / total if total else None


def rebuild_options(options: VectorOptions, known: Sequence[VectorStatistics], rows: int) -> VectorOptions | None:
    """Return the options with which an index of `rows` rows and segments with these statistics is trained again;
    `None` if its model still fits.

    The partitions keep their mean size, but their number does not grow beyond one for each `SAMPLE_RATE` rows."""
    complete = [each for each in known if each.trained_rows and each.partitions]
    if not complete:
        return None
    trained = max(complete, key=lambda each: each.rows or 0)
    assert trained.trained_rows
    assert trained.partitions
    loss = mean_of(*((each.rows, each.loss) for each in known))
    growth = rows / trained.trained_rows
    has_drifted = bool(loss and trained.training_loss and loss > LOSS_GROWTH_MAX * trained.training_loss)
    is_skewed = growth >= SKEWED_GROWTH_MIN and trained.skew > SKEW_MAX
    if not has_drifted and not is_skewed and growth < ROW_GROWTH_MAX:
        return None
    partitions = max(1, round(trained.partitions * growth))
    if partitions > trained.partitions:
        partitions = max(trained.partitions, min(partitions, rows // SAMPLE_RATE))
    return replace(options, model=None, num_partitions=partitions)

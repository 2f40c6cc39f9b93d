"""Statistics of a vector segment, recorded in its details: the sizes of its partitions, and how far its vectors are
from their centroids, now and when these were trained.

They are entries of the hints that the format reserves for parameters of the build; other readers ignore unknown ones.
Segments of other engines have none, and `rebuild_options` leaves these as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.vector_index import VectorDetails
from lance_core.index.vector.model import Model
from lance_core.index.vector.options import VectorOptions

_PREFIX = "lance_assets."
LOSS_GROWTH_MAX = 1.2
"""Mean loss of the rows of an index, relative to that at training, from which its model is trained again. When half of
40,000 clustered vectors came from other clusters, the ratio was 1.23 and recall@10 at 2 of 40 partitions 0.86, against
0.95 with a new model; at a ratio of 1.03 both were equal."""
ROW_GROWTH_MAX = 4.0
"""Rows of a table, relative to those at training, from which the model is trained again."""
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


def mean_of(*parts: tuple[int | None, float | None]) -> float | None:
    """Return the mean of the means of parts with some number of rows; `None` if that of any row is unknown."""
    occupied = [(rows, mean) for rows, mean in parts if rows is None or rows > 0]
    total, sum_ = 0, 0.0
    for rows, mean in occupied:
        if rows is None or mean is None:
            return None
        total, sum_ = total + rows, sum_ + rows * mean
    return sum_ / total if total else None


def rebuild_options(options: VectorOptions, segments: Sequence[IndexMetadata], rows: int) -> VectorOptions | None:
    """Return the options with which an index of `rows` rows is trained again; `None` if its model still fits.

    The partitions keep their mean size."""
    known = [VectorStatistics.of(segment) for segment in segments]
    for each in known:
        if each.training_loss and each.trained_rows and each.partitions:
            break
    else:
        return None
    loss = mean_of(*((one.rows, one.loss) for one in known))
    growth = rows / each.trained_rows
    has_drifted = loss is not None and loss > LOSS_GROWTH_MAX * each.training_loss
    is_skewed = growth >= SKEWED_GROWTH_MIN and each.skew > SKEW_MAX
    if not has_drifted and not is_skewed and growth < ROW_GROWTH_MAX:
        return None
    return replace(options, model=None, num_partitions=max(1, round(each.partitions * growth)))

"""Bounds of RaBitQ products: which products of a query with codes can belong to a row that is near enough.

The estimate of a row is `distance of the centroid + summand + scale * product`, and the scale is negative. It is at
most `limit` if

    product - summand / -scale + (limit - distance of the centroid) / -scale >= 0

The two quotients of each row are rounded to 16 bits within the range of their partition, and stored as four more bytes
of its code. The left side is then a product of the longer code with a longer query plus a constant, so that faiss
returns only the rows that pass. The constant has room for the rounding, so that no row is missed.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lance_core.index.vector.quantizers import Ints, Vectors
from lance_core.scan.vector_search import Floats

BYTES = 4
"""Bytes of the quotients of a row."""
_LEVELS = (1 << 16) - 1
_SCALES_RATIO_MAX = 64.0
"""Ratio of the scales of a partition up to which rounded quotients are a useful bound."""
_PRODUCT_MAX = 1e30
_EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, slots=True)
class BoundedPairs:
    """Pairs of a query and a partition, ready to be compared."""

    weights: Vectors
    """Numbers by which the quotients of the rows are multiplied, in the order of their bytes."""
    constants: Floats
    room: Floats
    """Part of the constant that compensates for rounding; in a partition without bounds, so much that all rows pass."""
    differences: Floats
    """Limit of each query minus the distance of the centroid."""
    is_bounded: npt.NDArray[np.bool_]


class ProductBounds:
    """Quotients of the rows of the loaded partitions of a segment."""

    def __init__(self, partitions: int, rows: int) -> None:
        self._least, self._step = np.zeros((2, partitions)), np.zeros((2, partitions))
        self._is_bounded = np.zeros(partitions, dtype=np.bool_)
        self._quotients = np.empty((2, rows), dtype=np.float32)
        """Quotients of each ordinal, as they are rounded; zero in a partition without bounds."""

    def add(self, partition: int, place: slice, factors: tuple[Vectors, Vectors]) -> npt.NDArray[np.uint8]:
        """Add the rows of a partition, and return the bytes of their quotients."""
        summands, steepness = factors[0].astype(np.float64), -factors[1].astype(np.float64)
        stored = np.zeros((len(summands), BYTES), dtype=np.uint8)
        least, most = float(steepness.min()), float(steepness.max())
        if not (0 < most <= least * _SCALES_RATIO_MAX and np.isfinite(summands).all()):
            self._quotients[:, place] = 0
            return stored
        self._is_bounded[partition] = True
        for number, quotients in enumerate((summands / steepness, 1 / steepness)):
            start = float(quotients.min())
            step = max((float(quotients.max()) - start) / _LEVELS, float(np.finfo(np.float64).tiny))
            rounded = np.clip(np.rint((quotients - start) / step), 0, _LEVELS).astype(np.uint16)
            self._least[number, partition], self._step[number, partition] = start, step
            self._quotients[number, place] = start + step * rounded
            stored[:, 2 * number], stored[:, 2 * number + 1] = rounded >> 8, rounded & 255
        return stored

    def pairs(self, partitions: Ints, differences: Floats, reach: Floats, width: int) -> BoundedPairs:
        """Return the pairs of these partitions with queries. `reach` is the largest product of each query with a code,
        and `width` the length of a code."""
        least, step = self._least[:, partitions], self._step[:, partitions]
        largest = reach + np.abs(least[0]) + _LEVELS * step[0]
        with np.errstate(over="ignore", invalid="ignore"):
            largest = largest + np.abs(differences) * (np.abs(least[1]) + _LEVELS * step[1])
            is_bounded = self._is_bounded[partitions] & (largest < _PRODUCT_MAX)
            differences = np.where(is_bounded, differences, 0)
            step, least = np.where(is_bounded, step, 0), np.where(is_bounded, least, 0)
            room = (step[0] + np.abs(differences) * step[1]) / 2 + _EPSILON * width * largest
        weights = np.stack([-step[0] * 256, -step[0], differences * step[1] * 256, differences * step[1]], axis=1)
        room = np.where(is_bounded, room, 4 * reach)
        constants = room - least[0] + differences * least[1]
        return BoundedPairs(weights.astype(np.float32), constants, room, differences, is_bounded)

    def products(self, found: Vectors, rows: Ints, pairs: BoundedPairs, numbers: Ints) -> Floats:
        """Return the products of the rows that were found for pairs with these numbers."""
        quotients = self._quotients[:, rows]
        products = found.astype(np.float64) - pairs.room[numbers]
        quotient_terms = quotients[0] - pairs.differences[numbers] * quotients[1]
        return np.asarray(products + pairs.is_bounded[numbers] * quotient_terms)

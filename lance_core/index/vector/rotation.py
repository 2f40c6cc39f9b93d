"""Rotations of RaBitQ: rounds of random sign changes and Walsh-Hadamard transforms, or a matrix.

A rotation is linear, so that its matrix is the rotated identity. The rounds take less time than the matrix for a few
vectors, such as the query of the first search in a segment.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
ROUNDS = 4
_FEW_VECTORS = 4


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotation of vectors of some dimension."""

    dimension: int
    signs: Bytes | None = None
    """Signs of the rounds, as the file stores them; `None` for a matrix."""
    stored_matrix: Vectors | None = None
    """Matrix by which vectors are multiplied from the right."""

    @cached_property
    def matrix(self) -> Vectors:
        if self.stored_matrix is not None:
            return self.stored_matrix
        return np.ascontiguousarray(self._rounds(np.eye(self.dimension)), dtype=np.float32)

    def apply(self, vectors: npt.NDArray[np.floating]) -> Vectors:
        """Return the rotated vectors."""
        if len(vectors) > _FEW_VECTORS or self.signs is None or "matrix" in self.__dict__:
            return np.ascontiguousarray(vectors @ self.matrix, dtype=np.float32)
        return np.ascontiguousarray(self._rounds(vectors.astype(np.float64)), dtype=np.float32)

    def _rounds(self, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the rotated rows, which this changes."""
        assert self.signs is not None
        dimension = self.dimension
        size = 1 << (dimension.bit_length() - 1)
        for number, bits in enumerate(self.signs.reshape(ROUNDS, -1)):
            is_negated = np.unpackbits(bits, bitorder="little")[:dimension].astype(np.bool_)
            rows[:, is_negated] *= -1
            start = 0 if number % 2 == 0 else dimension - size
            rows[:, start : start + size] = _walsh_hadamard(rows[:, start : start + size]) / np.sqrt(size)
            if size != dimension:
                half = dimension // 2
                low, high = rows[:, :half].copy(), rows[:, half : 2 * half].copy()
                rows[:, :half], rows[:, half : 2 * half] = low + high, low - high
        return rows * 0.25 if size != dimension else rows

    def equals(self, other: "Rotation") -> bool:
        return np.array_equal(self.matrix, other.matrix)


def random_rotation(dimension: int, seed: int) -> Rotation:
    """Return a rotation with random signs."""
    signs = np.random.default_rng(seed).integers(0, 256, ROUNDS * -(-dimension // 8)).astype(np.uint8)
    return Rotation(dimension, signs)


def _walsh_hadamard(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the transforms of rows. A matrix product would start threads, which takes longer for one small matrix."""
    count, size = rows.shape
    result = np.array(rows)
    width = 1
    while width < size:
        pairs = result.reshape(count, size // (2 * width), 2, width)
        differences = pairs[:, :, 0] - pairs[:, :, 1]
        pairs[:, :, 0] += pairs[:, :, 1]
        pairs[:, :, 1] = differences
        width *= 2
    return result

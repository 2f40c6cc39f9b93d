"""RaBitQ quantization (IVF_RQ): the signs of a randomly rotated residual, up to eight more bits for each number, and
factors that turn the product with a query into a distance.

With `R` the rotated residual of a vector, `C` the rotated centroid, `q` the rotated query and `u` the code as numbers
between `-2**(bits - 1)` and `2**(bits - 1)`, the product `R·(q - C)` is estimated by `|R|² / R·u * u·(q - C)`. The
file stores the terms that do not depend on the query: a summand and a scale for each row, once for the signs alone and
once for all bits. Readers use all bits; the signs alone give a bound of the error, for readers that prune by it.

A row stores its signs and its other bits apart. The layouts of both make them fast to unpack in registers:
`_SIGN_ORDER` within blocks of 32 rows, and `_bit_moves` within blocks of 64 dimensions.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.format.vector_index import encode_tensor
from lance_core.index.vector.quantizers import Array, AssignedVectors, Codes, Quantizer, Vectors
from lance_core.index.vector.rotation import Bytes, Rotation, random_rotation
from lance_core.scan.vector_search import Metric

BITS_MAX = 9
_BLOCK_ROWS, _BLOCK_DIMENSIONS = 32, 64
_SIGN_ORDER = np.array([0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15])
_EVERY_BYTE = 0x0101010101010101
_ERROR_WIDTH = 1.9
"""Number of standard deviations in the bound of the error."""
_STEP_FACTORS = tuple(np.linspace(0.58, 1.03, 12).tolist())
"""Distances between levels that are tried for each row, relative to those that reach its largest number."""
_ENCODED_ROWS, _COMPARED_ROWS = 8192, 1024
_NAMES = ("_rabit_codes", "__add_factors", "__scale_factors", "__error_factors")
_EXTENDED_NAMES = ("__blocked_ex_codes", "__add_factors_ex", "__scale_factors_ex")


@dataclass(frozen=True, slots=True, eq=False)
class RabitCodes:
    """RaBitQ quantization of rotated vectors."""

    compression = "RQ"
    num_bits: int
    rotation: Rotation
    is_dot: bool = False
    is_packed: bool = True

    @property
    def extra_bits(self) -> int:
        return self.num_bits - 1

    @property
    def offset(self) -> float:
        """Number that is subtracted from a code."""
        return (1 << self.extra_bits) - 0.5

    def columns(self, dimension: int, element: pa.DataType) -> tuple[pa.Field, ...]:
        names = _NAMES if self.num_bits == 1 else (*_NAMES, *_EXTENDED_NAMES)
        widths = {"_rabit_codes": dimension // 8, "__blocked_ex_codes": _blocked_bytes(dimension, self.extra_bits)}
        return tuple(
            pa.field(name, pa.list_(pa.field("item", pa.uint8()), widths[name]) if name in widths else pa.float32())
            for name in names
        )

    def encode(self, vectors: AssignedVectors) -> Codes:
        rotation = self.rotation.matrix
        centroids = vectors.centroids @ rotation
        parts = []
        for start in range(0, len(vectors.floats), _ENCODED_ROWS):
            rows = slice(start, start + _ENCODED_ROWS)
            partitions = vectors.partitions[rows]
            differences = vectors.floats[rows] - vectors.centroids[partitions]
            parts.append(self._encode(np.asarray(differences @ rotation, dtype=np.float32), centroids[partitions]))
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    @property
    def searched_columns(self) -> tuple[int, ...]:
        """Positions of the columns that a search by all bits needs: the signs, the other bits, and their factors."""
        return (0, 1, 2) if self.num_bits == 1 else (0, 4, 5, 6)

    def numbers(self, searched: Codes) -> Bytes:
        """Return the codes of a partition as numbers without their offset, one for each dimension. Codes of nine bits
        have two numbers: the last eight bits of all dimensions, then the signs."""
        signs = np.ascontiguousarray(searched[0], dtype=np.uint8)
        if self.num_bits == 1:
            return np.unpackbits(signs, axis=1, bitorder="little")
        others = _unblocked(searched[1], 8 * signs.shape[1], self.extra_bits)
        if self.num_bits > 8:
            return np.concatenate([others, np.unpackbits(signs, axis=1, bitorder="little")], axis=1)
        numbers = _spread_bits(self.extra_bits)[signs]
        numbers |= others.view(np.uint64)
        return numbers.view(np.uint8)

    def products(self, searched: Codes, rotated: Vectors) -> Vectors:
        """Return the products of the codes of a partition with one rotated query, block by block: memory that is used
        again takes less time than new memory."""
        query = self.expanded(rotated[None])[0]
        products = np.empty(len(searched[0]), dtype=np.float32)
        floats = np.empty((_COMPARED_ROWS, len(query)), dtype=np.float32)
        for start in range(0, len(products), _COMPARED_ROWS):
            rows = slice(start, start + _COMPARED_ROWS)
            numbers = self.numbers(tuple(column[rows] for column in searched))
            block = floats[: len(numbers)]
            block[:] = numbers
            np.einsum("ij,j->i", block, query, out=products[rows])  # a product of matrices would start threads
        return products - np.float32(self.offset * rotated.sum(dtype=np.float64))

    def expanded(self, rotated: Vectors) -> Vectors:
        """Return rotated queries whose products with `numbers` are those with the codes."""
        if self.num_bits <= 8:
            return rotated
        return np.concatenate([rotated, rotated * np.float32(1 << self.extra_bits)], axis=1)

    @property
    def query_size(self) -> int:
        """Number of values of an expanded query."""
        return self.rotation.dimension * (1 if self.num_bits <= 8 else 2)

    def factors(self, searched: Codes) -> tuple[Vectors, Vectors]:
        """Return the summands and scales of a partition, for all bits."""
        return searched[-2].astype(np.float32), searched[-1].astype(np.float32)

    def pack(self, codes: Codes) -> Codes:
        return (_pack_signs(codes[0].astype(np.uint8)), *codes[1:]) if self.is_packed else codes

    def unpack(self, codes: Codes) -> Codes:
        return (_unpack_signs(codes[0].astype(np.uint8)), *codes[1:]) if self.is_packed else codes

    def describe(
        self, dimension: int, dtype: np.dtype[np.generic], add_buffer: Callable[[bytes], int]
    ) -> Mapping[str, Any]:
        signs = self.rotation.signs
        matrix = None if signs is not None else add_buffer(encode_tensor(self.rotation.matrix.T))
        return {
            "rotate_mat_position": matrix,
            "fast_rotation_signs": None if signs is None else signs.tolist(),
            "rotation_type": "matrix" if signs is None else "fast",
            "code_dim": dimension,
            "num_bits": self.num_bits,
            "packed": self.is_packed,
            "query_estimator": "raw_query",
        }

    def has_same_parameters(self, other: Quantizer) -> bool:
        return (
            isinstance(other, RabitCodes)
            and (self.num_bits, self.is_dot) == (other.num_bits, other.is_dot)
            and self.rotation.equals(other.rotation)
        )

    def _encode(self, residuals: Vectors, centroids: Vectors) -> Codes:
        squares = np.einsum("ij,ij->i", residuals, residuals)
        is_positive = ~np.signbit(residuals)
        signs = is_positive.astype(np.float32) - np.float32(0.5)
        product, cosine = self._products(residuals, centroids, signs)
        columns: list[Array] = [
            np.packbits(is_positive, axis=1, bitorder="little"),
            *self._terms(squares, product, cosine, residuals, centroids),
            self._error(squares, product, residuals.shape[1]),
        ]
        if self.num_bits > 1:
            extra = self._extra_codes(residuals, squares)
            extra = np.where(is_positive, extra, ((1 << self.extra_bits) - 1) - extra)
            numbers = (is_positive.astype(np.float32) * (1 << self.extra_bits)) + extra - np.float32(self.offset)
            product, cosine = self._products(residuals, centroids, numbers)
            columns += [
                _blocked(extra.astype(np.uint8), self.extra_bits),
                *self._terms(squares, product, cosine, residuals, centroids),
            ]
        return tuple(columns)

    @staticmethod
    def _products(residuals: Vectors, centroids: Vectors, numbers: Vectors) -> tuple[Vectors, Vectors]:
        return np.einsum("ij,ij->i", residuals, numbers), np.einsum("ij,ij->i", centroids, numbers)

    def _terms(
        self, squares: Vectors, product: Vectors, cosine: Vectors, residuals: Vectors, centroids: Vectors
    ) -> tuple[Vectors, Vectors]:
        """Return the summands and the scales of rows; zero for a vector that is its centroid."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(product > 0, squares / product, 0).astype(np.float32)
        if self.is_dot:
            base = 1 - np.einsum("ij,ij->i", residuals, centroids)
            return base + ratio * cosine, -ratio
        return squares + 2 * ratio * cosine, -2 * ratio

    def _error(self, squares: Vectors, product: Vectors, dimension: int) -> Vectors:
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = np.maximum(squares * (dimension / 4) / product**2 - 1, 0) / max(1, dimension - 1)
        width = np.sqrt(squares) * np.sqrt(spread) * (_ERROR_WIDTH if self.is_dot else 2 * _ERROR_WIDTH)
        return np.where(product > 0, width, 0).astype(np.float32)

    def _extra_codes(self, residuals: Vectors, squares: Vectors) -> Vectors:
        """Return the bits after the sign, as numbers: the levels of each row whose direction is the nearest."""
        top = np.float32((1 << self.extra_bits) - 1)
        absolute = np.abs(residuals)
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = absolute * np.where(squares > 0, (top + 1) / absolute.max(axis=1), 0).astype(np.float32)[:, None]
        best, best_cosine = np.zeros_like(scaled), np.full(len(scaled), -1.0, dtype=np.float32)
        for factor in _STEP_FACTORS:
            levels = np.minimum(np.floor(scaled * np.float32(1 / factor)), top)
            centers = levels + np.float32(0.5)
            cosine = np.einsum("ij,ij->i", scaled, centers) / np.sqrt(np.einsum("ij,ij->i", centers, centers))
            is_better = cosine > best_cosine
            best[is_better], best_cosine[is_better] = levels[is_better], cosine[is_better]
        return best


def new_rabit_codes(dimension: int, num_bits: int, metric: Metric, seed: int) -> RabitCodes:
    """Return the quantization of a new segment, with a random rotation."""
    return RabitCodes(num_bits, random_rotation(dimension, seed), metric is Metric.DOT)


def _pack_signs(codes: Bytes) -> Bytes:
    """Return the signs of a partition in the order of the file."""
    count, width = codes.shape
    whole = count - count % _BLOCK_ROWS
    blocks = codes[:whole].reshape(-1, 2, 16, width).transpose(0, 3, 1, 2)[..., _SIGN_ORDER]
    first, second = blocks[:, :, 0], blocks[:, :, 1]
    low = (first & 15) | ((second & 15) << 4)
    high = (first >> 4) | (second & 240)
    packed = np.concatenate([low, high], axis=2).ravel()
    return np.concatenate([packed, codes[whole:].T.ravel()]).reshape(count, width)


def _unpack_signs(stored: Bytes) -> Bytes:
    count, width = stored.shape
    whole = count - count % _BLOCK_ROWS
    flat = stored.ravel()
    blocks = flat[: whole * width].reshape(-1, width, 2, 16)
    low, high = blocks[:, :, 0], blocks[:, :, 1]
    rows = np.empty((len(blocks), 2, 16, width), dtype=np.uint8)
    rows[:, 0, _SIGN_ORDER] = ((low & 15) | (high << 4)).transpose(0, 2, 1)
    rows[:, 1, _SIGN_ORDER] = ((low >> 4) | (high & 240)).transpose(0, 2, 1)
    rest = flat[whole * width :].reshape(width, count - whole).T
    return np.concatenate([rows.reshape(whole, width), rest])


@dataclass(frozen=True, slots=True)
class _BitMove:
    """Some bits of each number of a range of dimensions, and their place in a range of bytes."""

    dimensions: slice
    shift: int
    mask: int
    bytes: slice
    target_shift: int
    is_in_words: bool = False
    """True if the ranges count words of eight dimensions or bytes."""


@cache
def _bit_moves(bits: int) -> tuple[_BitMove, ...]:
    """Return the layout of numbers of some bits in a block of 64 dimensions."""
    return tuple(_moves(bits))


def _moves(bits: int) -> Iterator[_BitMove]:
    match bits:
        case 1:
            for bit in range(8):
                yield _BitMove(slice(bit, None, 8), 0, 1, slice(8), bit)
        case 2 | 3:
            for run in range(4):
                yield _BitMove(slice(16 * run, 16 * run + 16), 0, 3, slice(16), 2 * run)
        case 4:
            for half in range(2):
                yield _BitMove(slice(half, 8, 2), 0, 15, slice(4), 4 * half, True)
        case 5:
            for run in range(4):
                place = slice(16 * (run // 2), 16 * (run // 2) + 16)
                yield _BitMove(slice(16 * run, 16 * run + 16), 0, 15, place, 4 * (run % 2))
        case 6 | 7:
            for run in range(3):
                place = slice(16 * run, 16 * run + 16)
                yield _BitMove(place, 0, 63, place, 0)
                yield _BitMove(slice(48, 64), 2 * run, 3, place, 6)
        case _:
            yield _BitMove(slice(64), 0, 255, slice(64), 0)
    if bits in (3, 5, 7):
        plane = slice(8 * (bits - 1), 8 * bits)
        for run in range(8):
            yield _BitMove(slice(8 * run, 8 * run + 8), bits - 1, 1, plane, run)


def _move_bits(
    source: Bytes,
    place: slice,
    shift: int,
    target: Bytes,
    target_place: slice,
    target_shift: int,
    mask: int,
    *,
    is_in_words: bool,
) -> None:
    """Copy the bits of a mask from each byte of a range to another range, eight bytes at a time where it can."""
    if is_in_words or (place.step is None and target_place.step is None):
        if not is_in_words:
            place, target_place = _in_words(place), _in_words(target_place)
        words, target_words = source.view(np.uint64), target.view(np.uint64)
        moved = words[..., place] >> np.uint64(shift)
        moved &= np.uint64(mask * _EVERY_BYTE)
        moved <<= np.uint64(target_shift)
        target_words[..., target_place] |= moved
    else:
        target[..., target_place] |= ((source[..., place] >> shift) & mask) << target_shift


def _in_words(place: slice) -> slice:
    start = place.start or 0
    assert start % 8 == place.stop % 8 == 0
    return slice(start // 8, place.stop // 8)


@cache
def _spread_bits(shift: int) -> npt.NDArray[np.uint64]:
    """Return eight bytes for each byte: its bits, shifted to the left."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.asarray((bits << shift).view(np.uint64)[:, 0])


def _blocked_bytes(dimension: int, bits: int) -> int:
    return -(-dimension // _BLOCK_DIMENSIONS) * 8 * bits


def _blocked(numbers: Bytes, bits: int) -> Bytes:
    """Return numbers of some bits in the layout of the file."""
    count, dimension = numbers.shape
    blocks = -(-dimension // _BLOCK_DIMENSIONS)
    padded = np.zeros((count, blocks * _BLOCK_DIMENSIONS), dtype=np.uint8)
    padded[:, :dimension] = numbers
    padded = padded.reshape(count, blocks, _BLOCK_DIMENSIONS)
    stored = np.zeros((count, blocks, 8 * bits), dtype=np.uint8)
    for move in _bit_moves(bits):
        _move_bits(
            padded,
            move.dimensions,
            move.shift,
            stored,
            move.bytes,
            move.target_shift,
            move.mask,
            is_in_words=move.is_in_words,
        )
    return stored.reshape(count, -1)


def _unblocked(stored: Array, dimension: int, bits: int) -> Bytes:
    """Return the numbers of some bits that the file stores."""
    count = len(stored)
    blocks = np.ascontiguousarray(stored, dtype=np.uint8).reshape(count, -1, 8 * bits)
    numbers = np.zeros((count, blocks.shape[1], _BLOCK_DIMENSIONS), dtype=np.uint8)
    for move in _bit_moves(bits):
        _move_bits(
            blocks,
            move.bytes,
            move.target_shift,
            numbers,
            move.dimensions,
            move.shift,
            move.mask,
            is_in_words=move.is_in_words,
        )
    return np.ascontiguousarray(numbers.reshape(count, -1)[:, :dimension])

"""Token sets: find the number of a token in a partition of a full-text index, and list the tokens near to a word.

A partition stores its tokens either as rows of a file (`ArrowTokenSet`) or as a finite state transducer, version 3 of
the format of the `fst` crate (`FstTokenSet`). A transducer is an automaton over the bytes of the tokens; the sum of the
outputs along the path of a token is its number. Nodes are stored before the nodes that refer to them, so that every
walk ends.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import Corrupt
from lance_core.index.text.edit_distance import within_distance

Ints = npt.NDArray[np.int64]
_FST_VERSION = 3
_HEADER, _FOOTER = struct.Struct("<QQ"), struct.Struct("<QQI")
_COMMON_INPUTS = b"te/oasripcnw.hlm-du012g=:bf3y5&_4v9678k%?xCDASFIBEjPTzRNM+LOqHG"
"""Bytes that a node of one transition encodes in the low six bits of its first byte, counted from 1."""
_INDEXED_FROM = 32
"""A node of more transitions has a table of 256 bytes in addition."""
_EMPTY_NODE = 0
_LISTED_NODES_MAX = 1 << 26
"""Bytes of the tokens that a transducer lists, shared prefixes counted once: the nodes that a listing reads."""
_LISTED_BYTES_MAX = 1 << 28
"""Bytes of the tokens that a transducer lists. Long shared prefixes make them many from few nodes."""
_PROBES_MAX = 64
"""Bound for the steps of a binary search."""


class TokenSet(Protocol):
    """Tokens of one partition. Numbers are the rows of the posting lists."""

    def find(self, term: str) -> int | None:
        """Return the number of a token; `None` if the partition does not have it."""

    def list_tokens(self) -> "SortedTokens":
        """Return all tokens."""

    @property
    def size(self) -> int:
        """Memory of the token set in bytes."""


@dataclass(frozen=True, slots=True)
class SortedTokens:
    """All tokens of a partition, in bytewise order."""

    terms: pa.Array
    numbers: Ints

    @property
    def size(self) -> int:
        return int(self.terms.nbytes + self.numbers.nbytes)

    def near(self, term: str, distance: int, prefix: int) -> tuple[list[str], list[int]]:
        """Return the tokens within this edit distance that share the first characters, in bytewise order, with their
        numbers."""
        rows = within_distance(self.terms, term, distance, prefix)
        return self.terms.take(pa.array(rows)).to_pylist(), self.numbers[rows].tolist()


class ArrowTokenSet:
    """Token set in memory: tokens as an Arrow array."""

    def __init__(self, terms: pa.Array, numbers: Ints) -> None:
        self._sorted = _sort(terms, numbers)

    @classmethod
    def of_columns(cls, terms: pa.ChunkedArray, numbers: pa.ChunkedArray, *, count: int, path: str) -> "ArrowTokenSet":
        """Return the token set of a file, checked against the number of posting lists."""
        if terms.null_count or numbers.null_count:
            raise Corrupt("a token or its number is missing", path=path, field="_token")
        checked = numbers.to_numpy().astype(np.int64)
        _check_numbers(checked, count, path)
        tokens = cls(
            pa.concat_arrays(terms.cast(pa.large_string()).chunks or [pa.array([], pa.large_string())]), checked
        )
        ordered = tokens._sorted.terms
        if len(ordered) > 1 and pc.any(pc.equal(ordered[1:], ordered[:-1])).as_py():
            raise Corrupt("a token occurs twice", path=path, field="_token")
        return tokens

    @property
    def size(self) -> int:
        return self._sorted.size

    def find(self, term: str) -> int | None:
        terms, key = self._sorted.terms, term.encode("utf-8", "surrogatepass")
        low, high = 0, len(terms)
        for _ in range(_PROBES_MAX):
            if low >= high:
                break
            middle = (low + high) // 2
            if terms[middle].as_buffer().to_pybytes() < key:
                low = middle + 1
            else:
                high = middle
        if low == len(terms) or terms[low].as_buffer().to_pybytes() != key:
            return None
        return int(self._sorted.numbers[low])

    def list_tokens(self) -> SortedTokens:
        return self._sorted


class FstTokenSet:
    """Token set that is stored as a transducer."""

    def __init__(self, data: bytes, *, count: int, path: str) -> None:
        """`count` is the number of posting lists, which the tokens number."""
        self._data, self._count, self._path = data, count, path
        if len(data) < _HEADER.size + _FOOTER.size:
            raise self._error(f"has {len(data)} bytes")
        version, _type = _HEADER.unpack_from(data, 0)
        if version != _FST_VERSION:
            raise self._error(f"has version {version}; version {_FST_VERSION} can be read")
        tokens, self._root, _checksum = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
        if tokens != count:
            raise self._error(f"has {tokens} tokens, and there are {count} posting lists")

    @property
    def size(self) -> int:
        return len(self._data)

    def find(self, term: str) -> int | None:
        address, number = self._root, 0
        for byte in term.encode("utf-8", "surrogatepass"):
            node = self._node(address)
            position = node.inputs.find(byte)
            if position < 0:
                return None
            output, address = node.transition(position, self)
            number += output
        node = self._node(address)
        if not node.is_final:
            return None
        number += node.final_output
        if number >= self._count:
            raise self._error(f"numbers a token {number} of {self._count}")
        return number

    def list_tokens(self) -> SortedTokens:
        data, offsets, numbers = bytearray(), [0], []
        for term, number in self._list():
            if number >= self._count:
                raise self._error(f"numbers a token {number} of {self._count}")
            if len(data) + len(term) > _LISTED_BYTES_MAX:
                raise self._error(f"lists more than {_LISTED_BYTES_MAX:,} bytes of tokens")
            data += term
            offsets.append(len(data))
            numbers.append(number)
        checked = np.array(numbers, dtype=np.int64)
        _check_numbers(checked, self._count, self._path)
        buffers = pa.py_buffer(np.array(offsets, dtype=np.int64)), pa.py_buffer(data)
        terms = pa.LargeStringArray.from_buffers(len(numbers), *buffers)
        try:
            terms.validate(full=True)
        except pa.ArrowInvalid as error:
            raise self._error("has a token that is not UTF-8") from error
        return SortedTokens(terms, checked)

    def _list(self) -> Iterator[tuple[bytearray, int]]:
        """Yield all tokens in bytewise order, with their numbers. A token is valid until the next one."""
        if not self._count:
            return
        stack = [(self._root, 0, 0, b"")]
        path = bytearray()
        tokens = read = 0
        while stack:
            address, number, depth, last = stack.pop()
            del path[max(0, depth - 1) :]
            path += last
            node = self._node(address)
            read += 1
            if node.is_final:
                tokens += 1
                yield path, number + node.final_output
            elif not node.inputs:
                raise self._error("has a path that ends without a token")
            if tokens > self._count or read > _LISTED_NODES_MAX:
                raise self._error("lists more tokens than it has")
            following = sorted(range(len(node.inputs)), key=node.inputs.__getitem__, reverse=True)
            for position in following:
                output, target = node.transition(position, self)
                stack.append((target, number + output, depth + 1, node.inputs[position : position + 1]))

    def _node(self, address: int) -> "_Node":
        data = self._data
        if address == _EMPTY_NODE:
            return _FINAL_LEAF
        if not _HEADER.size <= address < len(data) - _FOOTER.size:
            raise self._error(f"refers to byte {address}")
        state = data[address]
        if state < 0x80:
            return self._branching_node(address, state)
        common, at = state & 0x3F, address
        if not common:
            at -= 1
        inputs = data[at : at + 1] if not common else _COMMON_INPUTS[common - 1 : common]
        if state >= 0xC0:
            return _Node(inputs, False, 0, at, 0, 0, at, at)
        sizes = data[at - 1]
        target_size, output_size = sizes >> 4, sizes & 0x0F
        targets = at - 1
        outputs = targets - target_size
        return _Node(inputs, False, 0, outputs - output_size, target_size, output_size, targets, outputs)

    def _branching_node(self, address: int, state: int) -> "_Node":
        data, at, count = self._data, address, state & 0x3F
        if not count:
            at -= 1
            count = 256 if data[at] == 1 else data[at]
        at -= 1
        target_size, output_size = data[at] >> 4, data[at] & 0x0F
        if count > _INDEXED_FROM:
            at -= 256
        targets = at - count
        inputs = data[max(0, targets) : max(0, at)][::-1]
        outputs = targets - count * target_size
        end = outputs - count * output_size
        is_final, final_output = bool(state & 0x40), 0
        if is_final and output_size:
            end -= output_size
            final_output = int.from_bytes(data[max(0, end) : max(0, end) + output_size], "little")
        if end < _HEADER.size:
            raise self._error(f"has a node at byte {address} that begins before the first one")
        return _Node(inputs, is_final, final_output, end, target_size, output_size, targets, outputs)

    def read(self, position: int, size: int) -> int:
        return int.from_bytes(self._data[position : position + size], "little")

    def check_target(self, target: int, end: int) -> int:
        if not 0 <= target < end:
            raise self._error(f"refers to byte {target} from byte {end}")
        return target

    def _error(self, problem: str) -> Corrupt:
        return Corrupt(f"the token set {problem}", path=self._path, field="_token_fst_bytes")


@dataclass(frozen=True, slots=True)
class _Node:
    """Node of a transducer, with the places of its transitions, which are stored downwards."""

    inputs: bytes
    is_final: bool
    final_output: int
    end: int
    """First byte of the node."""
    target_size: int
    output_size: int
    targets: int
    outputs: int

    def transition(self, position: int, fst: FstTokenSet) -> tuple[int, int]:
        """Return the output of a transition and the address of the node that it leads to."""
        if self.targets == self.end:
            return 0, fst.check_target(self.end - 1, self.end)
        delta = fst.read(self.targets - (position + 1) * self.target_size, self.target_size)
        output = 0
        if self.output_size:
            output = fst.read(self.outputs - (position + 1) * self.output_size, self.output_size)
        return output, _EMPTY_NODE if delta == 0 else fst.check_target(self.end - delta, self.end)


_FINAL_LEAF = _Node(b"", True, 0, 0, 0, 0, 0, 0)


def _sort(terms: pa.Array, numbers: Ints) -> SortedTokens:
    if len(terms) > 1 and not pc.all(pc.less_equal(terms[:-1], terms[1:])).as_py():
        order = pc.sort_indices(terms)
        return SortedTokens(terms.take(order), numbers[order.to_numpy()])
    return SortedTokens(terms, numbers)


def _check_numbers(numbers: Ints, count: int, path: str) -> None:
    """Raise `Corrupt` unless the numbers are those from 0 to `count`, each once."""
    if len(numbers) != count or not np.array_equal(np.sort(numbers), np.arange(count)):
        raise Corrupt(f"the token set does not number {count} posting lists, each once", path=path, field="_token_id")

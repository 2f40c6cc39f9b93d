"""Texts of benchmarks: documents of random words whose frequencies follow Zipf's law, as those of a language do."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_VOCABULARY = 60_000
_EXPONENT = 1.2


def draw_texts(count: int, shortest: int, longest: int, *, seed: int = 0) -> pa.Array:
    """Return texts of `shortest` to `longest` words."""
    generator = np.random.default_rng(seed)
    words = _draw_words(generator)
    lengths = generator.integers(shortest, longest + 1, count)
    ranks = np.minimum(generator.zipf(_EXPONENT, int(lengths.sum())) - 1, _VOCABULARY - 1)
    offsets = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, words.take(pa.array(ranks))), " ")


def _draw_words(generator: np.random.Generator) -> pa.Array:
    """Return distinct words of three to ten letters, the most frequent first."""
    letters = generator.integers(ord("a"), ord("z") + 1, (2 * _VOCABULARY, 10), dtype=np.uint8)
    lengths = generator.integers(3, 11, 2 * _VOCABULARY)
    words = [bytes(row[:length]).decode() for row, length in zip(letters, lengths.tolist(), strict=True)]
    return pa.array(list(dict.fromkeys(words))[:_VOCABULARY])

"""Key filters: the intersection of two filters of inserted keys. `test_upsert.py` compares their bytes with those of
pylance.
"""

import pyarrow as pa
import pytest

from lance_core.format._pb import transaction_pb2
from lance_core.format.key_filter import key_filter, may_share_keys

MANY = 2000


def keys(*values: int, exact: bool, fields: tuple[int, ...] = (0,)) -> bytes:
    return key_filter(fields, [pa.array(values, pa.int64())] * len(fields), exact=exact)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_a_key_in_both_is_never_missed(first: bool, second: bool) -> None:
    for value in (0, 1, -1, 2**62, 17):
        one, other = keys(value, 1000, exact=first), keys(5, value, exact=second)
        assert may_share_keys(one, other)
        assert may_share_keys(other, one)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_different_keys_do_not_match(first: bool, second: bool) -> None:
    """A Bloom filter may match a few of many different keys."""
    taken = sum(may_share_keys(keys(n, exact=first), keys(n + 1, exact=second)) for n in range(200))
    assert taken == 0


def test_many_keys_become_a_bloom_filter() -> None:
    many = keys(*range(MANY), exact=True)
    message = transaction_pb2.Transaction.KeyExistenceFilter.FromString(many)
    assert message.WhichOneof("data") == "bloom"
    assert all(may_share_keys(many, keys(n, exact=True)) for n in range(0, MANY, 97))
    assert sum(may_share_keys(many, keys(n, exact=True)) for n in range(MANY, 2 * MANY)) < MANY / 100


def test_empty_filters_do_not_match() -> None:
    none = key_filter([0], [], exact=True)
    assert not may_share_keys(none, keys(1, exact=True))
    assert not may_share_keys(none, keys(1, exact=False))
    assert not may_share_keys(key_filter([0], [], exact=False), keys(1, exact=False))


def test_incomparable_filters_may_match() -> None:
    own = keys(1, exact=False)
    other = transaction_pb2.Transaction.KeyExistenceFilter.FromString(keys(2, exact=False))
    other.bloom.bitmap = other.bloom.bitmap[:64]
    for theirs in (keys(2, exact=False, fields=(1,)), other.SerializeToString(), b"", b"\xff"):
        assert may_share_keys(own, theirs)
        assert may_share_keys(theirs, own)

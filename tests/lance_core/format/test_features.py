"""Feature flags: known bits pass, and every other bit is rejected by number and name."""

import pytest

from lance_core import Unsupported
from lance_core.format.features import READABLE, WRITABLE, Feature, check_readable, check_writable

ALL_BITS = [1 << position for position in range(64)]


@pytest.mark.parametrize("bit", ALL_BITS)
def test_each_bit_of_the_reader_word(bit: int) -> None:
    if bit & int(READABLE):
        check_readable(bit, bit, what="m")
    else:
        with pytest.raises(Unsupported, match=f"m needs reader features {bit}"):
            check_readable(bit, bit, what="m")


@pytest.mark.parametrize("bit", ALL_BITS)
def test_each_bit_of_the_writer_word(bit: int) -> None:
    if bit & int(WRITABLE):
        check_writable(bit, what="m")
    else:
        check_readable(
            0, bit & ~int(Feature.FRAGMENT_REUSE_INDEX | Feature.MANAGED_BLOBS | Feature.MIXED_FILE_VERSIONS), what="m"
        )
        with pytest.raises(Unsupported, match=f"m needs writer features {bit}"):
            check_writable(bit, what="m")


@pytest.mark.parametrize("flags", [(256, 0), (0, 256), (0, 1024), (0, 16384)])
def test_half_of_a_pair_is_rejected(flags: tuple[int, int]) -> None:
    with pytest.raises(Unsupported, match="in only one of its two flag words"):
        check_readable(*flags, what="m")


def test_known_bits_are_named() -> None:
    with pytest.raises(Unsupported, match=r"512 \(FRAGMENT_REUSE_WITH_ROW_IDS\), 4096,"):
        check_readable(512 + 4096, 512 + 4096, what="m")

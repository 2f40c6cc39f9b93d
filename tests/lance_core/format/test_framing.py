"""Framing: the container of a manifest returns what was written, and every corruption is detected."""

import pytest

from lance_core import Corrupt
from lance_core.format.manifest_file import (
    FOOTER,
    Offsets,
    extract_manifest_message,
    frame_manifest,
    read_section,
    section_offsets,
)

MESSAGE = b"the manifest"


@pytest.mark.parametrize("index", [None, b"", b"indices"])
@pytest.mark.parametrize("transaction", [None, b"", b"transaction"])
def test_sections_are_found_at_their_offsets(index: bytes | None, transaction: bytes | None) -> None:
    at = section_offsets(index, transaction)
    data = frame_manifest(index, transaction, MESSAGE)
    assert extract_manifest_message(data, path="m") == MESSAGE
    for position, content in ((at.index_section, index), (at.transaction, transaction)):
        assert (position is None) is (content is None)
        if position is not None:
            assert read_section(data, position, path="m", field="f") == content


def test_zero_is_a_position() -> None:
    assert section_offsets(b"x", None) == Offsets(index_section=0, transaction=None)
    assert section_offsets(None, b"x") == Offsets(index_section=None, transaction=0)


def test_the_footer_is_that_of_the_format() -> None:
    data = frame_manifest(None, None, MESSAGE)
    assert FOOTER.unpack(data[-16:]) == (0, 0, 2, b"LANC")
    assert extract_manifest_message(data[:-8] + b"\x09\0\x09\0LANC", path="m") == MESSAGE


@pytest.mark.parametrize("end", range(len(frame_manifest(b"i", b"t", MESSAGE))))
def test_every_truncation_is_corrupt(end: int) -> None:
    with pytest.raises(Corrupt, match=r"^m: "):
        extract_manifest_message(frame_manifest(b"i", b"t", MESSAGE)[:end], path="m")


@pytest.mark.parametrize("position", [-1, -(2**63), 13, 10**6, 2**63 - 1])
def test_a_position_outside_is_corrupt(position: int) -> None:
    data = frame_manifest(None, None, MESSAGE)[:-16] + FOOTER.pack(position, 0, 2, b"LANC")
    with pytest.raises(Corrupt) as caught:
        extract_manifest_message(data, path="m")
    assert caught.value.field in ("footer.position", "manifest", "manifest.length")


def test_a_message_that_leaves_a_gap_is_corrupt() -> None:
    data = frame_manifest(None, None, MESSAGE)
    with pytest.raises(Corrupt, match="do not reach up to the footer"):
        extract_manifest_message(data[:-16] + b"gap" + data[-16:], path="m")


@pytest.mark.parametrize("position", [-4, 26, 100])
def test_a_section_outside_is_corrupt(position: int) -> None:
    with pytest.raises(Corrupt, match=f"at byte {position} of"):
        read_section(frame_manifest(None, None, b"")[:20] + b"\xff" * 8, position, path="m", field="f")

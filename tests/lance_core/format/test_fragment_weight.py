"""Fragment weight: a bound in C, never below the exact weight, and refusals of manifests that are larger than they
look."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_core.errors import Unsupported
from lance_core.format import fragment_weight, size_guard
from lance_core.format._pb import table_pb2
from lance_core.format.fragment_weight import bound_fragments, check_manifest
from lance_core.format.message_weight import weigh
from lance_core.limits import Limit

FILES = st.builds(
    table_pb2.DataFile,
    path=st.text("ab", min_size=0, max_size=40),
    fields=st.lists(st.integers(-2, 300), max_size=30),
    column_indices=st.lists(st.integers(-1, 300), max_size=30),
    file_size_bytes=st.integers(0, 2**40),
)
FRAGMENTS = st.builds(
    table_pb2.DataFragment,
    id=st.integers(0, 2**32),
    files=st.lists(FILES, max_size=3),
    deletion_file=st.none() | st.builds(table_pb2.DeletionFile, id=st.integers(0, 2**63)),
    inline_row_ids=st.binary(max_size=20),
)


def repeat(message: bytes, size: int) -> bytes:
    return message * (size // len(message))


@given(st.lists(FRAGMENTS, max_size=8))
def test_the_bound_is_not_below_the_exact_weight(fragments: list[table_pb2.DataFragment]) -> None:
    message = table_pb2.Manifest(fragments=fragments).SerializeToString()
    exact = weigh(message, table_pb2.Manifest, small_parts_max=10**9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragment_weight, "NUMBERS", Limit("NUMBERS", 0, "numbers"))
        counted = bound_fragments(message)
    bound = bound_fragments(message)
    if bound is not None and counted is not None:  # many tags are left to the exact count
        assert bound.small_parts >= exact.small_parts
        assert counted.numbers == exact.numbers <= bound.numbers


@given(st.lists(FRAGMENTS, max_size=8), st.integers(0, 60))
def test_a_plainly_harmless_manifest_has_few_small_parts(fragments: list[table_pb2.DataFragment], parts: int) -> None:
    message = table_pb2.Manifest(fragments=fragments).SerializeToString()
    exact = weigh(message, table_pb2.Manifest, small_parts_max=10**9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(size_guard, "SMALL_PARTS", Limit("SMALL_PARTS", parts, "small parts"))
        assert exact.small_parts <= parts or not size_guard.has_provably_few_parts(message)
        patch.setattr(size_guard, "NUMBERS", Limit("NUMBERS", 2 * len(message) - 1, "numbers"))
        assert not size_guard.has_provably_few_parts(message)


@pytest.mark.parametrize(
    "part",
    [b"\x12\x00", b"\x92\x00\x00", b"\x12\x04\x12\x00\x12\x00", b"\x12\x06\x12\x04\x12\x00\x1a\x00"],
    ids=["empty fragments", "padded tags", "empty files", "empty arrays"],
)
def test_many_small_parts_are_refused(part: bytes) -> None:
    with pytest.raises(Unsupported, match="LANCE_ASSETS_SMALL_PARTS_MAX"):
        check_manifest(repeat(part, 12_000_000), path="m")


def test_small_parts_beside_many_fragments_are_refused() -> None:
    fragment = table_pb2.DataFragment(id=7, files=[table_pb2.DataFile(path="x" * 80, fields=[1], column_indices=[0])])
    fragments = repeat(table_pb2.Manifest(fragments=[fragment]).SerializeToString(), 6_000_000)
    check_manifest(fragments, path="m")
    fields = table_pb2.Manifest.DESCRIPTOR.fields_by_name["fields"].number << 3 | 2
    with pytest.raises(Unsupported, match="LANCE_ASSETS_SMALL_PARTS_MAX"):
        check_manifest(fragments + repeat(bytes([fields, 0]), 6_000_000), path="m")


def test_overlays_are_left_to_the_exact_count() -> None:
    fragment = table_pb2.DataFragment(files=[table_pb2.DataFile(path="x" * 80)], overlays=[table_pb2.DataOverlayFile()])
    assert bound_fragments(table_pb2.Manifest(fragments=[fragment]).SerializeToString()) is None

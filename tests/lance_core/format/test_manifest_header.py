"""Manifest header: the manifest without its fragments, which are carried complete and in order."""

import pytest

from lance_core.errors import Corrupt
from lance_core.format import manifest_file
from lance_core.format._pb import table_pb2
from lance_core.format.manifest import Manifest

_FIELD_OF_THE_FUTURE = b"\xba\x3e\x05later"  # field 999, length-delimited
_BROKEN_FRAGMENT = b"\x12\x02\x12\x7f"  # field 2, whose inner field is longer than it


def fragment(number: int) -> table_pb2.DataFragment:
    created = table_pb2.DataFragment(id=number, physical_rows=number + 1)
    created.files.add(path=f"{number}.lance", fields=[0], column_indices=[0])
    return created


def manifest(count: int) -> table_pb2.Manifest:
    created = table_pb2.Manifest(version=3, fragments=map(fragment, range(count)), next_row_id=7)
    created.fields.add(name="id", logical_type="int64")
    created.config["key"] = "value"
    created.writer_version.library = "another-library"
    created.timestamp.seconds = 5
    created.data_format.version = "2.2"
    return created


def round_trip(message: table_pb2.Manifest) -> table_pb2.Manifest:
    return table_pb2.Manifest.FromString(message.SerializeToString())


def test_the_header_declares_every_field_but_the_fragments() -> None:
    real = {field.number: field.name for field in table_pb2.Manifest.DESCRIPTOR.fields}
    ours = {field.number: field.name for field in manifest_file.empty_header().DESCRIPTOR.fields}
    assert real.items() - ours.items() == {(2, "fragments")}
    assert ours.items() <= real.items()


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_a_manifest_is_encoded_unchanged(count: int) -> None:
    message = manifest(count)
    parsed = manifest_file.parse_header(message.SerializeToString())
    assert (parsed.version, parsed.config["key"], parsed.fields[0].name) == (3, "value", "id")
    assert round_trip(parsed) == message == round_trip(manifest_file.copy_header(parsed))


def test_the_header_has_no_fragments() -> None:
    with pytest.raises(AttributeError, match="fragments"):
        _ = manifest_file.parse_header(manifest(2).SerializeToString()).fragments


@pytest.mark.parametrize(("count", "more"), [(0, 2), (1000, 1), (3, 0)])
def test_adding_fragments_equals_extending_the_message(count: int, more: int) -> None:
    added = [fragment(number) for number in range(count, count + more)]
    changed, expected = manifest_file.parse_header(manifest(count).SerializeToString()), manifest(count)
    for message in (changed, expected):
        message.version = 4
        message.ClearField("writer_version")
        message.ClearField("timestamp")
        message.max_fragment_id = count + more
    manifest_file.add_fragments(changed, added)
    expected.fragments.extend(added)
    assert round_trip(changed) == expected


def test_a_copy_is_independent() -> None:
    first = manifest_file.parse_header(manifest(1).SerializeToString())
    second = manifest_file.copy_header(first)
    manifest_file.add_fragments(second, [fragment(1)])
    second.version = 9
    assert round_trip(first) == manifest(1)


def test_without_fragments() -> None:
    assert round_trip(
        manifest_file.without_fragments(manifest_file.parse_header(manifest(5).SerializeToString()))
    ) == manifest(0)


def test_fields_of_later_versions_are_kept() -> None:
    data = manifest(2).SerializeToString() + _FIELD_OF_THE_FUTURE
    changed = manifest_file.parse_header(data)
    manifest_file.add_fragments(changed, [fragment(2)])
    for message in (changed, manifest_file.without_fragments(changed)):
        assert _FIELD_OF_THE_FUTURE in message.SerializeToString()


def test_a_broken_fragment_is_detected_when_it_is_read() -> None:
    file = manifest_file.frame_manifest(None, None, manifest(1).SerializeToString() + _BROKEN_FRAGMENT)
    opened = Manifest.decode(file, path="_versions/1.manifest")
    assert opened.version == 3
    with pytest.raises(Corrupt, match="a fragment of the manifest does not parse"):
        _ = opened.fragments[0]

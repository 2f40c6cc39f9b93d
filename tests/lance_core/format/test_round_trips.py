"""Round trips: every message and value of the format is encoded and decoded without loss, and encoded again to the same
bytes. `test_row_id_sequences.py` and `test_row_versions.py` have such tests of their own.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from lance_core.errors import Corrupt, LanceError
from lance_core.format import base_path, fragment_reuse, index_metadata, manifest_file, naming, refs
from lance_core.format._pb import table_pb2, transaction_pb2
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.fragment_reuse import ExternalContent, FragmentReuse
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.manifest import Manifest
from lance_core.format.operations import Other
from lance_core.format.refs import Branch, Tag
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from tests.lance_core.format.message_strategies import TEXT, UNKNOWN, messages, schemas

SLOW = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
ARMS = [each.name for each in transaction_pb2.Transaction.DESCRIPTOR.oneofs_by_name["operation"].fields]
SAID_OTHERWISE = {
    "overwrite": ("initial_bases",),  # in the first version only, whose manifest contains them
    "rewrite": ("legacy_old_fragments", "legacy_new_fragments", "groups"),
    "update": ("legacy_updated_fragment_offsets", "updated_fragment_offset_bitmaps", "compacted_sstables"),
    "update_config": (
        "legacy_upsert_values",
        "legacy_delete_keys",
        "legacy_schema_metadata",
        "legacy_field_metadata",
        "config_updates",  # a key may occur twice in a list of entries
        "table_metadata_updates",
        "schema_metadata_updates",
        "field_metadata_updates",
    ),
}
"""Deprecated fields and the fields that replace them: see `test_fields_of_older_writers`."""


@pytest.mark.parametrize("arm", ARMS)
@given(data=st.data())
@SLOW
def test_transactions(arm: str, data: st.DataObject) -> None:
    """The encoding is unchanged except for fields with a newer form and unknown fields; an operation that is not
    applied is kept complete.
    """
    message = data.draw(messages(transaction_pb2.Transaction, always=(arm,), never=tuple(set(ARMS) - {arm})))
    try:
        created = Transaction.decode(message.SerializeToString(), path="t")
    except LanceError:
        return
    result = created.encode()
    again = Transaction.decode(result, path="t")
    assert again == created
    assert again.encode() == result
    retained = transaction_pb2.Transaction.FromString(result)
    if not isinstance(created.operation, Other):
        for each in (message, retained):
            in_current_form(each, arm)
    assert retained == message


def in_current_form(message: Any, arm: str) -> None:
    message.ClearField("tag")
    message.DiscardUnknownFields()
    for name in SAID_OTHERWISE.get(arm, ()):
        getattr(message, arm).ClearField(name)
    for replacement in message.data_replacement.replacements:
        replacement.new_file.SetInParent()
    if arm == "rewrite":
        for index in message.rewrite.rewritten_indices:
            index.old_id.SetInParent()
            index.new_id.SetInParent()


@given(
    messages(table_pb2.Manifest, always=("version", "fields"), never=("reader_feature_flags", "writer_feature_flags"))
)
@SLOW
def test_manifests(message: table_pb2.Manifest) -> None:
    message.version = max(1, message.version)
    message.data_format.file_format = "lance"
    for name in ("index_section", "transaction_section", "legacy_transaction_section"):
        message.ClearField(name)
    created = Manifest.decode(manifest_file.frame_manifest(None, None, message.SerializeToString()), path="m")
    assert created.message == message
    assert [each.id for each in created.fragments] == [each.id for each in message.fragments]
    edited = created.copy_header()
    framed = Manifest.from_header(edited, index_section=b"i", transaction=b"t", path="m")
    again = Manifest.decode(framed.encode(), path="m")
    assert (again.index_section, again.inline_transaction) == (b"i", b"t")
    assert again.encode() == framed.encode()
    original = table_pb2.Manifest()
    original.CopyFrom(again.message)
    for name in ("index_section", "transaction_section"):
        original.ClearField(name)
    assert original == message
    assert (again.config, again.table_metadata) == (dict(message.config), dict(message.table_metadata))


@given(messages(table_pb2.DataFragment))
@SLOW
def test_fragments(message: table_pb2.DataFragment) -> None:
    created = Fragment(message)
    again = Fragment.decode(created.encode())
    assert again == created
    assert again.message == message
    for file, stored in zip(again.files, message.files, strict=True):
        assert file.field_ids == tuple(stored.fields) or file.version.is_legacy
        assert file.column_indices == tuple(stored.column_indices)
        assert file.base_id == (stored.base_id if stored.HasField("base_id") else None)
        assert DataFile(stored).message == stored
    if (deleted := again.deletion_file) is not None:
        deletion = message.deletion_file
        assert deleted.deleted_rows == (deletion.num_deleted_rows or None)
        kind = "bin" if deletion.file_type else "arrow"
        assert deleted.path == f"_deletions/{message.id}-{deletion.read_version}-{deletion.id}.{kind}"
    assert again.with_base(7).with_base(None) == again.with_base(None)


@given(st.lists(messages(table_pb2.IndexMetadata), max_size=3), st.sets(st.integers(0, 2**32 - 1), max_size=5))
@SLOW
def test_indices(made: list[table_pb2.IndexMetadata], fragments: set[int]) -> None:
    indices = tuple(map(IndexMetadata, made))
    section = index_metadata.encode_section(indices)
    assert (section is None) is not bool(made)
    assert index_metadata.decode_section(section, path="m") == indices
    for index in indices:
        assert index.with_coverage(BitMap(fragments)).covers == BitMap(fragments)
        assert index.with_coverage(BitMap(fragments)).name == index.name


@given(messages(table_pb2.BasePath, always=("path",)))
@SLOW
def test_base_paths(message: table_pb2.BasePath) -> None:
    created = base_path.decode(message)
    assert base_path.decode(created.message) == created
    reported = (created.id, created.path, created.name or "", created.is_dataset_root)
    assert reported == (message.id, message.path, message.name, message.is_dataset_root)
    assert naming.split_qualified_path(naming.qualify_path(created.id, "data/x")) == (created.id, "data/x")
    assert naming.split_qualified_path(naming.qualify_path(None, "data/x")) == (None, "data/x")


@given(messages(table_pb2.FragmentReuseIndexDetails.InlineContent), st.uuids(), st.integers(0, 2**63))
@SLOW
def test_fragment_reuse(content: Any, identity: Any, version: int) -> None:
    groups = [group for version in content.versions for group in version.groups]
    if any(each.id >= 2**32 for group in groups for each in (*group.old_fragments, *group.new_fragments)):
        with pytest.raises(Corrupt, match="does not fit 32 bits"):
            FragmentReuse.decode(content.SerializeToString(), path="i")
        return
    created = FragmentReuse.decode(content.SerializeToString(), path="i")
    assert FragmentReuse.decode(created.encode(), path="i") == created
    index = created.as_index(identity, dataset_version=version, created_ms=5)  # type: ignore[arg-type]
    assert (index.uuid, index.is_system, index.dataset_version) == (identity, True, version)
    decoded = fragment_reuse.content_of(index)
    assert not isinstance(decoded, ExternalContent)
    assert decoded == created
    assert index.covers == BitMap(each.id for v in content.versions for g in v.groups for each in g.new_fragments)


@given(schemas())
@SLOW
def test_schemas(schema: TableSchema) -> None:
    wire = schema.encode()
    again = TableSchema.decode(wire, {key.decode(): value for key, value in schema.metadata.items()})
    assert again == schema
    assert again.encode() == wire
    assert TableSchema.from_arrow(again.arrow, first_id=wire[0].id if wire else 0) == schema


@given(st.sets(st.integers(0, 2**32 - 1), max_size=60), st.booleans(), st.integers(0, 2**20), st.integers(0, 300))
@SLOW
def test_deletion_vectors(offsets: set[int], as_bitmap: bool, start: int, more: int) -> None:
    """Scattered offsets and a run, in any order and from either file type."""
    original = offsets | set(range(start, start + more))
    vector = DeletionVector.of(list(original))
    data = vector.encode(as_bitmap=as_bitmap)
    decode = DeletionVector.decode_bitmap if as_bitmap else DeletionVector.decode_arrow
    again = decode(data, path="d")
    assert again.offsets.dtype == np.uint32
    assert again.offsets.tolist() == sorted(original)
    assert len(again) == len(original)
    assert again.union(DeletionVector.of([7])).offsets.tolist() == sorted(original | {7})
    assert set(np.flatnonzero(~again.live_mask(start, 400)) + start) == {
        n for n in original if start <= n < start + 400
    }
    if as_bitmap:
        assert BitMap.deserialize(data) == BitMap(original)
    else:
        assert pa.ipc.open_file(data).read_all()["row_id"].to_pylist() == sorted(original)


NUMBERS = st.integers(1, 2**64 - 1)
BRANCHES = st.one_of(st.none(), st.sampled_from(["dev", "dev/x", "a.b/c-d_e", "é"]))


@given(
    BRANCHES,
    NUMBERS,
    st.integers(0, 2**40),
    st.one_of(st.none(), st.datetimes()),
    st.dictionaries(TEXT, TEXT, max_size=2),
)
@SLOW
def test_tags(branch: str | None, version: Any, size: int, made: Any, metadata: dict[str, str]) -> None:
    moment = None if made is None else made.isoformat() + "Z"
    tag = Tag(branch, version, size, moment, moment, metadata)
    assert refs.decode_tag(refs.encode_tag(tag), path="t") == tag


@given(
    BRANCHES,
    NUMBERS,
    st.integers(0, 2**40),
    st.integers(0, 2**37),
    st.lists(st.tuples(NUMBERS, TEXT), min_size=1, max_size=3),
)
@SLOW
def test_branches(parent: str | None, version: Any, size: int, made: int, lineage: list[tuple[int, str]]) -> None:
    branch = Branch(parent, version, size, made, tuple(lineage))
    assert refs.decode_branch(refs.encode_branch(branch), name="b", path="b") == branch


def test_a_transaction_of_the_future_is_kept_complete() -> None:
    """An undeclared operation, and an undeclared field in any message that is kept unchanged."""
    data = b"\x08\x03" + UNKNOWN
    assert UNKNOWN in Transaction.decode(data, path="t").encode()
    fragment = table_pb2.DataFragment(id=3)
    fragment.MergeFromString(UNKNOWN)
    append = transaction_pb2.Transaction(append=transaction_pb2.Transaction.Append(fragments=[fragment]))
    assert UNKNOWN in Transaction.decode(append.SerializeToString(), path="t").encode()


WIRE = transaction_pb2.Transaction


def test_fields_of_older_writers() -> None:
    old, new = table_pb2.DataFragment(id=1), table_pb2.DataFragment(id=2)
    rewrite = WIRE(rewrite=WIRE.Rewrite(legacy_old_fragments=[old], legacy_new_fragments=[new]))
    group = WIRE.Rewrite.RewriteGroup(old_fragments=[old], new_fragments=[new])
    assert reencoded(rewrite).rewrite.groups == [group]

    listed = {3: WIRE.UInt32List(values=[9, 1, 9]), 4: WIRE.UInt32List(values=[5])}
    bitmap = bytes(BitMap([7]).serialize())
    update = WIRE(
        update=WIRE.Update(legacy_updated_fragment_offsets=listed, updated_fragment_offset_bitmaps={4: bitmap})
    )
    assert dict(reencoded(update).update.updated_fragment_offset_bitmaps) == {
        3: bytes(BitMap([1, 9]).serialize()),
        4: bitmap,
    }

    config = WIRE(update_config=WIRE.UpdateConfig(legacy_upsert_values={"a": "b"}, legacy_delete_keys=["c"]))
    config.update_config.legacy_schema_metadata["s"] = "t"
    config.update_config.legacy_field_metadata[4].metadata["f"] = "g"
    today = reencoded(config).update_config
    entries = {each.key: each.value if each.HasField("value") else None for each in today.config_updates.update_entries}
    assert (entries, today.config_updates.replace) == ({"a": "b", "c": None}, False)
    for original, key in ((today.schema_metadata_updates, "s"), (today.field_metadata_updates[4], "f")):
        assert original.replace
        assert [each.key for each in original.update_entries] == [key]


def reencoded(message: WIRE) -> WIRE:
    return WIRE.FromString(Transaction.decode(message.SerializeToString(), path="t").encode())

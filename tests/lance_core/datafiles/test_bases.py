"""Base paths: a store with bases fulfils the store contract for its own files and only reads those of the bases."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from lance_core import InvalidInput
from lance_core.datafiles.bases import BasedCodec, BasedStore, OpenBase
from lance_core.datafiles.ipc_codec import IpcCodec
from lance_core.format.fragment import StorageVersion
from lance_core.storage.memory import MemoryStore
from tests.lance_core.storage.store_contract import StoreContract

VERSION = StorageVersion(2, 2)


def create_based(base_store: MemoryStore, *, is_dataset_root: bool = True) -> tuple[BasedStore, BasedCodec]:
    own = MemoryStore()

    def base(_number: int) -> OpenBase:
        return OpenBase(base_store, IpcCodec(base_store), is_dataset_root)

    return BasedStore(own, base), BasedCodec(IpcCodec(own), base)


class TestBasedStore(StoreContract):
    @pytest.fixture
    def store(self) -> BasedStore:
        return create_based(MemoryStore())[0]


@pytest.mark.parametrize(("is_root", "path"), [(True, "data/x"), (False, "x")])
def test_a_base_is_read(is_root: bool, path: str) -> None:
    base_store = MemoryStore()
    base_store.put(path, b"0123")
    store, _ = create_based(base_store, is_dataset_root=is_root)
    assert store.read("@3/data/x", 1, 2) == b"12"
    found = store.head("@3/data/x")
    assert found is not None
    assert found.size == 4
    assert store.head("data/x") is None
    if is_root:
        assert [info.path for info in store.list("@3/data")] == ["@3/data/x"]
        assert [info.path for info in store.walk("@3/data")] == ["@3/data/x"]


def test_files_of_a_base_are_opened() -> None:
    base_store = MemoryStore()
    writer = IpcCodec(base_store).create("data/x.lance", pa.schema([("a", pa.int64())]), VERSION)
    writer.write(pa.RecordBatch.from_pydict({"a": [1, 2]}))
    writer.finish()
    _, codec = create_based(base_store)
    assert codec.open("@0/data/x.lance").row_count == 2


def test_a_base_is_never_written() -> None:
    store, codec = create_based(MemoryStore())
    writes: list[Callable[[], object]] = [
        lambda: store.put("@0/x", b""),
        lambda: store.create("@0/x", b""),
        lambda: store.delete("@0/x"),
        lambda: store.ensure_durable(["@0/x"]),
        lambda: codec.create("@0/x", pa.schema([]), VERSION),
    ]
    for write in writes:
        with pytest.raises(InvalidInput, match="can only be read"):
            write()

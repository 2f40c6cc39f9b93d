"""Tree operations: copies of files between stores and removal of directories with their content."""

from pathlib import Path

import pytest

from lance_core import NotFound
from lance_core.storage.local import LocalStore
from lance_core.storage.memory import MemoryStore
from lance_core.storage.store import Store
from lance_core.storage.tree_operations import copy_file, remove_tree
from tests.lance_core.storage.syscall_recorder import SyscallRecorder


def create_stores(tmp_path: Path) -> list[Store]:
    return [MemoryStore(), LocalStore(tmp_path / "a"), LocalStore(tmp_path / "b")]


def test_files_are_copied_between_any_two_stores(tmp_path: Path) -> None:
    for source in create_stores(tmp_path / "from"):
        source.put("deep/name", b"0123")
        for target in create_stores(tmp_path / "to"):
            copy_file(source, "deep/name", target, "other/place/name")
            assert target.read("other/place/name") == b"0123"
            with pytest.raises(NotFound, match="nothing"):
                copy_file(source, "deep/nothing", target, "name")


def test_a_copy_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = LocalStore(tmp_path / "a"), LocalStore(tmp_path / "b")
    source.put("x", b"1")
    target.create_directory("data")
    recorder = SyscallRecorder(tmp_path / "b", monkeypatch)
    copy_file(source, "x", target, "data/x")
    assert [call for call in recorder.calls if call[0] == "fsync"] == [("fsync", "b/data/x"), ("fsync", "b/data")]


def test_a_directory_is_removed_with_its_content(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/precious").touch()
    for store in create_stores(tmp_path):
        for path in ("t/a/one", "t/a/b/two", "t/a/.tmp-left", "t/ab/three"):
            store.put(path, b"x")
        if isinstance(store, LocalStore):
            (store.root / "t/a/link").symlink_to(tmp_path / "outside")
        remove_tree(store, "t/a")
        remove_tree(store, "t/nothing")
        assert [info.path for info in store.walk("t")] == ["t/ab/three"]
    assert (tmp_path / "outside/precious").exists()
    assert not (tmp_path / "a/t/a/b").exists()

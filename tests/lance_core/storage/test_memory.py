"""The store of commit tests keeps the contract of the real ones."""

import pytest

from lance_core.storage.memory import MemoryStore
from tests.lance_core.storage.contract import StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()

    def test_it_says_where_it_is(self, store: MemoryStore) -> None:
        assert store.description == "memory://memory"

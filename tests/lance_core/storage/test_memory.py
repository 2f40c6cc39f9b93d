"""In-memory store: it passes the store contract."""

import pytest

from lance_core.storage.memory import MemoryStore
from tests.lance_core.storage.store_contract import StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()

    def test_its_description(self, store: MemoryStore) -> None:
        assert store.description == "memory://memory"

"""The store in memory."""

from pathlib import Path

from topicality.ports import Store
from topicality.store import open_store
from topicality.testing import StoreContract


class TestMemoryStore(StoreContract):
    def make(self, place: Path) -> Store:
        return open_store("memory://")

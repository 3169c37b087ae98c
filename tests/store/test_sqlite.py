"""The store in an SQLite file."""

from pathlib import Path

from topicality.ports import Store
from topicality.store import open_store
from topicality.testing import SharedStoreContract


class TestSqliteStore(SharedStoreContract):
    def url(self, place: Path) -> str:
        return f"sqlite:///{place}/chat.db"

    def make(self, place: Path) -> Store:
        return open_store(self.url(place))

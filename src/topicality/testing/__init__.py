"""The ports' contracts as tests to inherit: `class TestMine(StoreContract)` and one method prove a store.

`EmbedderContract` does the same for an encoder; `WordEmbedder` is a small encoder to test with. Needs pytest and numpy,
nothing else.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"topicality.testing.{name}" for name in ("embedder", "writing", "finding", "store", "shared"))
)

from topicality.testing.embedder import EmbedderContract, WordEmbedder  # noqa: E402  # after the line above
from topicality.testing.shared import SharedStoreContract  # noqa: E402  # after the line that explains its assertions
from topicality.testing.store import StoreContract  # noqa: E402  # the same

__all__ = ["EmbedderContract", "SharedStoreContract", "StoreContract", "WordEmbedder"]

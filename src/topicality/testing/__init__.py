"""The ports' contracts as test suites to inherit: `class TestMine(StoreContract)` and one method prove a store.

Needs pytest and numpy, nothing else.
"""

import pytest

pytest.register_assert_rewrite("topicality.testing.store", "topicality.testing.shared")

from topicality.testing.shared import SharedStoreContract  # noqa: E402  # after the line that explains its assertions
from topicality.testing.store import StoreContract  # noqa: E402

__all__ = ["SharedStoreContract", "StoreContract"]

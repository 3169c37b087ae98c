"""Settings that hold for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: the machine may be busy. In CI the examples are the same on every run, so that a red run can be repeated.
settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("house")

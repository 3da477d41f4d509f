"""What all tests share: Hypothesis profiles, and readable assertions in the contract suites."""

import os

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("anabranch.testing")

# A deadline would measure the machine's load. In CI the same examples run every time; elsewhere new ones are tried.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")

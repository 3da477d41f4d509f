"""What all tests share: Hypothesis profiles, and readable assertions in the contract suites."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("anabranch.testing")

# A deadline would measure the machine's load. In CI the same examples run every time; elsewhere new ones are tried.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")


@pytest.fixture(scope="session")
def spark():
    """The one Spark session of a test process, made as a node makes its own."""
    from anabranch.session import SessionOptions, build_session

    session = build_session(
        SessionOptions(
            name="tests",
            master="local[2]",
            timezone="UTC",
            state_partitions=2,
            settings={},
            module_directory=Path(__file__).parent,
        )
    )
    yield session
    session.stop()

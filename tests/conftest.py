"""What all tests share: Hypothesis profiles, and readable assertions in the contract suites."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("anabranch.testing")

# Tests start many JVMs that live for seconds: the quick compiler alone warms up in half the time of both.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")

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
            # One JVM for hundreds of queries, and for tables of a million rows: a gibibyte was full near the end.
            settings={"spark.driver.memory": "2g"},
            module_directory=Path(__file__).parent,
        )
    )
    yield session
    session.stop()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MB, nearly filled by a file called ballast."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], check=False)
    if mounted.returncode != 0:
        pytest.fail("cannot mount a small file system: this test needs the right to mount (CAP_SYS_ADMIN)")
    try:
        (place / "ballast").write_bytes(bytes(18_000_000))
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The place of a unit that runs without Spark, on a disk that is flushed at no cost."""
    from unit_lives import Home, execute

    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr("anabranch.unit.written", execute)
    return Home(tmp_path)

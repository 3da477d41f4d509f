"""A whole work directory is lost, rebuilt elsewhere from a store, and goes on as if nothing had happened."""

import json
import shutil
import signal
from collections import Counter

import pytest

from anabranch.keeper.restoring import find_versions
from anabranch.testing.wait import wait_until
from harness import PIPELINES, anabranch, running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
PROTECTED = PIPELINES / "protected.py"
KEYS = 5


def write_file(directory, number, rows=40):
    """Write one input file; return what it adds per key."""
    added = Counter()
    lines = []
    for n in range(rows):
        key, value = f"k{(number + n) % KEYS}", number * 100 + n
        added[key] += value
        lines.append(json.dumps({"key": key, "value": value}))
    hidden = directory / f".{number}"
    hidden.write_text("\n".join(lines) + "\n")
    hidden.rename(directory / f"{number:04d}.jsonl")
    return added


def delivered(directory):
    """Return the rows that were delivered, in order of their epochs."""
    files = sorted(path for path in directory.rglob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def open_versions(url):
    """Return the units of which a store holds a version."""
    return set(find_versions([url]))


def last_of_each(rows):
    return {row["key"]: row["total"] for row in rows}


def test_a_lost_directory_goes_on_elsewhere(tmp_path):
    """Killed in the middle, all files lost but the store: the restored directory ends with the right totals."""
    (tmp_path / "in").mkdir()
    environment = {
        "TEST_INPUT": str(tmp_path / "in"),
        "TEST_OUTPUT": str(tmp_path / "out"),
        "TEST_STORE": f"log:{tmp_path / 'store'}",
    }
    expected = Counter()
    with running(tmp_path, PROTECTED, "--master", "local[2]", **environment) as run:
        for number in range(8):
            expected += write_file(tmp_path / "in", number)
            run.wait_for_epoch("updates", min(number, 3))
        wait_until(lambda: open_versions(environment["TEST_STORE"]) >= {"totals", "updates"}, 120, "versions of both")
        run.process.send_signal(signal.SIGKILL)
        run.kill_node()
    shutil.rmtree(tmp_path / "work")
    second = tmp_path / "second"
    restored = anabranch(tmp_path, "restore", environment["TEST_STORE"], "--work", str(second), "--json")
    assert restored.returncode == 0, restored.stderr
    epochs = json.loads(restored.stdout)["units"]
    assert epochs["totals"] >= epochs["updates"] >= 0
    for number in range(8, 10):
        expected += write_file(tmp_path / "in", number)
    ended = anabranch(
        tmp_path, "run", str(PROTECTED), "--drain", "--work", str(second), "--master", "local[2]", **environment
    )
    assert ended.returncode == 0, ended.stderr
    assert last_of_each(delivered(tmp_path / "out")) == expected

"""k-safe replication on real nodes: they race, any of them may be lost, and what was lost comes back by itself."""

from __future__ import annotations

import pytest

from anabranch.bench.events import write_input
from anabranch.processes import kill_session
from anabranch.status import collect
from anabranch.testing.wait import wait_until
from exactness import by_batch, by_reference
from harness import PIPELINES, TIMEOUT_S, anabranch, running
from test_failover_spark import give, withhold

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
EVERYTHING = PIPELINES / "everything.py"
UNITS = ("windowed", "running")


def redundancy(run):
    told = collect(run.work)["redundancy"] if (run.work_path / "channels").is_dir() else []
    return {some["unit"]: (some["present"], some["wanted"]) for some in told}


def test_one_node_after_the_other_is_lost(tmp_path, spark, monkeypatch):
    """A window count with late rows and a running count on two nodes: first the one that leads dies, then the other."""
    write_input(tmp_path, files=36, seed=11)
    events = sorted((tmp_path / "events").iterdir())
    withhold(events[4:])
    monkeypatch.setenv("ANABRANCH_TEST_STEPS", ",".join(UNITS))
    monkeypatch.setenv("ANABRANCH_TEST_STRATEGIES", ",".join(f"{unit}:ksafe" for unit in UNITS))
    with running(tmp_path, EVERYTHING, "--nodes", "2", "--retain", "all", "--master", "local[1]") as run:
        whole, reduced = dict.fromkeys(UNITS, (2, 2)), dict.fromkeys(UNITS, (1, 2))
        wait_until(lambda: redundancy(run) == whole, TIMEOUT_S, "both replicas of both units")
        for given, taken in ((events[4:16], events[10]), (events[16:28], events[22])):
            give(given)
            wait_until(lambda taken=taken: run.taken_in("events", taken.name), TIMEOUT_S, "input to be taken in")
            kill_session(run.holder_pid("windowed"))
            wait_until(lambda: redundancy(run) == reduced, TIMEOUT_S, "the loss to show")
            wait_until(lambda: redundancy(run) == whole, TIMEOUT_S, "redundancy to come back")
        give(events[28:])
        wait_until(lambda: run.taken_in("events", events[-1].name), TIMEOUT_S, "the last file to be taken in")
        assert anabranch(tmp_path, "stop", "--work", str(run.work_path)).returncode == 0, run.output()
        assert run.finish() == 0, run.output()
        assert run.events("diverged") == []
    for found in (by_reference(tmp_path, EVERYTHING, UNITS), by_batch(spark, tmp_path, UNITS)):
        for name, verdict in found.items():
            assert verdict.expected > 0, name
            assert verdict.exact, (name, verdict)


def test_too_few_nodes_are_refused(tmp_path, monkeypatch):
    """Before anything is started."""
    (tmp_path / "events").mkdir()
    monkeypatch.setenv("ANABRANCH_TEST_STEPS", "windowed")
    done = anabranch(tmp_path, "run", str(EVERYTHING), "--strategy", "ksafe", "--work", str(tmp_path / "work"))
    assert done.returncode == 2
    assert "needs 2 nodes to survive the loss of 1, and has 1" in done.stderr
    assert "--nodes 2" in done.stderr
    assert not (tmp_path / "work").exists()

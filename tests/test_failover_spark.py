"""Two nodes, the primary killed or paused: the other goes on, and nothing is lost, doubled or changed."""

from __future__ import annotations

import json
import os
import signal

import pytest

from anabranch.bench.events import write_input
from anabranch.testing.wait import wait_until
from exactness import by_batch, by_reference
from harness import PIPELINES, TIMEOUT_S, anabranch, running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
EVERYTHING = PIPELINES / "everything.py"
# How each segment is protected, and what happens to the node that leads them.
RUNS = {
    "killed": ({"windowed": "upstream", "running": "trailing", "drawn": "shipped"}, signal.SIGKILL),
    "paused": ({"windowed": "passive", "joined": "upstream", "running": "active"}, signal.SIGSTOP),
}


@pytest.mark.parametrize("fault", RUNS)
def test_output_is_exact_after_a_takeover(tmp_path, spark, monkeypatch, fault):
    """A window count with late rows, a running count and a join go on elsewhere, each by another strategy.

    The node that was killed is started again and stands by; the one that was paused finds that it was deposed.
    """
    protected, sent = RUNS[fault]
    write_input(tmp_path, files=36, seed=7)
    events, loads = (sorted((tmp_path / name).iterdir()) for name in ("events", "loads"))
    withhold(events[4:])
    withhold(loads[2:])
    has_loads = "joined" in protected
    monkeypatch.setenv("ANABRANCH_TEST_STEPS", ",".join(protected))
    monkeypatch.setenv("ANABRANCH_TEST_STRATEGIES", ",".join(f"{step}:{how}" for step, how in protected.items()))
    with running(tmp_path, EVERYTHING, "--nodes", "2", "--retain", "all", "--master", "local[1]") as run:
        wait_until(lambda: list(run.replicas().values()).count("standby") == len(protected), TIMEOUT_S, "the standbys")
        give(events[4:20])
        give(loads[2:6])
        run.wait_for_epoch("windowed", 4)
        held = run.work.lease("windowed").holder()
        victim = run.holder_pid("windowed")
        os.kill(victim, sent)
        wait_until(lambda: taken_from(run, "windowed", held), TIMEOUT_S, "the takeover")
        give(events[20:28])
        give(loads[6:])
        if sent == signal.SIGSTOP:
            wait_until(lambda: run.taken_in("events", events[27].name), TIMEOUT_S, "input to be taken in")
            os.kill(victim, signal.SIGCONT)
            stepped_down = lambda: {event["role"] for event in run.events("stepped down")} & set(protected)  # noqa: E731
            wait_until(stepped_down, TIMEOUT_S, "the old primary to step down")
            move_back(tmp_path, run, "running", events[28:32])
        give(path for path in events[28:] if not path.exists())
        wait_until(lambda: run.taken_in("events", events[-1].name), TIMEOUT_S, "the last file to be taken in")
        if has_loads:
            wait_until(lambda: run.taken_in("loads", loads[-1].name), TIMEOUT_S, "the last file to be taken in")
        assert anabranch(tmp_path, "stop", "--work", str(run.work_path)).returncode == 0, run.output()
        assert run.finish() == 0, run.output()
        assert run.events("diverged") == []
        if "drawn" in protected:
            assert_continued(run.work.channel("drawn"))
    steps = tuple(step for step in protected if step != "drawn")
    for found in (by_reference(tmp_path, EVERYTHING, steps), by_batch(spark, tmp_path, steps)):
        for name, verdict in found.items():
            assert verdict.expected > 0, name
            assert verdict.exact, (name, verdict)


def move_back(tmp_path, run, unit, files):
    """Move a unit to the other node on purpose, while input flows."""
    held = run.work.lease(unit).holder()
    wait_until(lambda: list(run.replicas().values()).count("standby") >= 1, TIMEOUT_S, "a standby to move to")
    give(files)
    moved = anabranch(tmp_path, "failover", unit, "--work", str(run.work_path), "--json")
    assert moved.returncode == 0, moved.stderr + run.output()
    assert json.loads(moved.stdout)["from"] == held.node
    assert run.work.lease(unit).holder().planned


def assert_continued(channel):
    """Every list of drawn numbers goes on from the one that was published before: no number was drawn again."""
    known, longer = {}, 0
    for epoch in range(channel.last_epoch() + 1):
        for row in channel.table(epoch).to_pylist():
            before = known.get(row["group"], [])
            assert row["numbers"][: len(before)] == before, epoch
            longer += len(row["numbers"]) > len(before) > 0
            known[row["group"]] = row["numbers"]
    assert longer


def withhold(files):
    """Put files where no source looks."""
    for path in files:
        path.rename(path.with_name(f".{path.name}"))


def give(files):
    """Let the source see files that were withheld."""
    for path in files:
        path.with_name(f".{path.name}").rename(path)


def taken_from(run, role, held):
    """Say whether another node took a role; which roles the holder had besides does not matter."""
    took = [event for event in run.events("took over") if event["role"] == role]
    return any(event["from"] == held.node and event["generation"] > held.generation for event in took)

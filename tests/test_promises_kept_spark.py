"""Promises against kills: thirty plans lose nodes, and are compared with those that did not.

What is precise has the same rows in every epoch; a draw, which nobody can repeat, at least in those of its columns that
are not drawn; where rows may differ no epoch is missing; where epochs may be missing, each is named.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.node_options import NodeOptions
from anabranch.oracle.compare import compare
from anabranch.oracle.reference import replay
from anabranch.processes import kill_session
from anabranch.testing.wait import wait_until
from harness import PIPELINES, TIMEOUT_S, anabranch, running
from promised_steps import STEPS, runs, write_files
from test_failover_spark import give, withhold
from test_promises_spark import rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]
PROMISED = PIPELINES / "promised.py"
EPOCHS = 8
# More at a time would take longer to come up on two cores than to be killed.
RUNS = runs(8)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The input; the pipeline's directories are relative to where it runs, and every process finds these modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    # Small enough to be added up for as long as this takes.
    epochs = [[{**row, "value": row["value"] % 1_000_003} for row in rows(epoch)] for epoch in range(EPOCHS)]
    return write_files(tmp_path / "events", epochs)


def test_nothing_is_promised_that_a_killed_node_does_not_keep(tmp_path, files):
    """All steps on one node, which is killed between two epochs and started again: as if nothing had been."""
    with running(tmp_path, PROMISED, "--drain", "--retain", "all", "--master", "local[2]") as run:
        run.wait_for_epoch(list(STEPS)[-1], 3)
        kill_session(run.node_pid())
        assert run.finish() == 0, run.output()
        assert len(run.events("started")) == 2
        check(tmp_path, run.work, dict.fromkeys(STEPS, "none"))


@pytest.mark.soak
@pytest.mark.parametrize("chosen", RUNS, ids=lambda chosen: "+".join(sorted(set(chosen.values()))))
def test_nothing_is_promised_that_a_strategy_does_not_keep(tmp_path, files, monkeypatch, chosen):
    """Every step with every strategy that it may have, some at a time on two nodes, one of which is killed."""
    monkeypatch.setenv("PROMISED_STEPS", ",".join(chosen))
    monkeypatch.setenv("PROMISED_STRATEGIES", ",".join(f"{step}:{how}" for step, how in chosen.items()))
    withhold(files[3:])
    with running(tmp_path, PROMISED, "--nodes", "2", "--retain", "all", "--master", "local[1]") as run:
        standing = lambda: list(run.replicas().values()).count("standby") >= len(chosen)  # noqa: E731
        wait_until(standing, TIMEOUT_S, "the standbys")
        give(files[3:5])
        for name in chosen:
            run.wait_for_epoch(name, 3)
        victim = run.holder_pid(next(iter(chosen)))
        kill_session(victim)
        for name in chosen:
            wait_until(lambda name=name: run.holder_pid(name) != victim, TIMEOUT_S, f"a takeover of {name}")
        give(files[5:])
        wait_until(lambda: run.taken_in("events", files[-1].name), TIMEOUT_S, "the last file to be taken in")
        assert anabranch(tmp_path, "stop", "--work", str(run.work_path)).returncode == 0, run.output()
        assert run.finish() == 0, run.output()
        check(tmp_path, run.work, chosen)


def check(directory, work, chosen):
    """Compare every epoch of every step with a run without faults, as far as its promise goes."""
    reference = replay(NodeOptions(file=PROMISED, work=directory / "work", master="local[2]"), directory / "reference")
    broken = []
    for name, strategy in chosen.items():
        step = STEPS[name]
        found, expected = work.channel(name), reference.channel(name)
        assert expected.last_epoch() >= EPOCHS - 1, name
        letter = step.letter(strategy)
        differing = [epoch for epoch in range(expected.last_epoch() + 1) if differs(step, found, expected, epoch)]
        manifests = {epoch: found.manifest(epoch) for epoch in range(expected.last_epoch() + 1)}
        missing = [epoch for epoch, manifest in manifests.items() if manifest is None or manifest.gap]
        named = {epoch for epoch, manifest in manifests.items() if manifest and (manifest.gap or manifest.incomplete)}
        if letter == "G":
            broken += [f"{name} by {strategy}: epoch {epoch} is not named" for epoch in differing if epoch not in named]
        else:
            broken += [f"{name} by {strategy}: epoch {epoch} is missing" for epoch in missing]
        if letter == "P" and not (step.arbitrary and strategy == "shipped"):
            broken += [f"{name} by {strategy}: epoch {epoch} differs" for epoch in differing]
        if letter == "P" and name == "a_running_first":
            broken += changes_of_the_first(found)
    assert not broken, "\n".join(broken)


def differs(step, found, expected, epoch):
    """Say whether an epoch has other rows; of what is drawn, other rows in the columns that are not."""
    tables = [channel.table(epoch) for channel in (expected, found)]
    known = ["key"] if step.arbitrary else expected.spec.schema.names
    empty = expected.spec.schema.empty_table()
    return not compare(*((empty if table is None else table).select(known) for table in tables)).exact


def changes_of_the_first(channel):
    """Return where the first value of a key became another: readers had seen the results of another state."""
    known = {}
    told = [(epoch, row) for epoch in range(channel.last_epoch() + 1) for row in channel.table(epoch).to_pylist()]
    return [
        f"the first of {row['key']} is another in epoch {epoch}"
        for epoch, row in told
        if known.setdefault(row["key"], row["c0"]) != row["c0"]
    ]

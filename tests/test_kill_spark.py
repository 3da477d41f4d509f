"""A node killed at random moments goes on without loss, duplicate or change, for every kind of segment."""

from __future__ import annotations

import os
import random

import pytest

from anabranch.bench.events import write_input
from anabranch.presence import ask_to_stop
from exactness import STEPS, by_batch, by_reference
from harness import PIPELINES, running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
KILLS = 3
EVERYTHING = PIPELINES / "everything.py"


def test_output_is_exact_after_three_kills(tmp_path, spark):
    """Stateless, windowed, running-count and join segments, killed three times: exact by both oracles."""
    seed = int(os.environ.get("ANABRANCH_TEST_SEED", random.randrange(1_000_000)))
    print(f"seed {seed}")  # noqa: T201  a failure must be repeatable
    chance = random.Random(seed)
    write_input(tmp_path, files=24, seed=seed)
    with running(tmp_path, EVERYTHING, "--drain", "--retain", "all", "--master", "local[2]") as run:
        for kill in range(KILLS):
            # Some kills hit right after an epoch was published, others while the next start is still under way.
            run.wait_for_epoch(chance.choice(STEPS), kill * 3 + chance.randrange(2))
            run.kill_node()
        assert run.finish() == 0, run.output()
    for oracle, verdicts in (
        ("reference", by_reference(tmp_path, EVERYTHING)),
        ("batch", by_batch(spark, tmp_path)),
    ):
        for name, verdict in verdicts.items():
            assert verdict.expected > 0, (oracle, name)
            assert verdict.exact, (oracle, name, verdict)


def test_a_node_that_is_killed_while_it_drains_drains_on(tmp_path, monkeypatch):
    """Whoever asked for the stop is gone: the node that is started again has to know of it."""
    write_input(tmp_path, files=12, seed=5)
    monkeypatch.setenv("ANABRANCH_TEST_STEPS", "windowed")
    with running(tmp_path, EVERYTHING, "--retain", "all", "--master", "local[2]") as run:
        run.wait_for_epoch("windowed", 1)
        assert [node.name for node in ask_to_stop(run.work, now=False).heard] == ["node-1"]
        run.kill_node()
        assert run.finish() == 0, run.output()
        assert len(run.events("started")) == 2, "it was killed before it had ended"
        assert run.last("windowed") == run.last("events")

"""Hours of kills: every kind of segment by itself, killed again and again at random moments, exact by both oracles.

`ANABRANCH_SOAK_KILLS` is the number of kills per pipeline (default 15, 60 in all); `ANABRANCH_TEST_SEED` repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading

import pytest

from anabranch.bench.events import write_input
from exactness import by_batch, by_reference
from harness import PIPELINES, running

pytestmark = [pytest.mark.soak, pytest.mark.spark]
KILLS = int(os.environ.get("ANABRANCH_SOAK_KILLS", "15"))
EVERYTHING = PIPELINES / "everything.py"


@pytest.mark.parametrize("step", ["stateless", "windowed", "running", "joined"])
def test_exact_after_many_kills(tmp_path, spark, step):
    """A finite input with late rows, a node that is killed at random moments of its work: nothing lost or changed."""
    seed = int(os.environ.get("ANABRANCH_TEST_SEED", random.randrange(1_000_000)))
    chance = random.Random(f"{seed} {step}")
    write_input(tmp_path, files=KILLS * 8, rows=150, seed=seed)
    environment = {"ANABRANCH_TEST_STEPS": step}
    arguments = ("--drain", "--retain", "all", "--master", "local[2]")
    kills = 0
    with running(tmp_path, EVERYTHING, *arguments, **environment) as run:
        while kills < KILLS and run.process.poll() is None:
            run.wait_for_epoch(step, run.last(step) + chance.randrange(4))
            # A moment within the epoch that is being worked on, not only the instant after a release.
            threading.Event().wait(chance.random() * 0.4)
            if run.process.poll() is None:
                run.kill_node(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGABRT]))
                kills += 1
        assert run.finish() == 0, run.output()
        epochs = run.last(step) + 1
    os.environ.update(environment)
    try:
        verdicts = {"reference": by_reference(tmp_path, EVERYTHING, (step,))[step]}
    finally:
        del os.environ["ANABRANCH_TEST_STEPS"]
    verdicts["batch"] = by_batch(spark, tmp_path, (step,))[step]
    report = {"step": step, "seed": seed, "kills": kills, "epochs": epochs}
    print(json.dumps({**report, **{name: vars(verdict) for name, verdict in verdicts.items()}}))  # noqa: T201
    assert kills == KILLS, "the input was finished before all kills"
    for name, verdict in verdicts.items():
        assert verdict.expected > 0, name
        assert verdict.exact, (name, verdict)

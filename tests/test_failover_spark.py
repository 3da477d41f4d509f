"""Two nodes, the primary killed or paused: the other goes on, and nothing is lost, doubled or changed."""

from __future__ import annotations

import os
import signal

import pytest

from anabranch.testing.wait import wait_until
from exactness import by_batch, by_reference
from harness import PIPELINES, TIMEOUT_S, running
from pipelines.make_input import write_input

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
EVERYTHING = PIPELINES / "everything.py"
STEPS = ("windowed", "running")


@pytest.mark.parametrize(("strategy", "sent"), [("active", signal.SIGKILL), ("trailing", signal.SIGKILL)])
def test_output_is_exact_after_a_takeover(tmp_path, spark, strategy, sent):
    """A standby takes over from a primary that is killed; the one that is started again stands by."""
    write_input(tmp_path, files=36, seed=7)
    settings = {"ANABRANCH_TEST_STEPS": ",".join(STEPS), "ANABRANCH_TEST_STRATEGY": strategy}
    arguments = ("--nodes", "2", "--drain", "--retain", "all", "--master", "local[1]")
    with running(tmp_path, EVERYTHING, *arguments, **settings) as run:
        wait_until(lambda: list(run.replicas().values()).count("standby") == len(STEPS), TIMEOUT_S, "the standbys")
        run.wait_for_epoch("windowed", 4)
        os.kill(run.holder_pid("windowed"), sent)
        wait_until(lambda: len(run.events("took over")) >= len(STEPS), TIMEOUT_S, "the takeover")
        assert run.finish() == 0, run.output()
        assert {event["role"] for event in run.events("took over")} >= set(STEPS)
    os.environ |= settings
    try:
        verdicts = [by_reference(tmp_path, EVERYTHING, STEPS), by_batch(spark, tmp_path, STEPS)]
    finally:
        for name in settings:
            del os.environ[name]
    for found in verdicts:
        for name, verdict in found.items():
            assert verdict.expected > 0, name
            assert verdict.exact, (name, verdict)

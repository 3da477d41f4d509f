"""Two nodes, the primary killed or paused: the other goes on, and nothing is lost, doubled or changed."""

from __future__ import annotations

import json
import os
import signal

import pytest

from anabranch.testing.wait import wait_until
from exactness import by_batch, by_reference
from harness import PIPELINES, TIMEOUT_S, anabranch, running
from pipelines.make_input import write_input

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
EVERYTHING = PIPELINES / "everything.py"
STEPS = ("windowed", "running")


@pytest.mark.parametrize(("strategy", "sent"), [("active", signal.SIGKILL), ("trailing", signal.SIGKILL)])
def test_output_is_exact_after_a_takeover(tmp_path, spark, strategy, sent):
    """A standby takes over from a primary that is killed; the one that is started again stands by."""
    write_input(tmp_path, files=36, seed=7)
    later = sorted((tmp_path / "events").iterdir())
    withhold(later)
    settings = {"ANABRANCH_TEST_STEPS": ",".join(STEPS), "ANABRANCH_TEST_STRATEGY": strategy}
    arguments = ("--nodes", "2", "--retain", "all", "--master", "local[1]")
    with running(tmp_path, EVERYTHING, *arguments, **settings) as run:
        give(later, 4)
        wait_until(lambda: list(run.replicas().values()).count("standby") == len(STEPS), TIMEOUT_S, "the standbys")
        give(later, 16)
        run.wait_for_epoch("windowed", 4)
        held = run.work.lease("windowed").holder()
        os.kill(run.holder_pid("windowed"), sent)
        wait_until(lambda: taken_from(run, "windowed", held), TIMEOUT_S, "the takeover")
        last = later[-1].name
        give(later, len(later))
        wait_until(lambda: taken_in(run, last), TIMEOUT_S, "the last file to be taken in")
        assert anabranch(tmp_path, "stop", "--work", str(run.work_path)).returncode == 0, run.output()
        assert run.finish() == 0, run.output()
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


def withhold(files):
    """Put files where no source looks."""
    for path in files:
        path.rename(path.with_name(f".{path.name}"))


def give(files, count):
    """Let the source see the next few files."""
    for path in files[:count]:
        path.with_name(f".{path.name}").rename(path)
    del files[:count]


def taken_from(run, role, held):
    """Say whether another node took a role; which roles the holder had besides does not matter."""
    took = [event for event in run.events("took over") if event["role"] == role]
    return any(event["from"] == held.node and event["generation"] > held.generation for event in took)


def taken_in(run, name):
    """Say whether a file is part of an epoch."""
    channel = run.work.channel("events")
    epochs = range(channel.ledger.floor() + 1, channel.last_epoch() + 1)
    return any(name in json.dumps(channel.manifest(epoch).planned) for epoch in epochs)

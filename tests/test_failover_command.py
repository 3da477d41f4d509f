"""`anabranch failover`: who is asked to take a unit, and what is said if that is impossible."""

import json
import os

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from anabranch.agent import Agent
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Producer
from anabranch.cli.main import app
from anabranch.errors import AgentError, PipelineError
from anabranch.work import Announcement, Work


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Place:
    """A pipeline with one unit, and nodes that do what they are asked."""

    def __init__(self, path):
        self.work = Work.create(path)
        self.channel = Channel.create(
            self.work.channel_path("counts"), ChannelSpec("counts", pa.schema([("n", pa.int64())]))
        )
        self.agents, self.asked = [], []
        self.held = self.work.lease("counts").take("node-1", after=None, life="a")
        self.publish(0)

    def publish(self, generation):
        epoch = self.channel.last_epoch() + 1
        self.channel.release(Manifest(epoch, Producer("counts", "r0", generation), 0.0, rows=0))

    def node(self, name, *units, answers=True, dies=False):
        def take(body):
            self.asked.append((name, body["unit"]))
            if answers:
                self.held = self.work.lease("counts").take(name, after=self.held, life=name)
                if dies:
                    self.held = self.work.lease("counts").take("node-1", after=self.held, life="b")
                self.publish(self.held.generation)
            return {"taking": body["unit"]}

        known = [{"unit": unit, "role": "standby"} for unit in units]
        status = {"name": name, "pid": 1, "phase": "running", "units": known}
        agent = Agent(self.work.token(), {"status": lambda _: status, "take": take})
        agent.start()
        self.agents.append(agent)
        self.work.announce(Announcement(name, 1, agent.address, name))


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    yield made
    for agent in made.agents:
        agent.stop()


def failover(place, *arguments):
    return CliRunner().invoke(app, ["failover", *arguments, "--work", str(place.work.path)])


def test_the_standby_is_asked(place):
    """Of several nodes, the one that stands by for the unit takes it; the answer says from where to where."""
    place.node("node-1")
    place.node("node-2")
    place.node("node-3", "counts")
    done = failover(place, "counts", "--json")
    assert done.exit_code == 0, done.output
    moved = json.loads(done.stdout)
    assert place.asked == [("node-3", "counts")]
    assert (moved["from"], moved["to"], moved["epoch"]) == ("node-1", "node-3", 1)


def test_a_node_may_be_named(place):
    """Even one that has to start from nothing."""
    for name in ("node-1", "node-2", "node-3"):
        place.node(name, *(["counts"] if name == "node-3" else []))
    assert "moved from node-1 to node-2" in failover(place, "counts", "--to", "node-2").stdout
    assert place.asked == [("node-2", "counts")]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["nothing"], PipelineError, "no unit 'nothing'"),
        (["counts", "--to", "node-1"], PipelineError, "on node-1 already"),
        (["counts", "--to", "node-9"], PipelineError, "no node 'node-9'"),
        (["counts", "--timeout", "1"], AgentError, "has published nothing yet"),
    ],
)
def test_what_cannot_be_done_is_said(place, arguments, kind, message):
    """With the unit or node that was meant."""
    place.node("node-1")
    place.node("node-2", "counts", answers=False)
    done = failover(place, *arguments)
    assert isinstance(done.exception, kind)
    assert message in done.exception.message
    assert done.exception.hint


def test_a_target_that_died_is_not_said_to_have_it(place):
    """Whoever begins with maintenance must know where the unit is."""
    place.node("node-1")
    place.node("node-2", "counts", dies=True)
    done = failover(place, "counts")
    assert isinstance(done.exception, AgentError)
    assert "is on node-1, not on node-2" in done.exception.message


def test_where_no_node_answers_that_is_said(place):
    """And not that it takes two."""
    assert "no node of" in failover(place, "counts").exception.message


def test_one_node_alone_has_nowhere_to_move_it(place):
    """And is told how to have two."""
    place.node("node-1")
    assert "--nodes 2" in failover(place, "counts").exception.hint

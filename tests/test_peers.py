"""Peers: who is heard, who is not, and that a node that was started again is not the one that died."""

import os

import pytest

from anabranch.agent import Agent
from anabranch.clock import SystemClock
from anabranch.detector import Limits
from anabranch.lease import Holder
from anabranch.peers import LEAVING, Peers
from anabranch.testing.wait import wait_until
from anabranch.work import Announcement, Work

TIMEOUT_S = 60.0


class Other:
    """Another node: an agent that answers pings, and an announcement."""

    def __init__(self, work, name, life, phase="running"):
        self.answer = {"hanging_s": 0.0, "phase": phase}
        self.agent = Agent(work.token(), {"ping": lambda _: self.answer})
        self.agent.start()
        self.path = work.announce(Announcement(name, os.getpid(), self.agent.address, life))


@pytest.fixture
def work(tmp_path):
    return Work.create(tmp_path / "work")


@pytest.fixture
def peers(work):
    made = Peers(work, "node-2", SystemClock(), Limits(silent_s=5.0))
    yield made
    made.stop()


def looked(peers, condition):
    def look():
        peers.look()
        return condition()

    wait_until(look, TIMEOUT_S, "what peers see")


def test_a_holder_that_answers_is_trusted_and_one_that_died_is_not(work, peers):
    """As soon as nobody listens at its address any more."""
    other = Other(work, "node-1", "a")
    holder = Holder(0, "node-1", "a")
    assert peers.suspicion(holder) is not None
    looked(peers, lambda: not peers.first())
    assert peers.suspicion(holder) is None
    other.agent.stop()
    looked(peers, lambda: peers.suspicion(holder) is not None)
    assert peers.suspicion(holder) == "dead: nobody listens at its address"
    assert peers.first()


def test_a_node_in_another_life_is_not_the_holder(work, peers):
    """It answers, but it is not the one that took the role."""
    Other(work, "node-1", "b")
    looked(peers, lambda: peers.suspicion(Holder(1, "node-1", "b")) is None)
    assert peers.suspicion(Holder(0, "node-1", "a")) == "dead: it no longer announces itself"


def test_a_node_that_is_not_ready_comes_after_those_that_are(work, peers):
    """A node that is still starting is waited for by nobody."""
    other = Other(work, "node-1", "a", phase="starting")
    looked(peers, lambda: peers.suspicion(Holder(0, "node-1", "a")) is None)
    assert peers.first()
    other.answer = {"hanging_s": 0.0, "phase": "running"}
    looked(peers, lambda: not peers.first())


def test_a_node_that_hangs_is_suspected(work, peers):
    """It says itself that its main loop does not come round."""
    other = Other(work, "node-1", "a")
    holder = Holder(0, "node-1", "a")
    looked(peers, lambda: peers.suspicion(holder) is None)
    other.answer = {"hanging_s": 60.0, "phase": "running"}
    looked(peers, lambda: peers.suspicion(holder) is not None)
    assert peers.suspicion(holder).startswith("hanging")


def test_an_announcement_that_cannot_be_read_is_nobody(work, peers):
    """Half a file, or one of an older format, names no peer."""
    (work.path / "nodes" / "node-1.json").write_text('{"name": "node-1", "addr')
    (work.path / "nodes" / "node-3.json").write_text('{"name": "node-3", "pid": 1, "address": "x", "zone": null}')
    peers.look()
    assert peers.first()


def test_a_node_that_leaves_is_not_waited_for(work, peers):
    """It answers until it is gone, and leads nothing any more."""
    other = Other(work, "node-1", "a")
    holder = Holder(0, "node-1", "a")
    looked(peers, lambda: peers.suspicion(holder) is None)
    other.answer = {"hanging_s": 0.0, "phase": LEAVING}
    looked(peers, lambda: peers.suspicion(holder) is not None)
    assert peers.suspicion(holder) == "leaving: it was told to end"
    peers.acted(holder)
    assert peers.suspicion(holder) is not None, "what it still does is not the beginning of anything"

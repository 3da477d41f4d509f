"""When a node that waits cold is needed. Pure: leases and peers are told to it."""

from types import SimpleNamespace

import pytest

from anabranch.detector import Limits
from anabranch.lease import Lease
from anabranch.ledger.memory import MemoryLedger
from anabranch.node import ColdWatch


class FakePeers:
    """What a node sees of the others."""

    limits = Limits()

    def __init__(self, *, first, suspected=None):
        self.first, self.suspected = first, suspected

    def first_announced(self):
        return self.first

    def suspicion(self, _holder):
        return self.suspected


@pytest.fixture
def leases():
    return {"counts": Lease(MemoryLedger())}


def watch(peers):
    return ColdWatch(SimpleNamespace(segments={}), peers, 100.0)


def test_who_is_alone_at_first_waits_for_those_that_start_with_it(leases):
    """A second node that is there a moment before the first must not begin, or both would."""
    cold = watch(FakePeers(first=True))
    assert not cold.needed(leases, 100.2)
    assert cold.needed(leases, 101.1)


def test_only_the_first_begins(leases):
    """The others wait for as long as it takes."""
    cold = watch(FakePeers(first=False))
    assert not cold.needed(leases, 160.0)


def test_whoever_sees_the_leader_die_is_needed_at_once(leases):
    """Nobody gathers then."""
    leases["counts"].take("node-1", after=None)
    assert not watch(FakePeers(first=True)).needed(leases, 160.0)
    assert watch(FakePeers(first=False, suspected="silent")).needed(leases, 100.0)

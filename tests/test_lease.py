"""Leases: one holder per generation, and a deposed holder finds out."""

import contextlib
import threading

import pytest

from anabranch.errors import Corrupt, Deposed
from anabranch.lease import Holder, Lease
from anabranch.ledger import DirectoryLedger, MemoryLedger


@pytest.fixture(params=["memory", "directory"])
def ledger(request, tmp_path):
    return MemoryLedger() if request.param == "memory" else DirectoryLedger(tmp_path)


def test_a_role_that_was_never_taken_has_no_holder(ledger):
    """The first to take a role holds generation 0."""
    lease = Lease(ledger)
    assert lease.holder() is None
    assert lease.take("node-1", after=None) == lease.holder() == Holder(0, "node-1")


def test_taking_over_is_the_next_generation(ledger):
    """Each takeover counts on, and the holder before it is no longer in charge."""
    lease = Lease(ledger)
    first = lease.take("node-1", after=None)
    assert lease.held_by(first)
    second = lease.take("node-2", after=first)
    assert (second.generation, lease.holder()) == (1, second)
    assert (lease.held_by(first), lease.held_by(second)) == (False, True)
    # The same node, started again, is another generation too.
    assert lease.take("node-2", after=second) == Holder(2, "node-2")
    assert not lease.held_by(second)


@pytest.mark.parametrize("seen", [None, 0])
def test_who_comes_second_is_told_who_was_first(ledger, seen):
    """Two nodes that saw the same holder cannot both succeed it."""
    lease = Lease(ledger)
    before = lease.take("node-0", after=None) if seen is not None else None
    lease.take("node-1", after=before)
    with pytest.raises(Deposed, match="was taken by 'node-1'"):
        lease.take("node-2", after=before)
    assert lease.holder().node == "node-1"


def test_a_planned_takeover_is_known_as_one(ledger):
    """Whoever reads the lease sees that the holder before was well."""
    lease = Lease(ledger)
    first = lease.take("node-1", after=None)
    lease.take("node-2", after=first, life="b", planned=True)
    assert lease.holder() == Holder(1, "node-2", "b", planned=True)


def test_of_many_takers_one_wins(tmp_path):
    """However many nodes take a generation at once, exactly one holds it, and all agree who."""
    ready, won = threading.Barrier(8), []

    def take(name):
        lease = Lease(DirectoryLedger(tmp_path))
        ready.wait()
        with contextlib.suppress(Deposed):
            won.append(lease.take(name, after=None))

    threads = [threading.Thread(target=take, args=(f"node-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert Lease(DirectoryLedger(tmp_path)).holder() == won[0]


@pytest.mark.parametrize("record", [b"", b"{}", b"[]", b"node-1", b"\xff"])
def test_an_unreadable_generation_is_corrupt(ledger, record):
    """A holder that cannot be read is named by its generation, not taken for nobody."""
    ledger.claim(0, record)
    with pytest.raises(Corrupt, match="generation 0"):
        Lease(ledger).holder()

"""What two nodes do to each other over leases that they share."""

import itertools
from types import SimpleNamespace

from anabranch.clock import ManualClock
from anabranch.detector import Limits
from anabranch.leading import Leading
from anabranch.lease import Lease
from anabranch.ledger.memory import MemoryLedger
from anabranch.placement import Host, placed
from anabranch.strategies import KSafe
from anabranch.strategies.strategy import Unprotected
from anabranch.takeovers import Takeovers


class Trusting:
    """Hears every other node, always."""

    limits = Limits()

    def look(self):
        pass

    def suspicion(self, holder):
        return None

    def since_heard_s(self, holder):
        return 0.0

    def acted(self, holder):
        pass

    def first(self):
        return True

    def ready(self):
        return [Host("node-2"), Host("node-3")]


class Suspecting(Trusting):
    """Takes every holder for dead, and comes last by name."""

    def suspicion(self, holder):
        return "dead"

    def first(self):
        return False


def leading(name, clock, lease, took, *, others=None, strategy=None, runs=(), lags=None):
    """Return a node over a unit that publishes nothing, though input waits."""
    channels = {
        "lines": SimpleNamespace(last_epoch=lambda: 5, manifest=lambda _: None),
        "counts": SimpleNamespace(last_epoch=lambda: -1, manifest=lambda _: None),
    }
    setup = SimpleNamespace(
        segments={"counts": SimpleNamespace(inputs=("lines",))},
        graph=SimpleNamespace(sources={"lines": None}),
        clock=clock,
        options=SimpleNamespace(name=name, zone=None),
        strategy=lambda _: strategy or Unprotected(),
        life=f"{name}.1",
        note=lambda *_, **__: None,
    )
    host = SimpleNamespace(
        channels=channels,
        running={},
        first_output_s={},
        runs=lambda _: set(runs),
        upkeep=SimpleNamespace(moving=lambda *_, **__: None, lags=lambda *_: lags or {}),
        begin=lambda *_: took.append(clock.steady_s()),
        end_role=lambda _: None,
    )
    return Leading(setup, others or Trusting(), {"counts": lease}, host, Takeovers(lambda *_, **__: None))


def test_patience_outlives_the_nodes_that_take_over():
    """A replay that takes ten minutes is given them, also by two nodes that take it from each other (rule 13)."""
    clock, took = ManualClock(), []
    lease = Lease(MemoryLedger())
    nodes = [leading(name, clock, lease, took) for name in ("node-1", "node-2")]
    for _ in range(20_000):
        for node in nodes:
            node.look()
        clock.advance(0.1)
    held_s = [later - earlier for earlier, later in itertools.pairwise(took)]
    assert len(held_s) >= 4
    assert all(later >= 1.9 * earlier for earlier, later in itertools.pairwise(held_s)), held_s


def test_where_replicas_race_those_that_run_one_take_the_lease():
    """A node without one would have to begin it, while others could publish the next epoch."""
    clock, took = ManualClock(), []
    lease = Lease(MemoryLedger())
    lease.take("node-1", after=None, life="node-1.1")
    without = leading("node-2", clock, lease, took, others=Suspecting(), strategy=KSafe())
    without.look()
    assert took == []
    replica = leading("node-3", clock, lease, took, others=Suspecting(), strategy=KSafe(), runs=("r1",))
    replica.look()
    assert lease.holder().node == "node-3"


def test_a_replica_goes_when_enough_others_are_where_it_is():
    """Of three nodes two run the unit; the third ends its own only once it is not needed."""
    lease = Lease(MemoryLedger())
    lease.take("node-2", after=None, life="node-2.1")
    others = Trusting().ready()
    chosen = {
        name: placed({"counts": 2}, [Host(name), *others], {"counts": "node-2"})["counts"]
        for name in (f"node-{number}" for number in range(4, 40))
    }
    surplus = next(name for name, hosts in chosen.items() if name not in hosts)
    needed = next(name for name, hosts in chosen.items() if name in hosts)

    def elsewhere(name, lags):
        return leading(name, ManualClock(), lease, [], strategy=KSafe(), runs=("mine",), lags=lags).elsewhere()

    assert elsewhere(surplus, {}) == {"counts": False}, "nobody has said where it is"
    assert elsewhere(surplus, {"mine": 0, "r2": 0, "r3": 4}) == {"counts": False}
    assert elsewhere(surplus, {"mine": 0, "r2": 0, "r3": 1}) == {"counts": True}
    assert elsewhere(needed, {"mine": 0, "r2": 0, "r3": 1}) == {}

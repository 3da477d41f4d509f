"""What two nodes do to each other over leases that they share."""

import itertools
from types import SimpleNamespace

from anabranch.clock import ManualClock
from anabranch.detector import Limits
from anabranch.leading import Leading
from anabranch.lease import Lease
from anabranch.ledger.memory import MemoryLedger
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


def leading(name, clock, lease, took):
    """Return a node over a unit that publishes nothing, though input waits."""
    channels = {
        "lines": SimpleNamespace(last_epoch=lambda: 5, manifest=lambda _: None),
        "counts": SimpleNamespace(last_epoch=lambda: -1, manifest=lambda _: None),
    }
    setup = SimpleNamespace(
        segments={"counts": SimpleNamespace(inputs=("lines",))},
        graph=SimpleNamespace(sources={"lines": None}),
        clock=clock,
        options=SimpleNamespace(name=name),
        life=f"{name}.1",
        note=lambda *_, **__: None,
    )
    host = SimpleNamespace(
        channels=channels,
        running={},
        first_output_s={},
        upkeep=SimpleNamespace(moving=lambda *_, **__: None, lags=lambda *_: {}),
        begin=lambda *_: took.append(clock.steady_s()),
        end_role=lambda _: None,
    )
    return Leading(setup, Trusting(), {"counts": lease}, host, Takeovers(lambda *_, **__: None))


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

"""One seeded history: a pipeline, its nodes and its faults, all by chance; run to the end, and judged."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anabranch.settings import Settings
from anabranch.simulator.checks import check
from anabranch.simulator.cluster import Cluster
from anabranch.simulator.heap import Heap
from anabranch.simulator.invariants import Invariants
from anabranch.simulator.segments import MODELS, Drawn, Model
from anabranch.simulator.world import SimSegment, World
from anabranch.strategies import (
    ActiveStandby,
    Amnesia,
    KSafe,
    PassiveStandby,
    Strategy,
    TrailingStandby,
    UpstreamBackup,
)

STORE = "log:/store"
# Faults come in one of these times; after it everything heals, and what came in must be delivered.
_FAULTS_S = (8.0, 15.0, 25.0)
_HEALED_S = 120.0
_ROWS_S = 0.2
_AFTERWARDS_S = 2.0
# For how many times its seconds a fault lasts.
_LASTS = {"pause": 1, "cut": 1, "lose messages": 1, "hang": 1, "slow": 1, "store away": 1, "stuck query": 3}


@dataclass(frozen=True)
class Verdict:
    """What became of a history."""

    seed: int
    violations: tuple[str, ...]
    epochs: int
    events: int
    faults: int
    pipeline: dict[str, str]
    history: tuple[dict[str, Any], ...] = field(repr=False, default=())

    @property
    def held(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations


def run(seed: int) -> Verdict:
    """Run the history of a seed."""
    heap = Heap(seed)
    chance = heap.chance
    segments = _segments(heap)
    world = World(heap, "lines", segments, "out")
    strategies = {name: _strategy(heap, segment.model) for name, segment in segments.items()}
    settings = Settings(longest_interval_s=3.0, largest_epoch_rows=chance.choice([3, 10, 1000]), retain_epochs=1)
    names = [f"node-{number}" for number in range(1, chance.choice([2, 2, 3]) + 1)]
    cluster = Cluster(world, settings, names, strategies)
    cluster.start()
    until_s = chance.choice(_FAULTS_S)
    invariants = Invariants(world, cluster.nodes.values, strategies)
    faults = [_schedule(cluster, strategies, until_s) for _ in range(chance.choice([0, 1, 2, 3, 5]))]
    # Input comes until the last fault is over, and a little longer: who was paused or cut off meets the others again.
    until_s = max([until_s, *faults]) + _AFTERWARDS_S
    _feed(world, until_s)
    while not world.violations and heap.now_s < until_s + _HEALED_S:
        heap.step()
        invariants.look()
        if heap.now_s > until_s and cluster.settled():
            break
    if not world.violations and not cluster.settled():
        world.violate(f"input was not delivered within {_HEALED_S:.0f} s after the last fault: {cluster.state()}")
    check(world, strategies)
    pipeline = {name: f"{segments[name].model.__name__} by {strategies[name]}" for name in segments}
    epochs = world.channels["lines"].last_epoch() + 1
    return Verdict(seed, tuple(world.violations), epochs, heap.events, len(faults), pipeline, tuple(world.history))


def _segments(heap: Heap) -> dict[str, SimSegment]:
    kinds = list(MODELS)
    first = MODELS[heap.chance.choice(kinds)]
    found = {"first": SimSegment("first", ("lines",), first)}
    if first is not Drawn and heap.chance.choice((True, False)):
        found["second"] = SimSegment("second", ("first",), MODELS[heap.chance.choice(kinds)])
    return found


def _strategy(heap: Heap, model: type[Model]) -> Strategy:
    chance = heap.chance
    if not model.deterministic:
        return PassiveStandby(store=STORE, release="shipped", temperature=chance.choice(["warm", "gated"]))
    every = chance.choice([1, 3, 10])
    # Drawn apart, so that seeds that were kept still mean what they meant.
    racing = random.Random(f"{heap.seed}/racing").choice([ActiveStandby(release="written"), KSafe(1), KSafe(2)])
    candidates: list[Strategy] = [
        ActiveStandby(),
        racing,
        TrailingStandby(every_s=chance.choice([0.5, 2.0])),
        PassiveStandby(store=STORE, every=every, temperature=chance.choice(["warm", "gated"])),
        UpstreamBackup(),
        Amnesia(),
    ]
    allowed = [some for some in candidates if some.refusal(model.span, model.unmergeable) is None]
    return chance.choice(allowed)


def _feed(world: World, until_s: float) -> None:
    """Let rows come: event time moves on, some rows are out of order, some hopelessly late."""
    chance = world.heap.chance
    share = chance.choice([0.0, 0.05, 0.3])

    def come() -> None:
        now_s = world.heap.now_s
        if now_s > until_s:
            return
        for _ in range(chance.choice([0, 1, 1, 2, 5])):
            late = chance.choice([12, 20, 60]) if chance.random() < share else 0
            world.input.append((chance.randrange(5), max(0, int(4 * now_s) + chance.randint(-6, 6) - late)))
        world.heap.after(chance.uniform(0.5, 1.5) * _ROWS_S, come)

    world.heap.after(0.0, come)


def _schedule(cluster: Cluster, strategies: dict[str, Strategy], until_s: float) -> float:
    """Plan one fault at some moment; return when it is over."""
    heap = cluster.world.heap
    chance = heap.chance
    nodes = list(cluster.nodes.values())
    one, other = chance.sample(nodes, 2)
    seconds = chance.choice([0.5, 2.0, 8.0])
    stored = all(isinstance(strategy, PassiveStandby) for strategy in strategies.values())
    rebuilt = all(isinstance(strategy, PassiveStandby | UpstreamBackup) for strategy in strategies.values())
    faults: dict[str, Callable[[], object]] = {
        "kill": lambda: cluster.kill(one),
        "kill all": lambda: _kill_all(cluster),
        "kill for good": lambda: cluster.kill(one, for_good=True),
        "move": lambda: cluster.move(chance.choice(list(cluster.world.segments)), one),
        "die in the middle": lambda: setattr(one, "dies_after", chance.randrange(30)),
        "kill the leader": lambda: _kill_leader(cluster),
        "pause": lambda: cluster.pause(one, seconds),
        "cut": lambda: cluster.cut(one, other, seconds),
        "lose messages": lambda: cluster.lose(0.5, seconds),
        "hang": lambda: setattr(one, "hangs_until_s", heap.now_s + seconds),
        "stuck query": lambda: _stick(cluster, seconds),
        "slow": lambda: _slow(cluster, seconds),
        "clock": lambda: setattr(one.clock, "off_s", chance.uniform(-30, 30)),
        "store away": lambda: _store_away(cluster, seconds),
        **({"power cut": cluster.power_cut} if rebuilt else {}),
        **({"damage": lambda: _damage(cluster)} if stored else {}),
    }
    name = chance.choice(sorted(faults))

    def strike() -> None:
        cluster.world.note("fault", fault=name, node=one.name)
        faults[name]()

    at_s = chance.uniform(3.0, until_s)
    heap.after(at_s, strike)
    return at_s + _LASTS.get(name, 0) * seconds


def _kill_all(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        cluster.kill(node)


def _kill_leader(cluster: Cluster) -> None:
    holder = cluster.world.lease("first").holder()
    if holder is not None:
        cluster.kill(cluster.nodes[holder.node])


def _stick(cluster: Cluster, seconds: float) -> None:
    world = cluster.world
    for node in cluster.nodes.values():
        if node.life:
            for unit in node.replicas.primaries.values():
                world.stuck_until_s[unit.run] = world.heap.now_s + 3 * seconds


def _slow(cluster: Cluster, seconds: float) -> None:
    node = cluster.world.heap.chance.choice(list(cluster.nodes.values()))
    node.slowness = 10.0
    cluster.world.heap.after(seconds, lambda: setattr(node, "slowness", 1.0))


def _damage(cluster: Cluster) -> None:
    """Damage what one run has on disk, and kill the node it belongs to, so that someone may need it."""
    world = cluster.world
    # What is not stored yet is nowhere else; an epoch that waits for it must not be executed again.
    runs = [
        run
        for unit, runs in world.runs.items()
        for run in runs.values()
        if run.saved is not None and world.store.whole(unit, run.saved.epoch)
    ]
    if runs:
        run = world.heap.chance.choice(runs)
        run.damaged = True
        cluster.kill(cluster.nodes[run.owner])


def _store_away(cluster: Cluster, seconds: float) -> None:
    store = cluster.world.store
    store.away = True
    cluster.world.heap.after(seconds, lambda: setattr(store, "away", False))

"""The roles of one node: it takes what is free, and steps down from what another node has taken.

`look` is called in the main loop. What it sees of a role goes to the decider (roles.py); what that says is carried out
on the node's hosting. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from anabranch.channel.channel import Channel
from anabranch.detector import Limits, Progress, ProgressWatch
from anabranch.errors import Deposed
from anabranch.lease import Holder, Lease
from anabranch.placement import Host as Place
from anabranch.placement import placed
from anabranch.roles import ASKED, RoleView, decide, free
from anabranch.setup import Setup
from anabranch.takeovers import Seen, Taken, Takeovers
from anabranch.upkeep import Upkeep

PACER = "pacer"
# A holder whose successor was planned goes on for at most this long.
_LINGER_S = 60.0
# A replica that is no further behind than this could publish the next epoch.
_LEVEL = 1


class Others(Protocol):
    """What is known of the other nodes; see peers.py."""

    limits: Limits

    def look(self) -> None: ...
    def suspicion(self, holder: Holder) -> str | None: ...
    def since_heard_s(self, holder: Holder) -> float | None: ...
    def acted(self, holder: Holder) -> None: ...
    def first(self) -> bool: ...
    def ready(self) -> list[Place]: ...


class Host(Protocol):
    """What carries roles out; see hosting.py."""

    @property
    def channels(self) -> Mapping[str, Channel]: ...
    @property
    def running(self) -> Mapping[str, str]: ...
    def runs(self, unit: str) -> set[str]: ...
    @property
    def first_output_s(self) -> Mapping[str, float]: ...
    def begin(self, role: str, generation: int) -> None: ...
    def end_role(self, role: str) -> None: ...
    @property
    def upkeep(self) -> Upkeep: ...


class Leading:
    """What one node leads. `held` are its roles, with what it was given when it took them."""

    def __init__(
        self, setup: Setup, others: Others, leases: Mapping[str, Lease], host: Host, takeovers: Takeovers
    ) -> None:
        self._setup = setup
        self._others = others
        self._leases = leases
        self._host = host
        self._takeovers = takeovers
        self._free_since_s: dict[str, float] = {}
        self._progress: dict[str, ProgressWatch] = {}
        self._asked: set[str] = set()
        self._lingering_s: dict[str, float] = {}
        self._acts: dict[str, tuple[int, int]] = {}
        self.held: dict[str, Holder] = {}

    def look(self) -> None:
        """Take what is free, and step down from what is another's."""
        self._others.look()
        for role, lease in self._leases.items():
            holder = lease.holder()
            if holder is not None and role in self._setup.segments:
                self._host.upkeep.moving(role, to=holder.generation if holder.planned else None)
            decision = decide(self._view(role, holder))
            if decision.do == "step down":
                self._step_down(role, decision.reason)
            elif decision.do == "take":
                self._take(role, holder, decision.reason)
        self._takeovers.look(self._setup.clock.now_s(), self._seen)

    def ask(self, unit: str) -> None:
        """Let a unit move here."""
        self._asked.add(unit)

    def led(self) -> dict[str, int]:
        """Return the generations of the units that this node leads."""
        return {role: mine.generation for role, mine in self.held.items() if role in self._setup.segments}

    def elsewhere(self) -> dict[str, bool]:
        """Return the units that need no replica here, and whether one that is here may go."""
        copies = {name: self._setup.strategy(name).copies for name in self._setup.segments}
        asked = {name: count for name, count in copies.items() if count is not None}
        if not asked:
            return {}
        mine = Place(self._setup.options.name, self._setup.options.zone)
        holders = {name: self._leases[name].holder() for name in asked}
        leaders = {name: holder.node if holder is not None else None for name, holder in holders.items()}
        found = placed(asked, sorted([mine, *self._others.ready()], key=lambda host: host.name), leaders)
        return {name: self._others_level(name) >= asked[name] for name in asked if mine.name not in found[name]}

    def _others_level(self, unit: str) -> int:
        """Count the runs of a unit on other nodes that are where it is, or nearly."""
        lags = self._host.upkeep.lags(unit, self._host.channels[unit].last_epoch())
        mine = self._host.runs(unit)
        return sum(lag <= _LEVEL for run, lag in lags.items() if run not in mine)

    def _seen(self, role: str) -> Seen:
        channels = self._host.channels
        return Seen(
            running=role in self._host.running,
            first_output_s=self._host.first_output_s.get(role),
            published=channels[role].last_epoch(),
            waiting=self._waiting(role),
        )

    def _waiting(self, unit: str) -> int:
        return min(self._host.channels[name].last_epoch() for name in self._setup.segments[unit].inputs)

    def _view(self, role: str, holder: Holder | None) -> RoleView:
        mine = self.held.get(role)
        now_s = self._setup.clock.steady_s()
        suspicion = None
        # Watched also while it is this node's: what earlier generations came to is part of what the next is given.
        stalled = None if holder is None else self._stalled(role, holder, now_s)
        successor = mine is not None and holder is not None and holder.generation > mine.generation
        if holder is not None and (mine is None or successor):
            self._note_acts(role, holder)
            suspicion = self._others.suspicion(holder) or stalled
        view = RoleView(
            holder,
            mine,
            suspicion,
            first=self._comes_first(role, holder),
            free_s=0.0,
            asked=role in self._asked,
            relieved=self._relieved(role, holder, mine),
        )
        if free(view) is None:
            self._free_since_s.pop(role, None)
            return view
        since_s = self._free_since_s.setdefault(role, now_s)
        return replace(view, free_s=now_s - since_s)

    def _comes_first(self, role: str, holder: Holder | None) -> bool:
        """Say whether no other node should take a role before this one: where replicas race, those that run one do."""
        racing = role in self._setup.segments and self._setup.strategy(role).copies is not None
        return bool(self._host.runs(role)) if racing and holder is not None else self._others.first()

    def _relieved(self, role: str, holder: Holder | None, mine: Holder | None) -> bool:
        """Say whether a successor that was planned is where this node is, or has had its time.

        It will not get there by itself, because both are equally fast: the pacer gives it time.
        """
        if mine is None or holder is None or holder.generation <= mine.generation or not holder.planned:
            self._lingering_s.pop(role, None)
            return True
        now_s = self._setup.clock.steady_s()
        waited_s = now_s - self._lingering_s.setdefault(role, now_s)
        lags = self._host.upkeep.lags(role, self._host.channels[role].last_epoch())
        others = [lag for run, lag in lags.items() if run != self._host.running.get(role)]
        return min(others, default=1) <= 0 or waited_s >= _LINGER_S

    def _note_acts(self, role: str, holder: Holder) -> None:
        """Let it be known that a holder lives if it has just taken the role, or published in it."""
        shown = next(iter(self._setup.graph.sources)) if role == PACER else role
        channel = self._host.channels.get(shown)
        last = -1 if channel is None else channel.last_epoch()
        before, self._acts[role] = self._acts.get(role), (holder.generation, last)
        if before is None or before == self._acts[role]:
            return
        newest = channel.manifest(last) if channel is not None and last >= 0 else None
        if before[0] != holder.generation or (newest is not None and newest.producer.generation == holder.generation):
            self._others.acted(holder)

    def _stalled(self, role: str, holder: Holder, now_s: float) -> str | None:
        if role not in self._setup.segments:
            return None
        seen = Progress(holder.generation, self._waiting(role), self._host.channels[role].last_epoch())
        if role not in self._progress:
            self._progress[role] = ProgressWatch(self._others.limits, seen, now_s)
        return self._progress[role].suspicion(seen, now_s)

    def _take(self, role: str, holder: Holder | None, reason: str) -> None:
        planned = reason == ASKED
        detected_s = None if holder is None or planned else self._others.since_heard_s(holder)
        self._asked.discard(role)
        node, life = self._setup.options.name, self._setup.life
        try:
            mine = self._leases[role].take(node, after=holder, life=life, planned=planned)
        except Deposed:
            return  # another was faster
        self.held[role] = mine
        self._host.begin(role, mine.generation)
        if holder is not None and holder.node != node:
            parties = {"role": role, "from": holder.node, "to": node, "generation": mine.generation}
            self._setup.note("took over", **parties, reason=reason, detected_s=detected_s)
            if role in self._setup.segments:
                self._takeovers.begin(Taken(role, mine.generation, self._setup.clock.now_s(), detected_s))

    def _step_down(self, role: str, reason: str) -> None:
        """Give up a role that another node has taken; what was in hand can no longer do harm."""
        del self.held[role]
        self._takeovers.drop(role)
        self._setup.note("stepped down", role=role, node=self._setup.options.name, reason=reason)
        self._host.end_role(role)

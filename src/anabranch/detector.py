"""Noticing failures. Pure: what was heard and seen, and the time, go in; suspicions come out.

A node is suspected when it is silent: dead, paused, or cut off from its watchers. A node that answers may still be
useless: its main loop hangs (it lost the work directory, say), or a query of it does. The first it tells in its
answers; the second shows in the ledgers: input waits, and nothing is published.

A node that is silent and yet takes roles or publishes is not dead, but cut off from this one. Two such nodes would
take everything from each other without end: each is given more time every time it is seen to act.

An epoch is published once, whoever is suspected. So a wrong suspicion costs some work and no correctness, and limits
may be short. Time during which the watcher itself was not looking, because it was paused, is nobody's silence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from anabranch.clock import Clock


@dataclass(frozen=True)
class Limits:
    """How long what may last before it is a failure.

    `silent_s`: no answer to pings. `hanging_s`: a main loop that has not come round. `stalled_s`: input waits and
    nothing is published; a generation that has published nothing yet is given `grace_s` first, because it restores.
    """

    ping_every_s: float = 0.1
    silent_s: float = 0.3
    hanging_s: float = 2.0
    stalled_s: float = 5.0
    grace_s: float = 30.0


# What a main loop may be busy with for this long before it hangs; a JVM that no longer answers takes longer.
BUSY_S = 60.0
# What lately took long is given this many times as long. Of a node's answers half is forgotten after 7 s of pings, of a
# unit's epochs after 7 of them.
_TIMES_USUAL = 4
# For how long after a refusal the ledgers may still show what a node did before it died.
_LAST_ACTS_S = 1.0
_FORGETTING = 0.99
_FORGETTING_EPOCHS = 0.9


class Rounds:
    """What a node tells others of its main loop: for how long it has not come round.

    To open a store, to end a query or to sweep a large channel may take long, and is no hanging for a minute.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Since when it hangs, or will; None before the loop has begun.
        self._since_s: float | None = None

    def looked(self) -> None:
        """Note that the loop has come round."""
        self._since_s = self._clock.steady_s()

    def left(self) -> None:
        """Note that there is no loop for a while."""
        self._since_s = None

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Do something that may take long."""
        self._since_s = self._clock.steady_s() + BUSY_S
        yield
        self.looked()

    def hanging_s(self) -> float:
        """Return for how long the loop has not come round."""
        since_s = self._since_s
        return 0.0 if since_s is None else max(0.0, self._clock.steady_s() - since_s)


class NodeWatch:
    """One node, as another hears it. On a machine that is busy answers take longer, and so does patience."""

    def __init__(self, limits: Limits, now_s: float) -> None:
        self._limits = limits
        self._silent_s = 0.0
        self._hanging_s = 0.0
        self._gone = False
        self._gone_s = 0.0
        # Whoever has just come is busy starting, and so is the machine.
        self._usual_s = limits.silent_s
        # What it is given, while it cannot be heard, because it was seen to act.
        self._given_s = 0.0
        self._looked_s = now_s
        self._heard_s = now_s

    def heard(self, hanging_s: float, now_s: float, took_s: float = 0.0) -> None:
        """Note an answer and how long it took, and for how long the node's main loop had not come round then."""
        self._usual_s = max(took_s, _FORGETTING * self._usual_s)
        self._silent_s = self._given_s = 0.0
        self._looked_s = self._heard_s = now_s
        self._hanging_s = hanging_s
        self._gone = False
        self._gone_s = 0.0

    def refused(self) -> None:
        """Note that nobody listens where the node should: its process is dead. No need to wait.

        Unless it was seen to act since: then something between the two refuses, and it counts as silence.
        """
        self._gone = self._given_s <= 0

    def acted(self) -> None:
        """Note that the ledgers show something new of the node: it lives, whether it is heard or not.

        What is seen just after a refusal is what it did before it died.
        """
        contradicted = self._gone and self._gone_s >= _LAST_ACTS_S
        if contradicted:
            self._gone, self._gone_s = False, 0.0
        if contradicted or self._silent_s >= self._patience_s():
            self._given_s = min(self._limits.grace_s, max(self._limits.stalled_s, 2 * self._given_s))
        self._silent_s = 0.0

    def _patience_s(self) -> float:
        return max(self._limits.silent_s, _TIMES_USUAL * self._usual_s, self._given_s)

    def since_heard_s(self, now_s: float) -> float:
        """Return how long ago the node last answered."""
        return now_s - self._heard_s

    def suspicion(self, now_s: float) -> str | None:
        """Say why the node is suspected, None if it is not. To be asked at least as often as pings are sent."""
        elapsed_s = min(now_s - self._looked_s, 2 * self._limits.ping_every_s)
        self._silent_s += elapsed_s
        self._looked_s = now_s
        if self._gone:
            self._gone_s += elapsed_s
            return "dead: nobody listens at its address"
        if self._silent_s >= self._patience_s():
            return f"silent for {self._silent_s:.1f} s"
        if self._hanging_s >= self._limits.hanging_s:
            return f"hanging for {self._hanging_s:.1f} s"
        return None


@dataclass(frozen=True)
class Progress:
    """What the ledgers say of a unit: its lease's generation, the epoch its inputs have, the epoch it has published."""

    generation: int
    waiting: int
    published: int


class ProgressWatch:
    """One unit, as its ledgers show it."""

    def __init__(self, limits: Limits, seen: Progress, now_s: float) -> None:
        self._limits = limits
        self._seen = seen
        self._looked_s = now_s
        self._stalled_s = 0.0
        self._at_first = seen.published
        # Generations in a row that published nothing: each gets twice the time of the one before.
        self._barren = 0
        # How long epochs took lately; at first a node is slow, and so are others that start beside it.
        self._usual_s = limits.stalled_s

    def suspicion(self, seen: Progress, now_s: float) -> str | None:
        """Say why the unit is suspected, None if it is not. To be asked at least as often as pings are sent."""
        elapsed_s = min(now_s - self._looked_s, 2 * self._limits.ping_every_s)
        self._looked_s = now_s
        before, self._seen = self._seen, seen
        if seen.generation != before.generation:
            self._barren = self._barren + 1 if before.published == self._at_first else 0
            self._at_first = before.published
            self._stalled_s = 0.0
        elif seen.published != before.published:
            if before.published != self._at_first:
                self._usual_s = max(self._stalled_s, _FORGETTING_EPOCHS * self._usual_s)
            self._stalled_s = 0.0
        elif seen.waiting <= seen.published:
            self._stalled_s = 0.0
        else:
            self._stalled_s += elapsed_s
        begun = seen.published != self._at_first
        usual_s = min(self._limits.grace_s, _TIMES_USUAL * self._usual_s)
        stalled_s = max(self._limits.stalled_s, usual_s) if begun else self._limits.grace_s
        limit_s = stalled_s if begun else stalled_s * 2**self._barren
        if self._stalled_s >= limit_s:
            return f"epoch {seen.waiting} waits, nothing published for {self._stalled_s:.1f} s"
        return None

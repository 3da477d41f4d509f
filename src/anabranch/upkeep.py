"""What keeps a pipeline in step and bounded: how far everyone is, what nobody needs again, what may be removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from anabranch.channel.channel import Channel
from anabranch.pacer import Downstream
from anabranch.pacing import Recent, trim_floor
from anabranch.replicas import Replicas
from anabranch.setup import Setup

# How often the pacer looks whether active standbys are in step, how old what they say may be, and what is out of reach.
_LOOK_AT_LAGS_S = 0.02
_FRESH_S = 1.5
_MOST_LAG = 5
# How long an epoch waits for a node to which a unit moves as planned.
_MOVING_S = 0.6


class Kept(Protocol):
    """What stores have; see keeping.py."""

    def unkept(self, released: Mapping[str, int]) -> str | None: ...
    def kept_epoch(self, name: str) -> int | None: ...


class Upkeep:
    """Of one node: for the units it leads, and for all channels if it holds the pacer."""

    def __init__(self, setup: Setup, replicas: Replicas, kept: Kept) -> None:
        self._setup = setup
        self._replicas = replicas
        self._kept = kept
        self._unkept: str | None = None
        self._recent: dict[str, Recent] = {}
        self._lag = 0, 0.0
        self._looked_at_lags_s = 0.0
        # Units that a planned generation takes over, and the last such generation that has.
        self._moving: set[str] = set()
        self._moved: dict[str, int] = {}

    @property
    def _channels(self) -> Mapping[str, Channel]:
        return self._replicas.channels

    # In step

    def downstream(self, delivered: list[int]) -> Downstream:
        """Return how far everyone is; `delivered` is what every sink has."""
        released = {name: self._channels[name].last_epoch() for name in self._setup.segments}
        first = [
            released[name]
            for name, segment in self._setup.segments.items()
            if any(read in self._setup.graph.sources for read in segment.inputs)
        ]
        unkept = self._kept.unkept(released)
        if unkept != self._unkept:
            self._unkept = unkept
            self._setup.note("held up" if unkept else "going on", unit=unkept, reason="its store is too far behind")
        received = min([*released.values(), *delivered])
        behind, patience_s = self._behind(released)
        return Downstream(min(first), received, unkept is not None, behind, patience_s)

    def _behind(self, released: Mapping[str, int]) -> tuple[int, float]:
        """Return by how many epochs a replica lags that should keep in step, and how long the others wait for it.

        One that is far behind is left alone.
        """
        now_s = self._setup.clock.steady_s()
        if now_s - self._looked_at_lags_s >= _LOOK_AT_LAGS_S:
            self._looked_at_lags_s = now_s
            patience = {
                name: max(self._setup.strategy(name).patience_s, _MOVING_S if name in self._moving else 0.0)
                for name in self._setup.segments
            }
            found = [
                (lag, patience[name])
                for name in self._setup.segments
                if patience[name] > 0
                for lag in self.lags(name, released[name]).values()
                if 0 < lag <= _MOST_LAG
            ]
            self._lag = max((lag for lag, _ in found), default=0), max((some_s for _, some_s in found), default=0.0)
        return self._lag

    def moving(self, name: str, to: int | None) -> None:
        """Give a planned generation, if there is one, time to come to where its predecessor is, until it publishes."""
        if to is not None and self._moved.get(name) != to:
            last = self._channels[name].last_epoch()
            manifest = self._channels[name].manifest(last) if last >= 0 else None
            if manifest is None or manifest.producer.generation < to:
                self._moving.add(name)
                return
            self._moved[name] = to
        self._moving.discard(name)

    def lags(self, name: str, published: int) -> dict[str, int]:
        """Return by how many epochs each live run of a unit, on any node, is behind what is published."""
        channel = self._channels[self._setup.segments[name].inputs[0]]
        received = channel.received_by_run(name, self._setup.clock.now_s() - _FRESH_S)
        return {run: published - epoch for run, epoch in received.items()}

    # Bounded

    def declare_safe(self) -> None:
        """Tell every channel what the primaries here will never need again.

        Where replicas race, each of them tells: the one that leads may be the one that hangs.
        """
        racing = {
            name: standby.unit
            for name, standby in self._replicas.standbys.items()
            if self._setup.strategy(name).policy == "written"
        }
        for name, unit in {**racing, **self._replicas.primaries}.items():
            strategy = self._setup.strategy(name)
            if strategy.replays:
                low = strategy.replay_from(self._replicas.view(name))
                # What tells where a replay begins is in the unit's own manifests: it is a reader of its own output.
                self._channels[name].declare_safe(name, low - 1)
                unit.declare_safe(low - 1)
            else:
                unit.declare_safe(self._kept.kept_epoch(name))

    def trim(self, *, sweep: bool) -> None:
        """Remove epochs that nobody needs; the pacer's node does it for all."""
        graph, options = self._setup.graph, self._setup.options
        asked = options.retain_epochs or graph.settings.retain_epochs
        retain = None if asked == "all" else asked
        for name, channel in self._channels.items():
            readers = self._setup.consumers[name]
            safe = [channel.safe(unit) for unit in readers]
            if name in graph.sources:
                safe.append(channel.noted_position())
            elif self._setup.strategy(name).replays:
                safe.append(channel.safe(name))
            last = channel.last_epoch()
            if any(reader in self._setup.strategies for reader in readers):
                recent = self._recent.setdefault(name, Recent(options.leave_s))
                safe.append(recent.before(last, self._setup.clock.steady_s()))
            exits = not any(reader in self._setup.segments for reader in readers) or any(
                reader in graph.sinks for reader in readers
            )
            kept = retain if exits or retain is None else 1
            channel.trim(trim_floor(safe=safe, last=last, retain=kept))
            if sweep:
                channel.sweep()

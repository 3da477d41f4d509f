"""A run of a unit over a model of Spark: polls, executes, publishes and commits, each at a moment of its own.

Between any two of these the node may die, pause or be deposed. What is published, and when, is decided by the
production code (publishing.py, releasing.py); which epochs make a micro-batch, by the production gate.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from anabranch.channel.channel import Channel
from anabranch.channel.inputs import Gate
from anabranch.channel.manifest import Part
from anabranch.channel.writer import Planned, Written
from anabranch.choosing import Wanted, choose, made_by
from anabranch.errors import AnabranchError, Corrupt, Trimmed
from anabranch.pending import Pending
from anabranch.publishing import Executed, Publishing, Seen
from anabranch.releasing import Releasing
from anabranch.simulator.segments import Done, Row
from anabranch.simulator.storage import MemoryPending, Run, SavedState

if TYPE_CHECKING:
    from anabranch.simulator.node import SimNode
    from anabranch.strategies.strategy import Takeover

Restoring = Callable[[Run, bool], object]
_POLL_S = 0.05
_WITHHOLD_POLL_S = 0.02
OPEN = Gate()


class Mishap(AnabranchError):
    """A query failed, and nobody is to blame."""


class SimUnit:
    """What `Unit` is to Spark."""

    def __init__(self, node: SimNode, name: str, generation: int | None, *, scratch: bool) -> None:
        world = node.world
        self.name = name
        self.scratch = scratch
        self.batches = 0
        self._node = node
        self._world = world
        self._segment = world.segments[name]
        self._inputs = {read: world.channels[read] for read in self._segment.inputs}
        self._output = world.channels[name]
        self.record = world.new_run(name, node.name, node.boot, scratch=scratch)
        self.run = self.record.name
        self._policy = node.setup.strategy(name).policy
        pending = cast(Pending, MemoryPending(self.record, world.touch))
        self.release = Releasing(cast(Channel, self._output), pending, self._policy, node.clock)
        if generation is not None:
            self.release.promote(generation)
        inputs = cast("dict[str, Channel]", self._inputs)
        self._publishing = Publishing(
            name, inputs, self.release, node.events, span=self._segment.model.span, scratch=scratch
        )
        self._state = self._segment.model()
        self._gate: Gate | None = None
        self._position = -1
        self._after = -1
        self._base: Run | None = None
        self._begun = -1
        self._stopped = False
        self._failure: BaseException | None = None

    # Beginning

    def prepare(self, restore: Restoring | None, *, owner: str | None) -> int:
        """Go on from the newest state that can be trusted, or from a store, or from the beginning."""
        shipped = self._policy == "shipped"
        base = self._chosen(restore, Wanted(owner, cast(Channel, self._output) if shipped else None))
        published = self._output.last_epoch()
        after = -1
        if base is not None and base.saved is not None:
            saved = base.saved
            after = saved.epoch
            if after > published and not shipped:
                raise Corrupt(f"{self.name} has state of epoch {after}, but its output ends at {published}")
            self._state = saved.state.copy()
            self._base, self._begun = base, saved.epoch
            self.record.damaged = base.damaged
            self.record.boot = base.boot
            self.record.doubted = base.doubted if base.doubted == after else None
            self.record.saved = saved
            inherited = [manifest for manifest in base.pending_until(after) if manifest.epoch > published]
            self.record.pending = {manifest.epoch: manifest for manifest in inherited}
            self.record.origin = (made_by(base, after), after)
        if shipped and after < published and self.generation >= 0:
            raise Corrupt(f"{self.name} has no state of epoch {published}, and must not execute it again")
        self._refuse_trimmed(after)
        self._position = after
        self._publishing.go_on_after(after)
        return after

    def _chosen(self, restore: Restoring | None, wanted: Wanted) -> Run | None:
        runs = partial(self._world.others, self.name, self.run)
        restored = None if restore is None else partial(self._restored, restore)
        return choose(runs, restored, wanted, boot=self.record.boot, floor=self.input_floor())

    def _restored(self, restore: Restoring, again: bool) -> Run:  # noqa: FBT001  a callback
        run = Run(f"{self.run.partition('.')[0]}.00000000", self.record.owner, self.record.boot, scratch=False)
        restore(run, again)
        return run

    def begin_after(self, epoch: int, *, compare_from: int = 0, lost: bool = False) -> None:
        self._refuse_trimmed(epoch)
        self._after = epoch
        self._publishing.begin_after(epoch, compare_from=compare_from, lost=lost)
        self.record.whole_since = self._publishing.whole_since

    def _refuse_trimmed(self, after: int) -> None:
        for name, channel in self._inputs.items():
            if channel.ledger.floor() > after:
                raise Trimmed(
                    f"{self.name} would go on after {after}, but {name} is trimmed to {channel.ledger.floor()}"
                )

    def start(self, gate: Gate | None) -> None:
        self._gate = gate
        self._later(0.0, self._poll)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if not self._stopped and self._failure is None:
                try:
                    action()
                except AnabranchError as error:
                    self._failure = error
                    self._world.unit_failed(self, error)

        self._node.later(delay_s, act)

    # One micro-batch

    def _poll(self) -> None:
        if self._world.heap.now_s < self._world.stuck_until_s.get(self.run, 0.0):
            self._later(_POLL_S, self._poll)
            return
        end = self._position if self._gate is None else self._gate.next_epoch(self._position)
        if end == self._position or any(channel.manifest(end) is None for channel in self._inputs.values()):
            self._later(_POLL_S, self._poll)
            return
        gate_after = -1 if self._gate is None else self._gate.after
        epochs = range(max(self._position, gate_after) + 1, end + 1)
        rows = [
            row for channel in self._inputs.values() for epoch in epochs for row in self._world.rows(channel, epoch)
        ]
        self._position = end
        self._later(self._world.batch_s(self._node), lambda: self._execute(end, rows))

    def _execute(self, epoch: int, rows: list[Row]) -> None:
        if self._world.mishap(first=self.batches == 0):
            raise Mishap(f"an executor was lost at {self._world.heap.now_s:.3f}")
        if self._base is not None and self._base.damaged and self.batches == 0:
            raise Corrupt(f"the state of {self._base.name} cannot be read")
        state = self._state.copy()
        done = state.batch(rows, self._world.heap.chance)
        share = self._written(epoch, done)
        seen = Seen(done.seen_ms, done.late, watermarked=state.watermarked)
        self.batches += 1
        batch = self._publishing.executed(Planned(epoch, done.watermark_ms), share, seen)
        self.record.whole_since = self._publishing.whole_since
        self._later(self._world.moment_s(), lambda: self._publish(batch, state))

    def _written(self, epoch: int, done: Done) -> Written:
        digest = f"{zlib.crc32(repr(done.rows).encode()):032x}"
        if not done.rows:
            return Written((), 0, "0" * 32, None)
        if self._output.ledger.decided(epoch):
            return Written((), len(done.rows), digest, None, discarded=True)
        name = f"{epoch}-{self.run}-0-{self.batches}.arrow"
        self._output.write(name, done.rows)
        return Written((Part(name, len(done.rows), 0, 0),), len(done.rows), digest, None)

    def _publish(self, batch: Executed, state: Any) -> None:  # noqa: ANN401  a model
        if not batch.share.discarded and self._policy == "leader" and not self.release.due(batch.epoch):
            self._later(_WITHHOLD_POLL_S, lambda: self._publish(batch, state))
            return
        if batch.share.discarded:
            published = self.release.published(batch.epoch)
        else:
            published = self.release(self._publishing.manifest(batch))
        self._publishing.settle(batch, published)
        self._later(self._world.moment_s(), lambda: self._commit(batch.epoch, state))

    def _commit(self, epoch: int, state: Any) -> None:  # noqa: ANN401  a model
        self._world.touch()
        self._state = state
        pending = tuple(self.record.pending[e] for e in sorted(self.record.pending) if e <= epoch)
        self.record.before, self.record.saved = self.record.saved, SavedState(epoch, state.copy(), pending)
        self._world.touch()
        self._later(self._world.moment_s(), self._poll)

    # What replicas are told, and asked

    @property
    def generation(self) -> int:
        return self.release.generation

    def promote(self, generation: int, how: Takeover) -> None:
        self.release.promote(generation)
        self._gate = Gate(how.at_once, after=self._after)

    def lead_on(self, generation: int) -> None:
        if self.release.generation != generation:
            self.release.promote(generation)

    def follow(self, to: int, *, go_on: bool = False) -> None:
        self._gate = Gate(to, open=go_on, after=self._after)

    def input_floor(self) -> int:
        return max(channel.ledger.floor() for channel in self._inputs.values())

    def committed(self) -> int:
        return max(self.record.saved.epoch if self.record.saved is not None else -1, self._after)

    def declare_safe(self, kept: int | None = None) -> None:
        epoch = self.committed()
        if epoch < 0:
            return
        for channel in self._inputs.values():
            channel.declare_safe(self.name, epoch if kept is None else min(epoch, kept))
        self.remove_former_runs()

    def remove_former_runs(self) -> None:
        if self._world.remove_former(self.name, self.run, self._node.name):
            for channel in self._inputs.values():
                channel.forget_runs(self.name, self.run)

    def failure(self) -> BaseException | None:
        return self.release.superseded or self._failure

    @property
    def proven(self) -> bool:
        return self._base is None or self.batches > 0

    def doubt_base(self) -> None:
        if self._base is not None and not self.proven:
            self._base.doubted = self.record.doubted = self._begun
            self.record.version = self._base.version  # what was brought back is no run of its own here

    def stop(self) -> None:
        self.release.stop()
        # A query does not end at once: what it is about to publish may still be published.
        if self._world.heap.chance.choice((True, False)):
            self._stopped = True
        else:
            self._node.later(self._world.moment_s(), self._end)

    def _end(self) -> None:
        self._stopped = True

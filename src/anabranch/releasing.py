"""When a replica publishes an epoch: by whom holds the lease, at once, or when its checkpoint is in the store.

| policy | when |
|---|---|
| `leader` | when it has been promoted; until then what it has is withheld, and dropped when the primary has published |
| `written` | at once; of several replicas the first one wins |
| `shipped` | when the version of the epoch is in every store; until then it is pending, and part of the run's state |
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

from anabranch.channel.channel import Channel
from anabranch.channel.manifest import Manifest
from anabranch.clock import Clock
from anabranch.errors import Deposed, Superseded, Trimmed
from anabranch.pending import Pending
from anabranch.strategies.strategy import Release

# How soon a standby that withholds an epoch sees that the primary has published it.
_WITHHOLD_POLL_S = 0.01


class Releasing:
    """Publishes what one run has written."""

    def __init__(self, output: Channel, pending: Pending, policy: Release, clock: Clock) -> None:
        self._output = output
        self._policy = policy
        self._clock = clock
        self._promoted = threading.Event()
        self._stopping = False
        self.run = pending.run
        # Whether this run is the unit's history: nobody can go on from an older one any more.
        self.settled = policy != "shipped"
        self.pending = pending
        self.generation = -1
        self.superseded: Superseded | None = None

    def promote(self, generation: int) -> None:
        """Withhold nothing any more."""
        self.generation = generation
        self._promoted.set()

    def stop(self) -> None:
        """Withhold nothing any more, and publish nothing either."""
        self._stopping = True

    def __call__(self, manifest: Manifest) -> Manifest | None:
        """Publish an epoch as soon as it is this replica's turn; return what is published, None if nothing is (yet)."""
        if self._policy == "shipped":
            self.pending.add(manifest)
            return None
        while not self.due(manifest.epoch):
            self._promoted.wait(_WITHHOLD_POLL_S)
            if self._stopping:
                raise Deposed(f"a replica is stopped while it withholds epoch {manifest.epoch}")
        producer = replace(manifest.producer, generation=self.generation)
        try:
            return self._output.release(replace(manifest, producer=producer, released_s=self._clock.now_s())).manifest
        except Trimmed:
            return None

    def due(self, epoch: int) -> bool:
        """Say whether an epoch is to be published now, or has been: a replica that does not lead withholds it."""
        return self._policy != "leader" or self._promoted.is_set() or self._output.ledger.decided(epoch)

    def shipped(self, up_to: int) -> Iterator[Manifest]:
        """Publish what was pending, now that every store has the state that belongs to it; give what is published.

        Whoever published something else first has the history: this run's state is then nobody's.
        """
        for manifest in self.pending.manifests(up_to):
            try:
                published = self._output.release(replace(manifest, released_s=self._clock.now_s())).manifest
            except Trimmed:
                self.superseded = Superseded(f"epoch {manifest.epoch} was published by another run, and is trimmed")
                return
            if (published.digest, published.rows) != (manifest.digest, manifest.rows):
                self.superseded = _superseded(published)
                return
            self.pending.remove(manifest.epoch)
            self.settled = self.settled or published.producer.run == self.run
            yield published

    def refuse_other_history(self, published: Manifest) -> None:
        """Give up a state that another run's rows have replaced, if rows are not the same whoever makes them."""
        if self._policy == "shipped":
            self.superseded = _superseded(published)
            raise self.superseded

    def last_published(self) -> int:
        """Return the newest published epoch, -1 if there is none."""
        return self._output.last_epoch()

    def published(self, epoch: int) -> Manifest | None:
        """Return what is published of an epoch, None if nothing is (any more)."""
        try:
            return self._output.manifest(epoch)
        except Trimmed:
            return None


def _superseded(published: Manifest) -> Superseded:
    return Superseded(f"epoch {published.epoch} was published by run {published.producer.run}, with other rows")

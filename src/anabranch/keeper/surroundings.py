"""What a version needs besides the checkpoint, so that a whole work directory can be rebuilt elsewhere.

- what the directory was made with (`identity.json`) and the description of each channel;
- the plan of every source up to the version's epoch: whoever goes on must not decide those epochs differently; with the
  rows, where they were copied;
- the manifests and parts of the unit's output that a consumer may still need, and always the newest epoch; also those
  that wait to be published until this version is stored.

All of these are files that never change once they have their name, so they are kept like the checkpoint's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from anabranch.channel.channel import Channel
from anabranch.errors import Trimmed
from anabranch.ledger.directory import slot_name
from anabranch.sources import copied


@dataclass(frozen=True)
class Surroundings:
    """The channels around one unit; `consumers` are those of its output.

    `pending(epoch)` are the files of what is written up to an epoch and not yet published.
    """

    work: Path
    sources: tuple[Channel, ...]
    output: Channel
    consumers: tuple[str, ...]
    pending: Callable[[int], list[Path]] = lambda _: []

    def files(self, epoch: int) -> list[str]:
        """Return the paths, relative to the work directory, that belong to a version at an epoch."""
        # Before what is published is looked at: what is published meanwhile is in both, and not in neither.
        pending = self.pending(epoch)
        found = [self.work / "identity.json"]
        for channel in self.sources:
            first = channel.ledger.floor() + 1
            found += [channel.path / "channel.json", *_slots(channel, range(first, epoch + 1))]
            if copied(channel.spec.source):
                found += _parts(channel, range(first, epoch + 1))
            positions = channel.path / "positions"
            found += [positions / name for name in os.listdir(positions) if name.isdigit() and int(name) <= epoch]
        needed = min([epoch - 1, *(self.output.safe(unit) for unit in self.consumers)])
        kept = range(max(needed, self.output.ledger.floor()) + 1, min(epoch, self.output.last_epoch()) + 1)
        found += [self.output.path / "channel.json", *_slots(self.output, kept), *_parts(self.output, kept)]
        found += pending
        return [str(path.relative_to(self.work)) for path in found]


def _slots(channel: Channel, epochs: Iterable[int]) -> list[Path]:
    return [channel.path / "ledger" / slot_name(epoch) for epoch in epochs]


def _parts(channel: Channel, epochs: Iterable[int]) -> list[Path]:
    found = []
    for epoch in epochs:
        try:
            manifest = channel.manifest(epoch)
        except Trimmed:
            continue  # every consumer has become safe in the meantime
        found += [channel.parts / part.name for part in (manifest.parts if manifest is not None else ())]
    return found


def upstream_of(inputs: Iterable[str], kept: Mapping[str, int | None]) -> int | None:
    """Return the epoch up to which every protected producer of a unit is kept; None if it has none.

    A version that is newer than its producer's could not be joined to it: the producer would publish epochs again that
    this unit has already taken.
    """
    epochs = [epoch for name in inputs if (epoch := kept.get(name)) is not None]
    return min(epochs, default=None)

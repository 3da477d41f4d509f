"""How the inputs of one query stay on the same epoch.

A query polls its sources one after the other, always in the same order. The one that is polled first leads: it advances
to epoch e+1 only when every input has published it, and notes that decision in a file; the others follow the note. So
a micro-batch holds the same epoch of every input. The offset log proves it, and the writer checks it: a batch whose
inputs disagree is never published. A self-join reads one input by two sources, so it is the seat that counts, not the
input's name; seats are taken in the order of the first poll.

    inputs.json   where every input's channel is (written before the query starts)
    seat-N        taken by the N-th source
    note          after which epoch the leader's micro-batch begins, and at which it ends
    gate          how far the query may go; nothing before it exists

The gate lets a query be started, restored and made ready before it is given its first epoch. It may also let a query
follow another, or catch up with it, in few large micro-batches: up to some epoch everything is read at once.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from anabranch.channel.channel import Channel
from anabranch.durable import write_advisory


@dataclass(frozen=True)
class Inputs:
    """The inputs of one run: channel directories by input name."""

    directory: Path
    channels: dict[str, Path]

    def save(self) -> None:
        """Write inputs.json for the readers, which live in other processes."""
        content = {"channels": [[name, str(path)] for name, path in self.channels.items()]}
        write_advisory(self.directory / "inputs.json", json.dumps(content).encode())

    @classmethod
    def load(cls, directory: Path) -> Inputs:
        """Read what `save` wrote."""
        content = json.loads((directory / "inputs.json").read_bytes())
        return cls(directory, {name: Path(path) for name, path in content["channels"]})

    def open_gate(self, gate: Gate) -> None:
        """Let data in, so far; it is looked at before every micro-batch."""
        write_advisory(self.directory / "gate", gate.encode())


@dataclass(frozen=True)
class Gate:
    """How far a query may go: up to an epoch in one micro-batch, and then, if it is open, epoch by epoch for ever.

    A query without state begins after the epoch `after`: those up to it are passed over.
    """

    at_once: int = -1
    open: bool = True
    after: int = -1

    def encode(self) -> bytes:
        """Return the content of the file."""
        return json.dumps(asdict(self)).encode()

    def next_epoch(self, epoch: int) -> int:
        """Return the epoch at which the micro-batch after `epoch` ends, `epoch` if it has to wait."""
        begun = max(epoch, self.after)
        if self.at_once > begun:
            return self.at_once
        return begun + 1 if self.open else epoch


class Alignment:
    """One reader's view of the agreement, in that reader's process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._inputs: list[Channel] = []
        self._seat: int | None = None
        self._gate: Gate | None = None
        self._gate_seen = (0, 0)

    def next_epoch(self, epoch: int) -> int:
        """Return the epoch at which the next micro-batch ends, `epoch` if there is nothing to read now."""
        if self._seat is None:
            self._seat = self._take_seat()
        if self._seat > 0:
            start, end = self._noted()
            return end if start == epoch else epoch
        end = self._gated(epoch)
        if end == epoch or any(channel.manifest(end) is None for channel in self._inputs):
            return epoch
        write_advisory(self._directory / "note", f"{epoch} {end}".encode())
        return end

    def first_epoch(self, after: int) -> int:
        """Return the first epoch of a micro-batch that begins after an epoch."""
        self._gated(after)
        return max(after, -1 if self._gate is None else self._gate.after) + 1

    def _gated(self, epoch: int) -> int:
        path = self._directory / "gate"
        try:
            seen = path.stat()
            if self._gate is None or (seen.st_ino, seen.st_mtime_ns) != self._gate_seen:
                self._gate_seen = (seen.st_ino, seen.st_mtime_ns)
                self._gate = Gate(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return epoch
        if not self._inputs:
            self._inputs = [Channel.open(path) for path in Inputs.load(self._directory).channels.values()]
        return self._gate.next_epoch(epoch)

    def _take_seat(self) -> int:
        seat = 0
        while True:
            try:
                os.close(os.open(self._directory / f"seat-{seat}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                seat += 1
            else:
                return seat

    def _noted(self) -> tuple[int, int]:
        try:
            start, end = (self._directory / "note").read_text().split()
        except FileNotFoundError:
            return -1, -1
        return int(start), int(end)

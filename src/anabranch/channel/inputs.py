"""How the inputs of one query stay on the same epoch.

A query polls its sources one after the other, always in the same order. The one that is polled first leads: it advances
to epoch e+1 only when every input has published it, and notes that decision in a file; the others follow the note. So
a micro-batch holds the same epoch of every input. The offset log proves it, and the writer checks it: a batch whose
inputs disagree is never published. A self-join reads one input by two sources, so it is the seat that counts, not the
input's name; seats are taken in the order of the first poll.

    inputs.json   where every input's channel is (written before the query starts)
    seat-N        taken by the N-th source
    note          the epoch the leader decided on
    gate          exists once the query may be given data

The gate lets a query be started, restored and made ready before it is given its first epoch.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
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

    def open_gate(self) -> None:
        """Let data in; cannot be undone, a closed gate is another run."""
        write_advisory(self.directory / "gate", b"")


class Alignment:
    """One reader's view of the agreement, in that reader's process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._inputs: list[Channel] = []
        self._seat: int | None = None
        self._gate_open = False

    def next_epoch(self, epoch: int) -> int:
        """Return epoch+1 if the query may read it now, else `epoch`."""
        if self._seat is None:
            self._seat = self._take_seat()
        if not self._gate_open:
            if not (self._directory / "gate").exists():
                return epoch
            self._gate_open = True
            self._inputs = [Channel.open(path) for path in Inputs.load(self._directory).channels.values()]
        if self._seat > 0:
            return epoch + 1 if self._noted() == epoch + 1 else epoch
        if any(channel.manifest(epoch + 1) is None for channel in self._inputs):
            return epoch
        write_advisory(self._directory / "note", str(epoch + 1).encode())
        return epoch + 1

    def _take_seat(self) -> int:
        seat = 0
        while True:
            try:
                os.close(os.open(self._directory / f"seat-{seat}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                seat += 1
            else:
                return seat

    def _noted(self) -> int:
        try:
            return int((self._directory / "note").read_text())
        except FileNotFoundError:
            return -1

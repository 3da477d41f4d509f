"""How the inputs of one query stay on the same epoch.

A query polls its sources one after the other, in the order of its plan's leaves. The first distinct leaf leads: it
advances to epoch e+1 only when every input has published it, and notes that decision in a file; the others follow the
note. So a micro-batch holds the same epoch of every input. The offset log proves it, and the writer checks it: a
batch whose inputs disagree is never published.

    inputs.json   who leads, and where every input's channel is (written before the query starts)
    note          the epoch the leader decided on
    gate          exists once the query may be given data

The gate lets a query be started, restored and made ready before it is given its first epoch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from anabranch.channel.channel import Channel
from anabranch.durable import write_advisory


@dataclass(frozen=True)
class Inputs:
    """The inputs of one run: channel directories by input name, in polling order; the first leads."""

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

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._inputs: dict[str, Channel] = {}
        self._leads = False
        self._gate_open = False

    def next_epoch(self, epoch: int) -> int:
        """Return epoch+1 if the query may read it now, else `epoch`."""
        if not self._gate_open:
            if not (self._directory / "gate").exists():
                return epoch
            self._gate_open = True
            inputs = Inputs.load(self._directory)
            self._inputs = {name: Channel.open(path) for name, path in inputs.channels.items()}
            self._leads = next(iter(self._inputs)) == self._name
        if not self._leads:
            return epoch + 1 if self._noted() == epoch + 1 else epoch
        if any(channel.manifest(epoch + 1) is None for channel in self._inputs.values()):
            return epoch
        if len(self._inputs) > 1:
            write_advisory(self._directory / "note", str(epoch + 1).encode())
        return epoch + 1

    def _noted(self) -> int:
        try:
            return int((self._directory / "note").read_text())
        except FileNotFoundError:
            return -1

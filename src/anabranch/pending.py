"""Epochs that are written and not yet released, because their checkpoint has to be in the store first.

    units/NAME/runs/RUN/pending/EEEEEEEEEEEE   the manifest, as it will be published
    units/NAME/runs/RUN/origin                 whose state the run began with: the run that published it, and the epoch

They belong to the state that the run commits: whoever goes on from it releases them first. So a segment that gives
other rows every time it is executed is published with the state that belongs to those rows, or not at all.
"""

from __future__ import annotations

import os
from pathlib import Path

from anabranch.channel.channel import Channel
from anabranch.channel.manifest import Manifest, decode
from anabranch.checkpoint import Commit
from anabranch.durable import write_advisory, write_atomic

_ORIGIN = "origin"


class Pending:
    """The pending epochs of one run."""

    def __init__(self, run: Path) -> None:
        self._path = run
        self.run = run.name
        self._directory = run / "pending"

    def add(self, manifest: Manifest) -> None:
        """Keep a manifest, durably: the commit that follows must not be without it."""
        self._directory.mkdir(exist_ok=True)
        write_atomic(self._directory / f"{manifest.epoch:012d}", manifest.encode())

    def manifests(self, up_to: int | None = None) -> list[Manifest]:
        """Return what is pending, oldest first."""
        found = []
        for path in self.files(up_to):
            try:
                found.append(decode(path.read_bytes(), str(path)))
            except FileNotFoundError:
                continue  # released in the meantime
        return found

    def files(self, up_to: int | None = None) -> list[Path]:
        """Return the files of what is pending, oldest first."""
        try:
            names = sorted(name for name in os.listdir(self._directory) if name.isdigit())
        except FileNotFoundError:
            return []
        return [self._directory / name for name in names if up_to is None or int(name) <= up_to]

    def remove(self, epoch: int) -> None:
        """Forget an epoch: it is released."""
        (self._directory / f"{epoch:012d}").unlink(missing_ok=True)

    def inherit(self, old: Path, commit: Commit, published: int) -> None:
        """Take over what another run had pending at a commit and is not published, and remember whose state that is."""
        for manifest in Pending(old).manifests(commit.epoch):
            if manifest.epoch > published:
                self.add(manifest)
        note_origin(self._path, origin_at(old, commit.epoch), commit.epoch)


def note_origin(run: Path, origin: str, epoch: int) -> None:
    """Note whose state a run begins with."""
    write_advisory(run / _ORIGIN, f"{origin} {epoch}".encode())


def pending_files(pending: Pending, output: Channel, up_to: int) -> list[Path]:
    """Return everything that belongs to what is pending: the manifests, and the parts that they name."""
    parts = [output.parts / part.name for manifest in pending.manifests(up_to) for part in manifest.parts]
    return [*pending.files(up_to), *parts]


def origin_of(run: Path) -> tuple[str, int]:
    """Return the run that came to the state with which a run began, and the epoch of that state."""
    try:
        name, began = (run / _ORIGIN).read_text().split()
        return name, int(began)
    except (FileNotFoundError, ValueError):
        return run.name, -1  # nothing is flushed of this: after a crash of the system it may be empty


def origin_at(run: Path, epoch: int) -> str:
    """Return the run that came to the state that a run has at an epoch: itself, or the one that it goes on from."""
    origin, began = origin_of(run)
    return origin if began == epoch else run.name

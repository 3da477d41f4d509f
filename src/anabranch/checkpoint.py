"""Spark's checkpoint directory, as files. Pure reading, and hard-linking one run's directory into the next's.

    metadata   offsets/N   commits/N   state/<operator>/<partition>/…

Every start of a replica is a new run in a new directory: no directory is ever opened by two runs, so a process that
was thought dead cannot write into the state of its successor. The new directory is hard-linked from the old one at
its last commit. An offset entry beyond that commit is left out: Spark would run it before it asks its source, and it
may be the misaligned batch that the old run died of.

One kind of file cannot be linked as it is: what `transformWithState` notes of itself has whole paths of its schemas. A
run that was linked from it would read them where they first were, and fail when that run is gone.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from anabranch.channel.writer import Planned, planned_batch
from anabranch.durable import TEMPORARY_PREFIX

# The path of a schema's file, inside JSON; what is kept of it begins below the checkpoint.
_SCHEMA_PATH = re.compile(r'"[^"]*(/state/\d+/_stateSchema/)')


@dataclass(frozen=True)
class Commit:
    """The last committed micro-batch of a checkpoint, and the epoch it was."""

    batch_id: int
    planned: Planned

    @property
    def epoch(self) -> int:
        """The epoch of the batch."""
        return self.planned.epoch


def last_batch(log: Path) -> int | None:
    """Return the newest entry of an offset or commit log, None if there is none."""
    try:
        numbers = [int(name) for name in os.listdir(log) if name.isdigit()]
    except FileNotFoundError:
        return None
    return max(numbers, default=None)


def last_commit(checkpoint: Path) -> Commit | None:
    """Return the last committed micro-batch, None if nothing was committed yet."""
    batch_id = last_batch(checkpoint / "commits")
    if batch_id is None:
        return None
    return Commit(batch_id, planned_batch(checkpoint, batch_id))


def link_checkpoint(old: Path, new: Path, commit: Commit) -> None:
    """Hard-link a checkpoint at a commit into a new directory, which appears whole or not at all.

    Half a directory would look like the newest version to the run after a crash.
    """
    unfinished = new.with_name(f"{TEMPORARY_PREFIX}{new.name}")
    _link_tree(old, unfinished, commit)
    for path in unfinished.glob("state/*/_metadata/v2/*"):
        _rename_inside(path, new)
    unfinished.rename(new)


def _rename_inside(path: Path, checkpoint: Path) -> None:
    """Let a file name others below the checkpoint that it is in now; the one that it was linked from stays as it is."""
    text = path.read_text()
    place = json.dumps(f"file:{checkpoint.absolute()}")[:-1]
    renamed = _SCHEMA_PATH.sub(lambda found: place + found[1], text)
    if renamed != text:
        path.unlink()
        path.write_text(renamed)


def _link_tree(old: Path, new: Path, commit: Commit) -> None:
    for directory, _, names in os.walk(old):
        relative = Path(directory).relative_to(old)
        log = relative.parts[0] if relative.parts else ""
        target = new / relative
        target.mkdir(exist_ok=True)
        for name in names:
            if log in ("offsets", "commits") and _beyond(name, commit.batch_id):
                continue
            if name.endswith(".tmp"):
                continue
            os.link(Path(directory) / name, target / name)


def _beyond(name: str, batch_id: int) -> bool:
    """Tell entries (and their hidden checksum companions) after a batch, and foreign files, from what is kept."""
    digits = name.strip(".").removesuffix(".crc")
    return not digits.isdigit() or int(digits) > batch_id

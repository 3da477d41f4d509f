"""The runs of a unit, as directories: `units/NAME/runs/RUN/`. Which of them may be gone on from, and whose they are.

boot      the start of the operating system that the run belongs to: Spark flushes none of its files
owner     the node that runs it; only that node removes it, when it has begun another
scratch   there if the run only warmed a node up: its state is nobody's
doubted   the epoch of the state on which a query failed before it had run anything: the files may be damaged
whole     there if the run began without state: since which epoch its state is the right one, empty if it is not yet
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from anabranch.checkpoint import Commit, last_commit, link_checkpoint
from anabranch.durable import TEMPORARY_PREFIX, boot_id, write_advisory
from anabranch.errors import Corrupt

# Says whether the state of a run, whose directory is given, at a commit is one to go on from.
Fits = Callable[[Path, Commit], bool]
_BOOT = "boot"
_OWNER = "owner"
_SCRATCH = "scratch"
_WHOLE = "whole"
_DOUBTED = "doubted"
_RUN_NAME = re.compile(r"^r(\d{6})\.[0-9a-f]{8}$")


def new_run(directory: Path) -> str:
    """Return a fresh run id; ids sort by age."""
    numbers = [int(match[1]) for match in map(_RUN_NAME.match, _runs(directory)) if match]
    return f"r{max(numbers, default=-1) + 1:06d}.{uuid.uuid4().hex[:8]}"


def make_run(directory: Path, run: str, node: str, *, scratch: bool = False) -> Path:
    """Make a run's directory; from the first moment it says whose it is."""
    path = directory / "runs" / run
    if path.exists():
        raise FileExistsError(errno.EEXIST, "the run exists", str(path))
    unnamed = path.with_name(f"{TEMPORARY_PREFIX}{run}")
    (unnamed / "watermarks").mkdir(parents=True)
    write_advisory(unnamed / _BOOT, boot_id().encode())
    write_advisory(unnamed / _OWNER, node.encode())
    if scratch:
        write_advisory(unnamed / _SCRATCH, b"")
    unnamed.rename(path)
    return path


def newest_commit(
    directory: Path,
    *,
    boot: str | None = None,
    owner: str | None = None,
    fits: Fits | None = None,
    sure: bool = False,
) -> tuple[str, Commit] | None:
    """Return the run with the newest committed epoch, None if no run of this unit ever committed.

    With `boot`, only runs of that start of the operating system count: the files of earlier ones may be torn or gone.
    With `owner`, only runs of that node; with `fits`, only those whose state at their commit is the right one. A run
    that began without state, and has not seen all that the right state is made of, never counts; with `sure`, neither
    does one whose files cannot be read or are doubted.
    """
    found: list[tuple[int, str, Commit]] = []
    for run in _runs(directory):
        path = directory / "runs" / run
        if boot is not None and _read(path / _BOOT) != boot:
            continue
        if owner is not None and _read(path / _OWNER) != owner:
            continue
        if (path / _SCRATCH).exists():
            continue
        try:
            commit = last_commit(path / "checkpoint")
        except (Corrupt, OSError):
            if not sure:
                raise
            continue
        if sure and commit is not None and _read(path / _DOUBTED) == str(commit.epoch):
            continue
        if commit is not None and _whole(path, commit.epoch) and (fits is None or fits(path, commit)):
            found.append((commit.epoch, run, commit))
    if not found:
        return None
    _, run, commit = max(found)
    return run, commit


def choose(
    directory: Path,
    run: str,
    restore: Callable[[Path], object],
    *,
    owner: str | None = None,
    fits: Fits | None = None,
    floor: int = -1,
) -> tuple[str, Commit] | None:
    """Return what a new run goes on from: the newest run that can be trusted, or a version that `restore` brings back.

    `restore(directory)` makes the directory of a run, or nothing. What lies before the floor of an input is of no use.
    """
    trusted = newest_commit(directory, boot=boot_id(), owner=owner, fits=fits, sure=True)
    if trusted is not None and trusted[1].epoch >= floor:
        return trusted
    # Run ids sort by age: this one is older than the run that goes on from it.
    name = f"{run.partition('.')[0]}.00000000"
    path = directory / "runs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    restore(path)
    commit = last_commit(path / "checkpoint")
    if commit is not None and commit.epoch >= floor:
        return name, commit
    readable = newest_commit(directory, owner=owner, fits=fits, sure=True)
    if readable is not None and readable[1].epoch >= floor:
        return readable
    return newest_commit(directory, owner=owner, fits=fits)


def doubt(run: Path, epoch: int) -> None:
    """Note that a query could not go on from a run's state of an epoch: the next one takes another, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        write_advisory(run / _DOUBTED, str(epoch).encode())


def note_whole(run: Path, since: int | None) -> None:
    """Note since which epoch the state of a run that began without any is the right one; None: it is not yet."""
    write_advisory(run / _WHOLE, b"" if since is None else str(since).encode())


def _whole(run: Path, epoch: int) -> bool:
    since = _read(run / _WHOLE)
    return since is None or (since != "" and epoch >= int(since))


def link_run(old: Path, new: Path, commit: Commit) -> None:
    """Hard-link what a run needs of another, at a commit: the checkpoint, and the watermarks noted for it."""
    noted = old / "watermarks" / str(commit.batch_id)
    if noted.exists():
        os.link(noted, new / "watermarks" / str(commit.batch_id))
    link_checkpoint(old / "checkpoint", new / "checkpoint", commit)


def remove_former(directory: Path, run: str, node: str) -> bool:
    """Remove the runs of a node that are older than one of it; say whether there were any.

    Run ids sort by age; one that is younger has taken this one's place. Other nodes have their own.
    """
    former = [old for old in _runs(directory) if old < run and _read(directory / "runs" / old / _OWNER) in (node, None)]
    for old in former:
        shutil.rmtree(directory / "runs" / old, ignore_errors=True)
    return bool(former)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _runs(directory: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory / "runs") if _RUN_NAME.match(name))
    except FileNotFoundError:
        return []

"""The runs of a unit, as directories: `units/NAME/runs/RUN/`. Which of them may be gone on from, and whose they are.

boot      the start of the operating system that the run belongs to: Spark flushes none of its files
owner     the node that runs it; only that node removes it, when it has begun another
scratch   there if the run only warmed a node up: its state is nobody's
doubted   the epoch of the state on which a query failed before it had run anything: the files may be damaged
version   which version in a store it was brought back from: who kept it, and its epoch
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
from functools import cached_property, partial
from pathlib import Path

from anabranch.channel.manifest import Manifest
from anabranch.checkpoint import Commit, last_commit, link_checkpoint
from anabranch.choosing import ALWAYS, ANY, Wanted, choose, discredited, newest
from anabranch.durable import TEMPORARY_LIFE_S, TEMPORARY_PREFIX, boot_id, write_advisory
from anabranch.pending import Pending, origin_of

_BOOT = "boot"
_OWNER = "owner"
_SCRATCH = "scratch"
_WHOLE = "whole"
_DOUBTED = "doubted"
_VERSION = "version"
Restoring = Callable[[Path, bool], object]
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


class RunDirectory:
    """What a run's directory says of it; read when it is asked for, and then no more. See `choosing.Candidate`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    @cached_property
    def boot(self) -> str | None:
        """The start of the operating system that it belongs to."""
        return _read(self.path / _BOOT)

    @cached_property
    def owner(self) -> str | None:
        """The node that runs it."""
        return _read(self.path / _OWNER)

    @cached_property
    def scratch(self) -> bool:
        """Whether it only warmed a node up."""
        return (self.path / _SCRATCH).exists()

    @cached_property
    def doubted(self) -> int | None:
        """The epoch of the state on which a query failed."""
        noted = _read(self.path / _DOUBTED)
        return int(noted) if noted else None

    @cached_property
    def whole_since(self) -> int | None:
        """The epoch since which its state is the right one, None if it is not yet."""
        noted = _read(self.path / _WHOLE)
        return ALWAYS if noted is None else int(noted) if noted else None

    @cached_property
    def origin(self) -> tuple[str, int]:
        """The run that came to the state with which it began, and the epoch of that."""
        return origin_of(self.path)

    @cached_property
    def version(self) -> tuple[str, int] | None:
        """The version in a store that it was brought back from."""
        noted = _read(self.path / _VERSION)
        if not noted:
            return None
        run, _, epoch = noted.partition(" ")
        return (run, int(epoch)) if epoch.isdigit() else None

    @cached_property
    def commit(self) -> Commit | None:
        """Its last committed micro-batch."""
        return last_commit(self.path / "checkpoint")

    def committed(self) -> int | None:
        """Return the epoch of its last commit."""
        return None if self.commit is None else self.commit.epoch

    def pending_until(self, epoch: int) -> list[Manifest]:
        """Return what it has written up to an epoch and not published."""
        return Pending(self.path).manifests(epoch)


def newest_commit(
    directory: Path, wanted: Wanted = ANY, *, boot: str | None = None, sure: bool = False
) -> tuple[str, Commit] | None:
    """Return the run to go on from and its last commit, None if there is none; see `choosing.newest`."""
    return _with_commit(newest(_directories(directory), wanted, boot=boot, sure=sure))


def choose_run(
    directory: Path, run: str, restore: Restoring | None, wanted: Wanted, *, floor: int, node: str
) -> tuple[str, Commit] | None:
    """Return what a new run goes on from, and the commit; see `choosing.choose`.

    `restore(directory, again)` makes the directory of a run, or nothing; `again` also from what was of no use before.
    """
    runs = partial(_directories, directory)
    restored = None if restore is None else partial(_restored, directory, run, node, restore)
    return _with_commit(choose(runs, restored, wanted, boot=boot_id(), floor=floor))


def _restored(
    directory: Path,
    run: str,
    node: str,
    restore: Restoring,
    again: bool,  # noqa: FBT001  a callback
) -> RunDirectory:
    # Run ids sort by age: this one is older than the run that goes on from it, and another one on another node.
    number, _, own = run.partition(".")
    path = directory / "runs" / f"{number}.0000{own[:4]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    restore(path, again)
    if path.is_dir():
        write_advisory(path / _OWNER, node.encode())  # else any node might remove it while this one links it
    return RunDirectory(path)


def _with_commit(run: RunDirectory | None) -> tuple[str, Commit] | None:
    return None if run is None or run.commit is None else (run.name, run.commit)


def _directories(directory: Path) -> list[RunDirectory]:
    return [RunDirectory(directory / "runs" / name) for name in _runs(directory)]


def doubt(run: Path, epoch: int) -> None:
    """Note that a query could not go on from a run's state of an epoch: the next one takes another, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        write_advisory(run / _DOUBTED, str(epoch).encode())


def note_version(run: Path, kept_by: str, epoch: int) -> None:
    """Note which version in a store a run was brought back from."""
    write_advisory(run / _VERSION, f"{kept_by} {epoch}".encode())


def discredited_versions(directory: Path) -> set[tuple[str, int]]:
    """Return the versions of a unit that were brought back in vain; see `choosing.discredited`."""
    return discredited(_directories(directory))


def note_whole(run: Path, since: int | None) -> None:
    """Note since which epoch the state of a run that began without any is the right one; None: it is not yet."""
    write_advisory(run / _WHOLE, b"" if since is None else str(since).encode())


def link_run(old: Path, new: Path, commit: Commit) -> None:
    """Hard-link what a run needs of another, at a commit: the checkpoint, and the watermarks noted for it.

    The files are still those of the start of the system in which they were written, and as doubtful as they were: what
    is linked from files that must not be trusted must not be, either. What comes from a store belongs to no start yet.
    """
    before = RunDirectory(old)
    if before.boot is not None:
        write_advisory(new / _BOOT, before.boot.encode())
    if before.doubted == commit.epoch:
        doubt(new, commit.epoch)
    noted = old / "watermarks" / str(commit.batch_id)
    if noted.exists():
        os.link(noted, new / "watermarks" / str(commit.batch_id))
    link_checkpoint(old / "checkpoint", new / "checkpoint", commit)


def remove_former(directory: Path, run: str, node: str) -> bool:
    """Remove the runs of a node that are older than one of it; say whether there were any.

    Run ids sort by age; one that is younger has taken this one's place. Other nodes have their own.
    """
    former = [old for old in _runs(directory) if old < run and _read(directory / "runs" / old / _OWNER) in (node, None)]
    for old in [*former, *_unfinished(directory / "runs", run)]:
        shutil.rmtree(directory / "runs" / old, ignore_errors=True)
    return bool(former)


def _unfinished(runs: Path, run: str) -> list[str]:
    """Return what a process that died while it made an older run has left; young ones may be in the making."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        born_s = (runs / run).stat().st_mtime
        for entry in os.scandir(runs):
            name = entry.name.removeprefix(TEMPORARY_PREFIX)
            if name != entry.name and name < run and entry.stat().st_mtime < born_s - TEMPORARY_LIFE_S:
                found.append(entry.name)
    return found


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

"""What nemeses act on: the cluster, what the pipeline consists of, the input that comes, and what is to be undone."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.chaos.cluster import Cluster
from anabranch.chaos.workload import Workload
from anabranch.processes import of_session
from anabranch.work import Announcement

_LEADER_S = 60.0
_POLL_S = 0.2
_LOOK_S = 0.002
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


class NotInjected(Exception):
    """A fault found nothing to break, or its moment did not come."""


@dataclass(frozen=True)
class Undo:
    """Something that is put right again at its time."""

    due_s: float
    what: str
    do: Callable[[], object]
    # What an error has to name for which this is the reason.
    names: tuple[str, ...] = ()


@dataclass
class Scene:
    """One run. `units` are the segments, in the order of the stream; `readers` who reads each channel."""

    cluster: Cluster
    units: list[str]
    sources: list[str]
    readers: dict[str, tuple[str, ...]]
    workload: Workload
    healed: Callable[[str], object] = lambda _: None
    # The units that stores keep.
    kept: list[str] = field(default_factory=list)
    undos: list[Undo] = field(default_factory=list)

    def leader(self, unit: str | None = None) -> Announcement:
        """Return the node that leads a unit, waiting for one."""
        name = unit or self.units[-1]
        found: list[Announcement] = []

        def seen() -> bool:
            leader = self.cluster.leader(name)
            found[:] = [leader] if leader is not None else []
            return bool(found)

        with self.moment(seen, f"a node that leads {name}", _LEADER_S):
            return found[0]

    def standby(self, chance: random.Random) -> Announcement:
        """Return a living node that does not lead the last unit."""
        leader = self.leader()
        others = [node for node in self.cluster.living() if node.pid != leader.pid]
        if not others:
            raise NotInjected("no other node is there")
        return chance.choice(others)

    def later(self, seconds: float, what: str, do: Callable[[], object], names: tuple[str, ...] = ()) -> None:
        """Put something right again after some seconds, or at the end."""
        self.undos.append(Undo(time.monotonic() + seconds, what, do, names))

    def inner_channels(self) -> list[str]:
        """Return the channels from which a recovery reads."""
        return [name for name, readers in self.readers.items() if set(readers).intersection(self.units)]

    def put_right(self, *, everything: bool = False) -> None:
        """Undo what is due."""
        for undo in [undo for undo in self.undos if everything or undo.due_s <= time.monotonic()]:
            try:
                undone = undo.do()
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                undone = str(error)
            self.undos.remove(undo)
            self.healed(f"{undo.what}: {undone}" if isinstance(undone, str) else undo.what)

    @contextmanager
    def moment(self, seen: Callable[[], object], what: str, timeout_s: float = 30.0) -> Iterator[None]:
        """Wait, looking very often, until a moment has come, and act in it."""
        deadline_s = time.monotonic() + timeout_s
        polled_s = time.monotonic()
        while not seen():
            if time.monotonic() > deadline_s:
                raise NotInjected(f"{what} was not seen within {timeout_s:.0f} s")
            if time.monotonic() - polled_s > _POLL_S:
                polled_s = time.monotonic()
                self.put_right()
                self.cluster.poll()
            time.sleep(_LOOK_S)
        yield


@dataclass(frozen=True)
class Parts:
    """The processes of a node. In local mode the JVM is the executor; elsewhere executors are JVMs of their own."""

    driver: int
    jvms: list[int]
    executors: list[int]
    workers: list[int]

    @property
    def all(self) -> list[int]:
        return [self.driver, *self.jvms, *self.executors, *self.workers]


def parts_of(node: Announcement) -> Parts:
    """Return the processes of a node, by what they are."""
    parts = Parts(node.pid, [], [], [])
    for pid, _ in of_session(node.pid):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if command[0].endswith(b"java"):
            (parts.executors if _EXECUTOR in command else parts.jvms).append(pid)
        elif pid != node.pid:
            parts.workers.append(pid)
    return parts


def told(node: Announcement) -> dict[str, Any]:
    """Return what a history says of a node."""
    return {"node": node.name, "pid": node.pid}

"""The pipeline under test: its nodes as processes, and what can be seen of them from outside."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from anabranch.chaos.means import faketime
from anabranch.elsewhere import output_path
from anabranch.errors import AnabranchError
from anabranch.launcher import Fleet, NodeEnded, Surroundings
from anabranch.node_options import NodeOptions
from anabranch.presence import ask_to_stop
from anabranch.processes import kill_session, of_session
from anabranch.status import nodes_of
from anabranch.work import Announcement, Work

_DISK_MIB = 2048


class Cluster:
    """Nodes of one pipeline, below a scratch directory. `means` are the names of the faults' needs in use."""

    def __init__(self, options: NodeOptions, nodes: int, scratch: Path, means: Iterable[str]) -> None:
        self.scratch = scratch
        self.work_path = options.work
        self.nodes = nodes
        self._options = replace(options, elsewhere=scratch)
        self._means = set(means)
        self._fleet: Fleet | None = None
        self._mounted = False
        self._sessions: set[int] = set()

    # From start to end

    def mount(self) -> None:
        """Give the work directory a disk of its own, if one is to be filled."""
        self.work_path.mkdir(parents=True, exist_ok=True)
        if "mounts" in self._means:
            command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "anabranch-chaos", str(self.work_path)]
            subprocess.run(command, check=True, capture_output=True)
            self._mounted = True

    def start(self) -> None:
        """Start all nodes, or start them again after they had ended."""
        self._fleet = Fleet(self._options, self.nodes, self._surroundings)

    def _surroundings(self, name: str) -> Surroundings:
        # In a mount namespace of its own, a node's view of the disk can be changed without touching the others.
        prefix = ("unshare", "--mount", "--propagation", "private") if "namespaces" in self._means else ()
        library = faketime()
        if "faketime" not in self._means or library is None:
            return Surroundings(prefix)
        clock = self.clock_path(name)
        if not clock.exists():
            clock.write_text("+0")
        environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return Surroundings(prefix, environment)

    def clock_path(self, name: str) -> Path:
        """Return the file that says how far a node's clock is off."""
        return self.scratch / f"clock-{name}"

    def poll(self) -> bool:
        """Start again what died; False once all nodes have ended in order. Raises what one ended with."""
        self._sessions.update(node.pid for node in self.announced())
        return self._fleet is not None and self._fleet.poll()

    def stop(self) -> None:
        """Ask every node to take no more input, deliver everything, and end."""
        ask_to_stop(self.work, now=False)

    def end(self) -> None:
        """Kill everything that is left, whatever happened."""
        if self._fleet is not None:
            self._sessions.update(self._fleet.pids)
            with contextlib.suppress(AnabranchError, NodeEnded):
                self._fleet.terminate()
        self._sessions.update(node.pid for node in self.announced())
        for session in self._sessions:
            kill_session(session)

    def unmount(self) -> None:
        """Keep what is on the disk of the work directory, and give that disk back."""
        if self._mounted:
            kept = self.work_path.with_name("kept")
            for command in (["cp", "-a", str(self.work_path), str(kept)], ["umount", "-l", str(self.work_path)]):
                subprocess.run(command, check=False, capture_output=True)
            self._mounted = False
            with contextlib.suppress(OSError):
                self.work_path.rmdir()
                kept.rename(self.work_path)

    # What can be seen

    @property
    def work(self) -> Work:
        return Work.open(self.work_path)

    def announced(self) -> list[Announcement]:
        """Return what nodes announced of themselves, also those that are dead."""
        try:
            return self.work.announced()
        except (AnabranchError, OSError):
            return []

    def living(self) -> list[Announcement]:
        """Return the nodes whose process is there."""
        return [node for node in self.announced() if any(True for _ in of_session(node.pid))]

    def holder(self, role: str) -> Announcement | None:
        """Return the node that holds a role."""
        with contextlib.suppress(AnabranchError, OSError):
            return self.work.holder(role)
        return None

    def leader(self, unit: str) -> Announcement | None:
        """Return the node that leads a unit, if it lives."""
        holder = self.holder(unit)
        return holder if holder is not None and any(True for _ in of_session(holder.pid)) else None

    def generation(self, role: str) -> int:
        """Return how often a role has been taken."""
        with contextlib.suppress(AnabranchError, OSError):
            held = self.work.lease(role).holder()
            return -1 if held is None else held.generation
        return -1

    def last(self, channel: str) -> int:
        """Return the newest epoch of a channel, -1 if there is none."""
        with contextlib.suppress(AnabranchError, OSError):
            return self.work.channel(channel).last_epoch()
        return -1

    def status(self) -> list[dict[str, Any]]:
        """Return what the nodes tell of themselves."""
        try:
            return nodes_of(self.work)
        except (AnabranchError, OSError):
            return []

    def ready(self) -> bool:
        """Say whether every node runs, and every unit that has standbys has one."""
        seen = [node for node in self.status() if node["alive"]]
        phases = {node["phase"] for node in seen}
        return len(seen) == self.nodes and phases <= {"running", "cold"} and "running" in phases

    def rows_since(self, sink: str, at_s: float) -> int:
        """Count the rows that a sink has delivered after some time."""
        place = output_path(self.scratch, sink)
        later = [epoch for epoch, seen_s in self.delivered(sink).items() if seen_s > at_s]
        return sum(pq.read_metadata(place / f"epoch-{epoch:012d}.parquet").num_rows for epoch in later)

    def delivered(self, sink: str) -> dict[int, float]:
        """Return the epochs that a sink has delivered, each with the time at which it could be read."""
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(output_path(self.scratch, sink)):
                if entry.name.startswith("epoch-"):
                    found[int(entry.name[len("epoch-") :].partition(".")[0])] = entry.stat().st_mtime
        return found

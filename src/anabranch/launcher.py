"""The launcher: starts nodes on this machine and starts again those that die. Not a coordinator.

Nodes run in sessions of their own, so killing the launcher leaves them working. A node that ends with an error that a
restart cannot heal is not restarted; one that keeps dying without publishing anything is given up.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from anabranch.clock import Clock, SystemClock
from anabranch.errors import AnabranchError, Corrupt, SinkError, StoreError
from anabranch.ledger.directory import DirectoryLedger
from anabranch.node_options import NodeOptions
from anabranch.node_process import EXIT_CRASHED, encode_options, error_path
from anabranch.presence import refuse_if_used, those_that_run
from anabranch.processes import give_way
from anabranch.work import Work

# Where others go on, a node that died is started again after this long: starting takes the CPU that a takeover needs.
RESTART_AFTER_S = 3.0
# Nodes that died together are started one after the other: the next when the last is up, or after this long.
STARTING_S = 60.0
# What they do until then must not be noticed by those that go on.
STARTING_NICENESS = 15
_LOOK_AT_STARTING_S = 0.5
# Errors that may be those of one machine: its files, its disk, its way to a sink or a store.
LOCAL_ERRORS = frozenset(kind.exit_code for kind in (Corrupt, SinkError, StoreError))
# A node that ended with one is tried again after this long, doubled up to the longest, while others go on.
AWAY_S, _LONGEST_AWAY_S = 30.0, 600.0
# A node that dies this often without an epoch in between will not live the next time either.
MOST_DEATHS_WITHOUT_PROGRESS = 5


class NodeEnded(AnabranchError):
    """A node ended with an error; carries the exit code and trace it left behind."""

    def __init__(self, message: str, *, hint: str, exit_code: int, trace: str) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code
        self.trace = trace


@dataclass(frozen=True)
class Surroundings:
    """What a node is started in: a command that runs it, such as `unshare -m`, and more environment."""

    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class LaunchedNode:
    """A node process and how often it died since the pipeline last progressed."""

    options: NodeOptions
    process: subprocess.Popen[bytes]
    deaths: int = 0
    restarts: int = 0
    progress: int = -1
    restart_at_s: float | None = None
    # Until when it counts as starting, once it was started again; None if it does not.
    starting_until_s: float | None = None
    failures: int = 0


class Launcher:
    """Launches one node and looks after it; a run of several nodes has one for each."""

    def __init__(
        self,
        options: NodeOptions,
        *,
        restart_after_s: float = 0.0,
        clock: Clock | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        self._options = options
        self._surroundings = surroundings or Surroundings()
        self._restart_after_s = restart_after_s
        self._clock = clock or SystemClock()
        self._work = Work.create(options.work)

    def start(self) -> LaunchedNode:
        """Start the node; `InUse` if another run holds the directory."""
        refuse_if_used(self._work, self._options.name)
        for path in (self._work.path / "units").glob("*/failures.json"):
            path.unlink()  # Running it again is how someone acts on a failed unit
        return LaunchedNode(self._options, self._spawn())

    def join(self) -> LaunchedNode:
        """Start the node beside others of the same run."""
        return LaunchedNode(self._options, self._spawn())

    def poll(self, node: LaunchedNode, may_start: Callable[[], bool] = lambda: True) -> bool:
        """Restart the node if it died; return False once it has ended for good. Raises what it ended with."""
        code = node.process.poll()
        if code is None:
            return True
        if code == 0:
            return False
        if node.restart_at_s is not None:
            return self._restarted(node, may_start)
        error = self._left_error()
        if error is not None and error.exit_code != EXIT_CRASHED:
            raise error
        progress = self._progress()
        node.deaths = 1 if progress > node.progress else node.deaths + 1
        node.progress = progress
        if node.deaths > MOST_DEATHS_WITHOUT_PROGRESS:
            raise error or NodeEnded(
                f"node {self._options.name} died {node.deaths} times without progress (exit code {code})",
                hint=f"see {self._work.log_path(self._options.name)}",
                exit_code=1,
                trace="",
            )
        node.restart_at_s = self._clock.steady_s() + self._restart_after_s
        return self._restarted(node, may_start)

    def postpone(self, node: LaunchedNode) -> None:
        """Let a node that ended with an error be for a while."""
        node.restart_at_s = self._clock.steady_s() + min(AWAY_S * 2**node.failures, _LONGEST_AWAY_S)
        node.failures += 1

    def _restarted(self, node: LaunchedNode, may_start: Callable[[], bool]) -> bool:
        """Start a node that died again, once it is time."""
        now_s = self._clock.steady_s()
        if node.restart_at_s is not None and now_s >= node.restart_at_s and may_start():
            node.restart_at_s = None
            node.starting_until_s = now_s + STARTING_S
            node.process = self._spawn()
            node.restarts += 1
        return True

    def _spawn(self) -> subprocess.Popen[bytes]:
        error_path(self._work.path, self._options.name).unlink(missing_ok=True)
        with self._work.log_path(self._options.name).open("ab") as log:
            return subprocess.Popen(
                [
                    *self._surroundings.prefix,
                    sys.executable,
                    "-m",
                    "anabranch.node_process",
                    encode_options(self._options),
                ],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self._surroundings.environment},
                stderr=log,
                start_new_session=True,
            )

    def _left_error(self) -> NodeEnded | None:
        try:
            left = json.loads(error_path(self._work.path, self._options.name).read_bytes())
        except FileNotFoundError:
            return None
        return NodeEnded(left["message"], hint=left["hint"], exit_code=left["exit_code"], trace=left["trace"])

    def _progress(self) -> int:
        """Count the epochs published in all channels together."""
        total = 0
        for name in self._work.channel_names():
            last = DirectoryLedger(Path(self._work.channel_path(name)) / "ledger").last()
            total += 0 if last is None else last + 1
        return total


class Fleet:
    """The nodes of one run."""

    def __init__(
        self,
        options: NodeOptions,
        nodes: int,
        surroundings: Callable[[str], Surroundings] = lambda _: Surroundings(),
        clock: Clock | None = None,
        zones: Sequence[str] = (),
        up: Callable[[Work], set[int]] = those_that_run,
    ) -> None:
        self._clock = clock or SystemClock()
        self._up = up
        self._look_again_s = 0.0
        self._ending = False
        # Nodes that ended with an error and have not been started again since.
        self.away: dict[int, NodeEnded] = {}
        rest_s = RESTART_AFTER_S if nodes > 1 else 0.0
        launchers = [
            Launcher(
                replace(options, name=name, neighbours=nodes > 1, zone=zones[number % len(zones)] if zones else None),
                restart_after_s=rest_s,
                surroundings=surroundings(name),
                clock=clock,
            )
            for number, name in enumerate(f"node-{number + 1}" for number in range(nodes))
        ]
        self._work = Work.open(options.work)
        self._nodes = [
            (launcher, launcher.start() if number == 0 else launcher.join())
            for number, launcher in enumerate(launchers)
        ]

    @property
    def restarts(self) -> int:
        """How often a node was started again."""
        return sum(node.restarts for _, node in self._nodes)

    def poll(self) -> bool:
        """Start again the nodes that died; False once all have ended. Raises what one ended with.

        An error that may be that of one machine, damaged files or a full disk, does not end the others: the node is
        tried again later. If it is the pipeline's, they will all have it in turn, and the last one ends the run.
        """
        if self._ending:
            return any(node.process.poll() is None for _, node in self._nodes)
        running = 0
        if self._clock.steady_s() >= self._look_again_s:
            self._look_again_s = self._clock.steady_s() + _LOOK_AT_STARTING_S
            self._look_at_starting()
        for number, (launcher, node) in enumerate(self._nodes):
            restarts = node.restarts
            try:
                goes_on = launcher.poll(node, self._nobody_starts)
            except NodeEnded as error:
                if error.exit_code not in LOCAL_ERRORS or len(self.away) + 1 >= len(self._nodes):
                    raise
                self.away[number] = error
                launcher.postpone(node)
                continue
            if node.restarts > restarts and len(self._nodes) > 1:
                give_way(node.process.pid, STARTING_NICENESS)
            if node.restart_at_s is None:
                self.away.pop(number, None)
            running += goes_on and number not in self.away
        return running > 0

    def _nobody_starts(self) -> bool:
        """Say whether no node is just being started again: starting takes the CPU of those that go on."""
        self._look_at_starting()
        return all(node.starting_until_s is None for _, node in self._nodes)

    def _look_at_starting(self) -> None:
        """Find out which nodes that were started again are up by now, or have had time enough."""
        now_s = self._clock.steady_s()
        starting = [node for _, node in self._nodes if node.starting_until_s is not None]
        up = self._up(self._work) if starting else set()
        for node in starting:
            # One that is up comes forward by itself, when it is warm.
            up_or_ended = node.process.pid in up or node.process.poll() is not None
            over = now_s >= (node.starting_until_s or 0.0)
            if up_or_ended or (over and give_way(node.process.pid, 0)):
                node.starting_until_s = None

    @property
    def pids(self) -> list[int]:
        """The processes of the nodes, also of those that have not announced themselves yet."""
        return [node.process.pid for _, node in self._nodes]

    def terminate(self) -> None:
        """End every node at once, and start none again."""
        self._ending = True
        for _, node in self._nodes:
            node.process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Wait until every node has ended, but not for longer than that."""
        deadline_s = self._clock.steady_s() + timeout_s
        for _, node in self._nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.process.wait(max(0.0, deadline_s - self._clock.steady_s()))

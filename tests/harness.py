"""Runs pipelines the way users do, in processes of their own, and kills them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.errors import Trimmed
from anabranch.processes import kill_session
from anabranch.status import nodes_of
from anabranch.testing.wait import wait_until
from anabranch.work import Announcement, Work

PIPELINES = Path(__file__).parent / "pipelines"
TIMEOUT_S = 300.0


def command(*arguments: str) -> list[str]:
    """Return the command line of `anabranch …`."""
    return [sys.executable, "-m", "anabranch.cli.main", *arguments]


def anabranch(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it said."""
    return subprocess.run(
        command(*arguments),
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


class Running:
    """A pipeline that runs in the background."""

    def __init__(self, process: subprocess.Popen[str], directory: Path, work: Path) -> None:
        self.process = process
        self.directory = directory
        self.work_path = work

    @property
    def work(self) -> Work:
        return Work.open(self.work_path)

    def nodes(self) -> list[Announcement]:
        """Return what the nodes that live announced of themselves."""
        if not (self.work_path / "channels").is_dir():
            return []
        return [node for node in self.work.announced() if alive(node.pid)]

    def node(self) -> Announcement | None:
        """Return what the first node that lives announced of itself, None while there is none."""
        return next(iter(self.nodes()), None)

    def replicas(self) -> dict[tuple[str, str], str]:
        """Return the role of every replica, by node and unit."""
        if not (self.work_path / "channels").is_dir():
            return {}
        return {(node["name"], unit["unit"]): unit["role"] for node in nodes_of(self.work) for unit in node["units"]}

    def holder_pid(self, role: str) -> int:
        """Return the process of the node that holds a role."""
        holder = self.work.holder(role)
        assert holder is not None, f"nobody holds {role}"
        return holder.pid

    def taken_in(self, source: str, name: str) -> bool:
        """Say whether a file is part of an epoch of a source."""
        channel = self.work.channel(source)
        for epoch in range(max(0, channel.last_epoch() - 200), channel.last_epoch() + 1):
            with contextlib.suppress(Trimmed):
                if name in json.dumps(channel.manifest(epoch).planned):
                    return True
        return False

    def events(self, kind: str) -> list[dict[str, object]]:
        """Return what the history says of a kind."""
        return [event for event in self.work.history() if event["kind"] == kind]

    def node_pid(self) -> int:
        wait_until(lambda: self.node() is not None or self.process.poll() is not None, TIMEOUT_S, "a node")
        record = self.node()
        assert record is not None, self.output()
        return record.pid

    def last(self, channel: str) -> int:
        """Return the newest epoch of a channel, -1 if there is none."""
        try:
            last = self.work.channel(channel).ledger.last()
        except Exception:  # noqa: BLE001  not made yet
            return -1
        return -1 if last is None else last

    def wait_for_epoch(self, channel: str, epoch: int) -> None:
        done = lambda: self.last(channel) >= epoch or self.process.poll() is not None  # noqa: E731
        wait_until(done, TIMEOUT_S, f"epoch {epoch} of {channel}")

    def kill_node(self, sent: signal.Signals = signal.SIGKILL) -> int:
        """Kill the node's driver; return its process id."""
        pid = self.node_pid()
        os.kill(pid, sent)
        return pid

    def finish(self) -> int:
        """Wait for the end; return the exit code."""
        return self.process.wait(TIMEOUT_S)

    def output(self) -> str:
        logs = "\n".join(path.read_text()[-4000:] for path in self.work_path.glob("logs/*.log"))
        return f"{(self.directory / 'stdout').read_text()[-4000:]}\n{logs}"


def alive(pid: int) -> bool:
    """Say whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def running(directory: Path, file: Path, *arguments: str, **environment: str) -> Iterator[Running]:
    """Start `anabranch run` in a directory; whatever happens, no process is left behind."""
    work = directory / "work"
    with (directory / "stdout").open("w") as stdout:
        process = subprocess.Popen(
            command("run", str(file), "--work", str(work), *arguments),
            cwd=directory,
            env={**os.environ, **environment},
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
        )
    started = Running(process, directory, work)
    try:
        yield started
    finally:
        process.kill()
        process.wait()
        # A node whose driver was killed may have left a JVM that still writes: whole sessions go, of all its lives.
        wait_until(lambda: not end_sessions(started), 30.0, "all processes of the run to end")


def end_sessions(run: Running) -> bool:
    """Kill everything that nodes of a run have started; say whether anything of it was there."""
    if not (run.work_path / "channels").is_dir():
        return bool(processes_of(run.work_path))
    sessions = {node.pid for node in run.work.announced()} | {int(str(event["pid"])) for event in run.events("started")}
    killed = [session for session in sessions if kill_session(session)]
    return bool(killed or processes_of(run.work_path))


def processes_of(work: Path) -> list[int]:
    """Return the processes whose command line names the work directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if str(work).encode() in text:
                found.append(int(entry.name))
    return found

"""Faults of a node's machine: its disk, its clock, its network. Each returns what it did.

The disk of one node becomes read-only in a mount namespace of its own, full by a limit on the size of files, slow by
delays of its flushes (strace); the disk of the work directory, a tmpfs for the purpose, is filled for all. A clock is
stepped by libfaketime. Messages between nodes are dropped by iptables, by the ports at which nodes listen.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from anabranch.chaos.scene import NotInjected, Scene, parts_of, told

Done = dict[str, Any]
_SECONDS = (2.0, 5.0, 10.0)
_NODE_FILE_BYTES = 4096
_FLUSH_US = 100_000
_FILL_BYTES = (64 << 20, 1 << 20, 4096)
_MOST_CLOCK_S = 3600
# By this a rule can be told from those of others.
_COMMENT = "anabranch-chaos"
_ANSWER_S = 0.3


def read_only(scene: Scene, chance: random.Random) -> Done:
    """Let the leading node see a read-only work directory."""
    leader, seconds, work = scene.leader(), chance.choice(_SECONDS), str(scene.cluster.work_path)

    def inside(*command: str) -> bool:
        entered = ["nsenter", "--mount", "--target", str(leader.pid), "--", *command]
        return subprocess.run(entered, capture_output=True, check=False).returncode == 0

    if not inside("mount", "--bind", work, work) or not inside("mount", "-o", "remount,bind,ro", work):
        raise NotInjected("the node's disk could not be mounted anew")

    def heal() -> str | None:
        return None if inside("umount", "-l", work) else "the node was gone"

    scene.later(seconds, f"the disk of {leader.name} can be written again", heal)
    return {"did": f"work directory read-only for {seconds:.0f} s", **told(leader)}


def full_disk(scene: Scene, chance: random.Random) -> Done:
    """Fill the disk of the work directory."""
    seconds, ballast = chance.choice(_SECONDS), scene.cluster.work_path / ".ballast"
    with ballast.open("wb") as file:
        # What is not there as a whole is not given at all, and others write meanwhile: so in smaller and smaller steps.
        for step in _FILL_BYTES:
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step)
    free = shutil.disk_usage(scene.cluster.work_path).free
    if free > _FILL_BYTES[-2]:
        ballast.unlink(missing_ok=True)
        raise NotInjected(f"{free} bytes are still free")
    scene.later(seconds, "the disk has room again", lambda: ballast.unlink(missing_ok=True))
    return {"did": f"disk of the work directory full for {seconds:.0f} s"}


def full_node(scene: Scene, chance: random.Random) -> Done:
    """Let the leading node write no file of some size."""
    leader, seconds = scene.leader(), chance.choice(_SECONDS)

    def limit(size_bytes: int) -> int:
        limited = 0
        for pid in parts_of(leader).all:  # also what it has started meanwhile
            with contextlib.suppress(OSError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, hard))
                limited += 1
        return limited

    if not limit(_NODE_FILE_BYTES):
        raise NotInjected("the node was gone already")
    scene.later(seconds, f"{leader.name} can write files again", lambda: limit(resource.RLIM_INFINITY))
    return {"did": f"no file over {_NODE_FILE_BYTES} bytes for {seconds:.0f} s", **told(leader)}


def slow_disk(scene: Scene, chance: random.Random) -> Done:
    """Make every flush of the leading node take longer."""
    leader, seconds = scene.leader(), chance.choice(_SECONDS)
    pids = [f"--attach={pid}" for pid in parts_of(leader).all]
    slowed = ["-e", "trace=fsync,fdatasync", "-e", f"inject=fsync,fdatasync:delay_enter={_FLUSH_US}"]
    command = ["strace", "-f", "-qq", "-o", "/dev/null", *slowed, *pids]
    quiet = subprocess.DEVNULL
    tracer = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    with contextlib.suppress(subprocess.TimeoutExpired):
        tracer.wait(0.5)
        raise NotInjected("the node could not be traced")

    def release() -> None:
        tracer.send_signal(signal.SIGINT)
        tracer.wait()

    scene.later(seconds, f"the disk of {leader.name} is fast again", release)
    return {"did": f"every flush {_FLUSH_US // 1000} ms longer for {seconds:.0f} s", **told(leader)}


def clock(scene: Scene, chance: random.Random) -> Done:
    """Step the clock of the leading node."""
    leader = scene.leader()
    step_s = chance.choice((-1, 1)) * chance.randint(5, _MOST_CLOCK_S)
    path = scene.cluster.clock_path(leader.name)
    with contextlib.suppress(OSError):
        if "libfaketime" not in Path(f"/proc/{leader.pid}/maps").read_text():
            raise NotInjected("the node runs without libfaketime")
    path.write_text(f"{step_s:+d}")
    return {"did": f"clock stepped by {step_s:+d} s", **told(leader)}


def cut(scene: Scene, chance: random.Random) -> Done:
    """Let no node hear another."""
    living = scene.cluster.living()
    return _drop(scene, chance, [_port(node.address) for node in living], {"nodes": [node.name for node in living]})


def deaf(scene: Scene, chance: random.Random) -> Done:
    """Let nobody hear the leading node."""
    leader = scene.leader()
    return _drop(scene, chance, [_port(leader.address)], told(leader))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2].rstrip("/"))


def _answers(port: int) -> bool:
    """Say whether someone can be reached at a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), _ANSWER_S):
        return True
    return False


def _drop(scene: Scene, chance: random.Random, ports: list[int], whom: Done) -> Done:
    seconds = chance.choice(_SECONDS)

    def rule(action: str, port: int) -> list[str]:
        # Others may be changing rules just now: it waits for them.
        which = ["INPUT", "-i", "lo", "-p", "tcp", "--dport", str(port), "-m", "comment", "--comment", _COMMENT]
        return ["iptables", "-w", "10", action, *which, "-j", "DROP"]

    def apply(action: str) -> list[int]:
        done = {port: subprocess.run(rule(action, port), check=False, capture_output=True) for port in ports}
        return [port for port, ended in done.items() if ended.returncode != 0]

    def heal() -> str | None:
        left = apply("-D")
        return f"iptables still drops what is sent to {left}" if left else None

    scene.later(seconds, "messages arrive again", heal)
    if apply("-I"):
        raise NotInjected("iptables refused")
    if any(_answers(port) for port in ports):
        raise NotInjected("messages still arrive")
    return {"did": f"messages dropped for {seconds:.0f} s", **whom}

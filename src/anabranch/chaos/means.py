"""What this machine allows: some faults need root, a tool, or a pipeline that has what they break."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from anabranch.chaos.faults import Fault
from anabranch.pipeline import Graph
from anabranch.strategies import PassiveStandby, Strategy, UpstreamBackup

_EXECUTORS = "in local mode the JVM is the executor; try --master 'local-cluster[1,1,1024]'"
# In a namespace of its own, where nobody else sees it.
_MOUNT = ("unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "anabranch-chaos", "/var")
FAKETIME = (
    Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"),
    Path("/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1"),
    Path("/usr/lib/faketime/libfaketimeMT.so.1"),
)


def faketime() -> Path | None:
    """Return the library that gives a process another clock, None if it is not installed."""
    return next((path for path in FAKETIME if path.exists()), None)


def missing(graph: Graph, strategies: Iterable[Strategy | None], nodes: int, master: str) -> dict[str, str]:
    """Return the means that are not there, each with what is missing."""
    held = list(strategies)
    root = os.geteuid() == 0
    found: dict[str, str | None] = {
        "executors": _EXECUTORS if re.match(r"local(\[|$)", master) else None,
        "standby": None if nodes > 1 else "it takes --nodes 2 or more",
        "regating": None if any(_gated(one) for one in held) else "no segment has a gated standby",
        "namespaces": _first(root, "it takes root", _runs("unshare", "-m", "true"), "unshare -m does not work here"),
        "mounts": _first(root, "it takes root", _runs(*_MOUNT), "a disk cannot be mounted here"),
        "strace": None if shutil.which("strace") else "strace is not installed",
        "faketime": None if faketime() else "libfaketime is not installed",
        "iptables": _first(root, "it takes root", _runs("iptables", "-L", "-n"), "iptables does not work here"),
        "store": None if any(isinstance(one, PassiveStandby) for one in held) else "no segment is kept in a store",
        "files": None if _reads_files(graph) else "no source reads files",
    }
    return {name: why for name, why in found.items() if why is not None}


def possible(faults: Iterable[Fault], lacking: dict[str, str]) -> tuple[list[Fault], dict[str, str]]:
    """Return the faults that can be injected, and why the others cannot."""
    able, unable = [], {}
    for fault in faults:
        reasons = [lacking[need] for need in fault.needs if need in lacking]
        if reasons:
            unable[fault.name] = ", ".join(reasons)
        else:
            able.append(fault)
    return able, unable


def _gated(strategy: Strategy | None) -> bool:
    return isinstance(strategy, PassiveStandby | UpstreamBackup) and strategy.temperature == "gated"


def _reads_files(graph: Graph) -> bool:
    return any(hasattr(node.source, "directory") for node in graph.sources.values())


def _first(allowed: object, refused: str, works: object, broken: str) -> str | None:
    if not allowed:
        return refused
    return None if works else broken


def _runs(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0

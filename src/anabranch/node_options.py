"""How a node is started: what its launcher tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class NodeOptions:
    """How a node is started. A replay runs the epochs that are recorded, claims none, and delivers nothing.

    `session` is the same for all nodes that were launched together, and for those that were started again. `strategy`
    is the name of one that protects every segment, whatever the pipeline asks for. `neighbours` says that other nodes
    run on the same machine. With `elsewhere`, the pipeline reads, delivers and keeps below that directory instead. What
    was published less than `leave_s` ago is left for standbys, which are seconds behind. Nodes in the same `zone` are
    likely to fail together.
    """

    file: Path
    work: Path
    name: str = "node-1"
    master: str = "local[*]"
    drain: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    retain_epochs: int | Literal["all"] | None = None
    replay: bool = False
    session: str = ""
    strategy: str | None = None
    neighbours: bool = False
    elsewhere: Path | None = None
    leave_s: float = 60.0
    zone: str | None = None

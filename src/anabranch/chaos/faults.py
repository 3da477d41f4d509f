"""What can go wrong, and when it does: the catalogue of faults, and a schedule drawn from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.errors import PipelineError

# Between two faults of a run lies at least this share of the time that one would have if they came evenly.
_APART = 0.5


@dataclass(frozen=True)
class Fault:
    """One kind of fault. `needs` are the means that it takes: see means.py."""

    name: str
    tells: str
    group: str
    needs: tuple[str, ...] = ()


CATALOGUE = {
    fault.name: fault
    for fault in (
        Fault("kill", "SIGKILL of the node that leads, with everything it started", "processes"),
        Fault("kill-standby", "SIGKILL of a node that does not lead", "processes", ("standby",)),
        Fault("kill-driver", "SIGKILL of the leading node's Python driver alone", "processes"),
        Fault("kill-jvm", "SIGKILL of the leading node's JVM, which in local mode is its executor too", "processes"),
        Fault("kill-executors", "SIGKILL of the leading node's executors", "processes", ("executors",)),
        Fault("kill-workers", "SIGKILL of the leading node's Python workers", "processes"),
        Fault("kill-but-one", "SIGKILL of all nodes but one at the same moment", "processes", ("standby",)),
        Fault("kill-all", "SIGKILL of all nodes at the same moment", "processes"),
        Fault("pause", "SIGSTOP of the whole leading node for some seconds", "processes"),
        Fault("pause-jvm", "SIGSTOP of the leading node's JVM behind a live driver", "processes"),
        Fault("pause-driver", "SIGSTOP of the leading node's driver in front of a live JVM", "processes"),
        Fault("pause-executors", "SIGSTOP of the leading node's executors", "processes", ("executors",)),
        Fault("pause-workers", "SIGSTOP of the leading node's Python workers", "processes"),
        Fault("pause-all", "SIGSTOP of all nodes at the same moment", "processes"),
        Fault("kill-in-start", "SIGKILL of a node that is starting again", "moments"),
        Fault("kill-in-checkpoint", "SIGKILL of the leading node while it writes a checkpoint", "moments"),
        Fault("kill-in-takeover", "SIGKILL of the leading node, then of the one that takes over", "moments"),
        Fault("pause-in-checkpoint", "SIGSTOP of the leading node while it writes a checkpoint", "moments"),
        Fault("pause-in-takeover", "SIGKILL of the leading node, SIGSTOP of the one that takes over", "moments"),
        Fault(
            "kill-in-regating", "SIGKILL of the leading node while its standby begins anew", "moments", ("regating",)
        ),
        Fault("kill-in-trimming", "SIGKILL of the node that paces while it trims what units read", "moments"),
        Fault(
            "read-only", "the leading node sees a read-only work directory for some seconds", "disk", ("namespaces",)
        ),
        Fault("full-disk", "the disk of the work directory is full for some seconds", "disk", ("mounts",)),
        Fault("full-node", "the leading node can write no file of more than 4 KiB", "disk"),
        Fault("slow-disk", "every flush to disk takes a node a tenth of a second longer", "disk", ("strace",)),
        Fault("clock", "the clock of the leading node is stepped by up to an hour", "clock", ("faketime",)),
        Fault("cut", "nodes do not hear each other for some seconds", "network", ("iptables", "standby")),
        Fault("deaf", "nobody hears the leading node for some seconds", "network", ("iptables", "standby")),
        Fault("damage-checkpoint", "checkpoint files of the leading node are damaged, and it is killed", "damage"),
        Fault(
            "damage-store",
            "all nodes killed, a unit loses its checkpoints, a newest stored file is damaged",
            "damage",
            ("store",),
        ),
        Fault("damage-part", "a published part is damaged before it is read", "damage"),
        Fault("damage-manifest", "the newest manifest of a channel is damaged", "damage"),
        Fault("duplicate", "input comes a second time", "input", ("files",)),
        Fault("late", "input comes that had been held back since the start", "input", ("files",)),
        Fault("burst", "no input for some seconds, then all of it at once", "input", ("files",)),
    )
}


@dataclass(frozen=True)
class Strike:
    """A fault at its time, in seconds since faults began; `seed` settles everything else about it."""

    at_s: float
    fault: Fault
    seed: int


def chosen(names: Sequence[str]) -> list[Fault]:
    """Return the faults that are meant by names of faults or groups, or by `all`; refuse what does not exist."""
    found: dict[str, Fault] = {}
    for name in names:
        matching = [fault for fault in CATALOGUE.values() if name in (fault.name, fault.group, "all")]
        if not matching:
            groups = dict.fromkeys(fault.group for fault in CATALOGUE.values())
            raise PipelineError(
                f"there is no fault {name!r}",
                hint=f"use all, a group ({', '.join(groups)}) or one of {', '.join(CATALOGUE)}",
            )
        found.update((fault.name, fault) for fault in matching)
    return list(found.values())


def schedule(faults: Sequence[Fault], *, seed: int, count: int, seconds: float) -> list[Strike]:
    """Return `count` faults over some seconds; each kind comes before one comes twice."""
    chance = random.Random(seed)
    order: list[Fault] = []
    while len(order) < count:
        order += chance.sample(list(faults), len(faults))
    slot_s = seconds / count
    slack_s = slot_s * (1 - _APART)
    return [
        Strike(round(number * slot_s + chance.uniform(0.0, slack_s), 3), fault, chance.randrange(1 << 32))
        for number, fault in enumerate(order[:count])
    ]

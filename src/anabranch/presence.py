"""Who is there: a work directory is in use while a node of it answers."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from anabranch.agent import ask
from anabranch.errors import AgentError, AgentGone, InUse
from anabranch.work import Announcement, Work

# A node that takes longer to answer is busy starting.
_PATIENCE_S = 0.5


@dataclass
class Asked:
    """Nodes that were asked to end: those that heard it, and those that do not answer and may hear it later."""

    heard: list[Announcement] = field(default_factory=list)
    silent: list[Announcement] = field(default_factory=list)


def ask_to_stop(work: Work, *, now: bool) -> Asked:
    """Ask every node to end."""
    asked = Asked()
    for node in work.announced():
        try:
            ask(node.address, work.token(), "stop", {"now": now})
            asked.heard.append(node)
        except AgentGone:
            continue
        except AgentError:
            asked.silent.append(node)
    return asked


def those_that_run(work: Work) -> set[int]:
    """Return the processes of nodes that are up: they run what is theirs, or wait without Spark as they should."""
    found = set()
    for node in work.announced():
        with contextlib.suppress(AgentError, KeyError, TypeError):
            if ask(node.address, work.token(), "ping", timeout_s=_PATIENCE_S)["phase"] in ("running", "cold"):
                found.add(node.pid)
    return found


def refuse_if_used(work: Work, name: str, *, only: str | None = None) -> None:
    """Ask the agents, not a pid file: `InUse` if a node of this directory answers; forget the ones that do not.

    With `only`, other nodes than that one may well be there.
    """
    for path, node in work.announcements().items():
        if only is not None and path.stem != only:
            continue
        if node is None:
            path.unlink(missing_ok=True)
            continue
        holder = f"{node.name} (process {node.pid})"
        try:
            ask(node.address, work.token(), "ping")
        except AgentGone:
            path.unlink(missing_ok=True)
            continue
        except AgentError as error:
            raise InUse(
                f"{holder} holds {work.path} but does not answer",
                hint=f"it may be paused or overloaded; if it is not wanted any more, kill {node.pid}",
            ) from error
        raise InUse(
            f"{work.path} is in use by {holder}, so {name} cannot run on it",
            hint="`anabranch stop` ends it; `anabranch status` shows it; --work DIR uses another directory",
        )

"""Who takes which role. Pure: what a node sees of a role goes in, what it does about it comes out.

A role (a unit, a sink, the pacer) is held by lease. It is free if nobody ever held it or if its holder is suspected; an
earlier life of this node always is. Of several nodes that could take it, the first by name does, so that roles
stay together; the others wait a little, and then do it themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anabranch.lease import Holder

# How long the others wait for the first one to take a free role.
COURTESY_S = 1.0
# How long a successor that was planned is suspected before the node that still does the work takes the role back.
SURE_S = 2.0
ASKED = "asked for"


@dataclass(frozen=True)
class RoleView:
    """What a node sees of a role. `mine` is what it was given when it took the role, None if it does not hold it.

    `suspicion` says why the holder is not trusted; `first` that no other node that is ready comes before this one;
    `free_s` for how long the role has been seen free. `asked` says that someone wants the role to move here, `relieved`
    that the holder, who took over from this node as planned, is ready to go on.
    """

    holder: Holder | None
    mine: Holder | None
    suspicion: str | None
    first: bool
    free_s: float
    asked: bool = False
    relieved: bool = True


@dataclass(frozen=True)
class Decision:
    """What to do about a role, and why."""

    do: Literal["take", "step down", "nothing"]
    reason: str = ""


def free(view: RoleView) -> str | None:
    """Say why a role may be taken, None if it may not; by this node from its own successor, if that was planned."""
    if view.mine is not None:
        newer = view.holder is not None and view.holder.generation > view.mine.generation
        return view.suspicion if newer and view.holder is not None and view.holder.planned else None
    if view.holder is None:
        return "nobody held it"
    return view.suspicion


def decide(view: RoleView) -> Decision:
    """Say what to do about a role."""
    if view.mine is not None and view.holder is not None and view.holder.generation > view.mine.generation:
        if view.holder.planned and view.suspicion is not None and view.free_s >= SURE_S:
            # It was to take over, and died of it: what runs here leads on. There is no hurry, for it does.
            return Decision("take", view.suspicion)
        if view.holder.planned and not view.relieved:
            # An epoch is published once, whoever does it: going on until the successor is ready leaves no gap.
            return Decision("nothing")
        return Decision("step down", f"{view.holder.node} holds generation {view.holder.generation}")
    if view.asked and view.mine is None and view.holder is not None:
        return Decision("take", ASKED)
    reason = free(view)
    if reason is not None and (view.first or view.free_s >= COURTESY_S):
        return Decision("take", reason)
    return Decision("nothing")

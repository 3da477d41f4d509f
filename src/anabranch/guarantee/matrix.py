"""Class by strategy by release policy: what a reader of the output is promised when a node fails. Pure.

Hwang's table 3.2 says which duplicates a recovery lets through. Here an epoch is published once, nothing comes twice,
and three of its cells are stronger:

- what is *repeating* there is precise here: the copies that a recovery makes again lose the claim;
- upstream backup of a *convergent-capable* segment is convergent there. Here the inputs are kept from the epoch from
  which a replay comes to the right state before the first epoch that is published again: precise;
- an *arbitrary* segment without state is divergent there. Here each of its epochs is one draw, published once, and
  nothing carries an unpublished draw into the next epoch: what readers see is a run without failures.

What stays divergent is an arbitrary segment with state: the state that a recovery comes to is not the one that the
published epochs came from. Only `shipped` helps: what is published is never executed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from anabranch.guarantee.classify import Classification, SegmentClass
from anabranch.strategies import Strategy


class Kept(IntEnum):
    """What a reader is promised, weakest first."""

    GAP = 0
    DIVERGENT = 1
    CONVERGENT = 2
    REPEATING = 3
    PRECISE = 4

    def __str__(self) -> str:
        return ("gap", "no-loss (divergent)", "no-loss (convergent)", "no-loss (repeating)", "precise")[self]


WANTED = {"precise": Kept.PRECISE, "no-loss": Kept.DIVERGENT, "gap": Kept.GAP}


@dataclass(frozen=True)
class Promise:
    """What holds, or None with the reason why the strategy refuses the segment."""

    kept: Kept | None
    why: str

    def __str__(self) -> str:
        return "refused" if self.kept is None else str(self.kept)


def promise(found: Classification, strategy: Strategy, refusal: str | None = None) -> Promise:
    """Return what a strategy promises for a segment; `refusal` is why it cannot protect it, if so."""
    if refusal is not None:
        return Promise(None, refusal)
    if not (strategy.keeps_state or strategy.replays):
        return Promise(Kept.GAP, "what was in hand is lost, and every epoch that lacks something is marked")
    if found.kind is SegmentClass.ARBITRARY:
        return _of_arbitrary(found, strategy)
    return Promise(Kept.PRECISE, _SAME[strategy.replays])


def _of_arbitrary(found: Classification, strategy: Strategy) -> Promise:
    if strategy.policy == "written":
        return Promise(None, "replicas that race to publish must give the same rows, and these may not")
    if strategy.policy == "shipped":
        return Promise(Kept.PRECISE, "an epoch is published with the state it came from, and never executed again")
    if not found.stateful:
        return Promise(Kept.PRECISE, "each epoch is one draw, published once, and no state carries another one on")
    return Promise(Kept.DIVERGENT, "a recovery comes to another state than the one that the published epochs came from")


_SAME = {
    False: "a recovery comes to the same rows, and an epoch is published once",
    True: "a replay comes to the same state, because the inputs are kept for as long as they count",
}


def weakest(promises: list[Kept]) -> Kept:
    """Return what holds where several segments come one after the other: what the weakest of them lets through."""
    return min(promises, default=Kept.PRECISE)

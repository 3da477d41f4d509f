"""What a whole pipeline is promised, segment by segment; refused here if that is less than it asks for.

What a segment lets through reaches everything behind it: the promise to the reader of a channel is the weakest of all
segments on the way to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.errors import PipelineError
from anabranch.guarantee.classify import Classification, SegmentClass
from anabranch.guarantee.matrix import WANTED, Kept, Promise, promise, weakest
from anabranch.guarantee.places import Place
from anabranch.pipeline import Guarantee
from anabranch.plans import BuiltSegment
from anabranch.strategies import Amnesia, PassiveStandby, Strategy, TrailingStandby
from anabranch.strategies.named import by_name
from anabranch.strategies.strategy import Unprotected


@dataclass(frozen=True)
class SegmentVerdict:
    """What is known of a segment: how it is protected, what that promises, and what readers of it are promised."""

    built: BuiltSegment
    strategy: Strategy
    chosen: bool
    wanted: Guarantee | None
    own: Promise
    kept: Kept | None
    weakened_by: str | None

    @property
    def classification(self) -> Classification:
        return self.built.classification

    @property
    def place(self) -> Place | None:
        """Where in the user's code that stands which decides the class."""
        return self.built.place

    @property
    def holds(self) -> bool:
        """Whether what was asked for is what is promised; where nothing was asked for, whether it can be run."""
        return self.kept is not None and (self.wanted is None or self.kept >= WANTED[self.wanted])

    def told(self) -> dict[str, Any]:
        """Return the essence, as JSON: what is promised, and how it is kept."""
        found: dict[str, Any] = {
            "class": str(self.classification.kind),
            "strategy": self.strategy.name,
            "release": self.strategy.policy,
            "promised": str(self.kept),
        }
        if self.strategy.copies is not None:
            found["copies"] = self.strategy.copies
        decided = self.classification.decided_by
        return found if decided is None else {**found, "because": decided.what}

    def alternatives(self, store: str) -> dict[str, Promise]:
        """Return what every strategy would promise."""
        return {name: _promised(self.built, strategy) for name, strategy in by_name(store).items()}


def judged(
    built: Mapping[str, BuiltSegment],
    protected: Mapping[str, Strategy],
    wanted: Mapping[str, Guarantee],
    store: str | None,
) -> dict[str, SegmentVerdict]:
    """Return the verdict of every segment, those that are read before those that read them.

    A segment that asks for a guarantee and not for a strategy is given the one that costs least; `store` is where its
    checkpoints go, if it has to have some. Without a store nothing is given.
    """
    found: dict[str, SegmentVerdict] = {}
    for name, some in built.items():
        strategy, chosen = protected.get(name), False
        if strategy is None and store is not None and name in wanted:
            strategy, chosen = fitting(some, wanted[name], store), True
        strategy = strategy or Unprotected()
        own = _promised(some, strategy)
        before = {read: found[read].kept for read in some.segment.inputs if read in found}
        weaker = {read: kept for read, kept in before.items() if kept is None or own.kept is None or kept < own.kept}
        kept = None if own.kept is None or None in before.values() else weakest([own.kept, *_known(before)])
        found[name] = SegmentVerdict(
            built=some,
            strategy=strategy,
            chosen=chosen,
            wanted=wanted.get(name),
            own=own,
            kept=kept,
            weakened_by=next(iter(weaker), None) if own.kept is not None else None,
        )
    return found


def fitting(built: BuiltSegment, wanted: Guarantee, store: str) -> Strategy:
    """Return the strategy for a segment whose author has not named one.

    Amnesia where gaps are allowed. Trailing where epochs may be merged: a fraction of the work, and no store. Else
    checkpoints; and where only these keep what was asked for, nothing is published before its checkpoint is stored.
    """
    found = built.classification
    if wanted == "gap":
        return Amnesia()
    drifts = found.kind is SegmentClass.ARBITRARY and found.stateful
    if drifts and wanted == "precise":
        return PassiveStandby(store=store, release="shipped")
    return TrailingStandby() if built.unmergeable is None else PassiveStandby(store=store)


def refuse_less(verdicts: Mapping[str, SegmentVerdict]) -> None:
    """Refuse a pipeline in which a segment cannot be protected as asked, or asks for more than it gets."""
    for name, verdict in verdicts.items():
        how = type(verdict.strategy).__name__
        if verdict.own.kept is None:
            reason, hint = _reason(verdict, verdict.wanted, blamed=verdict.strategy.policy == "written")
            raise PipelineError(f"segment {name!r} cannot be protected by {how}: {reason}", hint=hint)
        if not verdict.holds:
            asked = f"segment {name!r} is to be {verdict.wanted}, but with {how} it is {verdict.kept}"
            weak = name
            while verdicts[weak].weakened_by is not None:
                weak = str(verdicts[weak].weakened_by)
            blamed = verdicts[weak].own.kept is Kept.DIVERGENT
            reason, hint = _reason(verdicts[weak], verdict.wanted, blamed=blamed)
            if weak != name:
                named = verdicts[weak].strategy.name != "none"
                by = f"is protected by {type(verdicts[weak].strategy).__name__}" if named else "has no strategy"
                asked, hint = f"{asked}; it reads {weak!r}, which {by}", f"in segment {weak!r}: {hint}"
            raise PipelineError(f"{asked}: {reason}", hint=hint)


def _reason(verdict: SegmentVerdict, wanted: Guarantee | None, *, blamed: bool) -> tuple[str, str]:
    """Say why a segment is not kept any better, and what to change: its expression if that is to blame."""
    decided = verdict.classification.decided_by
    if not blamed or decided is None or decided.kind is not SegmentClass.ARBITRARY:
        least = Kept.GAP if wanted is None else WANTED[wanted]
        others = verdict.alternatives("log:store")
        enough = [name for name, other in others.items() if other.kept is not None and other.kept >= least]
        return verdict.own.why, f"choose another strategy: {', '.join(enough)} would be {wanted or 'possible'}"
    where = f" ({verdict.place})" if verdict.place is not None else ""
    more = [one.what for one in verdict.classification.findings[1:] if one.kind is SegmentClass.ARBITRARY]
    also = f"; also {', '.join(more)}" if more else ""
    return f"{verdict.own.why}, because of {decided.what}{where}: {decided.why}{also}", decided.change


def _promised(built: BuiltSegment, strategy: Strategy) -> Promise:
    return promise(built.classification, strategy, strategy.refusal(built.span, built.unmergeable))


def _known(found: Mapping[str, Kept | None]) -> list[Kept]:
    return [kept for kept in found.values() if kept is not None]

"""Passive standby: checkpoints are shipped to stores, and whoever takes over goes on from the newest one.

The cost is checkpoint traffic; taking over costs restoring, and executing again what came after the checkpoint. How
much of that is done beforehand is the standby's temperature: cold (not even Spark is started), warm (Spark is, and the
plan is analysed), gated (the query is started on a recent checkpoint, and waits for data; it is replaced by a new one
as checkpoints advance).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from anabranch.errors import PipelineError
from anabranch.keeper.calibration import Trigger
from anabranch.store.opening import check_url
from anabranch.strategies.strategy import (
    WARM_BATCHES,
    Begin,
    Follow,
    Instruction,
    Release,
    Renew,
    Strategy,
    Takeover,
    View,
    check_positive,
    check_release,
    merge_end,
)

Temperature = Literal["cold", "warm", "gated"]
# A gated standby is replaced when it is this far behind: executing an epoch costs far less than starting a query.
_RENEW_EPOCHS = 10
_RENEW_S = 10.0
# A standby that is further behind than this, and must go epoch by epoch, is slower than a new one on a warm node.
_MOST_EPOCHS_AGAIN = 20


@dataclass(frozen=True)
class PassiveStandby(Strategy):
    """Ship a version every `every` epochs or every `every_s` seconds, to one store or to several.

    `store` is an address: `log:DIR`, `files:DIR`, `redis://HOST:PORT/DB`. Each store alone is enough to restore from.
    While a store is behind, the epochs that it lacks are held; at `most_behind` of them no more input is taken. With
    `release="shipped"` an epoch is published only when every store has its version: then even a segment that gives
    other rows every time it is executed goes on, elsewhere, from the state that belongs to what readers have seen.
    """

    store: str | Sequence[str]
    every: int | None = 1
    every_s: float | None = None
    most_behind: int = 5_000
    temperature: Temperature = "gated"
    release: Literal["leader", "shipped"] = "leader"
    stores: tuple[str, ...] = field(init=False)
    name: ClassVar[str] = "passive"

    def __post_init__(self) -> None:
        stores = (self.store,) if isinstance(self.store, str) else tuple(self.store)
        object.__setattr__(self, "stores", stores)
        if not stores:
            raise PipelineError("PassiveStandby has no store", hint='name one, such as store="log:DIR"')
        for url in stores:
            check_url(url)
        if len(set(stores)) < len(stores):
            raise PipelineError("PassiveStandby names a store twice", hint="name each store once")
        if self.every is None and self.every_s is None:
            raise PipelineError("PassiveStandby never ships", hint="give every=EPOCHS or every_s=SECONDS")
        given = {"every": self.every, "every_s": self.every_s, "most_behind": self.most_behind}
        check_positive("PassiveStandby", **{name: value for name, value in given.items() if value is not None})
        check_temperature("PassiveStandby", self.temperature)
        check_release("PassiveStandby", self.release, ("leader", "shipped"))

    @property
    def policy(self) -> Release:
        """When an epoch is published."""
        return self.release

    def trigger(self, units: int = 1, *, awaited: bool = False) -> Trigger:
        """When a version is due, in a pipeline that keeps so many units; if others wait for it, with every epoch.

        A version waits for those of the units that it reads, so the last of a row may be as many intervals behind as
        there are units, and one more: together at most what may be held for a store, or all would wait for each other.
        What is published only when a version is shipped waits for what a run began with, too.
        """
        latest = 1 if awaited else max(1, self.most_behind // (units + 1))
        waited_for = awaited or self.release == "shipped"
        return Trigger(min(self.every or latest, latest), self.every_s, inherited=waited_for)

    def standby(self, view: View) -> Instruction | None:
        """Warm up with some epochs, then wait on a recent checkpoint."""
        if self.temperature != "gated":
            return None
        if view.at is None:
            return Begin() if view.published >= 0 else None
        if view.batches < WARM_BATCHES and self.release == "leader":
            return Follow(view.at + 1) if view.at + 1 < view.published else None
        due = view.saved - view.at >= _RENEW_EPOCHS and view.since_s >= _RENEW_S
        return Renew() if due else None

    def takeover(self, view: View) -> Takeover:
        """Go on from the checkpoint that the standby waits on, unless another gets there sooner."""
        if view.at is None or (self.release == "shipped" and view.at < view.published):
            # What is published must not be executed again if that could give other rows.
            return Takeover("newest")
        if view.mergeable and self.release == "leader":
            return Takeover("standby", at_once=merge_end(view.at, view.published, view.late))
        return Takeover("newest" if view.saved - view.at > _MOST_EPOCHS_AGAIN else "standby")


def check_temperature(who: str, temperature: str) -> None:
    """Refuse a temperature that does not exist."""
    if temperature not in get_args(Temperature):
        raise PipelineError(
            f"{who}: temperature is {temperature!r}", hint=f"use one of {', '.join(get_args(Temperature))}"
        )

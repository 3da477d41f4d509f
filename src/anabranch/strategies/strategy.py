"""What a strategy decides: what a standby does while its primary works, and how it takes over. Pure.

A strategy is told what the ledgers show, and answers with an instruction. It owns no thread, file or clock; a node
carries out what it says. So the same decisions can be tried by hand and in a simulator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from anabranch.errors import PipelineError
from anabranch.spans import NO_STATE, Span

# A node is really fast only after this many micro-batches: code is compiled, workers are forked.
WARM_BATCHES = 20


def check_positive(who: str, **values: object) -> None:
    """Refuse what is no number, or not more than zero."""
    for name, value in values.items():
        if not (isinstance(value, int | float) and value > 0):
            raise PipelineError(f"{who}: {name} is {value!r}", hint=f"{name} must be a number, more than zero")


@dataclass(frozen=True)
class Past:
    """What the manifest of a published epoch tells: see `Manifest`."""

    epoch: int
    seen_ms: tuple[int | None, ...] = ()
    watermark_ms: int | None = None
    late_rows: int = 0
    incomplete: bool = False


@dataclass(frozen=True)
class View:
    """What is known of a unit and of the standby of it that is here.

    `at` is the epoch of the standby's last commit, None if there is no standby; `saved` that of the newest run that
    could be linked, on any node that keeps it for others, else on this one; `published` and `waiting` are the newest
    epochs of the unit's output and of its inputs. `since_s` is how long ago the standby was begun or last told
    something, `told_to` the epoch to which it was last told to go, `batches` how many micro-batches of the unit this
    node has run. `past` reads what is known of a published epoch, None if that is trimmed; nothing before `first`
    counts any more.
    """

    published: int
    waiting: int
    at: int | None = None
    saved: int = -1
    since_s: float = 0.0
    told_to: int = -1
    batches: int = 0
    scratch: bool = False
    mergeable: bool = False
    span: Span = NO_STATE
    first: int = 0
    past: Callable[[int], Past | None] = lambda _: None

    def late(self, epoch: int) -> bool:
        """Say whether an epoch had late rows, or may have had."""
        known = self.past(epoch)
        return known is None or known.late_rows > 0


@dataclass(frozen=True)
class Begin:
    """Begin a standby: one that is open runs as its primary does, one that is closed waits.

    It goes on from the newest state there is or, `empty`, from none. A `scratch` one only warms the node up.
    """

    open: bool = False
    empty: bool = False
    scratch: bool = False


@dataclass(frozen=True)
class Follow:
    """Go on to an epoch that is published, in one micro-batch; wait there or, `open`, go on epoch by epoch."""

    to: int
    open: bool = False


@dataclass(frozen=True)
class Renew:
    """Replace the standby by a new one, which is open or not as Begin says."""

    open: bool = False


Instruction = Begin | Follow | Renew


# When an epoch is published: see releasing.py.
Release = Literal["leader", "written", "shipped"]
Use = Literal["standby", "newest", "nothing"]


@dataclass(frozen=True)
class Takeover:
    """How to go on as primary.

    `use` says from what: the standby that is here, the newest state there is, or none at all. Without state the first
    epoch is that `after` another; up to `at_once` everything is read in one micro-batch. Epochs before `compare_from`
    that are executed again need not agree with what is published. `lost` says that the state there was is lost, `gaps`
    are epochs that are given up, the first and the last.
    """

    use: Use
    at_once: int = -1
    after: int = -1
    compare_from: int = -1
    lost: bool = False
    gaps: tuple[int, int] | None = None


class Strategy(ABC):
    """What every strategy answers."""

    name: ClassVar[str]
    # Whether another node may go on from the files of the unit's runs.
    keeps_state: ClassVar[bool] = True
    # For how long a published epoch waits for those that run every epoch too and are close behind: they stay close.
    patience_s: ClassVar[float] = 0.0
    # Whether a recovery reads inputs again, from an epoch that the unit's own manifests tell.
    replays: ClassVar[bool] = False

    @property
    def policy(self) -> Release:
        """When an epoch is published."""
        return "leader"

    @property
    def copies(self) -> int | None:
        """How many nodes run or stand by for the unit, None: all that there are."""
        return None

    @abstractmethod
    def standby(self, view: View) -> Instruction | None:
        """Say what to do for a standby now; None: nothing."""

    @abstractmethod
    def takeover(self, view: View) -> Takeover:
        """Say how to go on as primary."""

    def replay_from(self, view: View) -> int:
        """Return the first epoch of the inputs that a recovery would read; asked of strategies that replay."""
        del view
        return 0

    def refusal(self, span: Span, unmergeable: str | None) -> str | None:
        """Say why a segment cannot be protected this way, None if it can."""
        del span, unmergeable
        return None


class Unprotected(Strategy):
    """No standby; a node that goes on does so from the newest state there is."""

    name: ClassVar[str] = "none"

    def standby(self, view: View) -> Instruction | None:
        """Do nothing."""
        del view
        return None

    def takeover(self, view: View) -> Takeover:
        """Go on from the newest state."""
        del view
        return Takeover("newest")


def merge_end(at: int, published: int, late: Callable[[int], bool]) -> int:
    """Return the last epoch of the next micro-batch of a follower that is at `at`; `at` if it has to wait.

    Spark drops and evicts rows with the watermark of the batch before. So the last published epoch is left alone: it
    runs by itself, after a batch that ends where the primary's batch before it ended, with the watermark that was in
    force for it. And where rows came late, which of them are dropped depends on where batches end: epochs with late
    rows, and those before them, are not merged.
    """
    if published - 1 <= at:
        return at
    end = at + 1
    if late(at + 1) or late(at + 2):
        return end
    while end + 1 < published and not late(end + 2):
        end += 1
    return end


def check_release(who: str, release: str, known: tuple[str, ...]) -> None:
    """Refuse a release policy that a strategy does not have."""
    if release not in known:
        raise PipelineError(f"{who}: release is {release!r}", hint=f"use one of {', '.join(known)}")

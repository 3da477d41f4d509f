"""When to claim the next epoch. Pure: what is known in, one instruction out.

By demand: the next epoch is claimed when rows wait and the first segments have released the last one. So an epoch holds
whatever came while the one before it was processed: latency is low when there is little to do, and epochs grow when
there is much. When more waits than an epoch may hold, waiting longer would not make the next one larger: it is claimed
while the last one is still in hand, so that Spark finds it ready.

After rows come as many empty epochs as there are segments in a row, so that every window that the watermark has closed
is emitted; after that an empty epoch now and then. Epochs in flight are bounded, and so are those that are held because
a store is behind: beyond the bound the pacer waits, and what waits with it makes the next epoch larger.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from anabranch.settings import Settings

# How long rows may keep everyone waiting before the watermark is pushed on by an empty epoch.
EMPTY_AFTER_S = 0.5


@dataclass(frozen=True)
class PaceView:
    """What the pacer knows at one moment.

    `taken` is what the slowest first segment has released, `taken_s` when it had released the last epoch. `unkept`: a
    store has fallen behind for as many epochs as may be held for it. `behind` is by how many epochs a replica lags that
    should keep in step: it is as fast as the others, so one that is behind stays behind, and a takeover has to wait for
    it. For `patience_s` it is given time to come to where they are. `elsewhere`: epochs are decided elsewhere, and none
    is made up here.
    """

    now_s: float
    last_claim_s: float
    last_epoch: int
    taken: int
    received: int
    waiting: bool
    backlogged: bool
    finishing: bool
    empty_epochs_owed: int
    unkept: bool = False
    behind: int = 0
    patience_s: float = 0.0
    taken_s: float = 0.0
    elsewhere: bool = False


Instruction = Literal["claim", "claim-empty", "wait", "finish"]


def decide(view: PaceView, settings: Settings) -> Instruction:
    """Say what the pacer does now."""
    since_s = view.now_s - view.last_claim_s
    in_hand = 1 if view.waiting and view.backlogged else 0
    held = view.last_epoch - view.received >= settings.pending_epochs or (view.unkept and not view.finishing)
    if held or view.taken < view.last_epoch - in_hand:
        return "wait"
    out_of_step = view.behind > in_hand and view.now_s - view.taken_s < view.patience_s and not view.finishing
    if out_of_step or (view.last_epoch >= 0 and since_s < settings.shortest_interval_s):
        return "wait"
    if view.waiting:
        return "claim"
    owed = view.empty_epochs_owed > 0 and not view.elsewhere
    if view.finishing:
        return "claim-empty" if owed else "finish"
    idle = since_s >= settings.longest_interval_s and view.last_epoch >= 0 and not view.elsewhere
    return "claim-empty" if idle or (owed and since_s >= EMPTY_AFTER_S) else "wait"


class Recent:
    """Remembers how far a channel was, so that what was published in the last while can be left for standbys."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._seen: deque[tuple[float, int]] = deque()

    def before(self, last: int, now_s: float) -> int:
        """Return the newest epoch that is older than that, given the newest now; -1 if nobody knows yet."""
        self._seen.append((now_s, last))
        while len(self._seen) > 1 and now_s - self._seen[1][0] >= self._keep_s:
            self._seen.popleft()
        at_s, epoch = self._seen[0]
        return epoch if now_s - at_s >= self._keep_s else -1


def trim_floor(*, safe: list[int], last: int, retain: int | None) -> int:
    """Return up to which epoch a channel may be trimmed: all consumers are safe, and readers keep `retain` epochs."""
    if retain is None:
        return -1
    return min([last - retain, *safe])

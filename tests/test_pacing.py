"""When the next epoch is claimed, as a table: what is known at a moment, and the instruction."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.clock import ManualClock
from anabranch.pacing import EMPTY_AFTER_S, PaceView, Recent, decide, trim_floor
from anabranch.settings import Settings

SETTINGS = Settings(shortest_interval_s=0.2, longest_interval_s=10.0, pending_epochs=4)
# Epoch 7 was claimed a second ago; every segment and sink is done with it, and nothing waits.
QUIET = PaceView(
    now_s=101.0,
    last_claim_s=100.0,
    last_epoch=7,
    taken=7,
    received=7,
    waiting=False,
    backlogged=False,
    finishing=False,
    empty_epochs_owed=0,
)
# The last epoch was published half a second after it was claimed; now are 0.1 s more.
IN_STEP = {"taken_s": 100.5, "patience_s": 0.6, "now_s": 100.6}
NOTHING_YET = {"last_epoch": -1, "taken": -1, "received": -1}

TABLE = {
    "backlogged: the next is claimed while the last is in hand": (
        {"waiting": True, "backlogged": True, "taken": 6},
        "claim",
    ),
    "backlogged: but only one ahead": ({"waiting": True, "backlogged": True, "taken": 5}, "wait"),
    "backlogged: and within the bound": ({"waiting": True, "backlogged": True, "taken": 6, "received": 3}, "wait"),
    # by demand
    "nothing waits": ({}, "wait"),
    "rows wait": ({"waiting": True}, "claim"),
    "rows wait in a source that has ended": ({"waiting": True, "finishing": True}, "claim"),
    "the very first rows": ({**NOTHING_YET, "waiting": True, "now_s": 100.0}, "claim"),
    "the first segment has not taken the last epoch": ({"waiting": True, "taken": 6}, "wait"),
    # back pressure
    "three epochs in flight": ({"waiting": True, "received": 4}, "claim"),
    "four epochs in flight": ({"waiting": True, "received": 3}, "wait"),
    "more than four in flight": ({"waiting": True, "received": -1}, "wait"),
    "back pressure holds empty epochs too": ({"empty_epochs_owed": 1, "received": 3}, "wait"),
    "back pressure holds the end": ({"finishing": True, "received": 3}, "wait"),
    # a store that is too far behind
    "unkept epochs hold the next one": ({"waiting": True, "unkept": True}, "wait"),
    "unkept epochs hold empty ones": ({"empty_epochs_owed": 1, "unkept": True}, "wait"),
    "unkept epochs do not hold the end": ({"finishing": True, "unkept": True}, "finish"),
    # a replica that should be in step
    "a replica is in step": ({"waiting": True, "behind": 0, **IN_STEP}, "claim"),
    "a replica is one behind": ({"waiting": True, "behind": 1, **IN_STEP}, "wait"),
    "a replica is one behind, and much waits": (
        {"waiting": True, "backlogged": True, "behind": 1, **IN_STEP},
        "claim",
    ),
    "a replica is two behind, and much waits": (
        {"waiting": True, "backlogged": True, "behind": 2, **IN_STEP},
        "wait",
    ),
    "a replica has had its time": ({"waiting": True, "behind": 2, **IN_STEP, "now_s": 101.2}, "claim"),
    "a replica for which nobody waits": ({"waiting": True, "behind": 2, **IN_STEP, "patience_s": 0.0}, "claim"),
    "a replica does not hold the end": ({"finishing": True, "behind": 2, **IN_STEP}, "finish"),
    # shortest interval
    "too soon": ({"waiting": True, "now_s": 100.19}, "wait"),
    "soon enough": ({"waiting": True, "now_s": 100.21}, "claim"),
    "too soon to end": ({"finishing": True, "now_s": 100.19}, "wait"),
    # empty epochs
    "an empty epoch is owed": ({"empty_epochs_owed": 1}, "claim-empty"),
    "owed, but rows may still come": ({"empty_epochs_owed": 1, "now_s": 100.0 + EMPTY_AFTER_S - 0.01}, "wait"),
    "owed, and nothing came": ({"empty_epochs_owed": 1, "now_s": 100.0 + EMPTY_AFTER_S}, "claim-empty"),
    "owed, but rows wait": ({"empty_epochs_owed": 1, "waiting": True}, "claim"),
    # longest interval
    "almost the longest interval": ({"now_s": 109.9}, "wait"),
    "the longest interval": ({"now_s": 110.0}, "claim-empty"),
    "no empty epoch before the first rows": ({**NOTHING_YET, "now_s": 1e6}, "wait"),
    # the end
    "ended and nothing owed": ({"finishing": True}, "finish"),
    "ended, empty epochs owed": ({"finishing": True, "empty_epochs_owed": 2}, "claim-empty"),
    "ended, owed ones do not wait for rows": (
        {"finishing": True, "empty_epochs_owed": 2, "now_s": 100.3},
        "claim-empty",
    ),
    "ended before anything was claimed": ({**NOTHING_YET, "finishing": True, "now_s": 100.0}, "finish"),
    "ended, the last epoch not taken": ({"finishing": True, "taken": 6}, "wait"),
}


@pytest.mark.parametrize(("known", "instruction"), TABLE.values(), ids=TABLE)
def test_what_the_pacer_does(known, instruction):
    """One line of the table: what is known, and what is done."""
    assert decide(replace(QUIET, **known), SETTINGS) == instruction


views = st.builds(
    PaceView,
    now_s=st.floats(100, 120),
    last_claim_s=st.just(100.0),
    last_epoch=st.integers(-1, 7),
    taken=st.integers(-1, 7),
    received=st.integers(-1, 7),
    waiting=st.booleans(),
    backlogged=st.booleans(),
    finishing=st.booleans(),
    empty_epochs_owed=st.integers(0, 2),
)


@given(views)
def test_bounds_hold_whatever_is_known(view):
    """No instruction but `wait` beyond the epochs in flight; no end while anything waits, is owed or not taken."""
    instruction = decide(view, SETTINGS)
    in_hand = view.waiting and view.backlogged
    if view.last_epoch - view.received >= SETTINGS.pending_epochs or view.taken < view.last_epoch - in_hand:
        assert instruction == "wait"
    if instruction == "finish":
        assert (view.finishing, view.waiting, view.empty_epochs_owed) == (True, False, 0)
    if instruction == "claim-empty":
        assert not view.waiting
    if instruction == "claim":
        assert view.waiting


# Eighths of a second add up without rounding.
TICK_S = 0.125


def run(seconds, arrivals, *, depth, shortest_interval_s):
    """Pace by a manual clock with instant processing; return (time, instruction) of every claim."""
    settings = replace(SETTINGS, shortest_interval_s=shortest_interval_s)
    clock, arrivals, done = ManualClock(), list(arrivals), []
    view = replace(QUIET, **NOTHING_YET, last_claim_s=0.0)
    while clock.steady_s() < seconds:
        now_s = clock.steady_s()
        view = replace(view, now_s=now_s, waiting=bool(arrivals) and arrivals[0] <= now_s)
        instruction = decide(view, settings)
        if instruction in ("claim", "claim-empty"):
            done.append((now_s, instruction))
            arrivals = [when for when in arrivals if when > now_s]
            epoch = view.last_epoch + 1
            owed = depth if instruction == "claim" else max(0, view.empty_epochs_owed - 1)
            view = replace(view, last_claim_s=now_s, last_epoch=epoch, taken=epoch, received=epoch)
            view = replace(view, empty_epochs_owed=owed)
        clock.advance(TICK_S)
    return done


def test_a_day_in_the_life():
    """Rows come twice and are claimed apart, two empty epochs for two segments follow, then one every ten seconds."""
    assert run(25, [1.0, 1.125], depth=2, shortest_interval_s=0.25) == [
        (1.0, "claim"),
        (1.25, "claim"),
        (1.75, "claim-empty"),
        (2.25, "claim-empty"),
        (12.25, "claim-empty"),
        (22.25, "claim-empty"),
    ]


def test_what_comes_too_fast_shares_an_epoch():
    """Rows at every tick are claimed no more often than the shortest interval allows."""
    claims = run(2, [number * TICK_S for number in range(16)], depth=1, shortest_interval_s=0.5)
    assert claims == [(0.0, "claim"), (0.5, "claim"), (1.0, "claim"), (1.5, "claim")]


@pytest.mark.parametrize(
    ("safe", "last", "retain", "floor"),
    [
        ([], 10, 3, 7),
        ([5], 10, 3, 5),
        ([9, 6], 10, 3, 6),
        ([9], 10, 3, 7),
        ([-1, 9], 10, 3, -1),
        ([9], 10, None, -1),
        ([0], -1, 1, -2),
        ([9], 10, 1, 9),
    ],
)
def test_a_channel_is_trimmed_below_everyone(safe, last, retain, floor):
    """The slowest consumer and the retention decide together; keeping everything trims nothing."""
    assert trim_floor(safe=safe, last=last, retain=retain) == floor


def test_what_was_published_lately_is_left_for_standbys():
    """A standby is always a little behind; what it reads next must not be trimmed as soon as the primary is done."""
    recent = Recent(30.0)
    assert [recent.before(10 * n, 100.0 + 10 * n) for n in range(6)] == [-1, -1, -1, 0, 10, 20]
    assert recent.before(50, 1000.0) == 50

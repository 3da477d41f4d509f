"""Chaos knows what protects each segment, named by its author or chosen by the nodes."""

import anabranch as ab
from anabranch.chaos.protection import chosen, stands_by
from anabranch.strategies import (
    ActiveStandby,
    Amnesia,
    KSafe,
    PassiveStandby,
    TrailingStandby,
    UpstreamBackup,
)
from anabranch.strategies.strategy import Unprotected

STORE = "log:there"


def planned(segment, strategy, release="leader", *, was_chosen=True):
    return {"segment": segment, "strategy": strategy, "release": release, "chosen": was_chosen}


def test_what_a_plan_says_was_chosen():
    """Release policies tell variants apart; what the author named is not a choice."""
    found = chosen(
        [
            planned("plain", "trailing"),
            planned("drifting", "passive", "shipped"),
            planned("sloppy", "amnesia"),
            planned("named", "active", was_chosen=False),
        ],
        STORE,
    )
    assert found == {
        "plain": TrailingStandby(),
        "drifting": PassiveStandby(store=STORE, release="shipped"),
        "sloppy": Amnesia(),
    }
    assert found["sloppy"] == ab.Amnesia()


def test_which_strategies_have_standbys():
    """Chaos waits for those before anything is broken, and not for what never comes."""
    with_some = [
        ActiveStandby(),
        TrailingStandby(),
        UpstreamBackup(),
        Amnesia(),
        KSafe(1),
        PassiveStandby(store=STORE),
        PassiveStandby(store=STORE, release="shipped"),
    ]
    without = [Unprotected(), *(PassiveStandby(store=STORE, temperature=some) for some in ("cold", "warm"))]
    assert [stands_by(strategy) for strategy in with_some] == [True] * len(with_some)
    assert [stands_by(strategy) for strategy in without] == [False] * len(without)

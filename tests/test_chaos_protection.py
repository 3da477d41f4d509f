"""Chaos knows what protects each segment, named by its author or chosen by the nodes."""

import anabranch as ab
from anabranch.chaos.protection import chosen
from anabranch.strategies import Amnesia, PassiveStandby, TrailingStandby

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

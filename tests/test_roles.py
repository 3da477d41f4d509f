"""Who takes which role, as a table: what a node sees of a role, and what it does."""

import pytest

from anabranch.lease import Holder
from anabranch.roles import COURTESY_S, SURE_S, Decision, RoleView, decide, free

MINE, OTHER, NEWER = Holder(3, "node-1", "a"), Holder(3, "node-2", "b"), Holder(4, "node-2", "b")
PLANNED = Holder(4, "node-2", "b", planned=True)
NOTHING = Decision("nothing")

TABLE = {
    "held here": (RoleView(MINE, MINE, None, first=True, free_s=0.0), NOTHING),
    "held here, though it cannot be seen": (RoleView(None, MINE, None, first=True, free_s=0.0), NOTHING),
    "taken by another": (
        RoleView(NEWER, MINE, None, first=True, free_s=0.0),
        Decision("step down", "node-2 holds generation 4"),
    ),
    "taken by another that is suspected": (
        RoleView(NEWER, MINE, "silent", first=True, free_s=9.0),
        Decision("step down", "node-2 holds generation 4"),
    ),
    "held by another": (RoleView(OTHER, None, None, first=True, free_s=0.0), NOTHING),
    "never held": (RoleView(None, None, None, first=True, free_s=0.0), Decision("take", "nobody held it")),
    "never held, another comes first": (RoleView(None, None, None, first=False, free_s=0.9), NOTHING),
    "never held, the first one does not take it": (
        RoleView(None, None, None, first=False, free_s=COURTESY_S),
        Decision("take", "nobody held it"),
    ),
    "its holder is suspected": (RoleView(OTHER, None, "silent", first=True, free_s=0.0), Decision("take", "silent")),
    "suspected, another comes first": (RoleView(OTHER, None, "silent", first=False, free_s=0.0), NOTHING),
    "asked for": (RoleView(OTHER, None, None, first=False, free_s=0.0, asked=True), Decision("take", "asked for")),
    "asked for, and held here": (RoleView(MINE, MINE, None, first=True, free_s=0.0, asked=True), NOTHING),
    "taken as planned, by one that is not ready": (
        RoleView(PLANNED, MINE, None, first=True, free_s=0.0, relieved=False),
        NOTHING,
    ),
    "taken as planned, by one that has just been silent": (
        RoleView(PLANNED, MINE, "silent", first=True, free_s=SURE_S - 0.1, relieved=False),
        NOTHING,
    ),
    "taken as planned, by one that died of it": (
        RoleView(PLANNED, MINE, "dead", first=True, free_s=SURE_S, relieved=False),
        Decision("take", "dead"),
    ),
    "taken as planned, by one that is at work": (
        RoleView(PLANNED, MINE, None, first=True, free_s=0.0, relieved=True),
        Decision("step down", "node-2 holds generation 4"),
    ),
    "taken without a plan, by one that is not ready": (
        RoleView(NEWER, MINE, None, first=True, free_s=0.0, relieved=False),
        Decision("step down", "node-2 holds generation 4"),
    ),
    "suspected for long": (RoleView(OTHER, None, "silent", first=False, free_s=5.0), Decision("take", "silent")),
}


@pytest.mark.parametrize(("view", "expected"), TABLE.values(), ids=TABLE)
def test_what_is_done_about_a_role(view, expected):
    """Free roles are taken, by the first that is ready or after a while by anyone; a newer generation is obeyed."""
    assert decide(view) == expected


def test_what_is_held_here_is_never_free():
    """Whatever is thought of its holder, which is this node."""
    assert free(RoleView(MINE, MINE, "silent", first=True, free_s=9.0)) is None
    assert free(RoleView(NEWER, MINE, "silent", first=True, free_s=9.0)) is None, "it was taken from this node"
    assert free(RoleView(PLANNED, MINE, "silent", first=True, free_s=0.0)) == "silent", (
        "and this node still does the work"
    )

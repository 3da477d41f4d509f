"""Waiting gives what it waited for, or says what did not come."""

import itertools

import pytest

from anabranch.testing.wait import wait_until


def test_what_came_is_returned():
    """The first true answer ends the wait and is given back."""
    answers = iter([None, 0, "", "here"])
    assert wait_until(lambda: next(answers), 5, "an answer") == "here"


def test_a_wait_without_time_still_looks():
    """With no time at all the predicate is asked once."""
    assert wait_until(lambda: "there already", 0, "it") == "there already"


def test_what_did_not_come_is_named():
    """The failure names what was awaited, for how long, and what was seen last."""
    asked = itertools.count()
    with pytest.raises(AssertionError, match=r"waited 0\.05 s for the second node; last seen: \[\]"):
        wait_until(lambda: next(asked) < 0 or [], 0.05, "the second node")
    assert next(asked) > 1

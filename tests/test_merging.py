"""Which epochs a follower may read as one micro-batch: never the last published one, never around late rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.strategies.strategy import merge_end

TABLE = [
    # at, published, late epochs, end
    (-1, -1, (), -1),
    (4, 4, (), 4),
    (4, 5, (), 4),  # 5 is the last published one: it runs alone, after the takeover
    (4, 6, (), 5),
    (4, 20, (), 19),
    (4, 20, (5,), 5),  # 5 alone
    (4, 20, (6,), 5),  # the one after the merged ones may not have late rows either
    (4, 20, (7,), 5),
    (4, 20, (8,), 6),
    (4, 20, (20,), 18),
    (4, 20, (21, 3), 19),
]


@pytest.mark.parametrize(("at", "published", "late", "end"), TABLE)
def test_how_far_a_follower_goes_at_once(at, published, late, end):
    """As the rule says: merged epochs end before the last published one, and neither they nor the next drop rows."""
    assert merge_end(at, published, lambda epoch: epoch in late) == end


@given(st.integers(-1, 30), st.integers(-1, 40), st.sets(st.integers(0, 45)))
def test_what_is_merged_keeps_the_rule(at, published, late):
    """For any history; and a follower that is behind always gets on."""
    end = merge_end(at, published, late.__contains__)
    assert end >= at
    if published - 1 > at:
        assert at < end < published
    if end > at + 1:
        assert not late & set(range(at + 1, end + 2))
    if at < end < published - 1:
        assert late & set(range(at + 1, end + 3)), "it could have gone further"

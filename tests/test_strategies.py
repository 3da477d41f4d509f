"""What strategies decide, tried on a model of Spark: whoever takes over goes on as the primary would have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import PipelineError
from anabranch.spans import NO_STATE, Span
from anabranch.strategies import ActiveStandby, Amnesia, KSafe, PassiveStandby, TrailingStandby, UpstreamBackup
from anabranch.strategies.amnesia import Completeness
from anabranch.strategies.strategy import WARM_BATCHES, Begin, Follow, Past, Renew, Takeover, Unprotected, View
from anabranch.strategies.upstream_backup import known_past, low_epoch
from spark_model import WindowedCount

SPAN = Span(10)
LENGTH, DELAY = 10, 5
UNBOUNDED = Span(None, "a running count")


def epochs():
    """Streams whose event time moves on, with rows out of order and some far too late."""
    row = st.tuples(st.integers(-6, 6), st.booleans() | st.just(value=False))
    rows = st.lists(row, max_size=4)
    return st.lists(rows, min_size=3, max_size=25).map(
        lambda some: [
            [max(0, 4 * number + shift - (60 if late else 0)) for shift, late in rows]
            for number, rows in enumerate(some)
        ]
    )


def ran(stream):
    """Run a stream one epoch at a time; return what every epoch emitted and was."""
    model = WindowedCount(LENGTH, DELAY)
    batches = [model.batch(times) for times in stream]
    past = [Past(number, (done.seen,), done.watermark, done.late) for number, done in enumerate(batches)]
    return [done.emitted for done in batches], past


def view_of(past, published, **fields):
    return View(
        published=published,
        waiting=published,
        past=lambda epoch: past[epoch] if 0 <= epoch <= published else None,
        span=SPAN,
        **fields,
    )


def gone_on(model, stream, at, how):
    """Carry out a takeover on a model that is at an epoch; return what every later epoch emitted, by epoch."""
    emitted = {}
    epoch = max(at, how.after)
    while epoch + 1 < len(stream):
        end = how.at_once if how.at_once > epoch else epoch + 1
        rows = [time for times in stream[epoch + 1 : end + 1] for time in times]
        emitted[end] = model.batch(rows).emitted
        epoch = end
    return emitted


@settings(max_examples=500)
@given(epochs(), st.data())
def test_upstream_backup_comes_to_the_same_state(stream, data):
    """Replayed from the low epoch without state, the last epoch and all that follow come out as they were."""
    emitted, past = ran(stream)
    published = data.draw(st.integers(0, len(stream) - 1))
    mergeable = data.draw(st.booleans())
    how = UpstreamBackup().takeover(view_of(past, published, mergeable=mergeable))
    again = gone_on(WindowedCount(LENGTH, DELAY), stream, -1, how)
    assert how.use == "nothing"
    assert how.compare_from == published
    for epoch in range(published, len(stream)):
        assert again[epoch] == emitted[epoch], (epoch, how)


@given(epochs(), st.data())
def test_low_epochs_never_move_back(stream, data):
    """Inputs below one may be trimmed, so the next must not need them; nor the manifests that tell."""
    del data
    _, past = ran(stream)
    low = 0
    for published in range(len(stream)):
        known = past[low : published + 1]
        assert low_epoch(known, SPAN) == low_epoch(past[: published + 1], SPAN) >= low
        low = low_epoch(known, SPAN)


@given(epochs(), st.data())
def test_trailing_standby_comes_to_the_same_state(stream, data):
    """A standby that follows in large micro-batches, and then catches up, goes on as the primary would have."""
    emitted, past = ran(stream)
    published = data.draw(st.integers(0, len(stream) - 1))
    strategy, model, at = TrailingStandby(every_s=1), WindowedCount(LENGTH, DELAY), -1
    for seen in range(published + 1):
        if data.draw(st.booleans()):
            told = strategy.standby(view_of(past, seen, at=at, since_s=1.0, batches=WARM_BATCHES))
            if told is not None:
                model.batch([time for times in stream[at + 1 : told.to + 1] for time in times])
                at = told.to
    how = strategy.takeover(view_of(past, published, at=at))
    again = gone_on(model, stream, at, how)
    for epoch in range(published + 1, len(stream)):
        assert again[epoch] == emitted[epoch], (epoch, at, how)


def test_merging_without_the_rule_would_be_wrong():
    """The model can tell: a replay that does not run the last epoch alone emits a window with the wrong epoch."""
    stream = [[1], [14], [21], [40], [41], [60]]
    emitted, _ = ran(stream)
    broken = Takeover("nothing", at_once=3, after=-1)
    again = gone_on(WindowedCount(LENGTH, DELAY), stream, -1, broken)
    assert any(again[epoch] != emitted[epoch] for epoch in again if epoch > broken.at_once)


def test_what_has_no_low_epoch_is_refused():
    """A running count holds everything it ever read."""
    assert "a running count" in UpstreamBackup().refusal(UNBOUNDED, None)
    assert UpstreamBackup().refusal(SPAN, "a list") is None
    assert "a list" in TrailingStandby().refusal(SPAN, "a list")
    assert TrailingStandby().refusal(UNBOUNDED, None) is None
    assert ActiveStandby().refusal(UNBOUNDED, "a list") is None


def test_what_was_dropped_as_late_is_dropped_again():
    """A replay first reaches the watermark that dropped rows: kept, they could be joined, and go on into open windows.

    Epoch 3 dropped with the watermark of epoch 2, to which epoch 1 had brought it; the state itself begins at epoch 2.
    """
    seen = (50, 90, 150, 151, 152, 153)
    past = [Past(epoch, (at,), seen[epoch - 1] if epoch else None) for epoch, at in enumerate(seen)]
    assert low_epoch(past, SPAN) == 2
    past[3] = replace(past[3], late_rows=2)
    assert low_epoch(past, SPAN) == 1


def test_a_segment_without_state_replays_nothing():
    """Whoever takes over goes on after the last published epoch."""
    past = [Past(epoch) for epoch in range(8)]
    how = UpstreamBackup().takeover(View(published=7, waiting=9, past=past.__getitem__, span=NO_STATE))
    assert (how.use, how.after) == ("nothing", 7)
    nothing_kept = View(published=7, waiting=9, first=8, past=lambda _: None, span=NO_STATE)
    assert UpstreamBackup().takeover(nothing_kept).after == 7, "also if nothing of its output is left"


def test_upstream_backup_goes_on_from_its_own_state():
    """A query that failed is started again from the files of its own node, if they are recent enough."""
    past = [Past(epoch, (4 * epoch,), 4 * epoch - DELAY) for epoch in range(40)]
    view = View(published=39, waiting=39, saved=38, past=past.__getitem__, span=SPAN)
    assert UpstreamBackup().takeover(view) == Takeover("newest")
    assert known_past(view) == past


def test_amnesia_gives_up_what_waits():
    """It begins with the newest input; what lies in between is named."""
    view = View(published=7, waiting=12, saved=3, span=SPAN)
    assert Amnesia().takeover(view) == Takeover("nothing", after=11, lost=True, gaps=(8, 11))
    assert Amnesia().takeover(View(published=7, waiting=7, at=7)) == Takeover("standby", after=7, lost=True)
    # Where state has an end, the times of what is given up have to be known: it is read, and named all the same.
    read = replace(view, mergeable=True)
    assert Amnesia().takeover(read) == Takeover("nothing", after=7, at_once=12, lost=True, gaps=(8, 11))
    longer = Amnesia().takeover(replace(read, waiting=1007))
    assert (longer.after, longer.at_once, longer.gaps) == (907, 1007, (8, 1006))
    assert Amnesia().takeover(replace(read, span=UNBOUNDED)).at_once == -1, "it stays incomplete for good"
    assert Amnesia().takeover(View(published=7, waiting=12, saved=6)) == Takeover("newest")


@given(epochs(), st.data())
def test_amnesia_marks_everything_that_differs(stream, data):
    """After a loss, an epoch that is not marked as incomplete is what a run without the loss would have published."""
    stream = [sorted(times) for times in stream]
    emitted, _ = ran(stream)
    lost = data.draw(st.integers(0, len(stream) - 1))
    highest = max((time for times in stream[: lost + 1] for time in times), default=None)
    model = WindowedCount(LENGTH, DELAY)
    following = Completeness(SPAN, lost=True, highest_ms=highest)
    for epoch in range(lost + 1, len(stream)) if highest is not None else ():
        done = model.batch(stream[epoch])
        marked = following.incomplete(flagged=False, seen_ms=(done.seen,), watermark_ms=done.watermark)
        if not marked and not any(time < highest for time in stream[epoch]):
            assert done.emitted == emitted[epoch], epoch


def test_incompleteness_ends_when_the_watermark_has_passed():
    """A window that began before the loss ended may lack rows; one that began later lacks none."""
    following = Completeness(SPAN, lost=True, highest_ms=100)
    marks = [
        following.incomplete(flagged=False, seen_ms=(100 + 5 * n,), watermark_ms=95 + 5 * n if n else None)
        for n in range(8)
    ]
    assert marks == [True, True, True, True, True, False, False, False]


def test_what_was_lost_upstream_is_taken_to_be_as_late_as_anything_seen():
    """An input lost an epoch: rows of it may fall into any window that was open, not only into that of the next row."""
    following = Completeness(SPAN, highest_ms=100)
    times = [(False, 100), (True, None), (False, 80), *((False, 100 + 5 * n) for n in range(8))]
    marks = [
        following.incomplete(flagged=flagged, seen_ms=(time,), watermark_ms=95 + 5 * max(0, n - 3))
        for n, (flagged, time) in enumerate(times)
    ]
    assert marks == [False, *[True] * 7, False, False, False]


def test_amnesia_without_state_reads_what_it_gives_up():
    """So that whoever keeps state downstream knows how late the rows were that did not come in their epoch."""
    view = View(published=4, waiting=9, span=NO_STATE, mergeable=True)
    assert Amnesia().takeover(view) == Takeover("nothing", after=4, at_once=9, lost=True, gaps=(5, 8))


def test_incompleteness_spreads_and_a_running_count_never_recovers():
    """Whoever reads an incomplete epoch is incomplete until its own state has expired; without state, at once."""
    without_state = Completeness(NO_STATE)
    flags = [without_state.incomplete(flagged=n == 1, seen_ms=(), watermark_ms=None) for n in range(3)]
    assert flags == [False, True, False]
    running = Completeness(UNBOUNDED)
    assert [running.incomplete(flagged=n == 1, seen_ms=(n,), watermark_ms=n) for n in range(3)] == [False, True, True]


PASSIVE = PassiveStandby(store="memory:")


@pytest.mark.parametrize(
    ("strategy", "view", "told"),
    [
        (ActiveStandby(), View(published=-1, waiting=0), None),
        (ActiveStandby(), View(published=0, waiting=0), Begin(open=True)),
        (ActiveStandby(), View(published=9, waiting=9, at=7, mergeable=True), None),
        (ActiveStandby(), View(published=9, waiting=9, at=3, mergeable=True, past=Past), Follow(8, open=True)),
        (ActiveStandby(), View(published=9, waiting=9, at=3, since_s=60.0), None),
        (ActiveStandby(), View(published=30, waiting=30, at=3, since_s=60.0), Renew(open=True)),
        # A query that hangs does not follow: it is replaced, even if it could read several epochs at once.
        (KSafe(), View(published=30, waiting=30, at=3, told_to=9, since_s=60.0, mergeable=True), Renew(open=True)),
        (KSafe(), View(published=30, waiting=30, at=3, since_s=60.0, mergeable=True, past=Past), Follow(29, open=True)),
        (KSafe(), View(published=9, waiting=9), Begin(open=True)),
        (TrailingStandby(), View(published=0, waiting=0), Begin()),
        (TrailingStandby(), View(published=9, waiting=9, at=3), Follow(4)),
        (PASSIVE, View(published=0, waiting=0), Begin()),
        (PASSIVE, View(published=9, waiting=9, at=3), Follow(4)),
        (PASSIVE, View(published=99, waiting=99, at=80, saved=95, batches=50, since_s=30.0), Renew()),
        (PASSIVE, View(published=99, waiting=99, at=90, saved=95, batches=50, since_s=30.0), None),
        (PASSIVE, View(published=99, waiting=99, at=80, saved=95, batches=50, since_s=3.0), None),
        (PassiveStandby(store="memory:", temperature="warm"), View(published=9, waiting=9), None),
        (PassiveStandby(store="memory:", temperature="cold"), View(published=9, waiting=9), None),
        (UpstreamBackup(), View(published=-1, waiting=9), None),
        (UpstreamBackup(), View(published=9, waiting=9), Begin(empty=True, scratch=True)),
        (UpstreamBackup(), View(published=9, waiting=9, at=3, scratch=True), Follow(4)),
        (UpstreamBackup(), View(published=9, waiting=9, at=3, scratch=True, batches=50), Renew()),
        (UpstreamBackup(), View(published=9, waiting=9, batches=50), Begin(empty=True)),
        (UpstreamBackup(), View(published=9, waiting=9, at=-1, batches=50), None),
        (Amnesia(), View(published=9, waiting=9, batches=50), Begin(empty=True)),
        (Unprotected(), View(published=9, waiting=9), None),
    ],
)
def test_what_a_standby_does(strategy, view, told):
    """Each by its own strategy."""
    assert strategy.standby(view) == told


def test_a_gated_standby_that_is_far_behind_is_passed_over():
    """Where epochs may not be merged, going through many one by one takes longer than a new start."""
    near = View(published=30, waiting=30, at=20, saved=30)
    far = View(published=60, waiting=60, at=20, saved=60)
    assert PASSIVE.takeover(near) == Takeover("standby")
    assert PASSIVE.takeover(far) == Takeover("newest")
    past = [Past(epoch) for epoch in range(61)]
    merged = View(published=60, waiting=60, at=20, saved=60, mergeable=True, past=past.__getitem__)
    assert PASSIVE.takeover(merged) == Takeover("standby", at_once=59)
    assert PASSIVE.takeover(View(published=60, waiting=60, saved=60)) == Takeover("newest")


@pytest.mark.parametrize("strategy", [lambda t: PassiveStandby(store="memory:", temperature=t), UpstreamBackup])
def test_an_unknown_temperature_is_refused(strategy):
    """With the ones there are."""
    with pytest.raises(PipelineError, match="cold, warm, gated"):
        strategy("hot")

"""What a pipeline is promised as a whole, given what is known of its segments."""

from types import SimpleNamespace

import pytest

from anabranch.errors import PipelineError
from anabranch.guarantee.classify import Classification, Finding, SegmentClass
from anabranch.guarantee.matrix import Kept
from anabranch.guarantee.places import located
from anabranch.guarantee.verdict import judged, refuse_less
from anabranch.spans import NO_STATE, Span
from anabranch.strategies import ActiveStandby, Amnesia, PassiveStandby, TrailingStandby, UpstreamBackup

STORE = "log:store"
RANDOM = Finding(SegmentClass.ARBITRARY, "rand()", "drawn by chance", "derive it from columns", "rand")
SAME = Classification(SegmentClass.REPEATABLE)
COUNTS = Classification(
    SegmentClass.DETERMINISTIC, (Finding(SegmentClass.DETERMINISTIC, "an aggregate", "grows", ""),), stateful=True
)
DRIFTS = Classification(SegmentClass.ARBITRARY, (RANDOM,), stateful=True)


def rand(value):
    return value


def step_with_chance(frame):
    # rand is not meant here
    before = frame
    return rand(before)


def segment(name, *inputs, function=step_with_chance):
    return SimpleNamespace(name=name, inputs=inputs, steps=(SimpleNamespace(name=name, function=function),))


def built(name, *inputs, found=SAME, unmergeable=None):
    span = Span(None, "an aggregate") if found.stateful else NO_STATE
    made = segment(name, *inputs)
    place = located(made, found.decided_by)
    return SimpleNamespace(segment=made, classification=found, span=span, unmergeable=unmergeable, place=place)


def verdicts(*segments, protected=None, wanted=None):
    return judged({some.segment.name: some for some in segments}, protected or {}, wanted or {}, STORE)


def test_a_guarantee_without_a_strategy_gets_the_one_that_costs_least():
    """Trailing where epochs may be merged, else checkpoints; shipped ones where nothing else would do."""
    found = verdicts(
        built("plain", "source"),
        built("sessions", "plain", found=COUNTS, unmergeable="a session window"),
        built("drifting", "sessions", found=DRIFTS),
        wanted=dict.fromkeys(("plain", "sessions", "drifting"), "precise"),
    )
    assert [verdict.strategy for verdict in found.values()] == [
        TrailingStandby(),
        PassiveStandby(store=STORE),
        PassiveStandby(store=STORE, release="shipped"),
    ]
    assert all(verdict.chosen and verdict.holds for verdict in found.values())
    refuse_less(found)


def test_less_than_precise_needs_no_shipping():
    """What drifts may drift, if that was asked for."""
    found = verdicts(built("drifting", "source", found=DRIFTS), wanted={"drifting": "no-loss"})
    assert found["drifting"].strategy == TrailingStandby()
    assert (found["drifting"].kept, found["drifting"].holds) == (Kept.DIVERGENT, True)


def test_nothing_is_chosen_where_nothing_is_asked_for():
    """A segment without a guarantee and without a strategy stays as it is."""
    found = verdicts(built("plain", "source"))["plain"]
    assert (found.strategy.name, found.chosen, found.kept) == ("none", False, Kept.PRECISE)


def test_what_one_segment_lets_through_reaches_those_behind_it():
    """A gap stays a gap, and whoever asks for more is told where it comes from."""
    found = verdicts(
        built("lossy", "source"),
        built("counts", "lossy", found=COUNTS),
        protected={"lossy": Amnesia(), "counts": ActiveStandby()},
        wanted={"counts": "precise"},
    )
    assert (found["counts"].own.kept, found["counts"].kept) == (Kept.PRECISE, Kept.GAP)
    with pytest.raises(
        PipelineError, match="it reads 'lossy', which is protected by Amnesia: what was in hand is lost"
    ):
        refuse_less(found)


def test_too_much_is_refused_with_the_expression_the_line_and_the_change():
    """All three in one message."""
    found = verdicts(
        built("drifting", "source", found=DRIFTS),
        protected={"drifting": ActiveStandby()},
        wanted={"drifting": "precise"},
    )
    with pytest.raises(PipelineError) as refused:
        refuse_less(found)
    line = step_with_chance.__code__.co_firstlineno + 3
    assert f"because of rand() (test_verdict.py, line {line}): drawn by chance" in refused.value.message
    assert refused.value.hint == "derive it from columns"
    racing = {"drifting": ActiveStandby(release="written")}
    with pytest.raises(PipelineError, match=r"must give the same rows, .* because of rand\(\)"):
        refuse_less(verdicts(built("drifting", "source", found=DRIFTS), protected=racing))


def test_the_strategy_is_blamed_where_it_is_to_blame():
    """A gap has nothing to do with random numbers; behind a segment that drifts, that one is named."""
    lossy = verdicts(
        built("drifting", "source", found=DRIFTS), protected={"drifting": Amnesia()}, wanted={"drifting": "precise"}
    )
    with pytest.raises(PipelineError) as refused:
        refuse_less(lossy)
    assert "rand()" not in refused.value.message
    behind = verdicts(
        built("drifting", "source", found=DRIFTS),
        built("counts", "drifting", found=COUNTS),
        protected={"drifting": ActiveStandby(), "counts": ActiveStandby()},
        wanted={"counts": "precise"},
    )
    with pytest.raises(PipelineError, match=r"it reads 'drifting'.* because of rand\(\)"):
        refuse_less(behind)


def test_gaps_are_cheap_where_they_are_allowed():
    """And what was named on the command line is not chosen against: without a store nothing is chosen."""
    found = verdicts(built("plain", "source"), wanted={"plain": "gap"})["plain"]
    assert (found.strategy, found.kept, found.holds) == (Amnesia(), Kept.GAP, True)
    unprotected = judged({"plain": built("plain", "source")}, {}, {"plain": "precise"}, None)["plain"]
    assert (unprotected.strategy.name, unprotected.chosen) == ("none", False)


def test_a_gap_is_not_what_was_asked_for():
    """The strategy is to blame, not the step."""
    found = verdicts(built("plain", "source"), protected={"plain": Amnesia()}, wanted={"plain": "no-loss"})
    with pytest.raises(PipelineError, match="with Amnesia it is gap: what was in hand is lost") as refused:
        refuse_less(found)
    assert "trailing" in refused.value.hint
    assert "amnesia" not in refused.value.hint


def test_what_a_strategy_cannot_do_is_refused_whatever_is_asked_for():
    """With the reason."""
    found = verdicts(built("counts", "source", found=COUNTS), protected={"counts": UpstreamBackup()})
    with pytest.raises(PipelineError, match="by UpstreamBackup: no epoch can ever be forgotten: it uses an aggregate"):
        refuse_less(found)
    with pytest.raises(PipelineError, match=r"by TrailingStandby: .* uses a list"):
        refuse_less(verdicts(built("list", "source", unmergeable="a list"), protected={"list": TrailingStandby()}))


def test_a_line_is_found_by_its_word_or_not_at_all():
    """Comments do not count; without the word, where the step begins; without source, nowhere."""
    first = step_with_chance.__code__.co_firstlineno
    assert located(segment("s"), RANDOM).line == first + 3
    unknown = Finding(SegmentClass.ARBITRARY, "uuid()", "", "", "uuid")
    assert located(segment("s"), unknown).line == first
    assert located(segment("s", function=len), RANDOM) is None
    assert located(segment("s"), None) is None


def test_a_segment_without_a_strategy_is_called_that():
    """And the hint says where to act; what else is arbitrary in it is told at once."""
    uuid = Finding(SegmentClass.ARBITRARY, "uuid()", "drawn by chance", "derive it", "uuid")
    both = Classification(SegmentClass.ARBITRARY, (RANDOM, uuid), stateful=True)
    found = verdicts(
        built("drifting", "source", found=both),
        built("counts", "drifting", found=COUNTS),
        protected={"counts": ActiveStandby()},
        wanted={"counts": "precise"},
    )
    with pytest.raises(
        PipelineError, match=r"it reads 'drifting', which has no strategy: .*; also uuid\(\)"
    ) as refused:
        refuse_less(found)
    assert refused.value.hint.startswith("in segment 'drifting': ")

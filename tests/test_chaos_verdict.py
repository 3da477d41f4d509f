"""When a run of chaos has held: pure, from what was injected, delivered and found by the oracles."""

from types import SimpleNamespace

import pytest

from anabranch.chaos.judging import Judgement
from anabranch.chaos.recording import Deliveries
from anabranch.chaos.verdict import Course, drawn_sinks, gaps, lossy_sinks, verdict
from anabranch.oracle.batch import Compared
from anabranch.oracle.compare import Verdict
from anabranch.strategies import ActiveStandby, Amnesia

EXACT, WRONG = Verdict(10, 10, 0, 0, 0), Verdict(10, 10, 0, 0, 2)
FAULT = {"fault": "kill", "at_s": 10.0}


def course(**changes):
    """A run with one fault, and an epoch a second."""
    usual = {
        "strategies": {"counts": ActiveStandby()},
        "seed": 1,
        "injected": [FAULT],
        "unable": {},
        "stops": 0,
        "delivered": {"out": {epoch: float(epoch) for epoch in range(20)}},
        "ends_s": 30.0,
        "rows_after": 7,
    }
    return Course(**{**usual, **changes})


def judgement(reference=EXACT, differing=(), batch=EXACT, **changes):
    return Judgement(reference, {"out": list(differing)}, {"out": Compared(batch)}, **changes)


def test_a_run_holds_if_both_oracles_agree():
    """And something was really broken."""
    held = verdict(course(), judgement(), None)
    assert held["held"]
    assert held["judged_by"] == ["reference", "batch"]
    nothing = verdict(course(injected=[]), judgement(), None)
    assert (nothing["held"], nothing["failed"]) == (False, "no fault was injected")
    after = verdict(course(rows_after=0), judgement(), None)
    assert not after["held"]
    assert after["failed"].startswith("no row was delivered after the first fault")


@pytest.mark.parametrize(
    "judged",
    [
        judgement(reference=WRONG, differing=[3]),
        judgement(batch=WRONG),
        judgement(reference=Verdict(0, 0, 0, 0, 0)),
        judgement(untaken=["epoch 3 of words begins at row 9, though 7 rows were taken"]),
        None,
    ],
    ids=["reference", "batch", "nothing to compare", "rows left out", "not judged"],
)
def test_a_run_breaks_by_any_of_them(judged):
    """One oracle that differs is enough, and so is nothing to compare."""
    assert not verdict(course(), judged, None)["held"]


def test_what_could_not_be_judged_is_not_called_zero():
    """Nobody counted what was lost."""
    line = verdict(course(), None, "it ended")
    assert (line["lost"], line["rows_expected"], line["judged_by"]) == (None, None, [])


def test_a_batch_that_says_nothing_is_told():
    """The run may hold; whoever reads it knows by whom."""
    line = verdict(course(), Judgement(EXACT, {"out": []}, {"out": Compared(None, "a limit")}), None)
    assert line["held"]
    assert line["judged_by"] == ["reference"]
    assert line["batch_left_out"] == {"out": "a limit"}


def test_delivered_files_that_change_break_a_run(tmp_path):
    """Whoever had read them would have read something else; a file that is gone is one too."""
    one, other = tmp_path / "epoch-000000000000.parquet", tmp_path / "epoch-000000000001.parquet"
    one.write_bytes(b"rows")
    other.write_bytes(b"rows")
    watched = Deliveries([tmp_path, tmp_path / "not there yet"])
    watched.look()
    watched.look()
    assert watched.rewritten == []
    one.write_bytes(b"other")
    other.unlink()
    watched.look()
    assert watched.rewritten == [str(one), str(other)]
    assert "changed afterwards" in verdict(course(rewritten=watched.rewritten), judgement(), None)["failed"]


def test_rows_may_be_missing_only_where_they_are_named():
    """And only after amnesia; if no epoch differs, the batch query has to agree."""
    missing = {"reference": Verdict(10, 8, 2, 0, 0), "batch": Verdict(10, 8, 2, 0, 0)}
    lost = judgement(**missing, differing=[14])
    lossy = {"lossy": frozenset({"out"})}
    assert verdict(course(**lossy, named=lambda _, epoch: epoch == 14), lost, None)["held"]
    before = judgement(**missing, differing=[4])
    assert not verdict(course(**lossy, named=lambda *_: True), before, None)["held"], "nothing had failed yet"
    twice = judgement(**missing, differing=[14], repeated={"out": [14]})
    assert not verdict(course(**lossy, named=lambda *_: True), twice, None)["held"], "losing is not repeating"
    assert not verdict(course(**lossy), lost, None)["held"]
    assert not verdict(course(named=lambda *_: True), lost, None)["held"], "nothing may be lost there"
    assert not verdict(course(**lossy, named=lambda *_: True), judgement(batch=WRONG), None)["held"]


def test_sinks_behind_amnesia_are_lossy():
    """Also behind a segment that loses nothing itself; the others are not."""
    segments = {
        "first": SimpleNamespace(inputs=("lines",)),
        "second": SimpleNamespace(inputs=("first",)),
        "apart": SimpleNamespace(inputs=("lines",)),
    }
    sinks = {name: SimpleNamespace(stream=name) for name in segments}
    graph = SimpleNamespace(sinks=sinks)
    assert lossy_sinks(graph, segments, {"first": Amnesia()}) == {"first", "second"}
    assert lossy_sinks(graph, segments, {"second": Amnesia()}) == {"second"}


def test_a_gap_counts_also_if_it_outlasts_the_input():
    """What begins after the last input does not."""
    steady, longest = gaps(course(delivered={"out": {0: 0.0, 1: 1.0, 2: 2.0, 3: 11.0, 4: 45.0, 5: 99.0}}))
    assert (steady, longest) == (1.0, 34.0)
    assert gaps(course(delivered={"out": {0: 1.0}})) == (None, None)


def test_what_is_drawn_by_chance_is_not_compared():
    """With the reason; a run in which nothing else could be compared proves nothing."""
    why = "segment 'samples' is arbitrary, because of rand()"
    broken = judgement(reference=WRONG, differing=[3], batch=WRONG)
    alone = verdict(course(drawn={"out": why}), broken, None)
    assert (alone["held"], alone["failed"]) == (False, f"nothing can be compared: {why}")
    same = verdict(course(drawn={"out": why}), judgement(), None)
    assert (same["held"], same["not_compared"]) == (True, {}), "what happens to be the same is compared"
    rounded = verdict(course(drawn={"out": why}), judgement(reference=WRONG, differing=[3]), None)
    assert (rounded["held"], rounded["not_compared"]) == (True, {}), "the batch query leaves out the last digits"
    nothing = judgement(reference=WRONG, differing=[3], batch=Verdict(0, 0, 0, 0, 0))
    assert not verdict(course(drawn={"out": why}), nothing, None)["held"]
    both = {"out": {0: 0.0}, "exact": {0: 0.0}}
    beside = verdict(course(drawn={"out": why}, delivered=both), broken, None)
    assert (beside["held"], beside["not_compared"]) == (True, {"out": why})


def test_what_comes_from_a_draw_is_one():
    """However many segments later."""
    segments = {
        "samples": SimpleNamespace(inputs=("words",)),
        "counts": SimpleNamespace(inputs=("samples",)),
        "plain": SimpleNamespace(inputs=("words",)),
    }
    sinks = {f"{name}.out": SimpleNamespace(stream=name) for name in ("counts", "plain")}
    promises = {"samples": {"class": "arbitrary", "because": "rand()"}, "counts": {"class": "deterministic"}}
    found = drawn_sinks(SimpleNamespace(sinks=sinks), segments, promises)
    assert found == {"counts.out": "segment 'samples' is arbitrary, because of rand()"}

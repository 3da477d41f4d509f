"""The pacer decides epochs for all sources together, through kills at every claim and against a rival.

A source here is a row of numbers, a range is {"start", "end"}, and a planner refuses a range that does not follow the
one before it; so a lost, repeated or forgotten range fails at once. What was decided is read from the ledgers.
"""

import itertools
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.channel.manifest import Manifest, Producer
from anabranch.errors import Corrupt, Deposed
from anabranch.pacer import Downstream
from paced_numbers import Crash, World


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def dying(claims):
    """Return a hook that kills its pacer after so many claims."""
    left = itertools.count(claims, -1)

    def before(operation):
        if operation == "claim" and next(left) <= 0:
            raise Crash

    return before


def test_an_epoch_covers_all_sources(tmp_path):
    """Each claim gives every source its next range, the empty one where nothing waits or the source has ended."""
    world = World(tmp_path, a=7, b=2, idle=0, over=0)
    world.sources["over"].ends = True
    pacer = world.resumed()
    assert [world.step(pacer) for _ in range(4)] == ["claim", "claim", "claim", "claim-empty"]
    assert world.decided("a") == [(0, 3), (3, 6), (6, 7), ()]
    assert world.decided("b") == [(0, 2), (), (), ()]
    assert world.decided("idle") == world.decided("over") == [()] * 4
    assert [world.channel("a").manifest(epoch).rows for epoch in range(4)] == [3, 3, 1, 0]
    world.sources["idle"].rows = 1
    assert world.step(pacer) == "claim"
    assert [world.decided(name)[-1] for name in world.sources] == [(), (), (0, 1), ()]
    world.check()


@pytest.mark.parametrize("claims", range(4))
def test_a_partly_claimed_epoch_is_completed_first(tmp_path, claims):
    """A pacer dies after claiming epoch 1 for no, one, two or all sources; the next one completes it, then goes on."""
    world = World(tmp_path, a=9, b=5, c=0)
    dead = world.resumed(dying(3 + claims))
    world.step(dead)
    if claims < 3:
        with pytest.raises(Crash):
            world.step(dead)
    else:
        world.step(dead)
    before = {name: world.decided(name) for name in world.sources}
    for name in world.sources:
        world.sources[name].rows += 1
    pacer = world.resumed()
    epochs = 2 if claims else 1
    assert pacer.last_epoch == epochs - 1
    for name, ranges in before.items():
        assert world.decided(name)[: len(ranges)] == ranges
        assert len(world.decided(name)) == epochs
    for _ in range(4):
        world.step(pacer)
    world.check()
    assert [max(end for _, end in filter(None, world.decided(name))) for name in "abc"] == [10, 6, 1]


@settings(max_examples=40)
@given(
    lives=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), max_size=5),
    rows=st.lists(st.integers(0, 9), min_size=1, max_size=3),
)
def test_no_row_is_lost_or_taken_twice_whenever_pacers_die(lives, rows):
    """However often the pacer is killed, sources stay aligned and every planner hears each range once, in order."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory), **dict(zip("abc", rows, strict=False)))
        for claims, arriving in [*lives, (10**6, 0)]:
            pacer = world.pacer(dying(claims))
            try:
                pacer.resume()
                for _ in range(6):
                    world.step(pacer)
            except Crash:
                pass
            for source in world.sources.values():
                source.rows += arriving
        world.step(pacer)
        world.check()
        for name, source in world.sources.items():
            ranges = [dict(zip(("start", "end"), some, strict=False)) for some in world.decided(name)]
            for planner in source.planners:
                assert planner.applied == ranges[: len(planner.applied)]
            assert source.planners[-1].applied == ranges


# Two pacers


@pytest.mark.parametrize("stopping", [False, True])
def test_a_range_decided_by_another_pacer_wins(tmp_path, stopping):
    """A pacer that loses a claim takes the winner's range, whatever it had planned, and goes on after it."""
    world = World(tmp_path, a=2)
    claims = itertools.count()

    def before(operation):
        if operation == "claim" and next(claims) == 1:
            world.sources["a"].rows = 4
            world.step(world.resumed())

    pacer = world.resumed(before)
    world.step(pacer)
    world.sources["a"].rows = 3
    if stopping:
        pacer.stop_taking()
    assert world.step(pacer) == ("claim-empty" if stopping else "claim")
    assert world.decided("a") == [(0, 2), (2, 4)]
    assert world.sources["a"].planners[0].applied == [{"start": 0, "end": 2}, {"start": 2, "end": 4}]


def rivalry(world, moment, steps):
    """Let a rival resume and take steps before the n-th operation of a pacer; say whether it came to that."""
    rival = world.pacer()
    operations = itertools.count(1)
    met = []

    def before(_operation):
        if next(operations) == moment:
            met.append(True)
            rival.resume()
            for _ in range(steps):
                world.step(rival)

    pacer = world.resumed(before)
    for _ in range(5):
        world.step(pacer)
    if met:
        for both in (rival, pacer, rival):
            world.step(both)
    return bool(met)


@pytest.mark.parametrize("claimed", [0, 1], ids=["from the beginning", "half an epoch is claimed"])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_two_pacers_agree_on_one_plan(tmp_path, claimed, steps):
    """Whenever a rival comes in between, both pacers end with the same ranges, and no row is in two of them."""
    for moment in itertools.count(1):
        world = World(tmp_path / str(moment), a=20, b=7)
        dead = world.resumed(dying(claimed))
        with pytest.raises(Crash):
            world.step(dead)
        met = rivalry(world, moment, steps)
        world.check()
        if not met:
            assert moment > 10
            return


# Going on after trimming


def test_a_pacer_resumes_from_noted_positions(tmp_path):
    """After fifty epochs positions are noted, plans up to them may be trimmed, and a new pacer goes on from there."""
    world = World(tmp_path, a=10_000, b=4)
    pacer = world.resumed()
    for _ in range(53):
        world.step(pacer)
    for name in world.sources:
        assert world.channel(name).noted_position() == 49
        world.channel(name).trim(49)
    again = world.resumed()
    assert again.last_epoch == 52
    world.step(again)
    assert world.decided("a") == [(150, 153), (153, 156), (156, 159), (159, 162)]
    assert world.decided("b") == [(), (), (), ()]
    assert len(world.sources["a"].planners[-1].applied) == 4


def test_a_pacer_that_slept_through_a_trim_is_deposed(tmp_path):
    """While it slept another took its place: what it needs is gone, and that is no damage."""
    world = World(tmp_path, a=10_000)
    asleep = world.resumed()
    world.step(asleep)
    awake = world.resumed()
    for _ in range(60):
        world.step(awake)
    world.channel("a").trim(49)
    with pytest.raises(Deposed):
        world.step(asleep)


def test_two_positions_are_kept(tmp_path):
    """An older position stays until a second newer one is there; more are not kept."""
    world = World(tmp_path, a=10_000)
    pacer = world.resumed()
    for _ in range(150):
        world.step(pacer)
    assert sorted(os.listdir(world.channel("a").path / "positions")) == [f"{99:012d}", f"{149:012d}"]


def test_a_hole_in_the_plans_is_corrupt(tmp_path):
    """A missing epoch below the last is damage, named with the source; it is not planned anew."""
    world = World(tmp_path, a=9)
    for epoch in (0, 2):
        manifest = Manifest(epoch, Producer("pacer", "n0", 0), 0.0, rows=0, planned={})
        world.channel("a").release(manifest)
    with pytest.raises(Corrupt, match="'a' lacks epoch 1, though 2"):
        world.pacer().resume()


# Empty epochs, the end, and back pressure


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("killed_after", range(5))
def test_rows_are_followed_by_as_many_empty_epochs_as_segments(tmp_path, depth, killed_after):
    """Before it finishes, a pacer claims one empty epoch per segment in a row, also if it was killed in between."""
    world = World(tmp_path, a=4, b=1)
    world.sources["a"].ends = world.sources["b"].ends = True
    instructions = []
    for steps in (killed_after, 10):
        pacer = world.resumed(depth=depth)
        for _ in range(steps):
            instructions.append(world.step(pacer))
            if instructions[-1] == "finish":
                break
    assert [some for some in instructions if some != "finish"] == ["claim"] * 2 + ["claim-empty"] * depth
    assert instructions[-1] == "finish"
    assert pacer.last_epoch == 1 + depth
    world.check()


def test_rows_that_come_late_start_the_empty_epochs_anew(tmp_path):
    """What is owed is counted from the last rows."""
    world = World(tmp_path, a=1)
    world.sources["a"].ends = True
    pacer = world.resumed(depth=2)
    assert [world.step(pacer), world.step(pacer)] == ["claim", "claim-empty"]
    world.sources["a"].rows = 2
    assert [world.step(pacer) for _ in range(4)] == ["claim", "claim-empty", "claim-empty", "finish"]


def test_a_pacer_does_not_finish_while_a_source_may_go_on(tmp_path):
    """One source that has not ended keeps the others' pipeline open; empty epochs come only now and then."""
    world = World(tmp_path, a=1, b=1)
    world.sources["a"].ends = True
    pacer = world.resumed()
    instructions = [world.step(pacer) for _ in range(25)]
    assert instructions[:3] == ["claim", "claim-empty", "wait"]
    assert (instructions.count("claim-empty"), instructions.count("finish")) == (3, 0)


@pytest.mark.parametrize(
    ("taken", "received", "instruction"), [(0, 0, "claim"), (-1, 0, "wait"), (0, -4, "wait"), (0, -3, "claim")]
)
def test_a_pacer_waits_for_the_pipeline(tmp_path, taken, received, instruction):
    """Nothing is claimed while the first segments lack the last epoch, or too many epochs are in flight."""
    world = World(tmp_path, a=9)
    pacer = world.resumed()
    world.step(pacer)
    assert world.step(pacer, Downstream(taken=taken, received=received)) == instruction
    assert len(world.decided("a")) == (2 if instruction == "claim" else 1)


def test_closing_asks_every_source_once(tmp_path):
    """A drain closes all sources, however often it is asked for."""
    world = World(tmp_path, a=1, b=1)
    pacer = world.resumed()
    pacer.close()
    pacer.close()
    assert [source.planners[-1].closed for source in world.sources.values()] == [1, 1]


def test_a_stop_takes_nothing_more(tmp_path):
    """After a stop waiting rows stay where they are; the next run takes them from the noted position."""
    world = World(tmp_path, a=9)
    pacer = world.resumed()
    world.step(pacer)
    pacer.stop_taking()
    assert [world.step(pacer), world.step(pacer)] == ["claim-empty", "finish"]
    pacer.note_positions()
    again = world.resumed()
    world.step(again)
    assert world.decided("a") == [(0, 3), (), (3, 6)]

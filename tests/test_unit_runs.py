"""Runs of a unit without Spark: every start is a new directory, and a crash anywhere repeats nothing and loses nothing.

`Life` plays Spark's part: it writes the offset entry, calls the unit's function with the rows, and writes the commit.
A crash is a life that ends early.
"""

import itertools
import os
import time

import pytest

from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Producer
from anabranch.errors import Corrupt, Misaligned, Trimmed
from anabranch.runs import new_run, newest_commit
from unit_lives import SCHEMA, Crash, Life


def test_run_ids_are_new_and_sort_by_age(tmp_path):
    """No two starts share an id, also when both were chosen at the same moment; foreign names do not disturb."""
    ids = []
    for _ in range(3):
        ids += [new_run(tmp_path), new_run(tmp_path)]
        (tmp_path / "runs" / ids[-1]).mkdir(parents=True)
        (tmp_path / "runs" / "r999999.notours").mkdir(exist_ok=True)
    assert len(set(ids)) == 6
    assert [run[:7] for run in ids] == ["r000000", "r000000", "r000001", "r000001", "r000002", "r000002"]


def test_every_start_is_a_directory_of_its_own(home):
    """A life goes on in a new directory, and a directory that exists is not entered."""
    lives = []
    for epoch in range(3):
        lives.append(Life(home))
        assert lives[-1].after == epoch - 1
        lives[-1].whole(epoch, epoch)
    assert len(home.runs()) == 3
    late = home.unit()
    (home.directory / "runs" / late.run).mkdir()
    with pytest.raises(FileExistsError):
        late.prepare()


def test_the_newest_commit_is_found(home):
    """The run with the highest committed epoch counts, the younger one of equals, and none without a commit."""
    assert newest_commit(home.directory) is None
    first = Life(home)
    assert newest_commit(home.directory) is None
    first.whole(0, 1)
    second = Life(home)
    assert newest_commit(home.directory)[0] == second.unit.run
    first.whole(1, 1)
    run, commit = newest_commit(home.directory)
    assert (run, commit.epoch, commit.batch_id) == (first.unit.run, 1, 1)


@pytest.mark.parametrize("operation", ["link", "rename"])
def test_a_start_that_dies_leaves_the_old_run_in_charge(home, operation):
    """Wherever a start dies while it links, the next one still goes on from the last whole run."""
    first = Life(home)
    for epoch in range(3):
        first.whole(epoch, epoch)
    for number in itertools.count(1):
        real, calls = getattr(os, operation), itertools.count(1)

        def stop(*given, real=real, calls=calls, number=number):
            if next(calls) >= number:
                raise Crash
            return real(*given)

        dead = home.unit()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, operation, stop)
            try:
                dead.prepare()
            except Crash:
                assert not (home.directory / "runs" / dead.run / "checkpoint").exists()
                assert newest_commit(home.directory)[0] == first.unit.run
                continue
        assert newest_commit(home.directory)[0] == dead.run
        assert number > (6 if operation == "link" else 1)
        return


STOPS = ("planned", "released", "committed")


@pytest.mark.parametrize("stops", list(itertools.product(STOPS, repeat=2)), ids="-".join)
def test_an_epoch_is_published_once_wherever_runs_die(home, stops):
    """Lives end after planning, releasing or committing an epoch; every epoch is published once, with its own rows."""
    for stop in (*stops, "committed"):
        life = Life(home)
        epoch = life.after + 1
        life.plan(epoch, epoch)
        if stop != "planned":
            life.execute(epoch, epoch + 100)
        if stop == "committed":
            life.commit()
            life.whole(epoch + 1, epoch + 1)
    assert home.published() == {slot: [slot, slot + 100][: len(rows)] for slot, rows in home.published().items()}
    assert sorted(home.published()) == list(range(life.unit.committed() + 1))
    assert home.diverged == []
    assert len(os.listdir(home.output.parts)) == len(home.published())


def test_other_rows_in_a_repeated_epoch_are_reported(home):
    """A step that gives other rows when it is executed again is found out, and what was published stays."""
    first = Life(home)
    first.plan(0, 0)
    first.execute(1, 2)
    again = Life(home)
    again.plan(0, 0)
    again.execute(1, 3)
    assert home.published() == {0: [1, 2]}
    assert len(home.diverged) == 1
    assert "'counts' gave other rows for epoch 0" in home.diverged[0].message
    assert home.diverged[0].hint


def test_a_zombie_publishes_nothing(home):
    """A run that was replaced and wakes up loses its claim, and takes only its own parts away."""
    zombie = Life(home)
    zombie.plan(0, 0)
    heir = Life(home)
    heir.whole(0, 1, 2)
    zombie.execute(1, 2)
    assert home.published() == {0: [1, 2]}
    assert [heir.unit.run in name for name in os.listdir(home.output.parts)] == [True]
    assert home.diverged == []


def test_a_misaligned_batch_is_neither_published_nor_inherited(home):
    """A batch whose inputs disagree raises, publishes and acknowledges nothing; the next run does not meet it again."""
    first = Life(home)
    first.whole(0, 1)
    first.plan(1, 2)
    with pytest.raises(Misaligned):
        first.execute(9)
    heir = Life(home)
    assert heir.after == 0
    assert os.listdir(heir.checkpoint / "offsets") == ["0"]
    assert (home.published(), home.inputs["a"].received("counts")) == ({0: [1]}, 0)


def test_commits_decide_what_is_safe(home):
    """Planned and published epochs are received; only committed ones are safe to trim, on every input."""
    life = Life(home)
    life.plan(0, 0)
    life.execute(1)
    life.unit.declare_safe()
    assert (life.unit.committed(), home.inputs["a"].received("counts"), home.inputs["a"].safe("counts")) == (-1, 0, -1)
    life.commit()
    life.unit.declare_safe()
    assert [channel.safe("counts") for channel in home.inputs.values()] == [0, 0]
    assert home.released == [0]


def test_replaced_runs_go_once_the_new_one_has_their_state(home):
    """A run that holds a commit makes its predecessors superfluous, and their acknowledgements too."""
    old = Life(home)
    old.plan(0, 0)
    old.execute(1)
    heir = Life(home)
    heir.unit.declare_safe()
    assert len(home.runs()) == 2, "nothing is committed: nothing may go"
    heir.whole(0, 1)
    heir.unit.declare_safe()
    assert home.runs() == [heir.unit.run]
    assert os.listdir(home.inputs["a"].path / "acks" / "counts").count(f"{old.unit.run}.json") == 0


def test_what_a_start_left_unfinished_goes_with_the_replaced_runs(home):
    """If it is older than any start takes; another node may just be making a run."""
    first = Life(home)
    first.whole(0, 1)
    runs = first.unit.directory.parent
    for name, age_s in ((".tmp-r000000.00000000", 3600), (".tmp-r000000.00000001", 5), (".tmp-r000009.00000000", 3600)):
        (runs / name / "checkpoint").mkdir(parents=True)
        os.utime(runs / name, (time.time() - age_s,) * 2)
    second = Life(home)
    second.unit.remove_former_runs()
    assert sorted(path.name for path in runs.glob(".tmp-*")) == [".tmp-r000000.00000001", ".tmp-r000009.00000000"]


def test_a_replaced_run_does_not_remove_its_heir(home):
    """A run that does not know that it was replaced must not take its successor's directory away."""
    zombie = Life(home)
    zombie.whole(0, 1)
    heir = Life(home)
    heir.whole(1, 2)
    zombie.unit.declare_safe()
    assert heir.unit.run in home.runs()
    assert newest_commit(home.directory)[0] == heir.unit.run


def test_noted_watermarks_go_to_the_next_run(home):
    """What Spark would forget of its watermarks is linked for the batch that was committed last, and no other."""
    first = Life(home)
    first.whole(0, 1)
    for batch_id in range(2):
        (home.directory / "runs" / first.unit.run / "watermarks" / str(batch_id)).write_text("[7]")
    heir = home.unit()
    heir.prepare()
    assert os.listdir(home.directory / "runs" / heir.run / "watermarks") == ["0"]


def test_state_ahead_of_the_output_is_refused(home, tmp_path):
    """State of an epoch that was never published means that the output was damaged."""
    Life(home).whole(0, 1)
    home.output = Channel.create(tmp_path / "emptied", ChannelSpec("counts", SCHEMA))
    with pytest.raises(Corrupt, match="'counts' has state of epoch 0, but its output has 0 epochs") as caught:
        Life(home)
    assert caught.value.hint


def test_a_start_below_the_floor_of_an_input_is_refused(home):
    """A unit whose next epoch was trimmed says so before it starts, instead of waiting for ever."""
    for epoch in range(4):
        home.inputs["b"].release(Manifest(epoch, Producer("b", "n", 0), 0.0, rows=0))
    home.inputs["b"].trim(1)
    with pytest.raises(
        Trimmed, match="'counts' would go on after epoch -1, but its input 'b' is trimmed up to 1"
    ) as caught:
        Life(home)
    assert caught.value.hint

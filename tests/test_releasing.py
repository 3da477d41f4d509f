"""When a replica publishes, by policy; and which state belongs to what was published."""

import os
import threading

import pyarrow as pa
import pytest

from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Part, Producer
from anabranch.channel.writer import Planned
from anabranch.checkpoint import Commit
from anabranch.choosing import acceptable, fits
from anabranch.clock import ManualClock
from anabranch.errors import Deposed, Superseded
from anabranch.keeper.version import KeptFile, Version
from anabranch.pending import Pending, origin_at, pending_files
from anabranch.releasing import Releasing
from anabranch.runs import RunDirectory
from anabranch.testing.wait import wait_until

RUN, OTHER = "r000001.aaaaaaaa", "r000002.bbbbbbbb"
TIMEOUT_S = 30.0


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def output(tmp_path):
    return Channel.create(tmp_path / "counts", ChannelSpec("counts", pa.schema([("n", pa.int64())])))


@pytest.fixture
def runs(tmp_path):
    for run in (RUN, OTHER):
        (tmp_path / run).mkdir()
    return tmp_path


def manifest(epoch, digit="1", run=RUN, generation=0, rows=1):
    part = Part(f"{epoch}-{run}-0-0.arrow", rows, 1, 1)
    return Manifest(epoch, Producer("counts", run, generation), 0.0, rows, digit * 32, (part,))


def commit(epoch):
    return Commit(epoch, Planned(epoch, None))


def releasing(output, runs, policy):
    return Releasing(output, Pending(runs / RUN), policy, ManualClock(9.0))


def test_a_leader_publishes_at_once(output, runs):
    """In its own generation, whatever the manifest says."""
    leader = releasing(output, runs, "leader")
    leader.promote(4)
    published = leader(manifest(0))
    assert (published.producer.generation, published.released_s) == (4, 9.0)
    assert output.manifest(0) == published


@pytest.mark.parametrize("ended_by", ["promotion", "primary", "stop"])
def test_a_standby_withholds(output, runs, ended_by):
    """Until it is promoted, or the primary has published the epoch, or it is told to end."""
    standby, found = releasing(output, runs, "leader"), []

    def release():
        try:
            found.append(standby(manifest(0)))
        except Deposed as error:
            found.append(error)

    thread = threading.Thread(target=release)
    thread.start()
    assert output.last_epoch() == -1
    if ended_by == "promotion":
        standby.promote(7)
    elif ended_by == "primary":
        output.release(manifest(0, run=OTHER))
    else:
        standby.stop()
    thread.join(TIMEOUT_S)
    wait_until(lambda: found, TIMEOUT_S, "the standby")
    if ended_by == "stop":
        assert isinstance(found[0], Deposed)
        assert output.last_epoch() == -1
    else:
        assert found[0].producer.run == (RUN if ended_by == "promotion" else OTHER)


def test_whoever_has_written_publishes(output, runs):
    """Without a lease, and the second one loses."""
    racing = releasing(output, runs, "written")
    assert racing(manifest(0)).producer.generation == -1
    output.release(manifest(1, run=OTHER))
    assert racing(manifest(1)).producer.run == OTHER


def test_what_is_not_shipped_is_pending(output, runs):
    """It is published in order, up to what every store has."""
    shipping = releasing(output, runs, "shipped")
    for epoch in range(3):
        assert shipping(manifest(epoch)) is None
    assert output.last_epoch() == -1
    assert [done.epoch for done in shipping.shipped(1)] == [0, 1]
    assert [pending.epoch for pending in shipping.pending.manifests()] == [2]
    assert [done.epoch for done in shipping.shipped(2)] == [2]
    assert list(shipping.shipped(9)) == []
    assert output.last_epoch() == 2
    assert shipping.settled


def test_a_run_that_published_only_what_it_inherited_is_not_settled(output, runs):
    """The run before it may still be alive, and go on."""
    shipping = releasing(output, runs, "shipped")
    shipping.pending.add(manifest(0, run=OTHER))
    assert [done.producer.run for done in shipping.shipped(0)] == [OTHER]
    assert not shipping.settled
    shipping(manifest(1))
    assert list(shipping.shipped(1))
    assert shipping.settled
    assert releasing(output, runs, "leader").settled


def test_other_rows_supersede_a_run(output, runs):
    """It publishes nothing after them; the same rows by another run are no harm."""
    shipping = releasing(output, runs, "shipped")
    for epoch in range(4):
        shipping(manifest(epoch))
    output.release(manifest(0, run=OTHER))
    output.release(manifest(1, "2", run=OTHER))
    assert [done.epoch for done in shipping.shipped(3)] == [0]
    assert isinstance(shipping.superseded, Superseded)
    assert output.last_epoch() == 1


def test_what_was_trimmed_in_the_meantime_supersedes_a_run(output, runs):
    """Whoever published it did so without this run, and its consumers are done with it."""
    shipping = releasing(output, runs, "shipped")
    shipping(manifest(0))
    for epoch in range(3):
        output.release(manifest(epoch, "2", run=OTHER))
    output.trim(1)
    assert list(shipping.shipped(0)) == []
    assert isinstance(shipping.superseded, Superseded)


def test_what_is_published_already_is_not_inherited(output, runs):
    """A run that died between publishing and forgetting leaves it behind; by now it may be trimmed."""
    for epoch in range(3):
        Pending(runs / RUN).add(manifest(epoch))
    Pending(runs / OTHER).inherit(runs / RUN, commit(2), published=1)
    assert [one.epoch for one in Pending(runs / OTHER).manifests()] == [2]


def test_a_run_that_executes_what_others_published_is_superseded(output, runs):
    """If its rows are not the same, and only where that matters."""
    releasing(output, runs, "leader").refuse_other_history(manifest(0))
    with pytest.raises(Superseded, match="epoch 0"):
        releasing(output, runs, "shipped").refuse_other_history(manifest(0))


def test_state_fits_if_its_epoch_was_published_by_its_run(output, runs):
    """And not if another run published it, nor if it is unknown."""
    output.release(manifest(0))
    output.release(manifest(1, "2", run=OTHER))
    assert fits(output, RunDirectory(runs / RUN), 0)
    assert not fits(output, RunDirectory(runs / RUN), 1)
    assert fits(output, RunDirectory(runs / OTHER), 1)
    assert not fits(output, RunDirectory(runs / RUN), 2)


def test_a_batch_over_nothing_is_no_state(output, runs):
    """Spark commits one before there is an epoch: it can be gone on from until something is published."""
    assert fits(output, RunDirectory(runs / RUN), -1)
    output.release(manifest(0))
    assert not fits(output, RunDirectory(runs / RUN), -1)


def test_state_ahead_fits_if_everything_in_between_is_pending(output, runs):
    """Whoever goes on from it publishes that first."""
    output.release(manifest(0))
    pending = Pending(runs / RUN)
    pending.add(manifest(1))
    assert fits(output, RunDirectory(runs / RUN), 1)
    pending.add(manifest(3))
    assert not fits(output, RunDirectory(runs / RUN), 3)
    pending.add(manifest(2))
    assert fits(output, RunDirectory(runs / RUN), 3)
    output.release(manifest(1, "2", run=OTHER))
    assert not fits(output, RunDirectory(runs / RUN), 3), "another history has begun"


def test_a_run_that_has_only_begun_has_the_state_of_its_predecessor(output, runs):
    """With what was pending there; also if that one had only begun itself."""
    output.release(manifest(0))
    Pending(runs / RUN).add(manifest(1))
    third = runs / "r000003.cccccccc"
    third.mkdir()
    Pending(runs / OTHER).inherit(runs / RUN, commit(1), published=0)
    Pending(third).inherit(runs / OTHER, commit(1), published=0)
    for run in (runs / OTHER, third):
        assert [one.epoch for one in Pending(run).manifests()] == [1]
        assert fits(output, RunDirectory(run), 1)
    output.release(manifest(1))
    assert fits(output, RunDirectory(third), 1)
    assert not fits(output, RunDirectory(third), 0)
    assert [origin_at(third, epoch) for epoch in (0, 1)] == [third.name, RUN]


def test_what_is_pending_is_shipped_with_its_parts(output, runs):
    """Up to the epoch of the version."""
    pending = Pending(runs / RUN)
    for epoch in range(3):
        pending.add(manifest(epoch))
    names = [path.name for path in pending_files(pending, output, 1)]
    assert names == ["000000000000", "000000000001", f"0-{RUN}-0-0.arrow", f"1-{RUN}-0-0.arrow"]


def test_versions_fit_as_runs_do(output):
    """By what is published, and by what they carry."""

    def version(epoch, run, *pending, origin=""):
        files = tuple(KeptFile(f"units/counts/runs/{run}/pending/{number:012d}", 1, 1) for number in pending)
        return Version("counts", run, epoch, epoch, 0.0, files, origin)

    output.release(manifest(0))
    output.release(manifest(1, "2", run=OTHER))
    assert acceptable(output, version(0, RUN))
    assert not acceptable(output, version(1, RUN))
    assert acceptable(output, version(1, RUN, origin=OTHER)), "kept by a run that had only begun with this state"
    assert acceptable(output, version(1, OTHER))
    assert acceptable(output, version(3, OTHER, 2, 3))
    assert not acceptable(output, version(3, OTHER, 3))

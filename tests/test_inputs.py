"""The inputs of a query stay on one epoch, however epochs arrive between two polls.

A round is what Spark does before a micro-batch: it polls every leaf of its plan, in order. The model is a number: the
epoch that all leaves are at.
"""

import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.inputs import Alignment, Gate, Inputs
from anabranch.channel.manifest import Manifest, Producer
from anabranch.errors import Trimmed

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Query:
    """A query's leaves, polled by hand; `names` may name an input twice, as a self-join does."""

    def __init__(self, directory, names):
        self.run = directory / "run"
        self.run.mkdir(parents=True)
        self.names = names
        self.channels = {
            name: Channel.create(directory / name, ChannelSpec(name, SCHEMA)) for name in dict.fromkeys(names)
        }
        self.published = dict.fromkeys(names, -1)
        self.inputs = Inputs(self.run, {name: channel.path for name, channel in self.channels.items()})
        self.restart()

    def restart(self):
        """Begin from nothing, in whatever directory `run` is now."""
        self.offsets = [-1] * len(self.names)
        self.readers = [Alignment(self.run) for _ in self.names]

    def open_gate(self):
        self.inputs.save()
        self.inputs.open_gate(Gate())

    def publish(self, name):
        epoch = self.published[name] = self.published[name] + 1
        manifest = Manifest(epoch, Producer("pacer", "n1", 0), 0.0, rows=0, planned={})
        assert self.channels[name].release(manifest).won

    def poll(self, leaf):
        self.offsets[leaf] = self.readers[leaf].next_epoch(self.offsets[leaf])
        return self.offsets[leaf]

    def round(self):
        return [self.poll(leaf) for leaf in range(len(self.names))]


NAMES = ["a", "b", "c"]
ROUNDS = st.lists(st.lists(st.lists(st.sampled_from(NAMES), max_size=2), min_size=3, max_size=3), max_size=8)


@settings(max_examples=50)
@given(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3), rounds=ROUNDS)
def test_all_inputs_of_a_round_agree(names, rounds):
    """Whatever is published before and between the polls, a round moves all leaves by one epoch or none."""
    with tempfile.TemporaryDirectory() as directory:
        query = Query(Path(directory), names)
        query.open_gate()
        at = -1
        for published in rounds:
            ready = False
            for leaf in range(len(names)):
                for name in published[leaf]:
                    if name in query.published:
                        query.publish(name)
                ready = ready or (leaf == 0 and min(query.published.values()) > at)
                query.poll(leaf)
            at += int(ready)
            assert query.offsets == [at] * len(names)
            assert at <= min(query.published.values())


@pytest.mark.parametrize("names", [["a", "a"], ["a", "b", "a"]], ids=["self-join", "the leader again at the end"])
def test_an_input_that_is_read_twice_agrees_with_itself(tmp_path, names):
    """An epoch that arrives between the polls of two leaves over one input is read by both in the next round."""
    query = Query(tmp_path, names)
    query.open_gate()
    query.poll(0)
    for name in query.published:
        query.publish(name)
    for leaf in range(1, len(names)):
        query.poll(leaf)
    assert query.offsets == [-1] * len(names)
    assert query.round() == [0] * len(names)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@pytest.mark.parametrize("names", [["a", "b"], ["a", "a"]])
def test_who_is_polled_first_leads(tmp_path, names, order):
    """Seats are taken in the order of the first poll, also before the gate opens, and kept: only the first decides."""
    query = Query(tmp_path, names)
    query.inputs.save()
    leader, follower = order
    query.poll(leader)
    query.poll(follower)
    query.inputs.open_gate(Gate())
    for name in query.published:
        query.publish(name)
    assert query.poll(follower) == -1
    assert (query.poll(leader), query.poll(follower)) == (0, 0)
    assert sorted(path.name for path in query.run.glob("seat-*")) == ["seat-0", "seat-1"]


def test_a_seat_is_taken_once_in_a_run(tmp_path):
    """A reader that is opened again where another led does not lead too; it follows the note as it stands."""
    query = Query(tmp_path, ["a", "b"])
    query.open_gate()
    for name in ["a", "b", "a", "b"]:
        query.publish(name)
    assert query.poll(0) == 0
    query.readers = [Alignment(query.run) for _ in query.names]
    assert [query.round(), query.round()] == [[0, 0]] * 2


def test_a_closed_gate_gives_nothing(tmp_path):
    """Until the gate is opened no input moves, though everything is there; then each round gives one epoch."""
    query = Query(tmp_path, ["a", "b"])
    query.inputs.save()
    for name in ["a", "b", "a", "b"]:
        query.publish(name)
    assert [query.round(), query.round()] == [[-1, -1]] * 2
    query.inputs.open_gate(Gate())
    assert [query.round(), query.round(), query.round()] == [[0, 0], [1, 1], [1, 1]]


def test_a_gate_that_opens_between_two_polls_waits_for_the_next_round(tmp_path):
    """The follower does not run ahead of a leader that found the gate closed."""
    query = Query(tmp_path, ["a", "b"])
    for name in ["a", "b"]:
        query.publish(name)
    query.poll(0)
    query.open_gate()
    assert query.poll(1) == -1
    assert query.round() == [0, 0]


@pytest.mark.parametrize("missing", ["a", "b", "c"])
def test_the_leader_waits_for_every_input(tmp_path, missing):
    """One input without the next epoch holds all of them."""
    query = Query(tmp_path, NAMES)
    query.open_gate()
    for name in set(NAMES) - {missing}:
        query.publish(name)
    assert query.round() == [-1, -1, -1]
    query.publish(missing)
    assert query.round() == [0, 0, 0]


def test_a_gate_lets_a_query_follow_in_large_steps(tmp_path):
    """Up to an epoch everything is read at once, by all inputs alike, and no further; once open, epoch by epoch."""
    query = Query(tmp_path, ["a", "b"])
    for _ in range(9):
        for name in ("a", "b"):
            query.publish(name)
    query.inputs.save()
    query.inputs.open_gate(Gate(3, open=False))
    assert [query.round() for _ in range(2)] == [[3, 3], [3, 3]]
    query.inputs.open_gate(Gate(5, open=False))
    assert [query.round() for _ in range(2)] == [[5, 5], [5, 5]]
    query.inputs.open_gate(Gate(6))
    assert [query.round() for _ in range(4)] == [[6, 6], [7, 7], [8, 8], [8, 8]]


@pytest.mark.parametrize(
    ("note", "gives"), [(None, 3), (b"2 3", 3), (b"3 3", 3), (b"3 4", 4), (b"3 6", 6), (b"4 5", 3)]
)
def test_a_follower_goes_where_the_note_says(tmp_path, note, gives):
    """At epoch 3 a follower moves only with a leader that was at 3 too, whatever its own channel holds."""
    query = Query(tmp_path, ["a", "b"])
    query.open_gate()
    query.poll(0)
    for _ in range(6):
        query.publish("b")
    if note is not None:
        (query.run / "note").write_bytes(note)
    assert query.readers[1].next_epoch(3) == gives


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "a"]])
def test_what_a_run_writes_down(tmp_path, names):
    """One note that is replaced and one seat per source: what is written does not grow with the epochs."""
    query = Query(tmp_path, names)
    query.open_gate()
    for epoch in range(2):
        for name in query.published:
            query.publish(name)
        assert query.round() == [epoch] * len(names)
        assert (query.run / "note").read_text() == f"{epoch - 1} {epoch}"
    seats = [f"seat-{number}" for number in range(len(names))]
    assert sorted(os.listdir(query.run)) == ["gate", "inputs.json", "note", *seats]


def test_a_new_run_does_not_follow_an_old_note(tmp_path):
    """A new run begins without a note: its followers wait for their own leader."""
    query = Query(tmp_path, ["a", "b"])
    query.open_gate()
    for name in ["a", "b"]:
        query.publish(name)
    query.round()
    query.run = tmp_path / "next run"
    query.run.mkdir()
    query.inputs = Inputs(query.run, query.inputs.channels)
    query.restart()
    assert query.round() == [-1, -1]
    query.open_gate()
    assert query.poll(1) == -1
    assert query.round() == [0, 0]


def test_the_inputs_come_back_as_they_were(tmp_path):
    """Where the channels are is written down for the readers, which live in other processes."""
    inputs = Inputs(tmp_path, {"z": tmp_path / "z", "a": tmp_path / "a"})
    inputs.save()
    again = Inputs.load(tmp_path)
    assert again == inputs
    assert list(again.channels) == ["z", "a"]


def test_an_input_below_its_floor_is_loud(tmp_path):
    """A query that would go on with a trimmed epoch is told so, instead of waiting for ever."""
    query = Query(tmp_path, ["a"])
    query.open_gate()
    for _ in range(3):
        query.publish("a")
    query.channels["a"].trim(1)
    with pytest.raises(Trimmed):
        query.round()

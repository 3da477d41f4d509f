"""The status of a work directory: read from files and agents, whatever state they are in."""

import json
import os
import socket

import pyarrow as pa
import pytest

from anabranch.agent import Agent
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Part, Producer
from anabranch.status import channel_status, collect
from anabranch.work import Announcement, Work

IDENTITY = {
    "pipeline": "orders",
    "spark": "4.3.0",
    "timezone": "UTC",
    "state_partitions": 2,
    "sources": {"lines": {}},
    "segments": {"clean": {"inputs": ["lines"]}, "counts": {"inputs": ["clean"]}},
    "sinks": {"counts.parquet": "counts", "clean.console": "clean"},
}


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def work(tmp_path):
    return Work.create(tmp_path)


def channel_of(work, name, *rows, source=False):
    """Make a channel with one epoch per number, of that many rows; None is a planned range of unknown size."""
    channel = Channel.create(work.channel_path(name), ChannelSpec(name, pa.schema([("n", pa.int64())])))
    for epoch, count in enumerate(rows):
        parts = (Part(f"{epoch}-r0-0-0.arrow", count, 1, 1),) if count and not source else ()
        planned = {"files": [epoch]} if source else None
        channel.release(Manifest(epoch, Producer(name, "r0", 0), 0.0, rows=count, parts=parts, planned=planned))
    return channel


def test_a_new_directory_has_a_status(work):
    """Before anything ran there is nothing to show, and no error."""
    assert collect(work) == {"pipeline": None, "nodes": [], "channels": [], "failovers": [], "events": []}


def test_channels_show_their_extent_and_readers(work):
    """First and last epoch kept, their rows, and how far the slowest consumer is behind."""
    work.pin(IDENTITY)
    clean = channel_of(work, "clean", 5, 0, 7, 1)
    clean.acknowledge("counts", "r0", 3)
    clean.acknowledge("clean.console", "n0", 0)
    clean.declare_safe("clean.console", 1)
    clean.trim(0)
    assert channel_status(work, "clean", work.identity()) == {
        "name": "clean",
        "first": 1,
        "last": 3,
        "rows": 8,
        "pending": 2,
        "consumers": {"counts": 3, "clean.console": 1},
    }


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        ("lines", [], {"first": None, "last": None, "rows": 0, "pending": 0, "consumers": {"clean": -1}}),
        ("counts", [1, 2], {"first": 0, "last": 1, "rows": 3, "pending": 2, "consumers": {"counts.parquet": -1}}),
        ("unread", [1], {"first": 0, "last": 0, "rows": 1, "pending": 0, "consumers": {}}),
    ],
)
def test_channels_at_the_edges(work, name, rows, expected):
    """An empty channel, one that nobody has begun to read, and one that nobody reads."""
    work.pin(IDENTITY)
    channel_of(work, name, *rows)
    assert channel_status(work, name, work.identity()) == {"name": name, **expected}


def test_rows_of_unknown_ranges_are_not_guessed(work):
    """A source that knows only byte ranges has an unknown number of rows."""
    channel_of(work, "lines", 3, None, source=True)
    assert channel_status(work, "lines", {})["rows"] is None


def test_a_status_taken_during_a_trim_is_no_error(work, monkeypatch):
    """Epochs that go while they are counted are not counted; a running pipeline trims every second."""
    channel = channel_of(work, "counts", 1, 2, 3)
    real = channel.ledger.slots

    def slots():
        listed = real()
        channel.trim(0)
        return listed

    channel.ledger.slots = slots
    monkeypatch.setattr(work, "channel", lambda _: channel)
    assert channel_status(work, "counts", {})["last"] == 2


def announce(work, **fields):
    work.announce(Announcement(name="node-1", life="a", **fields))


def test_a_node_that_answers_is_alive(work):
    """Units come from the agent itself."""
    units = [{"unit": "counts", "role": "primary", "generation": 0, "epoch": 7, "temperature": None}]
    agent = Agent(work.token(), {"status": lambda _: {"phase": "running", "units": units}})
    agent.start()
    try:
        announce(work, pid=4711, address=agent.address)
        (node,) = collect(work)["nodes"]
    finally:
        agent.stop()
    assert node == {"name": "node-1", "pid": 4711, "alive": True, "zone": None, "units": units, "phase": "running"}


def test_a_node_that_does_not_answer_is_not_alive(work):
    """A dead agent, a torn announcement and the error a node left behind are no living nodes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*free.getsockname())
    announce(work, pid=os.getpid(), address=address, zone="a")
    (work.path / "nodes" / "node-2.json").write_text('{"name": "no')
    (work.path / "nodes" / "node-3.error.json").write_text('{"message": "it broke"}')
    assert collect(work)["nodes"] == [{"name": "node-1", "pid": os.getpid(), "alive": False, "zone": "a", "units": []}]


def test_the_last_events_are_shown(work):
    """What went wrong is shown, the newest twenty; that a node started is not news."""
    for number in range(25):
        work.note("failed", unit="counts", epoch=number)
        work.note("started", node="node-1")
    events = collect(work)["events"]
    assert [event["epoch"] for event in events] == list(range(5, 25))


def test_a_status_is_json(work):
    """Everything in it can be printed for programs."""
    work.pin(IDENTITY)
    channel_of(work, "counts", 1)
    assert json.loads(json.dumps(collect(work)))["pipeline"] == "orders"

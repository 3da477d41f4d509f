"""The status of a work directory: read from files and agents, whatever state they are in."""

import functools
import io
import json
import os
import socket

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from anabranch import status
from anabranch.agent import Agent
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Part, Producer
from anabranch.cli.main import app
from anabranch.cli.status import _failover, _redundancy, _units
from anabranch.status import channel_status, collect, redundancy
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
    nothing = {
        "pipeline": None,
        "nodes": [],
        "promises": {},
        "redundancy": [],
        "channels": [],
        "failovers": [],
        "events": [],
    }
    assert collect(work) == nothing


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


def test_a_node_that_is_paused_is_shown(work, monkeypatch):
    """It accepts and never answers: whoever looks must not take it for gone."""
    monkeypatch.setattr(status, "ask", functools.partial(status.ask, timeout_s=0.05))
    with socket.create_server(("127.0.0.1", 0)) as server:
        announce(work, pid=4711, address="{}:{}".format(*server.getsockname()))
        (node,) = collect(work)["nodes"]
        said = CliRunner().invoke(app, ["status", "--work", str(work.path)]).stdout
    assert (node["alive"], node["phase"]) == (False, "does not answer")
    assert "does not answer" in said.splitlines()[0]
    assert "node-1 (4711)" in said


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


# What people see


def shown(*lines):
    """Return what is printed on a terminal of 80 columns."""
    console = Console(width=80, record=True, file=io.StringIO())
    for line in lines:
        console.print(line, highlight=False, markup=False)
    return console.export_text()


def unit_of(role, epoch, **fields):
    return {"unit": "counts", "role": role, "generation": None, "epoch": epoch, "temperature": None, **fields}


def node_of(number, phase, *units, zone=None):
    return {
        "name": f"node-{number}",
        "pid": 10 + number,
        "alive": True,
        "phase": phase,
        "zone": zone,
        "units": list(units),
    }


def test_units_are_shown_with_role_and_lag():
    """Who leads in which generation, who stands by how, and by how many epochs each is behind what is published."""
    nodes = [
        node_of(1, "running", unit_of("primary", 41, generation=3)),
        node_of(2, "running", unit_of("standby", 38, temperature="trailing")),
        node_of(3, "running", unit_of("standby", -1, scratch=True), zone="left"),
        node_of(4, "cold"),
    ]
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in shown(_units(nodes, {"counts": 41})).splitlines()
    ]
    assert [row for row in rows if row] == [
        ["node-1 (11)", "counts", "primary, generation 3", "41", "0", "–"],
        ["node-2 (12)", "counts", "standby, trailing", "38", "3", "–"],
        ["node-3 (13), left", "counts", "standby, warming up", "–", "–", "–"],
        ["node-4 (14)", "–", "cold", "–", "–", "–"],
    ]


def test_takeovers_are_shown_with_their_phases():
    """One line for who took what from whom and why, one for how long; what is not known is left out."""
    event = {
        "unit": "counts",
        "from": "node-1",
        "to": "node-2",
        "generation": 1,
        "reason": "silent for 0.3 s",
        "at": 0.0,
    }
    phases = {"detected_s": 0.3, "restore_s": 0.02, "first_output_s": 0.5, "catch_up_s": 0.04, "takeover_s": 0.86}
    first, second = shown(_failover({**event, **phases})).splitlines()
    assert first.endswith(" counts: node-1 → node-2, generation 1, silent for 0.3 s")
    assert second.strip() == "noticed 0.30, restored 0.02, first output 0.50, caught up 0.04, all 0.86 s"
    assert len(shown(_failover({**event, **dict.fromkeys(phases)})).splitlines()) == 1


def test_redundancy_is_what_runs_of_what_should():
    """Scratch runs, nodes that do not answer and replicas far behind do not count; units of one node have none."""
    running = [{"unit": "counts", "scratch": False, "epoch": 95}, {"unit": "other", "scratch": False, "epoch": 9}]
    nodes = [
        node_of(1, "running", *running, zone="left"),
        node_of(2, "running", {"unit": "counts", "scratch": True, "epoch": 99}),
        {**node_of(3, "running", *running), "alive": False},
        node_of(4, "running", *running),
        node_of(5, "running", {"unit": "counts", "scratch": False, "epoch": 50}),
    ]
    promises = {"counts": {"copies": 3}, "other": {}}
    assert redundancy(nodes, promises, {"counts": 99}) == [
        {"unit": "counts", "wanted": 3, "present": 2, "zones": ["left", None]}
    ]
    assert redundancy([], promises, {}) == [{"unit": "counts", "wanted": 3, "present": 0, "zones": []}]


WARNED = "warning: counts: on 2 of 3 nodes, survives the loss of 1 at once"


@pytest.mark.parametrize(
    ("zones", "wanted", "text"),
    [
        ([None, None], 2, "counts: on 2 of 2 nodes, survives the loss of 1 at once"),
        (["left", "right"], 2, "counts: on 2 of 2 nodes, survives the loss of 1 at once"),
        (["left", None], 2, "counts: on 2 of 2 nodes, survives the loss of 1 at once"),
        (["left"], 1, "counts: on 1 of 1 nodes, survives the loss of 0 at once"),
        (["left"], 2, "warning: counts: on 1 of 2 nodes, survives the loss of 0 at once (asked for: 1)"),
        ([], 2, "warning: counts: on 0 of 2 nodes, survives the loss of 0 at once (asked for: 1)"),
        (
            ["left", "left"],
            3,
            f"{WARNED} (asked for: 2; not of zone left, where all are)",
        ),
    ],
)
def test_what_could_be_lost_is_said(zones, wanted, text):
    """How many nodes at once; it is a warning if these are fewer than asked for, or if all are in one zone."""
    assert _redundancy({"unit": "counts", "wanted": wanted, "present": len(zones), "zones": zones}) == text

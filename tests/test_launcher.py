"""The launcher restarts a node that died, not one that gave up, and gives up on one that only dies.

Processes are fakes whose exit codes are a table: what each life of the node publishes, how it ends, what is done.
"""

import json
import os
import sys
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from anabranch import launcher as launcher_module
from anabranch.agent import Agent
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Producer
from anabranch.clock import ManualClock
from anabranch.errors import Corrupt, InUse, SinkError, StoreError
from anabranch.launcher import (
    AWAY_S,
    MOST_DEATHS_WITHOUT_PROGRESS,
    RESTART_AFTER_S,
    STARTING_NICENESS,
    STARTING_S,
    Fleet,
    Launcher,
    NodeEnded,
)
from anabranch.node_options import NodeOptions
from anabranch.node_process import EXIT_CRASHED, EXIT_TERMINATED, decode_options, error_path
from anabranch.work import Announcement, Work

KILLED = -9


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@dataclass
class FakeProcess:
    """A process that runs until it is given an exit code."""

    arguments: list[str]
    pid: int
    code: int | None = None

    def poll(self):
        return self.code

    def terminate(self):
        """Take its time to end."""


@dataclass
class FakeProcesses:
    """Stands in for `subprocess.Popen`: keeps every process that was started, and how."""

    started: list[FakeProcess] = field(default_factory=list)
    options: list[dict] = field(default_factory=list)

    def __call__(self, arguments, **options):
        self.started.append(FakeProcess(arguments, pid=100 + len(self.started)))
        self.options.append(options)
        return self.started[-1]


@pytest.fixture
def processes(monkeypatch):
    fake = FakeProcesses()
    monkeypatch.setattr(launcher_module.subprocess, "Popen", fake)
    fake.gave_way = []
    monkeypatch.setattr(launcher_module, "give_way", lambda *told: fake.gave_way.append(told) or True)
    return fake


class Node:
    """A launched node whose lives the test ends."""

    def __init__(self, directory, processes):
        self.options = NodeOptions(file=directory / "orders.py", work=directory / "work")
        self.launcher = Launcher(self.options)
        self.processes = processes
        self.work = Work.open(self.options.work)
        self.channel = Channel.create(
            self.work.channel_path("counts"), ChannelSpec("counts", pa.schema([("n", pa.int64())]))
        )
        self.node = self.launcher.start()

    def publish(self):
        last = self.channel.ledger.last()
        epoch = 0 if last is None else last + 1
        self.channel.release(Manifest(epoch, Producer("counts", "r0", 0), 0.0, rows=0))

    def leave_error(self, exit_code, message="it broke"):
        record = {"message": message, "hint": "mend it", "exit_code": exit_code, "trace": "the trace"}
        error_path(self.work.path, self.options.name).write_text(json.dumps(record))

    def end(self, code):
        self.node.process.code = code

    def poll(self):
        return self.launcher.poll(self.node)


@pytest.fixture
def node(tmp_path, processes):
    return Node(tmp_path, processes)


def test_a_running_node_is_left_alone(node):
    """While the process runs there is nothing to do."""
    assert [node.poll(), node.poll()] == [True, True]
    assert (len(node.processes.started), node.node.restarts) == (1, 0)


def test_a_node_that_is_done_has_ended(node):
    """Exit code 0 is the end, not a reason to start again."""
    node.end(0)
    assert node.poll() is False
    assert len(node.processes.started) == 1


@pytest.mark.parametrize("code", [KILLED, -11, 1, EXIT_CRASHED, EXIT_TERMINATED])
def test_a_node_that_died_is_started_again(node, code):
    """A killed process leaves no error, a crashed one leaves an error that a restart may heal: both are restarted."""
    if code == EXIT_CRASHED:
        node.leave_error(EXIT_CRASHED)
    node.end(code)
    assert node.poll() is True
    assert (len(node.processes.started), node.node.restarts) == (2, 1)
    assert node.node.process.poll() is None
    assert not error_path(node.work.path, "node-1").exists(), "an old error must not be taken for a new one"
    assert node.processes.started[0].arguments == node.processes.started[1].arguments


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6])
def test_a_node_that_gave_up_is_not_started_again(node, code):
    """An error in the pipeline, directory, data or a poisoned epoch is passed on as the node left it."""
    node.leave_error(code, "step 'counts' failed")
    node.end(code)
    with pytest.raises(NodeEnded, match="step 'counts' failed") as caught:
        node.poll()
    assert (caught.value.exit_code, caught.value.hint, caught.value.trace) == (code, "mend it", "the trace")
    assert len(node.processes.started) == 1


# One word per life: "dies" publishes nothing, "progress" publishes an epoch and then dies.
LIVES = [
    (["dies"] * MOST_DEATHS_WITHOUT_PROGRESS, "runs"),
    (["dies"] * (MOST_DEATHS_WITHOUT_PROGRESS + 1), "given up"),
    (["progress"] * 30, "runs"),
    ([*["dies"] * 5, "progress", *["dies"] * 4], "runs"),
    ([*["dies"] * 5, "progress", *["dies"] * 5], "given up"),
    (["progress", "dies", "dies", "progress", "dies", "dies", "dies", "dies"], "runs"),
]


@pytest.mark.parametrize(("lives", "end"), LIVES)
@pytest.mark.parametrize("error", [None, EXIT_CRASHED], ids=["killed", "crashed"])
def test_restarts_end_where_nothing_is_published(node, lives, end, error):
    """Five deaths in a row are borne, the sixth is the last; an epoch in between starts the count anew."""
    for number, life in enumerate(lives):
        if life == "progress":
            node.publish()
        if error is not None:
            node.leave_error(error)
        node.end(KILLED if error is None else error)
        if end == "given up" and number == len(lives) - 1:
            with pytest.raises(NodeEnded) as caught:
                node.poll()
            assert caught.value.hint
            if error is None:
                assert "died 6 times without progress" in caught.value.message
                assert str(node.work.log_path("node-1")) in caught.value.hint
        else:
            assert node.poll() is True
    assert node.node.restarts == len(lives) - (end == "given up")


def test_progress_counts_in_trimmed_channels_too(node):
    """Trimming old epochs does not look like going back."""
    for _ in range(4):
        node.publish()
    for _ in range(3):
        node.end(KILLED)
        node.poll()
    assert node.node.deaths == 3
    node.channel.trim(2)
    node.publish()
    node.end(KILLED)
    node.poll()
    assert node.node.deaths == 1


def test_a_node_is_a_process_of_its_own(node):
    """It runs this Python with its options as JSON, in a session of its own, without input, its errors in a log."""
    python, flag, module, text = node.processes.started[0].arguments
    assert (python, flag, module) == (sys.executable, "-m", "anabranch.node_process")
    assert decode_options(text) == node.options
    options = node.processes.options[0]
    assert options["start_new_session"] is True
    assert options["stdin"] == launcher_module.subprocess.DEVNULL
    assert options["stderr"].name == str(node.work.log_path("node-1"))


def test_a_directory_in_use_is_not_entered(tmp_path, processes):
    """Where a node answers, none is started, and the record of failures stays."""
    work = Work.create(tmp_path / "work")
    failures = work.unit_path("counts") / "failures.json"
    failures.parent.mkdir()
    failures.write_text("[]")
    agent = Agent(work.token(), {"ping": lambda _: {}})
    agent.start()
    try:
        work.announce(Announcement("node-1", 4711, agent.address, "a life"))
        with pytest.raises(InUse, match="4711"):
            Launcher(NodeOptions(file=tmp_path / "orders.py", work=work.path)).start()
    finally:
        agent.stop()
    assert processes.started == []
    assert failures.exists()


def test_running_again_is_how_someone_acts(tmp_path, processes):
    """A start by a person forgets old failures; a restart by the launcher does not, or poison would never be found."""
    failures = Work.create(tmp_path / "work").unit_path("counts") / "failures.json"
    failures.parent.mkdir()
    failures.write_text("[]")
    node = Node(tmp_path, processes)
    assert not failures.exists()
    failures.write_text("[]")
    node.end(KILLED)
    node.poll()
    assert failures.exists()


def test_where_others_go_on_a_node_is_started_again_later(tmp_path, processes):
    """Starting takes the CPU that the takeover needs."""
    clock = ManualClock(50.0)
    options = NodeOptions(file=tmp_path / "orders.py", work=tmp_path / "work")
    launcher = Launcher(options, restart_after_s=3.0, clock=clock)
    node = launcher.start()
    node.process.code = KILLED
    assert launcher.poll(node)
    clock.advance(2.9)
    assert launcher.poll(node)
    assert (len(processes.started), node.restarts) == (1, 0)
    clock.advance(0.2)
    assert launcher.poll(node)
    assert (len(processes.started), node.restarts) == (2, 1)
    assert launcher.poll(node)
    assert len(processes.started) == 2


def test_a_node_with_damaged_files_does_not_take_the_others_along(tmp_path, processes):
    """They have files of their own; the last one that finds its files damaged ends the run."""
    options = NodeOptions(file=tmp_path / "orders.py", work=tmp_path / "work")
    clock = ManualClock()
    fleet = Fleet(options, 2, clock=clock)

    def end(number, code):
        record = {"message": f"file {number} is torn", "hint": "", "exit_code": code, "trace": ""}
        error_path(options.work, f"node-{number}").write_text(json.dumps(record))
        processes.started[number - 1].code = code

    end(1, Corrupt.exit_code)
    assert fleet.poll()
    assert [error.message for error in fleet.away.values()] == ["file 1 is torn"]
    clock.advance(AWAY_S - 1)
    assert fleet.poll()
    assert len(processes.started) == 2, "it is not started again at once"
    end(2, Corrupt.exit_code)
    with pytest.raises(NodeEnded, match="file 2 is torn"):
        fleet.poll()


@pytest.mark.parametrize("kind", [Corrupt, SinkError, StoreError])
def test_a_node_whose_machine_failed_it_comes_back(tmp_path, processes, kind):
    """A full disk has room again some time; each time that it has not, the node is left alone for longer."""
    options = NodeOptions(file=tmp_path / "orders.py", work=tmp_path / "work")
    clock = ManualClock()
    fleet = Fleet(options, 2, clock=clock)

    def end():
        record = {"message": "no space left", "hint": "", "exit_code": kind.exit_code, "trace": ""}
        error_path(options.work, "node-1").write_text(json.dumps(record))
        [process for process in processes.started if "node-1" in process.arguments[-1]][-1].code = kind.exit_code

    for pause_s in (AWAY_S, 2 * AWAY_S, 4 * AWAY_S):
        end()
        assert fleet.poll()
        assert list(fleet.away) == [0]
        before = len(processes.started)
        clock.advance(pause_s - 1)
        assert fleet.poll()
        assert len(processes.started) == before
        clock.advance(1)
        assert fleet.poll()
        assert len(processes.started) == before + 1
        assert not fleet.away
    end()
    fleet.poll()
    processes.started[1].code = 0
    assert not fleet.poll(), "nobody waits for a node that is away"


def test_nodes_that_died_together_are_started_one_after_the_other(tmp_path, processes):
    """The next one when the last is up, or has had its time: those that go on need the CPU."""
    clock, up = ManualClock(50.0), set()
    options = NodeOptions(file=tmp_path / "orders.py", work=tmp_path / "work")
    fleet = Fleet(options, 4, clock=clock, up=lambda _: up)
    for process in processes.started[:3]:
        process.code = KILLED
    assert fleet.poll()
    clock.advance(RESTART_AFTER_S)
    fleet.poll()
    fleet.poll()
    assert len(processes.started) == 5
    first = processes.started[4].pid
    assert processes.gave_way == [(first, STARTING_NICENESS)]
    up.add(first)
    fleet.poll()
    fleet.poll()
    assert len(processes.started) == 6
    second = processes.started[5].pid
    assert processes.gave_way[1:] == [(second, STARTING_NICENESS)], "the first comes forward by itself"
    clock.advance(STARTING_S)
    fleet.poll()
    assert (second, 0) in processes.gave_way, "it takes too long"
    assert [process.code for process in processes.started] == [KILLED] * 3 + [None] * 4


def test_who_was_told_to_end_all_starts_none_again(tmp_path, processes):
    """Nodes that are terminated end like those that someone else terminates, which are started again."""
    options = NodeOptions(file=tmp_path / "orders.py", work=tmp_path / "work")
    fleet = Fleet(options, 2, clock=ManualClock(50.0))
    fleet.terminate()
    processes.started[0].code = EXIT_TERMINATED
    assert fleet.poll()
    processes.started[1].code = EXIT_TERMINATED
    assert not fleet.poll()
    assert len(processes.started) == 2


def test_an_error_of_the_pipeline_ends_all(tmp_path, processes):
    """Another node would only die of it too."""
    options = NodeOptions(file=tmp_path / "orders.py", work=tmp_path / "work")
    fleet = Fleet(options, 2)
    record = {"message": "unit 'counts' failed", "hint": "", "exit_code": 6, "trace": ""}
    error_path(options.work, "node-1").write_text(json.dumps(record))
    processes.started[0].code = 6
    with pytest.raises(NodeEnded, match="unit 'counts' failed"):
        fleet.poll()

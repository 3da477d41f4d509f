"""`anabranch stop`: who was told, who ended, and who did not answer."""

import functools
import json
import os
import socket
import threading

import pytest
from typer.testing import CliRunner

from anabranch import presence
from anabranch.agent import Agent
from anabranch.cli import stop as stopping
from anabranch.cli.main import app
from anabranch.cli.places import open_work
from anabranch.errors import AgentError, WorkDirectoryError
from anabranch.work import Announcement, Work


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(presence, "ask", functools.partial(presence.ask, timeout_s=0.2))


@pytest.fixture
def work(tmp_path):
    return Work.create(tmp_path)


def node(work, name):
    """Announce a node that ends as soon as it is told to."""
    agent = Agent(work.token(), {"stop": lambda _: threading.Thread(target=agent.stop).start() or {}})
    agent.start()
    work.announce(Announcement(name, 1, agent.address, name))


def stop(work):
    return CliRunner().invoke(app, ["stop", "--json", "--work", str(work.path)])


def test_all_nodes_are_told_and_waited_for(work):
    """Until nobody listens any more."""
    node(work, "node-1")
    node(work, "node-2")
    assert json.loads(stop(work).stdout)["stopped"] == ["node-1", "node-2"]
    assert "no node of" in stop(work).exception.message


def test_a_node_that_does_not_answer_is_named(work, monkeypatch):
    """A paused node hears the request when it goes on; until then nobody may say that it has ended."""
    monkeypatch.setattr(stopping, "_SILENT_S", 0.2)
    node(work, "node-1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        work.announce(Announcement("node-2", 4711, "{}:{}".format(*server.getsockname()), "b"))
        done = stop(work)
    assert json.loads(done.stdout) == {"stopped": ["node-1"], "silent": ["node-2"], "now": False}
    assert isinstance(done.exception, AgentError)
    assert "node-2 (process 4711) does not answer" in done.exception.message


def test_a_directory_in_which_nothing_was_built_is_not_the_one_that_is_meant(tmp_path, monkeypatch):
    """A pipeline that was refused leaves one behind."""
    monkeypatch.chdir(tmp_path)
    for name in ("shop", "refused"):
        Work.create(tmp_path / ".anabranch" / name)
    with pytest.raises(WorkDirectoryError, match="several"):
        open_work(None)
    (tmp_path / ".anabranch" / "shop" / "identity.json").write_text("{}")
    assert open_work(None).path.name == "shop"

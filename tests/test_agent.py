"""The agent answers those who know the token, on loopback, in JSON, and nobody else.

Also here: who may start a node on a directory, which is asked of the agents.
"""

import contextlib
import functools
import http.client
import json
import os
import pickle
import socket
import threading

import pytest

from anabranch import presence
from anabranch.agent import Agent, ask
from anabranch.errors import AgentError, AgentGone, InUse
from anabranch.work import Announcement, Work

TOKEN = "0123456789abcdef" * 4
LARGEST = 1 << 16


class Fragile:
    """Something that would run code if anyone unpickled it."""

    def __reduce__(self):
        return (pytest.fail, ("the agent unpickled a body",))


@pytest.fixture(scope="module")
def listening():
    """One agent for all tests, as ending one takes half a second, and what its commands were given."""
    heard = []

    def echo(body):
        heard.append(body)
        return {"heard": body}

    def broken(_body):
        raise ZeroDivisionError

    agent = Agent(TOKEN, {"echo": echo, "broken": broken}, pages={"/page": lambda: (b"measured", "text/plain")})
    agent.start()
    yield agent, heard
    agent.stop()


@pytest.fixture
def agent(listening):
    return listening[0]


@pytest.fixture
def heard(listening):
    listening[1].clear()
    return listening[1]


def send(agent, path="/echo", body=b"{}", *, token=TOKEN, method="POST", **headers):
    """Send a request as it is; return status and answer."""
    connection = http.client.HTTPConnection(agent.address, timeout=10)
    connection.putrequest(method, path, skip_accept_encoding=True)
    if token is not None:
        connection.putheader("Authorization", f"Bearer {token}")
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    connection.send(body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content) if answer.headers["Content-Type"] == "application/json" else content


def test_a_command_is_carried_out(agent, heard):
    """Who knows the token gets the command's answer; a question without a body is an empty object."""
    assert ask(agent.address, TOKEN, "echo", {"now": True}) == {"heard": {"now": True}}
    assert ask(agent.address, TOKEN, "echo") == {"heard": {}}
    assert send(agent, body=b"", **{"Content-Length": None}) == (200, {"heard": {}})
    assert heard == [{"now": True}, {}, {}]


@pytest.mark.parametrize(
    "token", [None, "", "wrong", TOKEN[:-1], TOKEN + "0", TOKEN.upper(), "ä", f"Bearer {TOKEN}"], ids=repr
)
@pytest.mark.parametrize("path", ["/echo", "/nothing"])
def test_without_the_token_there_is_no_answer(agent, heard, token, path):
    """A missing, wrong, shortened or lengthened token gets 403, and does not even learn which commands there are."""
    encoded = token.encode().decode("latin-1") if token is not None else None
    assert send(agent, path, token=encoded) == (403, {"error": "wrong token"})
    assert heard == []
    with pytest.raises(AgentGone, match=f"{agent.address} is no agent of this work directory: .*403"):
        ask(agent.address, "wrong", "echo")


@pytest.mark.parametrize("path", ["/", "/stop", "/echo/more", "/../echo", "/ECHO", "/__class__"])
def test_an_unknown_command_is_not_found(agent, heard, path):
    """Only commands that were given by name exist."""
    status, _ = send(agent, path)
    assert (status, heard) == (404, [])


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"hello",
        b"\xff\xfe",
        b"[]",
        b"7",
        b"null",
        b'"text"',
        b"a=1&b=2",
        pickle.dumps(Fragile()),
        b"[" * 50_000,
    ],
    ids=lambda body: repr(body[:8]),
)
def test_a_body_that_is_no_object_is_refused(agent, heard, body):
    """Torn JSON, other JSON, forms and pickles get 400; nothing of them is run."""
    assert send(agent, body=body) == (400, {"error": "expected a JSON object"})
    assert heard == []


@pytest.mark.parametrize(
    ("length", "status"),
    [("-1", 413), (str(LARGEST + 1), 413), ("9" * 30, 413), ("many", 400), ("1e3", 400), ("0x10", 400)],
)
def test_a_body_of_unreasonable_size_is_not_read(agent, heard, length, status):
    """A length that is too large, negative or no number is answered at once."""
    assert send(agent, body=b"", **{"Content-Length": length})[0] == status
    assert heard == []


def test_the_largest_body_is_taken(agent, heard):
    """The limit itself is within the limit."""
    body = b'{"a": "%s"}' % (b"x" * (LARGEST - 9))
    assert len(body) == LARGEST
    assert send(agent, body=body)[0] == 200
    assert len(heard) == 1


@pytest.mark.parametrize(("method", "status"), [("GET", 404), ("PUT", 501), ("DELETE", 501), ("OPTIONS", 501)])
def test_only_posts_are_commands(agent, heard, method, status):
    """A browser that follows a link to the agent does nothing there."""
    assert send(agent, method=method)[0] == status
    assert status != 501 or send(agent, method=method, token=None) == (501, b"")
    assert heard == []


def test_pages_want_the_token_too(agent):
    """What a node measures is not for everyone."""
    assert send(agent, method="GET", path="/page") == (200, b"measured")
    assert send(agent, method="GET", path="/page", token="wrong")[0] == 403


def test_the_agent_listens_on_loopback_only(agent):
    """Unless told otherwise, no other machine can reach it, and the port is the system's choice."""
    host, port = agent._server.server_address
    assert (host, agent.address) == ("127.0.0.1", f"127.0.0.1:{port}")
    assert agent._server.socket.getsockname()[0] == "127.0.0.1"


def test_an_agent_that_was_stopped_does_not_answer():
    """Asking where nobody listens is an error that names the address."""
    agent = Agent(TOKEN, {})
    agent.start()
    agent.stop()
    with pytest.raises(AgentGone, match=f"nobody listens at {agent.address}"):
        ask(agent.address, TOKEN, "ping")


def test_a_command_that_fails_does_not_take_the_agent_along(agent, capsys):
    """The caller hears that there was no answer; others are served as before."""
    with pytest.raises(AgentError, match=f"{agent.address}.* without response"):
        ask(agent.address, TOKEN, "broken")
    assert ask(agent.address, TOKEN, "echo") == {"heard": {}}
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_client_that_hangs_up_is_not_worth_a_word(agent, capsys):
    """A ping that was given up, on a busy machine, is no error of the agent."""
    with contextlib.ExitStack() as stack:
        stack.push(lambda *_: agent._server.handle_error(None, ("127.0.0.1", 1)) or True)
        raise BrokenPipeError("nobody is left to read")
    assert capsys.readouterr().err == ""


def test_a_silent_client_does_not_hold_up_others(agent):
    """A connection that says nothing occupies a thread of its own, for a limited time."""
    host, _, port = agent.address.partition(":")
    with socket.create_connection((host, int(port))):
        assert ask(agent.address, TOKEN, "echo") == {"heard": {}}
    assert agent._server.RequestHandlerClass.timeout == 10


def test_a_silent_agent_is_given_up():
    """Who accepts and never answers counts as not answering, after the time that was asked for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        with pytest.raises(AgentError, match=f"{address} does not answer") as caught:
            ask(address, TOKEN, "ping", timeout_s=0.05)
    assert not isinstance(caught.value, AgentGone), "it may still be there"


def test_a_proxy_is_not_used(agent, monkeypatch):
    """Loopback is never asked through a proxy that the environment names."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask(agent.address, TOKEN, "echo") == {"heard": {}}


# Who may start


def announce(work, address, *, pid=4711, name="node-1"):
    return work.announce(Announcement(name, pid, address, "a life"))


@pytest.fixture
def agents():
    started = []

    def start(token):
        started.append(Agent(token, {"ping": lambda _: {}}))
        started[-1].start()
        return started[-1].address

    yield start
    for agent in started:
        agent.stop()


def dead_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return "{}:{}".format(*free.getsockname())


def test_a_live_agent_holds_the_directory(tmp_path, agents):
    """A node that answers keeps others out; the message names it, and its announcement stays."""
    work = Work.create(tmp_path)
    path = announce(work, agents(work.token()))
    with pytest.raises(InUse, match=r"in use by node-1 \(process 4711\), so node-2 cannot run") as caught:
        presence.refuse_if_used(work, "node-2")
    assert "anabranch stop" in caught.value.hint
    assert path.exists()


@pytest.mark.parametrize("who", ["nobody", "another work directory's agent", "a torn announcement"])
def test_a_dead_announcement_does_not_hold_the_directory(tmp_path, agents, who):
    """What no agent of this directory stands behind is removed, though a process with that id is alive: this one."""
    work = Work.create(tmp_path)
    path = announce(work, dead_address() if who == "nobody" else agents("another token"), pid=os.getpid())
    if who == "a torn announcement":
        path.write_text(path.read_text()[:20])
    presence.refuse_if_used(work, "node-2")
    assert not path.exists()


def test_another_service_on_the_port_does_not_hold_the_directory(tmp_path):
    """A port that a dead node's announcement names may have gone to a service that does not speak HTTP."""
    work = Work.create(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                connection.recv(65536)

        thread = threading.Thread(target=greet)
        thread.start()
        path = announce(work, "{}:{}".format(*server.getsockname()))
        try:
            presence.refuse_if_used(work, "node-2")
        finally:
            thread.join()
    assert not path.exists()


def test_a_paused_agent_holds_the_directory(tmp_path, monkeypatch):
    """A node that is stopped in its tracks accepts and never answers: it may go on any moment, so nobody else may."""
    monkeypatch.setattr(presence, "ask", functools.partial(ask, timeout_s=0.05))
    work = Work.create(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        path = announce(work, "{}:{}".format(*server.getsockname()))
        with pytest.raises(InUse, match=r"node-1 \(process 4711\) holds .* but does not answer") as caught:
            presence.refuse_if_used(work, "node-2")
    assert "kill 4711" in caught.value.hint
    assert path.exists()


def test_an_error_that_was_left_behind_is_not_an_announcement(tmp_path):
    """The error of a node that ended is for its launcher to read: it holds nobody up, and stays."""
    work = Work.create(tmp_path)
    left = work.path / "nodes" / "node-1.error.json"
    left.write_text(json.dumps({"message": "it broke"}))
    path = announce(work, dead_address())
    assert list(work.announcements()) == [path]
    presence.refuse_if_used(work, "node-2")
    assert (left.exists(), path.exists()) == (True, False)

"""A node's agent: a small HTTP server for pings, commands and metrics. Loopback unless told otherwise; JSON and text.

Every request carries the work directory's token; without it the answer is 403 and nothing else. The agent owns no
state: it asks the node. `ask` is the other side, used by the command line and, later, by other nodes.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from anabranch.errors import AgentError, AgentGone

# A command is a few words; more is not one of ours.
_LARGEST_BODY = 1 << 16
_Handler = Callable[[dict[str, Any]], dict[str, Any]]
# What a page holds, and its content type.
_Page = Callable[[], tuple[bytes, str]]


class Agent:
    """Serves commands by name: `POST /NAME` with a JSON object, answered with a JSON object; and pages: `GET PATH`."""

    def __init__(
        self,
        token: str,
        commands: dict[str, _Handler],
        *,
        pages: dict[str, _Page] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._stopping = threading.Event()
        knows = {"token": token, "commands": commands, "pages": pages or {}, "stopping": self._stopping}
        self._server = _Server((host, port), type("Requests", (_Requests,), knows))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="agent", daemon=True)
        self.address = f"{host}:{self._server.server_address[1]}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more, not even those whose connection is open."""
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Says nothing of clients that hang up: on a busy machine a ping may be given up before it is answered."""

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  as the class it is from
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Requests(BaseHTTPRequestHandler):
    """Answers requests; a class of its own for every agent carries what it knows."""

    protocol_version = "HTTP/1.1"  # Connections stay open
    disable_nagle_algorithm = True  # An answer is two small writes, and the second must not wait
    timeout = 10  # A client that stops talking must not hold a thread for ever
    stopping: ClassVar[threading.Event]
    token: ClassVar[str]
    commands: ClassVar[dict[str, _Handler]]
    pages: ClassVar[dict[str, _Page]]

    def do_POST(self) -> None:
        if not self._authorised():
            return
        command = self.commands.get(self.path.strip("/"))
        if command is None:
            self.close_connection = True
            self._answer(404, {"error": f"no command {self.path!r}"})
            return
        try:
            size = int(self.headers.get("Content-Length", "0"))
            if not 0 <= size <= _LARGEST_BODY:
                self.close_connection = True  # What follows is the body that nobody read
                self._answer(413, {"error": "request too large"})
                return
            body = json.loads(self.rfile.read(size) or b"{}")
            if not isinstance(body, dict):
                self._answer(400, {"error": "expected a JSON object"})
                return
        except (ValueError, RecursionError):
            self._answer(400, {"error": "expected a JSON object"})
            return
        self._answer(200, command(body))

    def do_GET(self) -> None:
        if not self._authorised():
            return
        page = self.pages.get(self.path)
        if page is None:
            self._answer(404, {"error": f"no page {self.path!r}"})
        else:
            self._send(200, *page())

    def _authorised(self) -> bool:
        if self.stopping.is_set():
            self.close_connection = True
            return False
        given = self.headers.get("Authorization", "")
        right = hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode())
        if not right:
            self.close_connection = True
            self._answer(403, {"error": "wrong token"})
        return right

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no request of ours with a number, and no page about it."""
        del message, explain
        self.close_connection = True
        self._send(code, b"", "text/plain")

    def log_message(self, *_: object) -> None:
        """Say nothing: pings come many times a second."""


class Line:
    """A connection to an agent that is kept open from one question to the next, for those who ask many times a second.

    Opening one for every ping cost three more thread switches, which a busy machine makes long.
    """

    def __init__(self, address: str, token: str, *, timeout_s: float = 2.0) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, command: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401  JSON
        """Send a command and return the answer.

        `AgentGone` if there is no agent (nobody listens, or someone else), `AgentError` if it does not answer.
        """
        try:
            if self._connection is not None:
                # The agent may have hung up in the meantime.
                with contextlib.suppress(ConnectionError):
                    return self._asked(self._connection, command, body)
            self._connection = http.client.HTTPConnection(self._address, timeout=self._timeout_s)
            return self._asked(self._connection, command, body)
        except (http.client.HTTPException, ValueError) as error:
            self.close()
            raise AgentGone(f"what answers at {self._address} is no agent of this work directory: {error}") from error
        except ConnectionError as error:
            self.close()
            raise AgentGone(f"nobody listens at {self._address}: {error}") from error
        except OSError as error:
            self.close()
            raise AgentError(f"the agent at {self._address} does not answer: {error}") from error

    def _asked(self, connection: http.client.HTTPConnection, command: str, body: dict[str, Any] | None) -> Any:  # noqa: ANN401
        connection.request("POST", f"/{command}", json.dumps(body or {}).encode(), self._headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != http.client.OK:
            raise ValueError(f"HTTP status {answer.status}")
        return json.loads(content)

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def ask(address: str, token: str, command: str, body: dict[str, Any] | None = None, *, timeout_s: float = 2.0) -> Any:  # noqa: ANN401
    """Send one command to an agent and return its answer; see `Line`."""
    line = Line(address, token, timeout_s=timeout_s)
    try:
        return line.ask(command, body)
    finally:
        line.close()

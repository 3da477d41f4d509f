"""A node's agent: a small HTTP server for pings, commands and metrics. Loopback unless told otherwise; JSON and text.

Every request carries the work directory's token; without it the answer is 403 and nothing else. The agent owns no
state: it asks the node. `ask` is the other side, used by the command line and, later, by other nodes.
"""

from __future__ import annotations

import hmac
import http.client
import json
import threading
import urllib.error
import urllib.request
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
        knows = {"token": token, "commands": commands, "pages": pages or {}}
        self._server = ThreadingHTTPServer((host, port), type("Requests", (_Requests,), knows))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="agent", daemon=True)
        self.address = f"{host}:{self._server.server_address[1]}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


class _Requests(BaseHTTPRequestHandler):
    """Answers requests; a class of its own for every agent carries what it knows."""

    timeout = 10  # A client that stops talking must not hold a thread for ever
    token: ClassVar[str]
    commands: ClassVar[dict[str, _Handler]]
    pages: ClassVar[dict[str, _Page]]

    def do_POST(self) -> None:
        if not self._authorised():
            return
        command = self.commands.get(self.path.strip("/"))
        if command is None:
            self._answer(404, {"error": f"no command {self.path!r}"})
            return
        try:
            size = int(self.headers.get("Content-Length", "0"))
            if not 0 <= size <= _LARGEST_BODY:
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
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        right = hmac.compare_digest(given.encode(), self.token.encode())
        if not right:
            self._answer(403, {"error": "wrong token"})
        return right

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing: pings come many times a second."""


def ask(address: str, token: str, command: str, body: dict[str, Any] | None = None, *, timeout_s: float = 2.0) -> Any:  # noqa: ANN401
    """Send a command to an agent and return its answer.

    `AgentGone` if there is none at the address (nobody listens, or someone else), `AgentError` if it does not answer.
    """
    request = urllib.request.Request(
        f"http://{address}/{command}",
        data=json.dumps(body or {}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method="POST",
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return json.loads(answer.read())
    except (urllib.error.HTTPError, http.client.HTTPException, ValueError) as error:
        raise AgentGone(f"what answers at {address} is no agent of this work directory: {error}") from error
    except OSError as error:
        if isinstance(getattr(error, "reason", error), ConnectionError):
            raise AgentGone(f"nobody listens at {address}: {error}") from error
        raise AgentError(f"the agent at {address} does not answer: {error}") from error

"""A real Redis server of one test's own, on a free port of the loopback interface, gone when the test ends."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import redis

from anabranch.testing.wait import wait_until

START_TIMEOUT_S = 30.0


class RedisServer:
    """A server process and its directory; may be killed and started again."""

    def __init__(self, directory: Path, *settings: str) -> None:
        program = shutil.which("redis-server")
        if program is None:
            message = "the Redis store is NOT tested: there is no redis-server (apt-get install redis-server)"
            if os.environ.get("CI") == "true":
                pytest.fail(message)
            pytest.skip(message)
        directory.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._command = [program, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(directory), *settings]
        self._log = directory / "log"
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_until(self._answers, START_TIMEOUT_S, "Redis to answer")

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            with redis.Redis(port=self.port) as client:
                return bool(client.ping())
        except redis.exceptions.RedisError:
            return False

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._process.kill()
        self._process.wait()

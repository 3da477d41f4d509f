"""What happened, as JSON lines: one object a line, each with its time in seconds since the run began and its kind."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class History:
    """Written as things happen, so that a run that is broken off leaves what it saw."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.began_s = time.time()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    def note(self, kind: str, *, at: float | None = None, **fields: Any) -> dict[str, Any]:  # noqa: ANN401  JSON
        """Add a line; `at` is its wall time, now if it is not given."""
        line = {"at_s": round((time.time() if at is None else at) - self.began_s, 3), "kind": kind, **fields}
        with self.path.open("a") as lines:
            lines.write(json.dumps(line, default=str) + "\n")
        return line


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a history."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]

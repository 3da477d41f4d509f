"""Results as JSON lines, each with the machine and the commit, so that a figure can be traced to what made it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Describe what the measurement ran on."""
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1]) if Path("/proc/meminfo").exists() else 0
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / (1 << 20)),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "pyarrow": version("pyarrow"),
    }


def commit() -> str | None:
    """Return the commit of the checkout this code runs from, None outside of one."""
    found = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],  # noqa: S607  the user's git
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or None


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Report:
    """A file of JSON lines, one per run."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{name}.jsonl"
        self._about = {"bench": name, "commit": commit(), "machine": machine()}

    def add(self, **fields: Any) -> dict[str, Any]:  # noqa: ANN401  JSON
        """Write one line and return it."""
        line = {**self._about, **fields}
        with self.path.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        return line

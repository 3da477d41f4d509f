"""The two sides of a measurement, each in fresh processes, and what each delivered when.

Delivery is taken from the files that readers see, in the same way on both sides: bare Spark's rows exist for a reader
once the sink's log names their file (`_spark_metadata/N`), Anabranch's once the file of their epoch has its name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

import anabranch.bench.pipelines as measured_pipelines

MASTER = "local[2]"
_STOP_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Task:
    """One run: what to compute, from where to where; `drain` ends it when the input is read.

    With a `store`, Anabranch keeps a version of every epoch there.
    """

    function: str
    input: Path
    directory: Path
    drain: bool
    files_per_batch: int | None = None
    epoch_bytes: int = 64 << 20
    store: str = ""

    @property
    def output(self) -> Path:
        """Where the rows go."""
        return self.directory / "output"


@dataclass(frozen=True)
class Delivered:
    """One micro-batch as a reader sees it: when it could be read, and in which files."""

    number: int
    at_s: float
    files: tuple[Path, ...]


@contextmanager
def bare_spark(task: Task) -> Iterator[subprocess.Popen[bytes]]:
    """Start bare Spark on a task; ended when the block is left."""
    options = {
        "master": MASTER,
        "function": task.function,
        "input": str(task.input),
        "output": str(task.output),
        "checkpoint": str(task.directory / "checkpoint"),
        "drain": task.drain,
        "files_per_batch": task.files_per_batch,
    }
    command = [sys.executable, "-m", "anabranch.bench.bare_spark", json.dumps(options)]
    with (task.directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env={**os.environ, "PYSPARK_PYTHON": sys.executable}
        )
    try:
        yield process
        if process.stdin is not None:
            process.stdin.close()
        process.wait(_STOP_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()


@contextmanager
def anabranch(task: Task) -> Iterator[subprocess.Popen[bytes]]:
    """Start Anabranch on a task; ended when the block is left."""
    file = Path(measured_pipelines.__file__).parent / "measured.py"
    work = task.directory / "work"
    command = [sys.executable, "-m", "anabranch.cli.main", "run", str(file), "--work", str(work), "--master", MASTER]
    environment = {
        **os.environ,
        "BENCH_INPUT": str(task.input),
        "BENCH_OUTPUT": str(task.output),
        "BENCH_FUNCTION": task.function,
        "BENCH_EPOCH_BYTES": str(task.epoch_bytes),
        "BENCH_STORE": task.store,
    }
    with (task.directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *(["--drain"] if task.drain else [])], stdout=log, stderr=log, env=environment
        )
    try:
        yield process
        if process.poll() is None:
            subprocess.run([*command[:3], "stop", "--now", "--work", str(work)], check=False, capture_output=True)
        process.wait(_STOP_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()


def delivered(side: str, task: Task) -> list[Delivered]:
    """Return what a side has delivered so far, oldest first."""
    if side == "anabranch":
        files = sorted(task.output.glob("epoch-*.parquet"))
        return [Delivered(int(path.stem[6:]), path.stat().st_ctime, (path,)) for path in files]
    found = []
    log = task.output / "_spark_metadata"
    for path in log.iterdir() if log.is_dir() else ():
        if path.name.partition(".")[0].isdigit():
            number = int(path.name.partition(".")[0])
            found.append(Delivered(number, path.stat().st_mtime, tuple(_named_files(path, number))))
    return sorted(found, key=lambda batch: batch.number)


def _named_files(path: Path, number: int) -> Iterator[Path]:
    """Read the files that a sink log entry adds; every tenth entry is a compaction that repeats all before it."""
    if path.name != str(number):
        return
    for line in path.read_text().splitlines()[1:]:
        yield Path(unquote(urlparse(json.loads(line)["path"]).path))


SIDES = {"bare_spark": bare_spark, "anabranch": anabranch}

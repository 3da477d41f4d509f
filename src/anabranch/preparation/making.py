"""Make the archive of classes: run a small pipeline to its end in a JVM that writes down what it has loaded.

`python -m anabranch.preparation.making` makes it, at the lowest priority, unless it is there or being made.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.class_archive import archive_path, that_makes, usable
from anabranch.durable import fsync_directory
from anabranch.elsewhere import input_path
from anabranch.errors import AnabranchError
from anabranch.launcher import Launcher, Surroundings
from anabranch.node_options import NodeOptions
from anabranch.preparation import sample
from anabranch.processes import kill_session, of_session
from anabranch.session import AMONG_NEIGHBOURS

_FILES, _ROWS = 12, 60
_LOOK_S = 0.2
_TIMEOUT_S = 600.0
_LEAST_PRIORITY = 19


class NotPrepared(AnabranchError):
    """The archive could not be made; everything works without it."""


def make(path: Path) -> bool:
    """Make an archive; False if another process is making it. It appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone(path) as alone:
        if not alone:
            return False
        with tempfile.TemporaryDirectory(prefix=".making-", dir=path.parent) as scratch:
            made = Path(scratch) / path.name
            _run_sample(Path(scratch), made)
            os.chmod(made, 0o400)
            with made.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(made, path)
        fsync_directory(path.parent)
        _failed(path).unlink(missing_ok=True)
        if not usable(path):
            raise NotPrepared(
                f"{path} could have been written by others, and is not used",
                hint=f"let nobody but you write to {path.parent}: chmod go-w {path.parent}",
            )
    return True


def ensure(say: Callable[[str], None]) -> None:
    """Make the archive if it is missing: what is measured should not be prepared meanwhile."""
    path = archive_path()
    if path is not None and not usable(path):
        say(f"making {path} first")
        make(path)


class Background:
    """Makes the archive in a process of its own, while a pipeline runs; what is not ready at its end is put away."""

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """Begin, unless that was done before or there is an archive; say whether it began."""
        path = archive_path() if self.wanted else None
        self.wanted = False
        if path is None or path.exists() or _failed(path).exists():
            return False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "anabranch.preparation.making"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return True

    def __enter__(self) -> Background:  # noqa: PYI034  no subclasses
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def _run_sample(scratch: Path, made: Path) -> None:
    """Run the sample until it ends, and its JVM too, which then writes the archive."""
    write_input(scratch)
    options = NodeOptions(
        file=Path(sample.__file__),
        work=scratch / "work",
        master="local[1]",
        drain=True,
        elsewhere=scratch,
        settings={"spark.driver.extraJavaOptions": that_makes(made, AMONG_NEIGHBOURS)},
    )
    launcher = Launcher(options, surroundings=Surroundings(prefix=("nice", "-n", str(_LEAST_PRIORITY))))
    node = launcher.start()
    deadline_s = time.monotonic() + _TIMEOUT_S
    try:
        # The node's session outlives the node by its JVM, which writes when all else is done.
        while launcher.poll(node) or any(of_session(node.process.pid)):
            if time.monotonic() > deadline_s or node.restarts:
                raise NotPrepared("the sample pipeline did not end", hint="run `anabranch prepare --trace` again")
            time.sleep(_LOOK_S)
    finally:
        kill_session(node.process.pid)
        node.process.wait()
    if not made.exists():
        raise NotPrepared(
            "Java wrote no archive of its classes",
            hint="it cannot if a directory on Spark's class path holds files, such as one of configuration",
        )


def write_input(scratch: Path) -> None:
    """Write what the sample reads, below a directory."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for name in ("left", "right"):
        input_path(scratch, name).mkdir(parents=True)
    for number in range(_FILES):
        rows = [
            {"ts": start + timedelta(seconds=2 * number + index / _ROWS), "key": f"k{index % 7}", "value": index}
            for index in range(_ROWS)
        ]
        lines = [json.dumps(row, default=datetime.isoformat) for row in rows]
        (input_path(scratch, "left") / f"{number:03d}.jsonl").write_text("\n".join(lines) + "\n")
        schema = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("key", pa.string()), ("value", pa.int64())])
        table = pa.Table.from_pylist(rows, schema=schema)
        pq.write_table(table, input_path(scratch, "right") / f"{number:03d}.parquet")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Let one process at a time make an archive; others are told False."""
    with path.with_suffix(".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _end(_: int, __: FrameType | None) -> None:
    raise SystemExit(1)


def _failed(path: Path) -> Path:
    """Return the note that an archive could not be made: nobody tries again unless told to."""
    return path.with_suffix(".failed")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)  # what was begun is put away
    wanted = archive_path()
    if wanted is not None and not wanted.exists():
        try:
            make(wanted)
        except AnabranchError as reason:
            _failed(wanted).write_text(f"{reason}\n")
            raise

"""What is killed in `bench failover`: two nodes of Anabranch, or bare Spark in a restart loop."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import anabranch.bench.pipelines as measured_pipelines
from anabranch.bench.sides import Task
from anabranch.bench.work_to_do import FUNCTIONS, SCHEMA
from anabranch.errors import AnabranchError, Trimmed
from anabranch.node_options import NodeOptions
from anabranch.oracle.compare import NOTHING, compare
from anabranch.oracle.reference import replay
from anabranch.processes import kill_session
from anabranch.status import failovers_in, nodes_of
from anabranch.strategies.strategy import WARM_BATCHES
from anabranch.work import Work

_FILE = Path(measured_pipelines.__file__).parent / "protected.py"
_UNIT = "windowed"
_LOOK_S = 0.2
_LOOK_WHILE_WAITING_S = 0.5
_READY_TIMEOUT_S = 300.0
# How many epochs must have been published since the standby was warm: until then two JVMs that compile share two cores.
_SETTLED_EPOCHS = 30
# How many epochs after a kill show that output flows again.
_FLOWING_EPOCHS = 3
# Bare Spark that has delivered nothing for this long has read everything.
_QUIET_S = 20.0
_NODES = 2
# Two nodes share what bare Spark has for itself.
_MASTER = "local[1]"
_BARE_MASTER = "local[2]"


class Subject(ABC):
    """Something that processes the files in a directory and can be killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    def start(self) -> None:
        """Start it."""

    @abstractmethod
    def ready(self) -> bool:
        """Say whether it may be killed once it has settled."""

    @abstractmethod
    def leader(self) -> int:
        """Return the session of the processes to kill."""

    @abstractmethod
    def outputs(self) -> list[float]:
        """Return when each piece of output could be read, oldest first."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Let it process all input, end it, and compare what it delivered."""

    @abstractmethod
    def end(self) -> None:
        """End every process, whatever happened."""

    def wait_until_ready(self) -> None:
        """Wait until it is settled and may be killed."""
        deadline_s = time.time() + _READY_TIMEOUT_S
        since: int | None = None
        while since is None or len(self.outputs()) - since < _SETTLED_EPOCHS:
            if not self.ready():
                since = None
            elif since is None:
                since = len(self.outputs())
            if time.time() > deadline_s:
                raise AnabranchError(f"not ready within {_READY_TIMEOUT_S:.0f} s:\n{self.log()}")
            time.sleep(_LOOK_WHILE_WAITING_S)

    def recovered(self, killed_s: float) -> bool:
        """Say whether output flows again after a kill."""
        return len([at_s for at_s in self.outputs() if at_s > killed_s]) >= _FLOWING_EPOCHS

    def phases(self, killed_s: float) -> dict[str, float | None]:
        """Return what it tells of its recovery."""
        del killed_s
        return {}

    def log(self) -> str:
        """Return the end of what it said."""
        path = self.directory / "log"
        return path.read_text()[-3000:] if path.exists() else ""


class NodesSubject(Subject):
    """Two nodes, one of which leads, or as many as are asked for."""

    def __init__(self, directory: Path, strategy: str, *, nodes: int = _NODES, function: str = _UNIT) -> None:
        super().__init__(directory)
        self._strategy = strategy
        self._count = nodes
        self._unit = function
        self._work = directory / "work"
        self._process: subprocess.Popen[bytes] | None = None
        self._times: dict[int, float] = {}
        self._environment = {
            "BENCH_INPUT": str(directory / "input"),
            "BENCH_OUTPUT": str(directory / "output"),
            "BENCH_STORE": f"log:{directory / 'store'}",
            "BENCH_STRATEGY": strategy,
            "BENCH_FUNCTION": function,
        }

    def start(self) -> None:
        command = [sys.executable, "-m", "anabranch.cli.main", "run", str(_FILE), "--work", str(self._work)]
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--nodes", str(self._count), "--retain", "all", "--master", _MASTER],
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
            )

    def ready(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise AnabranchError(f"the pipeline ended:\n{self.log()}")
        if not self.outputs():
            return False
        nodes = [node for node in nodes_of(Work.open(self._work)) if node["alive"]]
        if len(nodes) < self._count:
            return False
        if self._strategy == "passive-cold":
            return any(node["phase"] == "cold" for node in nodes)
        if self._strategy in ("passive-warm", "none"):
            return all(node["phase"] == "running" for node in nodes)
        standbys = [unit for node in nodes for unit in node["units"] if unit["role"] != "primary"]
        warm = [unit for unit in standbys if unit["batches"] >= WARM_BATCHES and not unit["scratch"]]
        return len(warm) >= self._count - 1

    def leader(self) -> int:
        holder = Work.open(self._work).holder(self._unit)
        if holder is None:
            raise AnabranchError("nobody leads")
        return holder.pid

    def outputs(self) -> list[float]:
        with contextlib.suppress(AnabranchError):
            channel = Work.open(self._work).channel(self._unit)
            for epoch in range(len(self._times), channel.last_epoch() + 1):
                manifest = channel.manifest(epoch)
                if manifest is not None:
                    self._times[epoch] = manifest.released_s
        return [self._times[epoch] for epoch in sorted(self._times)]

    def behind(self) -> int:
        """Return by how many epochs the slowest replica is behind what is published; one that is mute has nothing."""
        work = Work.open(self._work)
        last = work.channel(self._unit).last_epoch()
        epochs = [
            unit["epoch"]
            for node in nodes_of(work)
            for unit in node["units"]
            if unit["unit"] == self._unit and not unit["scratch"]
        ]
        return last - (min(epochs) if len(epochs) == self._count else -1)

    def sessions(self) -> list[int]:
        """Return the sessions of the nodes that are there."""
        return [node.pid for node in Work.open(self._work).announced()]

    def last_epoch(self) -> int:
        """Return the newest epoch of the output."""
        return Work.open(self._work).channel(self._unit).last_epoch()

    def latencies(self, first: int, last: int) -> list[float]:
        """Return how long each epoch took, from the claim of its input to its publication."""
        work = Work.open(self._work)
        given, taken = work.channel("words"), work.channel(self._unit)
        pairs = [(given.manifest(epoch), taken.manifest(epoch)) for epoch in range(first + 1, last + 1)]
        return [end.released_s - start.released_s for start, end in pairs if start is not None and end is not None]

    def rows(self, first: int, last: int) -> int:
        """Count the rows that some epochs of the input hold."""
        channel = Work.open(self._work).channel("words")
        files = [
            piece["file"]
            for epoch in range(first + 1, last + 1)
            if (manifest := channel.manifest(epoch)) is not None
            for piece in (manifest.planned or {}).get("pieces", [])
        ]
        return sum(pq.read_metadata(self.directory / "input" / name).num_rows for name in files)

    def shipped_bytes(self) -> int:
        """Return how much went to stores so far."""
        nodes = nodes_of(Work.open(self._work))
        return sum(store["size_bytes"] for node in nodes for unit in node["units"] for store in unit["stores"])

    def phases(self, killed_s: float) -> dict[str, float | None]:
        deadline_s = time.time() + 60.0
        while time.time() < deadline_s:
            for event in failovers_in(Work.open(self._work).history()):
                if event["unit"] == self._unit and event["at"] > killed_s and event["takeover_s"] is not None:
                    return {
                        "detected_s": event["at"] - killed_s,
                        "restore_s": event["restore_s"],
                        "output_s": event["first_output_s"],
                        "catch_up_s": event["catch_up_s"],
                    }
            time.sleep(_LOOK_S)
        return {}

    def finish(self) -> dict[str, Any]:
        work = Work.open(self._work)
        newest = max(path.name for path in (self.directory / "input").glob("*.parquet"))
        channel = work.channel("words")
        deadline_s = time.time() + _READY_TIMEOUT_S
        while not _takes(channel, newest):
            if time.time() > deadline_s:
                raise AnabranchError(f"{newest} was not taken within {_READY_TIMEOUT_S:.0f} s:\n{self.log()}")
            time.sleep(_LOOK_S)
        command = [sys.executable, "-m", "anabranch.cli.main", "stop", "--work", str(self._work)]
        subprocess.run(command, check=True, capture_output=True, timeout=_READY_TIMEOUT_S)
        if self._process is not None and self._process.wait(_READY_TIMEOUT_S) != 0:
            raise AnabranchError(f"the pipeline failed:\n{self.log()}")
        os.environ.update(self._environment)
        # It has the machine for itself now, and which task had which rows shows in nothing.
        options = NodeOptions(file=_FILE, work=self._work.absolute(), master=_BARE_MASTER)
        reference = replay(options, self.directory / "reference")
        verdict, unnamed = NOTHING, 0
        expected, found = reference.channel(self._unit), work.channel(self._unit)
        for epoch in range(max(expected.last_epoch(), found.last_epoch()) + 1):
            tables = expected.table(epoch), found.table(epoch)
            empty = found.spec.schema.empty_table()
            one = compare(*(empty if table is None else table for table in tables), where=f"epoch {epoch}")
            manifest = found.manifest(epoch)
            named = manifest is not None and (manifest.gap or manifest.incomplete)
            unnamed += not one.exact and not named
            verdict += one
        batch = by_batch(self.directory / "input", self.directory / "output")
        return {**asdict(verdict), "unnamed": unnamed, "batch": batch}

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for session in self.sessions() if self._work.exists() else ():
            kill_session(session)


class BareSubject(Subject):
    """Bare Spark, started again whenever it ends."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._task = Task(_UNIT, directory / "input", directory, drain=False)
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._loop = threading.Thread(target=self._restart, daemon=True)
        self._times: dict[int, float] = {}

    def start(self) -> None:
        self._loop.start()

    def _restart(self) -> None:
        options = {
            "master": _BARE_MASTER,
            "function": _UNIT,
            "input": str(self._task.input),
            "output": str(self._task.output),
            "checkpoint": str(self.directory / "checkpoint"),
            "drain": False,
            "files_per_batch": None,
        }
        command = [sys.executable, "-m", "anabranch.bench.bare_spark", json.dumps(options)]
        while not self._ending.is_set():
            with (self.directory / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                    start_new_session=True,
                )
            self._process.wait()

    def ready(self) -> bool:
        return len(self.outputs()) > 0

    def leader(self) -> int:
        if self._process is None:
            raise AnabranchError("bare Spark is not running")
        return self._process.pid

    def outputs(self) -> list[float]:
        log = self._task.output / "_spark_metadata"
        # Every tenth entry is called N.compact; names with a dot in front are not there yet.
        for name in os.listdir(log) if log.is_dir() else ():
            number = name.partition(".")[0]
            if number.isdigit() and int(number) not in self._times:
                self._times[int(number)] = (log / name).stat().st_mtime
        return [self._times[number] for number in sorted(self._times)]

    def finish(self) -> dict[str, Any]:
        # There is no ledger to ask: two micro-batches that began after the last file was written have read it, and
        # emitted what it closed.
        written_s, before = time.time(), len(self.outputs())
        while len(self.outputs()) < before + _FLOWING_EPOCHS:
            if time.time() > written_s + _READY_TIMEOUT_S:
                raise AnabranchError(f"bare Spark did not finish:\n{self.log()}")
            # A file source without new files runs no micro-batch.
            if time.time() > written_s + _QUIET_S and not _later(self.outputs(), time.time() - _QUIET_S):
                break
            time.sleep(_LOOK_S)
        self._ending.set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(_READY_TIMEOUT_S)
        batch = by_batch(self._task.input, self._task.output)
        return {**batch, "unnamed": batch["lost"] + batch["duplicated"] + batch["wrong"], "batch": batch}

    def end(self) -> None:
        self._ending.set()
        if self._process is not None:
            kill_session(self._process.pid)
            self._process.wait()


def _later(times: list[float], than_s: float) -> bool:
    return any(at_s > than_s for at_s in times)


def _takes(channel: Any, name: str) -> bool:  # noqa: ANN401  a channel
    """Say whether a file is part of one of the newest epochs."""
    last = channel.last_epoch()
    for epoch in range(max(0, last - 50), last + 1):
        with contextlib.suppress(Trimmed):
            manifest = channel.manifest(epoch)
            if manifest is not None and name in json.dumps(manifest.planned):
                return True
    return False


def by_batch(given: Path, output: Path) -> dict[str, int]:
    """Compare what was delivered with a plain batch query over the same files, on the windows that are closed."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    builder = SparkSession.builder.master(_BARE_MASTER).config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        words = spark.read.schema(SCHEMA).parquet(str(given))
        closed = words.agg(F.max("ts") - F.expr("INTERVAL 1 SECOND")).collect()[0][0]
        counts = FUNCTIONS[_UNIT](words).where(F.col("window.end") <= F.lit(closed)).toArrow()
        # Spark reads what its own sink's log names, or every file where there is no such log.
        verdict = compare(counts, spark.read.parquet(str(output)).select(*counts.column_names).toArrow(), where="batch")
        return {key: value for key, value in asdict(verdict).items() if key != "examples"}
    finally:
        spark.stop()

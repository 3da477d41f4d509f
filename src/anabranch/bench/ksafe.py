"""What k-safe replication costs, and what it is worth, for k = 0, 1, 2 in one run.

*Degrees*: latency and CPU at a steady pace, and how many rows a second are published when more come than can be, for a
stateless step (rows of 256 bytes) and a word count (Tanuwidjaja 2015, figures 8 and 9; Hwang 2009, table 5.1).
*Kills*: k nodes are killed at the same moment; the longest time between two published epochs from then until all are
back, beside the longest without a fault in the same run. *Slow*: one replica is stopped in bursts for nine tenths of
the time; the latency of epochs with that, and without, and how long it takes to be in step again.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anabranch.bench.latency import Writer
from anabranch.bench.report import Report, lines_of
from anabranch.bench.subjects import NodesSubject
from anabranch.errors import AnabranchError
from anabranch.processes import cpu_s, kill_session, signal_session

PARTS = ("degrees", "kills", "slow")
_STRATEGIES = ("none", "ksafe", "ksafe-2")
# What figures 8 and 9 are about, with the size of a row.
_KINDS = {"pass_through": 256, "windowed": 8}
# What waits for them at once when they are flooded.
_FLOOD_FILES, _FLOOD_ROWS = 40, 500_000
_FLOOD_TIMEOUT_S = 600.0
_LOOK_S = 0.2
# For how long it is left alone before a kill: about as long as it takes until all are back, for the longest of many
# gaps is longer than the longest of few.
_CALM_S = 30.0
_BACK_TIMEOUT_S = 180.0
# A replica that is no further behind than this takes part in the race.
_IN_STEP_EPOCHS = 2
_STOPPED_S, _RUNNING_S = 0.18, 0.02


@dataclass(frozen=True)
class KSafeOptions:
    """Which parts, how far, and how long."""

    parts: tuple[str, ...] = PARTS
    most_k: int = 2
    seconds: float = 30.0
    kills: int = 10
    rows_per_second: int = 10_000
    seed: int = 0


def measure(options: KSafeOptions, report: Report, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Measure all parts that were asked for; return the figures that count."""
    for k in range(options.most_k + 1):
        for kind in _KINDS if "degrees" in options.parts else ():
            line = report.add(part="degrees", k=k, kind=kind, **_degree(k, kind, options))
            say(f"k={k}, {kind}: " + ", ".join(f"{key} {line[key]}" for key in _DEGREE))
        if k > 0 and "kills" in options.parts:
            for line in _kills(k, options):
                report.add(part="kills", k=k, **line)
                say(f"k={k}: {_told(line)}")
    if "slow" in options.parts:
        line = report.add(part="slow", k=1, **_slow(options))
        say(
            f"one replica slow: p99 {line['slow_p99_s']} s instead of {line['p99_s']} s; it was "
            f"{line['behind_epochs']} epochs behind, and in step {line['caught_up_s']} s after it was let go"
        )
    return summary(report)


def summary(report: Report) -> dict[str, dict[str, float]]:
    """Return the figures that count, by part and k. Pure but for reading the report."""
    lines = lines_of(report.path)
    found: dict[str, dict[str, float]] = {}
    for line in lines:
        if line["part"] == "degrees":
            found[f"k={line['k']}, {line['kind']}"] = {key: line[key] for key in _DEGREE}
        elif line["part"] == "slow":
            found["one replica slow"] = {
                "p99_ratio": round(line["slow_p99_s"] / line["p99_s"], 2),
                "behind_epochs": line["behind_epochs"],
                "caught_up_s": line["caught_up_s"],
            }
    for k in sorted({line["k"] for line in lines if line["part"] == "kills"}):
        some = [line for line in lines if line["part"] == "kills" and line["k"] == k]
        kills = [line for line in some if "longest_s" in line]
        calm_s = max(line["calm_s"] for line in kills)
        found[f"k={k}, killed"] = {
            "kills": len(kills),
            "longest_s": max(line["longest_s"] for line in kills),
            "calm_s": calm_s,
            "ratio": round(max(line["longest_s"] for line in kills) / calm_s, 2),
            "back_s": max(line["back_s"] for line in kills),
            "wrong": sum(line["lost"] + line["duplicated"] + line["wrong"] for line in some if "lost" in line),
        }
    return found


_DEGREE = ("rows_per_s", "most_rows_per_s", "latency_s", "p99_s", "cpu_per_replica")


@contextmanager
def _running(k: int, kind: str, options: KSafeOptions) -> Iterator[tuple[NodesSubject, Writer]]:
    """Run a pipeline on k+1 nodes, over rows that come at a steady pace."""
    directory = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    writer = Writer(directory / "input", options.rows_per_second, _KINDS[kind])
    subject = NodesSubject(directory, _STRATEGIES[k], nodes=k + 1, function=kind)
    try:
        subject.start()
        writer.start()
        subject.wait_until_ready()
        yield subject, writer
    finally:
        writer.stop()
        subject.end()
        shutil.rmtree(directory, ignore_errors=True)


def _degree(k: int, kind: str, options: KSafeOptions) -> dict[str, Any]:
    with _running(k, kind, options) as (subject, writer):
        sessions = subject.sessions()
        before = sum(map(cpu_s, sessions))
        first, began_s = subject.last_epoch(), time.time()
        time.sleep(options.seconds)
        last, took_s = subject.last_epoch(), time.time() - began_s
        used = (sum(map(cpu_s, sessions)) - before) / took_s
        if subject.sessions() != sessions:
            raise AnabranchError("a node was lost while it was measured: the machine is too busy; run it again")
        latencies = subject.latencies(first, last)
        rows = subject.rows(first, last)
        return {
            "rows_per_s": round(rows / took_s),
            "most_rows_per_s": round(_flooded(subject, writer)),
            "latency_s": round(statistics.median(latencies), 3),
            "p99_s": _p99(latencies),
            "epoch_s": round(took_s / max(1, last - first), 3),
            "cpu_per_replica": round(used / (k + 1), 3),
        }


def _flooded(subject: NodesSubject, writer: Writer) -> float:
    """Return how many rows a second it publishes while many wait: from the first epoch of them to the last."""
    before = subject.last_epoch()
    rows, deadline_s = writer.flood(_FLOOD_FILES, _FLOOD_ROWS), time.time() + _FLOOD_TIMEOUT_S
    while (waiting := rows - subject.rows(before, subject.last_epoch())) > 0:
        if time.time() > deadline_s:
            raise AnabranchError(f"{waiting:,} rows still wait after {_FLOOD_TIMEOUT_S:.0f} s")
        time.sleep(_LOOK_S)
    # What was left of the pace before comes first: all of that is less than a file of the flood.
    after = range(before + 1, subject.last_epoch() + 1)
    held = [epoch for epoch in after if subject.rows(epoch - 1, epoch) >= _FLOOD_ROWS]
    times = subject.outputs()
    return subject.rows(held[0], held[-1]) / (times[held[-1]] - times[held[0]])


def _kills(k: int, options: KSafeOptions) -> Iterator[dict[str, Any]]:
    """Kill k nodes at once, again and again; yield what a reader saw each time, and at the end the verdict."""
    chance = random.Random(options.seed)
    with _running(k, "windowed", options) as (subject, writer):
        for number in range(options.kills):
            subject.wait_until_ready()
            calm_s = time.time()
            time.sleep(_CALM_S)
            calm, _ = _longest([at_s for at_s in subject.outputs() if at_s >= calm_s])
            victims = chance.sample(subject.sessions(), k)
            killed_s = time.time()
            with ThreadPoolExecutor(k) as at_once:
                list(at_once.map(kill_session, victims))
            back_s = _back(subject, killed_s) - killed_s
            until_s = killed_s + back_s
            times = subject.outputs()
            before = max((at_s for at_s in times if at_s <= killed_s), default=killed_s)
            around = [before, *(at_s for at_s in times if killed_s < at_s <= until_s), until_s]
            longest, since_s = _longest(around)
            yield {
                "longest_s": longest,
                "after_s": round(since_s - killed_s, 1),
                "calm_s": calm,
                "back_s": round(back_s, 1),
                "kill": number,
            }
        writer.stop()
        verdict = subject.finish()
        yield {key: verdict[key] + verdict["batch"][key] for key in ("lost", "duplicated", "wrong")}


def _back(subject: NodesSubject, killed_s: float) -> float:
    """Wait until all nodes are there again, and run what they should; return when that was."""
    while not subject.ready():
        if time.time() > killed_s + _BACK_TIMEOUT_S:
            raise AnabranchError(f"not all nodes came back within {_BACK_TIMEOUT_S:.0f} s:\n{subject.log()}")
        time.sleep(_LOOK_S)
    return time.time()


def _slow(options: KSafeOptions) -> dict[str, Any]:
    with _running(1, "windowed", options) as (subject, _):
        found: dict[str, Any] = {}
        behind = 0
        for name, slowed in (("", False), ("slow_", True)):
            leader = subject.leader()
            (other,) = [session for session in subject.sessions() if session != leader]
            first = subject.last_epoch()
            with _bursts(other) if slowed else contextlib.nullcontext():
                time.sleep(options.seconds)
                behind = subject.behind()
            latencies = subject.latencies(first, subject.last_epoch())
            found[f"{name}latency_s"] = round(statistics.median(latencies), 3)
            found[f"{name}p99_s"] = _p99(latencies)
        found["behind_epochs"] = behind
        freed_s = time.time()
        while subject.behind() > _IN_STEP_EPOCHS:
            if time.time() > freed_s + _BACK_TIMEOUT_S:
                raise AnabranchError(f"the slow replica did not catch up:\n{subject.log()}")
            time.sleep(_LOOK_S)
        found["caught_up_s"] = round(time.time() - freed_s, 1)
        return found


@contextmanager
def _bursts(session: int) -> Iterator[None]:
    """Let the processes of a node run for a tenth of the time."""
    ending = threading.Event()

    def run() -> None:
        while not ending.is_set():
            signal_session(session, signal.SIGSTOP)
            ending.wait(_STOPPED_S)
            signal_session(session, signal.SIGCONT)
            ending.wait(_RUNNING_S)
        signal_session(session, signal.SIGCONT)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def _longest(times: list[float]) -> tuple[float, float]:
    """Return the longest time between two of them, and since when that was."""
    gaps = [(later - earlier, earlier) for earlier, later in itertools.pairwise(times)]
    longest, since_s = max(gaps, default=(0.0, 0.0))
    return round(longest, 3), since_s


def _p99(latencies: list[float]) -> float:
    return round(float(np.percentile(latencies, 99)), 3)


def _told(line: dict[str, Any]) -> str:
    if "longest_s" not in line:
        return f"{line['lost']} rows lost, {line['duplicated']} duplicated, {line['wrong']} wrong"
    when = f"{line['after_s']} s after the kill" if line["after_s"] > 0 else "at the kill"
    longest, calm = line["longest_s"], line["calm_s"]
    return f"longest gap {longest} s, {when} (without a fault {calm} s), all back after {line['back_s']} s"

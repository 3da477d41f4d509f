"""What being ready for a failure costs while there is none: every strategy for a while, in one run.

Two nodes count 20,000 rows a second in windows, as in `bench failover`, and nobody is killed. CPU is that of all
processes of a node, in cores. Beside what was measured stands what Hwang's table 3.3 says of the approach: M is the
interval between checkpoints or acknowledgements, C the size of a checkpoint.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.bench.latency import Writer
from anabranch.bench.report import Report
from anabranch.bench.subjects import NodesSubject
from anabranch.errors import AnabranchError
from anabranch.processes import cpu_s

# What the table says of the overhead in processing and in bandwidth.
FORMULAS = {
    "none": ("0", "0"),
    "amnesia": ("0", "0"),
    "upstream": ("f4(1/M, operators, paths)", "f3(1/M, acknowledgement)"),
    "passive-gated": ("f2(1/M, C)", "f1(1/M, C)"),
    "trailing": ("not in the table: fewer, larger micro-batches", "100 % of the input, read again"),
    "active": ("100 % + 2 f4", "100 % + f3"),
    "ksafe": ("not in the table: 100 % for every replica", "100 % of the input, read again"),
}


@dataclass(frozen=True)
class OverheadOptions:
    """How long to measure each strategy."""

    seconds: float = 60.0
    rounds: int = 1
    rows_per_second: int = 20_000


def measure(options: OverheadOptions, report: Report, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Run every strategy; return, for each, what both nodes cost and how fast they were."""
    found: dict[str, list[dict[str, Any]]] = {strategy: [] for strategy in FORMULAS}
    for number in range(options.rounds):
        for strategy in FORMULAS if number % 2 == 0 else reversed(FORMULAS):
            line = _run(strategy, options)
            found[strategy].append(report.add(round=number, **line))
            say(f"{strategy}: " + ", ".join(f"{key} {line[key]}" for key in _TOLD))
    return {
        strategy: {key: round(statistics.median(line[key] for line in lines), 3) for key in _TOLD}
        for strategy, lines in found.items()
    }


_TOLD = ("primary_cpu", "standby_cpu", "standby_share", "epoch_s", "latency_s", "rows_per_s", "shipped_bytes_per_s")


def _run(strategy: str, options: OverheadOptions) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    writer = Writer(directory / "input", options.rows_per_second)
    subject = NodesSubject(directory, strategy)
    try:
        subject.start()
        writer.start()
        subject.wait_until_ready()
        return _measured(strategy, subject, options.seconds)
    finally:
        writer.stop()
        subject.end()
        shutil.rmtree(directory, ignore_errors=True)


def _measured(strategy: str, subject: NodesSubject, seconds: float) -> dict[str, Any]:
    leader, sessions = subject.leader(), subject.sessions()
    before = {session: cpu_s(session) for session in sessions}
    first, shipped, began_s = subject.last_epoch(), subject.shipped_bytes(), time.time()
    time.sleep(seconds)
    took_s = time.time() - began_s
    last = subject.last_epoch()
    used = {session: (cpu_s(session) - before[session]) / took_s for session in sessions}
    if subject.leader() != leader or subject.sessions() != sessions:
        raise AnabranchError("a role moved while it was measured: the machine is too busy; run it again")
    standby = sum(share for session, share in used.items() if session != leader)
    processing, bandwidth = FORMULAS[strategy]
    return {
        "strategy": strategy,
        "primary_cpu": round(used[leader], 3),
        "standby_cpu": round(standby, 3),
        "standby_share": round(standby / used[leader], 3),
        "epochs": last - first,
        "epoch_s": round(took_s / max(1, last - first), 3),
        "latency_s": round(statistics.median(subject.latencies(first, last)), 3),
        "rows_per_s": round(subject.rows(first, last) / took_s),
        "shipped_bytes_per_s": round((subject.shipped_bytes() - shipped) / took_s),
        "processing_formula": processing,
        "bandwidth_formula": bandwidth,
    }

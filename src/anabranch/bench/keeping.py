"""What the keeper costs: the windowed word count with and without it, in one run.

A version of every epoch goes to an indexed log, with durable saves. Micro-batches are small, so that there are many.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from anabranch.bench.report import Report
from anabranch.bench.sides import Task
from anabranch.bench.throughput import ThroughputOptions, drained, write_input
from anabranch.channel.channel import Channel
from anabranch.errors import AnabranchError
from anabranch.keeper.restoring import find_versions

OPTIONS = ThroughputOptions(rows=24_000_000, warm_up_rows=8_000_000, files_per_batch=4)
# Epochs from the first to the last of these count; those before warm up. Half a minute, because machines are noisy.
FIRST, LAST = 15, 61


def measure(rounds: int, report: Report, say: Callable[[str], None]) -> dict[str, float]:
    """Run all rounds; return the median ratio of the rate with the keeper to the rate without."""
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    times: dict[str, list[float]] = {"off": [], "on": []}
    try:
        say(f"writing {OPTIONS.rows + OPTIONS.warm_up_rows:,} rows of input")
        largest = write_input(scratch / "input", OPTIONS.rows + OPTIONS.warm_up_rows)
        for number in range(rounds):
            order = ["off", "on"] if number % 2 == 0 else ["on", "off"]
            for keeper in order:
                store = f"log:{scratch / f'store-{number}'}" if keeper == "on" else ""
                task = drained("anabranch", "windowed", OPTIONS, scratch, largest, store=store)
                epoch_s = _seconds_per_epoch(task)
                times[keeper].append(epoch_s)
                report.add(round=number, order=order, keeper=keeper, epoch_s=epoch_s, versions=_versions(store))
                say(f"round {number + 1}: keeper {keeper}: {epoch_s:.3f} s per epoch")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return {"windowed": statistics.median(off / on for on, off in zip(times["on"], times["off"], strict=True))}


def _seconds_per_epoch(task: Task) -> float:
    """Take the time from the ledger: a sink shows no epoch without rows. Every epoch holds as many rows as the next."""
    channel = Channel.open(task.directory / "work" / "channels" / "windowed")
    first, last = channel.manifest(FIRST), channel.manifest(LAST)
    if first is None or last is None:
        raise AnabranchError(f"the measured pipeline ended before epoch {LAST}")
    return (last.released_s - first.released_s) / (LAST - FIRST)


def _versions(store: str) -> dict[str, int]:
    """Return the newest epoch that the store holds, to show that it kept up."""
    return {unit: some[0].version.epoch for unit, some in find_versions([store]).items()} if store else {}

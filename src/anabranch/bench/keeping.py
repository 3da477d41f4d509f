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
from anabranch.bench.throughput import ThroughputOptions, run, write_input

OPTIONS = ThroughputOptions(rows=8_000_000, warm_up_rows=8_000_000, files_per_batch=4)


def measure(rounds: int, report: Report, say: Callable[[str], None]) -> dict[str, float]:
    """Run all rounds; return the median ratio of the rate with the keeper to the rate without."""
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    rates: dict[str, list[float]] = {"off": [], "on": []}
    try:
        say(f"writing {OPTIONS.rows + OPTIONS.warm_up_rows:,} rows of input")
        largest = write_input(scratch / "input", OPTIONS.rows + OPTIONS.warm_up_rows)
        for number in range(rounds):
            order = ["off", "on"] if number % 2 == 0 else ["on", "off"]
            for keeper in order:
                store = f"log:{scratch / f'store-{number}'}" if keeper == "on" else ""
                line = run("anabranch", "windowed", OPTIONS, scratch, largest, store=store)
                rates[keeper].append(line["rows_per_s"])
                batch_s = round(line["seconds"] / line["batches"], 4)
                report.add(round=number, order=order, keeper=keeper, batch_s=batch_s, **line)
                say(f"round {number + 1}: keeper {keeper}: {line['rows_per_s']:,.0f} rows/s, {batch_s:.3f} s per epoch")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return {"windowed": statistics.median(on / off for on, off in zip(rates["on"], rates["off"], strict=True))}

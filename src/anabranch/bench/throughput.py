"""Rows per second, side by side with bare Spark, in one run.

Both sides read the same Parquet files in micro-batches of the same size, apply the same function, and write Parquet. A
round is one fresh process per side, in alternating order. The first batches warm up the JVM and do not count: the rate
is taken from the delivery of the last warm-up batch to the delivery of the last batch.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from anabranch.bench.report import Report
from anabranch.bench.sides import SIDES, Delivered, Task, delivered
from anabranch.bench.work_to_do import FUNCTIONS
from anabranch.errors import AnabranchError
from anabranch.sources import generate_words

ROWS_PER_FILE = 100_000
FILES_PER_BATCH = 20
_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class ThroughputOptions:
    """How much to measure. `rows` are counted, `warm_up_rows` come before them."""

    rows: int = 12_000_000
    warm_up_rows: int = 8_000_000
    rounds: int = 3
    files_per_batch: int = FILES_PER_BATCH


def write_input(directory: Path, rows: int) -> int:
    """Write the words as Parquet files; return the size of the largest file."""
    import pyarrow as pa

    directory.mkdir(parents=True)
    source = generate_words(vocabulary=1_000)
    largest = 0
    for number in range(rows // ROWS_PER_FILE):
        planned = {"start": number * ROWS_PER_FILE, "end": (number + 1) * ROWS_PER_FILE, "origin_us": 1767225600000000}
        path = directory / f"{number:06d}.parquet"
        pq.write_table(pa.Table.from_batches(list(source.read(planned))), path)
        largest = max(largest, path.stat().st_size)
    return largest


def measure(options: ThroughputOptions, report: Report, say: Callable[[str], None]) -> dict[str, float]:
    """Run all rounds; return for every function the median ratio of Anabranch's rate to bare Spark's."""
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    try:
        say(f"writing {options.rows + options.warm_up_rows:,} rows of input")
        largest = write_input(scratch / "input", options.rows + options.warm_up_rows)
        rates: dict[str, dict[str, list[float]]] = {name: {side: [] for side in SIDES} for name in FUNCTIONS}
        for number in range(options.rounds):
            for function in FUNCTIONS:
                order = list(SIDES) if number % 2 == 0 else list(SIDES)[::-1]
                for side in order:
                    line = run(side, function, options, scratch, largest)
                    rates[function][side].append(line["rows_per_s"])
                    report.add(round=number, order=order, **line)
                    say(f"round {number + 1}: {function}, {side}: {line['rows_per_s']:,.0f} rows/s")
        return {
            name: statistics.median(
                ours / bare for ours, bare in zip(sides["anabranch"], sides["bare_spark"], strict=True)
            )
            for name, sides in rates.items()
        }
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run(side: str, function: str, options: ThroughputOptions, scratch: Path, largest: int) -> dict[str, Any]:
    """Run one side once; return its rate."""
    task = drained(side, function, options, scratch, largest)
    return {"side": side, "function": function, **_rate(delivered(side, task), options)}


def drained(
    side: str, function: str, options: ThroughputOptions, scratch: Path, largest: int, *, store: str = ""
) -> Task:
    """Run one side to its end, in a fresh directory."""
    directory = scratch / "run"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    task = Task(
        function,
        scratch / "input",
        directory,
        drain=True,
        files_per_batch=options.files_per_batch,
        epoch_bytes=options.files_per_batch * largest,
        store=store,
    )
    with SIDES[side](task) as process:
        process.wait(_TIMEOUT_S)
        if process.returncode != 0:
            raise AnabranchError(f"{side} failed:\n{(directory / 'log').read_text()[-2000:]}")
    return task


def _rate(batches: list[Delivered], options: ThroughputOptions) -> dict[str, Any]:
    rows_per_batch = ROWS_PER_FILE * options.files_per_batch
    warm = options.warm_up_rows // rows_per_batch
    last = (options.warm_up_rows + options.rows) // rows_per_batch
    ends = {batch.number: batch.at_s for batch in batches}
    seconds = ends[last - 1] - ends[warm - 1]
    rows = (last - warm) * rows_per_batch
    return {"rows": rows, "seconds": round(seconds, 3), "rows_per_s": round(rows / seconds), "batches": last - warm}

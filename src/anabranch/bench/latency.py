"""From the creation of a row to its delivery, side by side with bare Spark, in one run.

A writer makes 20,000 rows a second in a file every 100 ms; each row carries the time of its creation. The latency of a
row is the time at which a reader could see it in the output, less that. The first stretch of each run warms up and
does not count.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.bench.report import Report
from anabranch.bench.sides import SIDES, Task, delivered
from anabranch.errors import AnabranchError

FILE_EVERY_S = 0.1


@dataclass(frozen=True)
class LatencyOptions:
    """How long to measure, per side and round."""

    rows_per_second: int = 20_000
    warm_up_s: float = 45.0
    seconds: float = 45.0
    rounds: int = 3


class Writer:
    """Writes a file of fresh rows every 100 ms, whole or not at all, until it is stopped."""

    def __init__(self, directory: Path, rows_per_second: int, row_bytes: int = 8) -> None:
        self._directory = directory
        self._rows = int(rows_per_second * FILE_EVERY_S)
        self._row_bytes = row_bytes
        self._number = 0
        self._words = pa.array([], pa.string())
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        directory.mkdir(parents=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def flood(self, files: int, rows: int) -> int:
        """Stop, then let many large files appear at once; return how many rows that are."""
        self.stop()
        began_s = time.time()
        for path in [self._write(began_s + number, 1.0, rows) for number in range(1, files + 1)]:
            _show(path)
        return files * rows

    def _loop(self) -> None:
        until_s = time.time()
        while not self._stopping.is_set():
            until_s += FILE_EVERY_S
            self._stopping.wait(max(0.0, until_s - time.time()))
            _show(self._write(until_s, FILE_EVERY_S, self._rows))

    def _write(self, until_s: float, stretch_s: float, rows: int) -> Path:
        """Write the next file, which nobody sees yet: its rows were created evenly over a stretch."""
        if len(self._words) != rows:
            self._words = pa.array([f"word{index % 1000:04d}".ljust(self._row_bytes, "x") for index in range(rows)])
        created = np.linspace(until_s - stretch_s, until_s, rows, endpoint=False) * 1e6
        table = pa.table({"ts": pa.array(created.astype("int64"), pa.timestamp("us", tz="UTC")), "word": self._words})
        hidden = self._directory / f".{self._number:08d}"
        self._number += 1
        pq.write_table(table, hidden)
        return hidden


def _show(hidden: Path) -> None:
    os.rename(hidden, hidden.with_name(f"{hidden.name[1:]}.parquet"))


def measure(options: LatencyOptions, report: Report, say: Callable[[str], None]) -> dict[str, float]:
    """Run all rounds; return the ratios of Anabranch's median and p99 to bare Spark's (medians over the rounds)."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for number in range(options.rounds):
        order = list(SIDES) if number % 2 == 0 else list(SIDES)[::-1]
        for side in order:
            line = _run(side, options)
            found[side].append(line)
            report.add(round=number, order=order, **line)
            say(f"round {number + 1}: {side}: median {line['median_s']:.3f} s, p99 {line['p99_s']:.3f} s")
    return {
        measure: statistics.median(line[f"{measure}_s"] for line in found["anabranch"])
        / statistics.median(line[f"{measure}_s"] for line in found["bare_spark"])
        for measure in ("median", "p99")
    }


def _run(side: str, options: LatencyOptions) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    task = Task("pass_through", directory / "input", directory, drain=False)
    writer = Writer(task.input, options.rows_per_second)
    try:
        with SIDES[side](task) as process:
            writer.start()
            time.sleep(options.warm_up_s)
            from_s = time.time()
            time.sleep(options.seconds)
            until_s = time.time()
            if process.poll() is not None:
                raise AnabranchError(f"{side} failed:\n{(directory / 'log').read_text()[-2000:]}")
            batches = [batch for batch in delivered(side, task) if from_s <= batch.at_s <= until_s]
            latencies = np.concatenate([_latencies(batch.at_s, path) for batch in batches for path in batch.files])
    finally:
        writer.stop()
        shutil.rmtree(directory, ignore_errors=True)
    median, p99 = np.percentile(latencies, [50, 99])
    return {
        "side": side,
        "rows": len(latencies),
        "batches": len(batches),
        "median_s": round(float(median), 4),
        "p99_s": round(float(p99), 4),
        "max_s": round(float(latencies.max()), 4),
        "histogram": np.histogram(latencies, bins=100, range=(0, 5))[0].tolist(),
    }


def _latencies(at_s: float, path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    created = pq.read_table(path, columns=["ts"])["ts"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    return np.asarray(at_s - created / 1e6)

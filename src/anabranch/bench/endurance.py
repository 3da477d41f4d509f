"""Does it stay the same size? Memory of every process and the number of files, over minutes at a steady pace.

A sample every few seconds; the first stretch warms up. Growth is the median of the last quarter over the median of the
quarter after the warm-up: 1.0 is flat.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anabranch.bench.pipelines as measured_pipelines
from anabranch.bench.report import Report
from anabranch.errors import AnabranchError

SAMPLE_EVERY_S = 5.0
# A collector lets the heap grow to its limit before it works hard, for minutes; so the whole heap is touched at the
# start, and what grows after that is a leak.
_HEAP_FROM_THE_START = "spark.driver.extraJavaOptions=-XX:+UseParallelGC -Xms1g -XX:+AlwaysPreTouch"


@dataclass(frozen=True)
class EnduranceOptions:
    """How long, and how fast."""

    seconds: float = 300.0
    warm_up_s: float = 90.0
    rows_per_second: int = 50_000


def measure(options: EnduranceOptions, report: Report, say: Callable[[str], None]) -> dict[str, float]:
    """Run and sample; return the growth of each kind of process and of the number of files."""
    directory = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    work = directory / "work"
    file = Path(measured_pipelines.__file__).parent / "enduring.py"
    anabranch = [sys.executable, "-m", "anabranch.cli.main"]
    environment = {
        **os.environ,
        "BENCH_ROWS_PER_SECOND": str(options.rows_per_second),
        "BENCH_OUTPUT": str(directory / "output"),
    }
    log = directory / "log"
    with log.open("wb") as output:
        command = [*anabranch, "run", str(file), "--work", str(work), "--set", _HEAP_FROM_THE_START]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    samples: list[dict[str, Any]] = []
    try:
        started_s = time.monotonic()
        while time.monotonic() - started_s < options.warm_up_s + options.seconds:
            time.sleep(SAMPLE_EVERY_S)
            if process.poll() is not None:
                raise AnabranchError(f"the pipeline ended:\n{log.read_text()[-2000:]}")
            at_s = round(time.monotonic() - started_s, 1)
            sample = {"at_s": at_s, "files": _files(work), **_memory_mib(process.pid)}
            samples.append(sample)
            report.add(**sample)
            say(", ".join(f"{key} {value:,}" for key, value in sample.items()))
        subprocess.run([*anabranch, "stop", "--work", str(work)], check=True, capture_output=True)
        if process.wait(120) != 0:
            raise AnabranchError(f"the pipeline did not stop in order:\n{log.read_text()[-2000:]}")
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)
    return growth([sample for sample in samples if sample["at_s"] > options.warm_up_s])


def growth(samples: list[dict[str, Any]]) -> dict[str, float]:
    """Compare the last quarter with the first."""
    quarter = max(1, len(samples) // 4)
    return {
        key: round(
            statistics.median(sample[key] for sample in samples[-quarter:])
            / max(1, statistics.median(sample[key] for sample in samples[:quarter])),
            3,
        )
        for key in samples[0]
        if key != "at_s"
    }


def _files(directory: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(directory))


def _memory_mib(root: int) -> dict[str, int]:
    """Add up the resident memory of a process and all its descendants, by kind."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = {"launcher_mib": 0, "node_mib": 0, "jvm_mib": 0, "workers_mib": 0}
    open_pids = [root]
    while open_pids:
        pid = open_pids.pop()
        open_pids += children.get(pid, [])
        try:
            text = Path(f"/proc/{pid}/cmdline").read_bytes()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
        found[_kind(text)] += pages * os.sysconf("SC_PAGESIZE") >> 20
    return found


def _kind(command: bytes) -> str:
    if b"java" in command.split(b"\0")[0]:
        return "jvm_mib"
    if b"node_process" in command:
        return "node_mib"
    return "workers_mib" if b"pyspark" in command else "launcher_mib"

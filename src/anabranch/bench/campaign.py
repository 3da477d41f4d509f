"""Many runs of chaos, over strategies and kinds of state, with faults drawn from all there are.

Run number *n* is settled by *n* alone: its pipeline, strategy, faults and input. Runs that are in the report already
are not repeated, so a campaign may be broken off and gone on with. What a run that did not hold left behind is kept.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anabranch.bench.pipelines as measured_pipelines
from anabranch.bench.events import write_input
from anabranch.bench.report import Report, lines_of
from anabranch.chaos.faults import CATALOGUE
from anabranch.errors import AnabranchError

_FILE = Path(measured_pipelines.__file__).parent / "broken.py"
_KINDS = ("windowed", "running", "joined", "chain")
_STRATEGIES = (
    "active",
    "written",
    "ksafe",
    "trailing",
    "passive-gated",
    "passive-warm",
    "passive-cold",
    "shipped",
    "upstream",
    "amnesia",
    "none",
)
# Which of them have what some faults are about.
_HAVING = {
    "store": ("passive-gated", "passive-warm", "passive-cold", "shipped"),
    "regating": ("passive-gated", "shipped", "upstream"),
}
# In some runs executors are processes of their own, and are hit.
_CLUSTERED_EVERY = 20
_CLUSTER = "local-cluster[1,1,1024]"
# Upstream backup refuses a running count: no epoch could ever be forgotten.
_REFUSED = {("running", "upstream")}
_TIMEOUT_S = 1800.0
_QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"


@dataclass(frozen=True)
class CampaignOptions:
    """How many runs, how many at a time, and what each consists of."""

    runs: int = 200
    faults: int = 3
    seconds: float = 20.0
    jobs: int = 1


@dataclass(frozen=True)
class Planned:
    """One run."""

    number: int
    kind: str
    strategy: str
    nodes: int
    faults: tuple[str, ...]
    master: str = "local[1]"


def planned(number: int, options: CampaignOptions) -> Planned:
    """Return what a run consists of. Pure: kinds and strategies in turn, faults by chance."""
    pairs = [pair for pair in itertools.product(_KINDS, _STRATEGIES) if pair not in _REFUSED]
    kind, strategy = pairs[number % len(pairs)]
    chance = random.Random(number)
    nodes = chance.choice([2, 2, 2, 3])
    able = {need for need, strategies in _HAVING.items() if strategy in strategies}
    lacking = {"executors", *_HAVING} - able
    if number % _CLUSTERED_EVERY == _CLUSTERED_EVERY - 1:
        faults = sorted(name for name, fault in CATALOGUE.items() if "executors" in fault.needs)
        return Planned(number, kind, strategy, 2, (*faults, chance.choice(_possible(lacking))), _CLUSTER)
    return Planned(number, kind, strategy, nodes, tuple(chance.sample(_possible(lacking), options.faults)))


def _possible(lacking: set[str]) -> list[str]:
    return sorted(name for name, fault in CATALOGUE.items() if not lacking & set(fault.needs))


def measure(options: CampaignOptions, report: Report, say: Callable[[str], None]) -> dict[str, Any]:
    """Run what is not in the report yet; return a summary of all runs."""
    done = {line["run"] for line in lines_of(report.path)}
    kept, children = report.path.parent / "broken", list[subprocess.Popen[str]]()
    with ThreadPoolExecutor(options.jobs) as pool:
        left = [number for number in range(options.runs) if number not in done]
        running = [pool.submit(_run, planned(number, options), options, kept, children) for number in left]
        try:
            for one in as_completed(running):
                line = report.add(**one.result())
                word = "held" if line["held"] else "BROKEN"
                faults = ", ".join(line["faults"])
                say(f"run {line['run']}: {line['kind']} by {line['strategy']}, {faults}: {word}")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in children:  # whoever is asked to end, ends them too
                child.terminate()
    return summary(report)


def summary(report: Report) -> dict[str, Any]:
    """Count what was run, what was injected, and what did not hold."""
    lines = lines_of(report.path)
    return {
        "runs": len(lines),
        "held": sum(line["held"] for line in lines),
        "broken": [line["run"] for line in lines if not line["held"]],
        "faults": dict(Counter(fault for line in lines for fault in line["faults"]).most_common()),
        "never": sorted(set(CATALOGUE) - {fault for line in lines for fault in line["faults"]}),
    }


def _run(plan: Planned, options: CampaignOptions, kept: Path, children: list[subprocess.Popen[str]]) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    try:
        write_input(directory, files=120, rows=40, seed=plan.number)
        environment = {
            "BENCH_INPUT": str(directory),
            "BENCH_KIND": plan.kind,
            "BENCH_STRATEGY": plan.strategy,
            "BENCH_STORE": f"log:{directory / 'store'}",
            # JVMs that live for a minute: the quick compiler alone warms up in half the time of both.
            "JAVA_TOOL_OPTIONS": os.environ.get("JAVA_TOOL_OPTIONS", _QUICK),
        }
        command = [sys.executable, "-m", "anabranch.cli.main", "chaos", str(_FILE), "--json"]
        command += [f"--faults={','.join(plan.faults)}", f"--count={options.faults}", f"--seconds={options.seconds}"]
        command += [f"--seed={plan.number}", f"--nodes={plan.nodes}", f"--out={directory / 'chaos'}"]
        command += [f"--master={plan.master}"]
        try:
            verdict = json.loads(_said(command, directory, environment, children).splitlines()[-1])
        except (AnabranchError, subprocess.TimeoutExpired, ValueError) as error:
            verdict = {"held": False, "faults": [], "failed": f"{type(error).__name__}: {error}"}
        if not verdict["held"]:
            shutil.copytree(directory, kept / str(plan.number), dirs_exist_ok=True, symlinks=True)
        verdict.pop("report", None)
        return {**verdict, "run": plan.number, "kind": plan.kind, "strategy": plan.strategy, "nodes": plan.nodes}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _said(
    command: list[str], directory: Path, environment: dict[str, str], children: list[subprocess.Popen[str]]
) -> str:
    """Run a command that has to put things right itself when it is told to end; return what it said."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children.append(process)
    try:
        said, errors = process.communicate(timeout=_TIMEOUT_S)
    finally:
        process.terminate()
        process.wait()
        children.remove(process)
    if not said.strip():
        raise AnabranchError("a run of chaos said nothing", hint=errors[-2000:])
    return said

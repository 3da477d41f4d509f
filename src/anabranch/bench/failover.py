"""What a reader sees when a node is killed: every strategy, and bare Spark in a restart loop, in one run.

A writer makes 20,000 rows a second, which are counted in windows. As soon as the standby is warm, the node that holds
the unit is killed with SIGKILL, it and everything it started. The gap is the longest time between two published epochs
around the kill; for bare Spark, between two entries of its sink's log. At the end of a session the output is compared
with both oracles. Kills that are in the report already are not repeated, so a run may be broken off and gone on with.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.bench.latency import Writer
from anabranch.bench.report import Report, lines_of
from anabranch.bench.subjects import BareSubject, NodesSubject, Subject
from anabranch.processes import kill_session

STRATEGIES = (
    "bare",
    "ksafe",
    "active",
    "trailing",
    "passive-gated",
    "passive-warm",
    "passive-cold",
    "upstream",
    "amnesia",
)
_BEFORE_S, _AFTER_S = 10.0, 180.0
_PREFIX = "anabranch-bench-"
_RECOVERY_TIMEOUT_S = 180.0
_LOOK_S = 0.1


@dataclass(frozen=True)
class FailoverOptions:
    """Which strategies, how many kills of each, and how many in one session of processes."""

    strategies: tuple[str, ...] = STRATEGIES
    kills: int = 20
    kills_per_session: int = 10
    rows_per_second: int = 20_000


def measure(options: FailoverOptions, report: Report, say: Callable[[str], None]) -> None:
    """Kill until every strategy has had its share, in turns."""
    while True:
        kills = {name: len(_kills(report, name)) for name in options.strategies}
        strategy = min(kills, key=lambda name: (kills[name], options.strategies.index(name)))
        if kills[strategy] >= options.kills:
            return
        _session(strategy, min(options.kills_per_session, options.kills - kills[strategy]), options, report, say)


def summary(report: Report, strategies: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return median, 95th percentile and largest gap, and what was lost, duplicated or wrong, per strategy."""
    found = {}
    for name in strategies:
        gaps = sorted(line["gap_s"] for line in _kills(report, name))
        verdicts = [line for line in lines_of(report.path) if line["kind"] == "verdict" and line["strategy"] == name]
        judged = {line.get("session") for line in verdicts}
        if gaps:
            found[name] = {
                "kills": len(gaps),
                "median_s": round(statistics.median(gaps), 3),
                "p95_s": round(gaps[min(len(gaps) - 1, round(0.95 * (len(gaps) - 1)))], 3),
                "largest_s": round(gaps[-1], 3),
                "unjudged": sum(line.get("session") not in judged for line in _kills(report, name)),
                **{key: sum(line[key] for line in verdicts) for key in ("lost", "duplicated", "wrong", "unnamed")},
                "batch_differs": sum(
                    line["batch"][key] for line in verdicts for key in ("lost", "duplicated", "wrong")
                ),
            }
    return found


def _kills(report: Report, strategy: str) -> list[dict[str, Any]]:
    return [line for line in lines_of(report.path) if line["kind"] == "kill" and line["strategy"] == strategy]


def _session(strategy: str, kills: int, options: FailoverOptions, report: Report, say: Callable[[str], None]) -> None:
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    writer = Writer(directory / "input", options.rows_per_second)
    subject: Subject = BareSubject(directory) if strategy == "bare" else NodesSubject(directory, strategy)
    session = directory.name.removeprefix(_PREFIX)
    try:
        subject.start()
        writer.start()
        for number in range(kills):
            subject.wait_until_ready()
            line = _kill(subject, strategy)
            # At once: what comes to nothing later must not take the figures along.
            report.add(kind="kill", session=session, **line)
            say(f"{strategy}, kill {number + 1} of {kills}: {_told(line)}")
        writer.stop()
        verdict = subject.finish()
        say(f"{strategy}: {verdict['expected']:,} rows expected, {verdict}")
        report.add(kind="verdict", session=session, strategy=strategy, **verdict)
    finally:
        writer.stop()
        subject.end()
        shutil.rmtree(directory, ignore_errors=True)


def _kill(subject: Subject, strategy: str) -> dict[str, Any]:
    """Kill the node that leads, wait until output flows again, and return what a reader saw."""
    session = subject.leader()
    killed_s = time.time()
    kill_session(session)
    deadline_s = killed_s + _RECOVERY_TIMEOUT_S
    while not subject.recovered(killed_s):
        if time.time() > deadline_s:
            return {"strategy": strategy, "gap_s": _RECOVERY_TIMEOUT_S, "failed": subject.log()}
        time.sleep(_LOOK_S)
    times = [at_s - killed_s for at_s in subject.outputs() if -_BEFORE_S <= at_s - killed_s <= _AFTER_S]
    before = [later - earlier for earlier, later in itertools.pairwise(times) if later <= 0]
    around = [later - earlier for earlier, later in itertools.pairwise(times) if later > 0]
    return {
        "strategy": strategy,
        "gap_s": round(max(around), 4),
        "steady_s": round(statistics.median(before), 4) if before else None,
        "first_output_s": round(min(at_s for at_s in times if at_s > 0), 4),
        "outputs": [round(at_s, 3) for at_s in times],
        **subject.phases(killed_s),
    }


def _told(line: dict[str, Any]) -> str:
    phases = ", ".join(f"{key.removesuffix('_s')} {line[key]:.2f}" for key in line if key in _PHASES and line[key])
    steady_s = line.get("steady_s") or 0.0
    return f"gap {line['gap_s']:.2f} s (steady {steady_s:.2f} s; {phases or 'no phases'})"


_PHASES = ("detected_s", "restore_s", "output_s", "catch_up_s")

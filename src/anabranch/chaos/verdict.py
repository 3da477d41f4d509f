"""What a run comes to: one line, from what was done to it and from what both oracles say. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from anabranch.chaos.judging import Judgement
from anabranch.oracle.batch import total
from anabranch.pipeline import Graph
from anabranch.segments import Segment
from anabranch.strategies import Amnesia, Strategy

_MOST_EPOCHS, _MOST_EXAMPLES = 20, 6
# A history counts from its own beginning.
Times = dict[str, dict[int, float]]


@dataclass(frozen=True)
class Course:
    """How a run went. `delivered` are the times of the epochs of every sink; `ends_s` when the last input came.

    `rows_after` counts the rows that were delivered after the first fault.
    `lossy` are the sinks that may lack rows, and `named` says whether an epoch of a sink is marked as lacking some.
    """

    strategies: Mapping[str, Strategy]
    seed: int
    injected: list[dict[str, Any]]
    unable: dict[str, str]
    stops: int
    delivered: Times
    ends_s: float | None
    rows_after: int
    rewritten: list[str] = field(default_factory=list)
    # Sinks whose rows are others in every run, each with the segment that makes them so.
    drawn: Mapping[str, str] = field(default_factory=dict)
    lossy: frozenset[str] = frozenset()
    named: Callable[[str, int], bool] = lambda _sink, _epoch: False


def lossy_sinks(graph: Graph, segments: Mapping[str, Segment], strategies: Mapping[str, Strategy]) -> frozenset[str]:
    """Return the sinks whose rows come, by whatever way, from a segment that may lose some."""
    lossy: set[str] = set()
    for name, segment in segments.items():
        if isinstance(strategies.get(name), Amnesia) or lossy.intersection(segment.inputs):
            lossy.add(name)
    return frozenset(name for name, sink in graph.sinks.items() if sink.stream in lossy)


def drawn_sinks(
    graph: Graph, segments: Mapping[str, Segment], promises: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Return the sinks whose rows come from an arbitrary segment: no other run has the same, whatever was promised."""
    drawn: dict[str, str] = {}
    for name, segment in segments.items():
        before = [drawn[read] for read in segment.inputs if read in drawn]
        if promises.get(name, {}).get("class") == "arbitrary":
            drawn[name] = f"segment {name!r} is arbitrary, because of {promises[name].get('because', 'its plan')}"
        elif before:
            drawn[name] = before[0]
    return {name: drawn[sink.stream] for name, sink in graph.sinks.items() if sink.stream in drawn}


def verdict(course: Course, judgement: Judgement | None, failed: str | None) -> dict[str, Any]:
    """Return the line that ends a history."""
    failed = failed or _unusable(course, judgement)
    steady_s, longest_s = gaps(course)
    compared = {} if judgement is None else judgement.batch
    batch = total(compared)
    reference = None if judgement is None else judgement.reference
    counted = ("lost", "duplicated", "wrong")
    return {
        "strategy": ", ".join(sorted({type(one).__name__ for one in course.strategies.values()})) or "none",
        "guarantee": "gap" if course.lossy else "precise",
        "faults": [line["fault"] for line in course.injected],
        "epochs": max((max(epochs, default=-1) + 1 for epochs in course.delivered.values()), default=0),
        "rows_expected": None if reference is None else reference.expected,
        "rows_delivered": None if reference is None else reference.delivered,
        **{key: None if reference is None else getattr(reference, key) for key in counted},
        "batch": {key: value for key, value in asdict(batch).items() if key != "examples"},
        "batch_left_out": {name: one.reason for name, one in compared.items() if one.verdict is None},
        "not_compared": {
            sink: why
            for sink, why in course.drawn.items()
            if judgement is not None and _excused(course, judgement, sink)
        },
        "empty": [] if judgement is None else sorted(name for name, rows in judgement.expected.items() if not rows),
        "batch_undecided": sum(one.undecided for one in compared.values()),
        "judged_by": [] if judgement is None else judgement.judges,
        "differing": {} if judgement is None else {n: e[:_MOST_EPOCHS] for n, e in judgement.differing.items() if e},
        "examples": [*(reference.examples if reference is not None else ()), *batch.examples][:_MOST_EXAMPLES],
        "unable": course.unable,
        "stops": course.stops,
        "rows_after_faults": course.rows_after,
        "failed": failed,
        "seed": course.seed,
        "max_gap_s": longest_s,
        "steady_gap_s": steady_s,
        "held": failed is None and judgement is not None and all(_kept(course, judgement, n) for n in course.delivered),
    }


def _unusable(course: Course, judgement: Judgement | None) -> str | None:
    """Say why a run proves nothing, or more than rows went wrong."""
    if not course.injected:
        return "no fault was injected"
    if course.rewritten:
        return f"what was delivered changed afterwards: {', '.join(course.rewritten[:3])}"
    if judgement is None:
        return None
    excused = course.delivered and all(_excused(course, judgement, sink) for sink in course.delivered)
    reasons = {
        next(iter(judgement.untaken), ""): bool(judgement.untaken),
        f"nothing can be compared: {next(iter(course.drawn.values()), '')}": excused,
        "nothing was compared: no row was expected": not judgement.reference.expected,
        "no row was delivered after the first fault: the input had ended, or gave no more rows": not course.rows_after,
    }
    return next((why for why, so in reasons.items() if so), None)


def _kept(course: Course, judgement: Judgement, sink: str) -> bool:
    """Say whether a sink has what was promised, as far as another run can tell."""
    if _excused(course, judgement, sink):
        return True
    differing = [] if sink in course.drawn else judgement.differing.get(sink, [])
    compared = judgement.batch.get(sink)
    exact = compared is None or compared.verdict is None or compared.verdict.exact
    if sink not in course.lossy or not differing:
        return not differing and exact
    # What is lost is lost from the first fault on, and nothing comes twice instead.
    first_s = min(line["at_s"] for line in course.injected)
    early = [epoch for epoch in differing if course.delivered[sink].get(epoch, first_s) < first_s]
    return not early and not judgement.repeated.get(sink) and all(course.named(sink, epoch) for epoch in differing)


def _excused(course: Course, judgement: Judgement, sink: str) -> bool:
    """Say whether a sink differs from another run, as the rows of an arbitrary segment may.

    Not if the batch query agrees, as it does for sums that differ in their last digits: then it was compared.
    """
    asked = judgement.batch[sink].verdict if sink in judgement.batch else None
    agreed = asked is not None and asked.exact and asked.expected > 0
    return sink in course.drawn and bool(judgement.differing.get(sink)) and not (agreed and sink not in course.lossy)


def gaps(course: Course) -> tuple[float | None, float | None]:
    """Return the median time between two deliveries before the first fault, and the longest after it.

    What begins after the last input does not count.
    """
    first_s = min((line["at_s"] for line in course.injected), default=None)
    before: list[float] = []
    after: list[float] = []
    for epochs in course.delivered.values():
        for earlier_s, later_s in itertools.pairwise(sorted(epochs.values())):
            if course.ends_s is None or earlier_s <= course.ends_s:
                (before if first_s is None or later_s < first_s else after).append(later_s - earlier_s)
    steady = round(statistics.median(before), 3) if before else None
    return steady, round(max(after), 3) if after else None

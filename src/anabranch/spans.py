"""How far back in event time the state of a segment reaches; from its analysed plan.

Spark drops from the state what the watermark has passed. A window of ten seconds is kept until the watermark reaches
its end, so its rows may be ten seconds older than the watermark; a row of a join is kept as long as the other side may
still bring a match. Where nothing bounds the state (a running count, say), everything that was ever read is in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from anabranch.execution import items
from anabranch.guarantee.plan_tree import PlanNode, paired
from anabranch.merging import STATEFUL_OPERATORS, USER_OPERATORS, user_state

_WATERMARK = "spark.watermarkDelayMs"
_SESSION = "spark.sessionWindow"
# Any time will do: only the distance to what the helper answers counts.
_SOME_WATERMARK_MS = 1_000_000_000_000


@dataclass(frozen=True)
class Span:
    """What the state holds: rows up to `ms` older than the watermark; None with a `reason` if nothing bounds it.

    `stateful` is False where there is no state at all; `operator` is what keeps it.
    """

    ms: int | None
    reason: str = ""
    stateful: bool = True
    operator: str = ""


NO_STATE = Span(0, stateful=False)


def combined(spans: list[Span]) -> Span:
    """Return how far back the state of a whole plan reaches, given that of its operators."""
    unbounded = next((span for span in spans if span.ms is None), None)
    if unbounded is not None or not spans:
        return unbounded or NO_STATE
    if len(spans) > 1:
        return Span(None, "more than one operator with state; make the first a connector of its own")
    return spans[0]


def operator_spans(jvm: Any, analyzed: Any, tree: PlanNode, output_mode: str) -> list[Span]:  # noqa: ANN401  JVM objects
    """Return how far back the state of each operator reaches, for those that have any. `tree` is the same plan."""
    window_ms = _longest_window_ms(tree)
    spans = [span for node, found in paired(tree, analyzed, _keeps) if (span := _of(jvm, node, found, window_ms))]
    if output_mode == "complete":
        whole = "output mode complete, which keeps every row of the result"
        return [span if span.ms is None else replace(span, ms=None, reason=whole) for span in spans]
    return spans


def _keeps(node: PlanNode) -> bool:
    """Say whether an operator may keep state."""
    known = node.kind in ("Aggregate", "Join") or node.kind in STATEFUL_OPERATORS or user_state(node.kind)
    return known and node.streams()


def _of(jvm: Any, node: PlanNode, found: Any, window_ms: int | None) -> Span | None:  # noqa: ANN401  JVM objects
    if node.kind == "Join":
        both = all(side.streams() for side in node.children)
        return replace(_of_join(jvm, found), operator="a join") if both else None
    if node.kind == "Aggregate":
        ms = _bounded_ms(found.groupingExpressions(), window_ms)
        reason = "" if ms is not None else "an aggregate without a tumbling or sliding window over a watermark"
        return Span(ms, reason, operator="an aggregate")
    if node.kind == "Deduplicate" and (ms := _bounded_ms(found.keys(), window_ms)) is not None:
        return Span(ms, operator="dropDuplicates")
    operator = STATEFUL_OPERATORS.get(node.kind) or USER_OPERATORS.get(node.kind, node.kind)
    return Span(None, f"{operator}, whose state no window bounds", operator=operator)


def _bounded_ms(keys: Any, window_ms: int | None) -> int | None:  # noqa: ANN401  JVM objects
    """Return how much older than the watermark the rows of a group may be, None if Spark never forgets a group.

    Spark forgets by a key that is itself a column with a watermark, not by what is derived from one (the hour of a
    time, the start of a window). A window is forgotten when the watermark has passed its end.
    """
    for key in items(keys):
        if key.getClass().getSimpleName() not in ("AttributeReference", "Alias"):
            continue
        if not key.metadata().contains(_WATERMARK) or key.metadata().contains(_SESSION):
            continue
        if window_ms is not None:
            return window_ms
        if key.dataType().typeName() != "struct":
            return 0
    return None


def _longest_window_ms(tree: PlanNode) -> int | None:
    """Find the windows of a plan: the analyser writes their end as their start plus a literal of microseconds."""
    lengths = [
        int(end.children[1].fields["value"])
        for node in tree.operators()
        for part in node.parts()
        if part.kind == "PreciseTimestampConversion"
        for end in part.children
        if end.kind == "Add" and end.children[1].kind == "Literal"
    ]
    return -(-max(lengths) // 1000) if lengths else None


def _of_join(jvm: Any, node: Any) -> Span:  # noqa: ANN401  JVM objects
    """Ask Spark until when the rows of each side are kept, at some watermark."""
    helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    # An OptionalLong, because Py4J would turn a boxed Long into an Integer on the way.
    some = jvm.java.util.OptionalLong.of(_SOME_WATERMARK_MS)
    watermark = jvm.scala.jdk.javaapi.OptionConverters.toScala(some)
    left, right = node.left().outputSet(), node.right().outputSet()
    spans = []
    for mine, other in ((left, right), (right, left)):
        kept = helper.getStateValueWatermark(mine, other, node.condition(), watermark)
        if kept.isEmpty():
            return Span(None, "a join whose condition does not bound the time between its two sides")
        spans.append(max(0, _SOME_WATERMARK_MS - int(kept.get())))
    return Span(max(spans))

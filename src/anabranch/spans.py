"""How far back in event time the state of a segment reaches; from its analysed plan.

Spark drops from the state what the watermark has passed. A window of ten seconds is kept until the watermark reaches
its end, so its rows may be ten seconds older than the watermark; a row of a join is kept as long as the other side may
still bring a match. Where nothing bounds the state (a running count, say), everything that was ever read is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anabranch.execution import items, walk
from anabranch.merging import STATEFUL_OPERATORS

_WATERMARK = "spark.watermarkDelayMs"
# Any time will do: only the distance to what the helper answers counts.
_SOME_WATERMARK_MS = 1_000_000_000_000


@dataclass(frozen=True)
class Span:
    """What the state holds: rows up to `ms` older than the watermark; None with a `reason` if nothing bounds it.

    `stateful` is False where there is no state at all.
    """

    ms: int | None
    reason: str = ""
    stateful: bool = True


NO_STATE = Span(0, stateful=False)


def state_span(jvm: Any, analyzed: Any, output_mode: str) -> Span:  # noqa: ANN401  JVM objects
    """Return how far back the state of a plan reaches."""
    spans = [span for node in walk(analyzed) if (span := _of(jvm, node, analyzed)) is not None]
    unbounded = next((span for span in spans if span.ms is None), None)
    if unbounded is not None or not spans:
        return unbounded or NO_STATE
    if output_mode == "complete":
        return Span(None, "output mode complete, which keeps every row of the result")
    if len(spans) > 1:
        return Span(None, "more than one operator with state; make the first a connector of its own")
    return spans[0]


def _of(jvm: Any, node: Any, plan: Any) -> Span | None:  # noqa: ANN401  JVM objects
    if not node.isStreaming():
        return None
    name = node.getClass().getSimpleName()
    if name in STATEFUL_OPERATORS or "State" in name or ("InPandas" in name and "Groups" in name):
        return Span(None, f"{STATEFUL_OPERATORS.get(name, name)}, whose state no window bounds")
    if name == "Aggregate":
        return _of_aggregate(node, plan)
    if name == "Join" and node.left().isStreaming() and node.right().isStreaming():
        return _of_join(jvm, node)
    return None


def _of_aggregate(node: Any, plan: Any) -> Span:  # noqa: ANN401  JVM objects
    for key in items(node.groupingExpressions()):
        for part in walk(key):
            if part.getClass().getSimpleName() != "AttributeReference" or not part.metadata().contains(_WATERMARK):
                continue
            if part.dataType().typeName() != "struct":
                return Span(0)
            longest = _longest_window_us(plan)
            if longest is not None and not part.metadata().contains("spark.sessionWindow"):
                return Span(-(-longest // 1000))
    return Span(None, "an aggregate without a tumbling or sliding window over a watermark")


def _longest_window_us(plan: Any) -> int | None:  # noqa: ANN401  a JVM object
    """Find the windows of a plan: the analyser writes their end as their start plus a literal."""
    lengths = []
    for node in walk(plan):
        for expression in items(node.expressions()):
            for part in walk(expression):
                if part.getClass().getSimpleName() != "PreciseTimestampConversion":
                    continue
                inner = part.children().apply(0)
                if inner.getClass().getSimpleName() == "Add":
                    length = inner.children().apply(1)
                    if length.getClass().getSimpleName() == "Literal":
                        lengths.append(int(length.value()))
    return max(lengths, default=None)


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

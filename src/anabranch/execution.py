"""What a running query can tell that PySpark does not offer: late rows, and one watermark per operator.

Both come from Spark's internals through Py4J, and a test pins each of them to what Spark reports publicly.

Operator watermarks matter because Spark keeps them in memory only. A query with several watermarks works with the
smallest; after a restart it knows that smallest one from its commit log but has forgotten the others, so an input
that is silent for a while would hold the watermark back, and rows would be emitted in other epochs than in a run
without the restart. So they are noted before every commit and given back to the next run before its first batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_MOST_NODES = 10_000


class QueryInternals:
    """Looks into one running query."""

    def __init__(self, spark: SparkSession, query: StreamingQuery) -> None:
        self._execution = query._jsq.streamingQuery()
        self._gateway: Any = spark.sparkContext._gateway
        self._interesting: dict[int, str] | None = None
        self._operators = [str(node.nodeId()) for node in _nodes(self._execution.analyzedPlan(), "EventTimeWatermark")]

    @property
    def watermarks(self) -> int:
        """How many watermarks the query declares."""
        return len(self._operators)

    def late_rows(self) -> int:
        """Return how many rows (groups, for aggregates) the batch just executed dropped as late."""
        total = 0
        for node in self._executed("numRowsDroppedByWatermark"):
            total += int(node.metrics().apply("numRowsDroppedByWatermark").value())
        return total

    def operator_watermarks(self) -> list[int | None]:
        """Return the watermarks, in plan order, as they will be once the batch just executed is committed."""
        known = self._execution.watermarkTracker().watermarkMap()
        values: dict[str, int | None] = {}
        iterator = known.iterator()
        while iterator.hasNext():
            entry = iterator.next()
            option = entry._2()
            values[str(entry._1())] = int(option.get()) if option.isDefined() else None
        for node in self._executed("EventTimeWatermarkExec"):
            statistics = node.eventTimeStats().value()
            if statistics.count() > 0:
                key = str(node.nodeId())
                seen = int(statistics.max()) - int(node.delayMs())
                before = values.get(key)
                values[key] = seen if before is None else max(before, seen)
        return [values.get(operator) for operator in self._operators]

    def seen_ms(self) -> tuple[int | None, ...]:
        """Return, for each watermark in plan order, the newest event time that the batch just executed brought."""
        found: dict[str, int] = {}
        for node in self._executed("EventTimeWatermarkExec"):
            statistics = node.eventTimeStats().value()
            if statistics.count() > 0:
                found[str(node.nodeId())] = int(statistics.max())
        return tuple(found.get(operator) for operator in self._operators)

    def restore_operator_watermarks(self, values: list[int | None]) -> None:
        """Give a query that has not run a batch yet the watermarks its predecessor had."""
        jvm = self._gateway.jvm
        tracker = self._execution.watermarkTracker()
        no_types = self._gateway.new_array(jvm.java.lang.Class, 0)
        no_arguments = self._gateway.new_array(jvm.java.lang.Object, 0)
        accessor = tracker.getClass().getDeclaredMethod("operatorToWatermarkMap", no_types)
        accessor.setAccessible(True)
        private_map = accessor.invoke(tracker, no_arguments)
        nodes = _nodes(self._execution.analyzedPlan(), "EventTimeWatermark")
        for node, value in zip(nodes, values, strict=True):
            if value is not None:
                # An OptionalLong, because Py4J would turn a small boxed Long into an Integer on the way.
                some = jvm.scala.jdk.javaapi.OptionConverters.toScala(jvm.java.util.OptionalLong.of(value))
                private_map.put(node.nodeId(), some)

    def initialised(self) -> bool:
        """Say whether the query has read its logs; from then on watermarks can be restored."""
        return self._execution.watermarkTracker() is not None

    def _executed(self, what: str) -> list[Any]:
        """Return the executed plan's nodes of a class or with a metric; their numbers are found once and reused."""
        plan = self._execution.lastExecution().executedPlan()
        if self._interesting is None:
            self._interesting = {}
            for number, node in enumerate(walk(plan)):
                name = node.getClass().getSimpleName()
                if name == "EventTimeWatermarkExec":
                    self._interesting[number] = name
                elif node.metrics().contains("numRowsDroppedByWatermark"):
                    self._interesting[number] = "numRowsDroppedByWatermark"
        return [plan.apply(number) for number, kind in self._interesting.items() if kind == what]


def walk(plan: Any) -> list[Any]:  # noqa: ANN401  a JVM object
    """Return the nodes of a plan or an expression, each before its children."""
    nodes = []
    for number in range(_MOST_NODES):
        node = plan.apply(number)
        if node is None:
            break
        nodes.append(node)
    return nodes


def items(sequence: Any) -> list[Any]:  # noqa: ANN401  a JVM object
    """Return the elements of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def _nodes(plan: Any, name: str) -> list[Any]:  # noqa: ANN401  a JVM object
    return [node for node in walk(plan) if node.getClass().getSimpleName() == name]

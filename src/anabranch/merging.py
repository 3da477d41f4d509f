"""Whether several epochs may be read as one micro-batch without changing a segment's state; from its analysed plan.

Rows keep no order across the epochs of a merged batch, and watermarks move once instead of several times. Sums and
counts of whole numbers by key and window, and joins, come to the same state; the rule for late rows is elsewhere
(`strategies/trailing_standby.py`). What is not known to be safe here is not merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anabranch.execution import items, walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Operators with state that do not come to the same state: their results depend on where batches end, or on order.
STATEFUL_OPERATORS = {
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "GlobalLimit": "limit",
}
_SAFE_AGGREGATES = {"Count", "Sum", "Average", "Min", "Max", "BitAndAgg", "BitOrAgg", "BitXorAgg"}
# How the analyser marks the column that a session window becomes.
_SESSION_MARK = "spark.sessionWindow"
_INEXACT = {"double", "float"}


def unmergeable(frame: DataFrame) -> str | None:
    """Say what in a frame's plan depends on where micro-batches end or on the order of rows, None if nothing does."""
    for node in walk(frame._jdf.queryExecution().analyzed()):
        name = node.getClass().getSimpleName()
        if name in STATEFUL_OPERATORS:
            return STATEFUL_OPERATORS[name]
        if "State" in name or ("InPandas" in name and "Groups" in name):
            return f"a user function with state ({name})"
        for expression in items(node.expressions()):
            found = _in_expression(expression)
            if found is not None:
                return found
    return None


def _in_expression(expression: Any) -> str | None:  # noqa: ANN401  a JVM object
    parts = walk(expression)
    for part, inner in zip(parts, [*parts[1:], None], strict=True):
        name = part.getClass().getSimpleName()
        if name in ("Alias", "AttributeReference") and part.metadata().contains(_SESSION_MARK):
            return "a session window"
        if name != "AggregateExpression" or inner is None:
            continue
        # The function of an aggregate is its first child.
        function = inner.getClass().getSimpleName()
        if function not in _SAFE_AGGREGATES:
            return f"{inner.prettyName()}, which depends on the order of rows or is not known"
        if not _adds_exactly(function, str(inner.children().apply(0).dataType().typeName())):
            return f"{inner.prettyName()} of fractions, whose last bits depend on the order"
    return None


def _adds_exactly(function: str, added: str) -> bool:
    """Say whether an aggregate comes to the same in any order; Spark averages whole numbers as fractions too."""
    if function == "Average":
        return added.startswith("decimal")
    return function != "Sum" or added not in _INEXACT

"""Whether several epochs may be read as one micro-batch without changing a segment's state; from its analysed plan.

Rows keep no order across the epochs of a merged batch, and watermarks move once instead of several times. Sums and
counts of whole numbers by key and window, and joins, come to the same state; the rule for late rows is elsewhere
(`strategies/trailing_standby.py`). What is not known to be safe here is not merged.
"""

from __future__ import annotations

from anabranch.guarantee.aggregates import in_order
from anabranch.guarantee.plan_tree import PlanNode

# Operators with state that do not come to the same state: their results depend on where batches end, or on order.
STATEFUL_OPERATORS = {
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "Except": "subtract",
    "Intersect": "intersect",
    "GlobalLimit": "limit",
}
# Operators that call a function of the user's with whole groups or partitions, as they are written in PySpark.
USER_OPERATORS = {
    "MapInPandas": "mapInPandas",
    "MapInArrow": "mapInArrow",
    "PythonMapInArrow": "mapInArrow",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapCoGroupsInPandas": "applyInPandas",
    "FlatMapCoGroupsInArrow": "applyInArrow",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
    "TransformWithStateInPandas": "transformWithStateInPandas",
}


def user_state(kind: str) -> bool:
    """Say whether an operator keeps state by a function of the user's, or may."""
    return "State" in kind or ("InPandas" in kind and "Groups" in kind)


def unmergeable(tree: PlanNode) -> str | None:
    """Say what in a plan depends on where micro-batches end or on the order of rows, None if nothing does."""
    for node in tree.walk():
        if not node.streams():
            continue
        if node.kind in STATEFUL_OPERATORS:
            return STATEFUL_OPERATORS[node.kind]
        if user_state(node.kind):
            return f"a user function with state ({USER_OPERATORS.get(node.kind, node.kind)})"
        if node.fields.get("session"):
            return "a session window"
        for name, why in in_order(node):
            return f"{name}: {why}"
    return None

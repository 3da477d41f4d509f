"""What is known of aggregate functions: whether they come to the same result in any order of rows.

Spark adds rows up in the order in which tasks deliver them. On another node, with other cores, that is another order.
"""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.guarantee.plan_tree import ADDING, PlanNode

# Sums and counts of whole numbers, extremes and sets of bits: in any order the same.
_ANY_ORDER = {
    "BitAndAgg",
    "BitOrAgg",
    "BitXorAgg",
    "BitmapAndAgg",
    "BitmapConstructAgg",
    "BitmapOrAgg",
    "BoolAnd",
    "BoolOr",
    "Count",
    "CountIf",
    "CountMinSketchAgg",
    "HyperLogLogPlusPlus",
    "Max",
    "Median",
    "Min",
    "Percentile",
    "PercentileCont",
    "PercentileDisc",
    "RegrCount",
}
_FIRST_COME = {"First", "Last", "AnyValue"}
_COLLECTS = {"CollectList", "CollectSet", "ListAgg"}
_TIES = {"MaxBy", "MinBy", "Mode", "PandasMode"}
_FRACTIONS = {
    "StddevSamp",
    "StddevPop",
    "VarianceSamp",
    "VariancePop",
    "Corr",
    "CovSample",
    "CovPopulation",
    "Skewness",
    "Kurtosis",
    "RegrSlope",
    "RegrIntercept",
    "RegrR2",
    "RegrSXX",
    "RegrSXY",
    "RegrSYY",
    "RegrAvgX",
    "RegrAvgY",
}
_LAST_BITS = "the last bits of a sum of fractions depend on the order in which they are added"
_IN_ORDER = (
    (_FIRST_COME, "which row comes first or last depends on the order in which tasks deliver them"),
    (_COLLECTS, "the order of what is collected is that in which tasks deliver it"),
    (_TIES, "of several rows that are equal, the one that comes first decides"),
    (_FRACTIONS, _LAST_BITS),
)
_ARRAYS = {"CollectList", "CollectSet"}
_HIDING = {"Size", "ArraySize", "SortArray", "ArraySort"}
_INEXACT = {"double", "float"}


def in_order(node: PlanNode) -> Iterator[tuple[str, str]]:
    """Yield the aggregates of an operator that depend on the order of rows: how each is written, and why."""
    for tree in node.inside:
        yield from _in_expression(tree, None)


def _in_expression(part: PlanNode, above: PlanNode | None) -> Iterator[tuple[str, str]]:
    if part.kind == "AggregateExpression" and part.children:
        function = part.children[0]
        why = _order_matters(function)
        # How many were collected, and what they are in order, does not depend on how they came.
        hidden = above is not None and above.kind in _HIDING and function.kind in _ARRAYS
        if why is not None and not hidden:
            yield f"{function.fields.get('pretty') or _spoken(function.kind)}()", why
    for child in part.children:
        yield from _in_expression(child, part)


def _order_matters(function: PlanNode) -> str | None:
    """Say why the result of an aggregate function depends on the order of rows, None if it does not."""
    kind = function.kind
    if kind in _ANY_ORDER:
        return None
    if kind in ADDING:
        return _of_sum(kind, function.fields.get("input_type"))
    for kinds, why in _IN_ORDER:
        if kind in kinds:
            return why
    return "it is not known to come to the same result in any order of rows"


def _of_sum(kind: str, added: str | None) -> str | None:
    if added is not None and (added.startswith("decimal") or (kind == "Sum" and added not in _INEXACT)):
        return None
    if kind == "Average" and added not in _INEXACT:
        return "Spark averages whole numbers as fractions, whose last bits depend on the order in which they are added"
    return _LAST_BITS


def _spoken(kind: str) -> str:
    """Turn the name of Spark's class into words: CollectList, collect_list."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind).lstrip("_")

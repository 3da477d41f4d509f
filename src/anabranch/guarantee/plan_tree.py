"""An analysed Catalyst plan as plain data, fetched from the JVM in one call.

Spark can tell a plan as JSON: a list of its nodes, each before its children, each with the trees of its expressions.
Walking the plan through Py4J instead costs a message for every class name and field: a second for a plan of thirty
steps. What JSON leaves out (where in the user's code an expression was written, what a data source is) is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anabranch.execution import items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STREAM = "StreamingRelationV2"
# Aggregate functions of which it matters what they add up; `plan_tree` notes the type as the field `input_type`.
ADDING = ("Sum", "Average")
# How the analyser marks the column that a session window becomes; `plan_tree` notes it as the field `session`.
_SESSION_MARK = "spark.sessionWindow"


@dataclass(frozen=True)
class PlanNode:
    """An operator or an expression: the simple name of its class, its fields, and what is below it.

    `inside` are the expressions of an operator, and the plans of subqueries in an expression.
    """

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    children: tuple[PlanNode, ...] = ()
    inside: tuple[PlanNode, ...] = ()
    expression: bool = False

    def walk(self) -> Iterator[PlanNode]:
        """Yield the operators of a plan or the parts of an expression, each before its children."""
        yield self
        for child in self.children:
            yield from child.walk()

    def parts(self) -> Iterator[PlanNode]:
        """Yield every part of the expressions of one operator, without the plans of subqueries in them."""
        for tree in self.inside:
            for part in tree.walk():
                yield part
                for held in part.inside:
                    if held.expression:
                        yield from held.walk()

    def operators(self) -> Iterator[PlanNode]:
        """Yield the operators of a plan, and those of the subqueries in its expressions."""
        for node in self.walk():
            yield node
            for part in node.parts():
                for held in part.inside:
                    if not held.expression:
                        yield from held.operators()

    def streams(self) -> bool:
        """Say whether rows of a stream pass through here."""
        return any(node.kind == _STREAM for node in self.walk())

    def name_of(self, what: str) -> str:
        """Return the simple name of an object that a field holds, such as an output mode or a timeout."""
        value = self.fields.get(what)
        if isinstance(value, dict):
            value = value.get("object") or value.get("product-class") or value.get("class") or ""
        return _simple(str(value))


def plan_tree(frame: DataFrame) -> PlanNode:
    """Return the analysed plan of a frame."""
    analyzed = frame._jdf.queryExecution().analyzed()
    tree = parsed(str(analyzed.toJSON()))
    _note_aggregates(tree, analyzed)
    return tree


def parsed(text: str) -> PlanNode:
    """Return the tree that a JSON text of Spark's tells."""
    return _tree(iter(json.loads(text)))


def paired(node: PlanNode, found: Any, wanted: Callable[[PlanNode], bool]) -> Iterator[tuple[PlanNode, Any]]:  # noqa: ANN401
    """Yield the operators of a plan that are wanted, each with its JVM object; subqueries come after what holds them.

    Both trees are walked side by side, where there is something to find: every step of it is a message to the JVM.
    Spark's own numbering of nodes would be shorter; it counts subqueries, too.
    """
    if not any(wanted(some) for some in node.operators()):
        return
    if wanted(node):
        yield node, found
    held = [plan for part in node.parts() for plan in part.inside if not plan.expression]
    for plan, subquery in zip(held, items(found.subqueries()) if held else (), strict=True):
        yield from paired(plan, subquery, wanted)
    for child, below in zip(node.children, items(found.children()), strict=True):
        yield from paired(child, below, wanted)


def _note_aggregates(tree: PlanNode, analyzed: Any) -> None:  # noqa: ANN401  a JVM plan
    """Ask Spark what JSON leaves out of aggregates: names, types of what is added up, the mark of session windows."""
    for node, found in paired(tree, analyzed, lambda some: some.kind == "Aggregate"):
        node.fields["session"] = any(
            key.metadata().contains(_SESSION_MARK)
            for key in items(found.groupingExpressions())
            if key.getClass().getSimpleName() == "AttributeReference"
        )
        for expression, below in zip(node.inside, items(found.expressions()), strict=True):
            _note_functions(expression, below)


def _note_functions(tree: PlanNode, expression: Any) -> None:  # noqa: ANN401  a JVM expression
    if not any(part.kind == "AggregateExpression" for part in tree.walk()):
        return
    parts = items(expression.children())
    if tree.kind == "AggregateExpression":
        function = tree.children[0]
        function.fields["pretty"] = str(parts[0].prettyName())
        if function.kind in ADDING:
            function.fields["input_type"] = str(parts[0].children().apply(0).dataType().typeName())
        return
    for child, below in zip(tree.children, parts, strict=True):
        _note_functions(child, below)


def _tree(records: Iterator[dict[str, Any]]) -> PlanNode:
    record = next(records)
    children = tuple(_tree(records) for _ in range(record["num-children"]))
    fields = {key: value for key, value in record.items() if key not in ("class", "num-children")}
    inside = tuple(tree for value in fields.values() for tree in _trees(value))
    return PlanNode(_simple(record["class"]), fields, children, inside, ".expressions." in record["class"])


def _trees(value: Any) -> Iterator[PlanNode]:  # noqa: ANN401  JSON
    """Yield the trees that a field holds: one, a list of them, or lists of lists."""
    if not isinstance(value, list) or not value:
        return
    if isinstance(value[0], dict) and "num-children" in value[0]:
        yield _tree(iter(value))
        return
    for item in value:
        yield from _trees(item)


def _simple(name: str) -> str:
    return name.rstrip("$").rpartition(".")[2].rpartition("$")[2]

"""The class of a segment, from its analysed plan: what happens to its output when it is executed again.

After Hwang (2009, §3.2.2), with an epoch in the place of a tuple:

- *repeatable*: started without state, at any earlier epoch, it gives the same epochs again. It has no state.
- *convergent-capable*: started so, it comes to the same epochs after a while: its windows lie in event time, and what
  the watermark has passed does not count any more.
- *deterministic*: it gives the same epochs if it starts with the same state, and only then (a running count).
- *arbitrary*: it may give other rows for the same input and state: by chance, by the clock, by the order of rows.

A segment is of the widest class of its parts. Two things are better here than in the original taxonomy: a union reads
its inputs epoch by epoch, so their order does not matter; and the order of rows within an epoch matters only to what
looks at it. A join is repeatable there and only convergent-capable here: an epoch that lacks a match is another epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from anabranch.guarantee.aggregates import in_order
from anabranch.guarantee.plan_tree import PlanNode
from anabranch.merging import USER_OPERATORS
from anabranch.spans import Span


class SegmentClass(IntEnum):
    """The classes, each contained in the next."""

    REPEATABLE = 0
    CONVERGENT = 1
    DETERMINISTIC = 2
    ARBITRARY = 3

    def __str__(self) -> str:
        return ("repeatable", "convergent-capable", "deterministic", "arbitrary")[self]


@dataclass(frozen=True)
class Finding:
    """One thing that decides: what it is, why, and what to change. `word` is how it is written in a step."""

    kind: SegmentClass
    what: str
    why: str
    change: str
    word: str = ""


@dataclass(frozen=True)
class Classification:
    """The class of a segment and everything that speaks for it, the widest first; and what it rests on."""

    kind: SegmentClass
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    stateful: bool = False

    @classmethod
    def of(cls, findings: list[Finding], notes: tuple[str, ...] = (), *, stateful: bool) -> Classification:
        """Return the widest class of some findings."""
        ordered = tuple(dict.fromkeys(sorted(findings, key=lambda finding: -finding.kind)))
        return cls(ordered[0].kind if ordered else SegmentClass.REPEATABLE, ordered, notes, stateful)

    def widened(self, finding: Finding) -> Classification:
        """Return the class with one more thing that speaks for it."""
        return Classification.of([*self.findings, finding], self.notes, stateful=self.stateful)

    @property
    def draws(self) -> bool:
        """Whether every execution is another draw, of which nothing stays: one that nobody sees harms nobody."""
        return self.kind is SegmentClass.ARBITRARY and not self.stateful

    @property
    def decided_by(self) -> Finding | None:
        """What decides the class, None where nothing does."""
        return self.findings[0] if self.findings else None


_SHIPPED = 'or publish only what is kept: ab.PassiveStandby(store=…, release="shipped")'
_TIMES = {
    "CurrentTimestamp": "current_timestamp",
    "CurrentTimestampNanos": "current_timestamp",
    "CurrentBatchTimestamp": "current_timestamp",
    "Now": "now",
    "CurrentDate": "current_date",
    "CurrentTime": "current_time",
    "LocalTimestamp": "localtimestamp",
    "LocalTimestampNanos": "localtimestamp",
}
# Texts that Spark takes for the time at which it plans a batch.
_TIME_WORDS = {"now", "today", "tomorrow", "yesterday"}
_TIME_TYPES = {"date", "timestamp", "timestamp_ntz"}
_CHANCES = {
    "Rand": "rand",
    "Randn": "randn",
    "RandStr": "randstr",
    "Uniform": "uniform",
    "Uuid": "uuid",
    "Shuffle": "shuffle",
}
_PLACES = {
    "MonotonicallyIncreasingID": "monotonically_increasing_id",
    "SparkPartitionID": "spark_partition_id",
}
# What Catalyst calls non-deterministic, though rows that come out of a channel have no file: it is always the same.
_NO_FILES = {
    "InputFileName": "input_file_name",
    "InputFileBlockStart": "input_file_block_start",
    "InputFileBlockLength": "input_file_block_length",
}
_USER_FUNCTIONS = {"PythonUDF", "ScalaUDF", "PythonUDTF", "PythonUDAF", "ScalaAggregator", "ScalaUDAF"}
# Tables that are part of the code that made the frame, or no tables at all.
_FIXED_TABLES = {
    "CTERelationRef",
    "EmptyRelation",
    "LocalRelation",
    "LogicalRDD",
    "OneRowRelation",
    "Range",
    "StreamingRelationV2",
}
# Expressions that call something of which nobody knows what it is.
_UNSURE = {"CallMethodViaReflection", "StaticInvoke", "Invoke", "ApplyFunctionExpression", "HiveGenericUDF"}
# Operators whose columns are those of what they read.
_SAME_COLUMNS = {
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "EventTimeWatermark",
    "Filter",
    "GlobalLimit",
    "LocalLimit",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "Sort",
    "SubqueryAlias",
}
_LIMITS = {"GlobalLimit": "limit", "LocalLimit": "limit", "Offset": "offset", "Tail": "tail"}
# Operators of which the rows alone decide, or what is said of them here; anything else is not known.
_KNOWN = {
    "Aggregate",
    "CTERelationDef",
    "CollectMetrics",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "EventTimeWatermark",
    "Except",
    "Expand",
    "Filter",
    "Generate",
    "Intersect",
    "Join",
    "LateralJoin",
    "Project",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "Sample",
    "Sort",
    "SubqueryAlias",
    "Union",
    "UpdateEventTimeWatermarkColumn",
    "View",
    "WithCTE",
    *_LIMITS,
    *USER_OPERATORS,
}


def classify(tree: PlanNode, spans: Iterable[Span], *, catalyst_deterministic: bool = True) -> Classification:
    """Return the class of a plan. Pure.

    `spans` are what its operators with state keep, `catalyst_deterministic` is what Catalyst says of the whole: a net
    for expressions that are not known here.
    """
    findings = [finding for node in tree.operators() for finding in _of_operator(node)]
    arbitrary = any(finding.kind is SegmentClass.ARBITRARY for finding in findings)
    if not catalyst_deterministic and not arbitrary and not _names_of_files_only(tree):
        why = "Spark itself says that an expression in it is not deterministic"
        findings.append(_arbitrary("an expression", why, "take it out", ""))
    kept = [span for span in spans if span.stateful]
    return Classification.of([*findings, *map(_of_span, kept)], tuple(_notes(tree)), stateful=bool(kept))


def _names_of_files_only(tree: PlanNode) -> bool:
    """Say whether the names of input files are all that Catalyst can mean by its word on a whole plan."""
    kinds = {part.kind for node in tree.operators() for part in node.parts()}
    return bool(kinds & set(_NO_FILES)) and not kinds & _UNSURE


def _of_span(span: Span) -> Finding:
    if span.ms is not None:
        why = f"state that event time bounds: rows up to {span.ms / 1000:g} s older than the watermark count"
        return Finding(SegmentClass.CONVERGENT, span.operator or "an operator with state", why, "")
    change = "bound it: a window or an interval over a column with a watermark"
    word = span.operator if span.operator.isidentifier() else ""
    return Finding(SegmentClass.DETERMINISTIC, span.operator or "an operator with state", span.reason, change, word)


def _of_operator(node: PlanNode) -> Iterator[Finding]:
    """Yield what may give other rows the next time, in one operator and its expressions."""
    if not node.children:
        if node.kind not in _FIXED_TABLES:
            why = "its content may be another one when an epoch is executed again"
            change = "make it a source of the pipeline, or collect it into the code"
            yield _arbitrary(f"a table that can change ({_table(node)})", why, change, "read")
    elif node.kind not in _KNOWN:
        why = "an operator that is not known to give the same rows again"
        yield _arbitrary(node.kind, why, "do it with others", "")
    if node.kind == "Sample":
        why = "which rows are drawn depends on how they are divided among tasks"
        yield _arbitrary("sample", why, "filter by a hash of a column instead", "sample")
    if node.kind in _LIMITS and not _in_total_order(node):
        word = _LIMITS[node.kind]
        why = "which rows come first depends on the order in which tasks deliver them"
        yield _arbitrary(word, why, "filter instead, or sort before it by every column that tells rows apart", word)
    if node.kind in ("Deduplicate", "DeduplicateWithinWatermark"):
        yield from _of_deduplicate(node)
    if "ProcessingTime" in node.name_of("timeout") + node.name_of("timeMode"):
        word = USER_OPERATORS.get(node.kind, node.kind)
        why = "a timeout in processing time: when it fires depends on the clock"
        yield _arbitrary(word, why, "use event time", word)
    for part in node.parts():
        yield from _of_expression(part)
    for name, why in in_order(node):
        change = (
            "cast to decimal" if "fractions" in why else "use what order does not change, such as sort_array of a list"
        )
        yield _arbitrary(name, why, change, name.removesuffix("()"))


def _in_total_order(node: PlanNode) -> bool:
    """Say whether a limit stands over groups that are sorted by all that tells them apart."""
    below = node.children[0]
    while below.kind in (*_LIMITS, "Project", "SubqueryAlias"):
        below = below.children[0]
    if below.kind != "Sort":
        return False
    ordered = {_column(part) for part in below.parts() if part.kind == "AttributeReference"}
    groups = below.children[0]
    while groups.kind in ("Project", "SubqueryAlias", "Filter"):
        groups = groups.children[0]
    if groups.kind != "Aggregate":
        return False
    keys = [_id_of(tree[0]) for tree in groups.fields.get("groupingExpressions", [])]
    return bool(keys) and set(keys) <= ordered


def _of_deduplicate(node: PlanNode) -> Iterator[Finding]:
    """Of several rows with the same key the first is kept: which one matters if they differ elsewhere."""
    keys = {_column(part) for part in node.parts() if part.kind == "AttributeReference"}
    columns = _output(node.children[0])
    if columns is None or columns - keys:
        word = "dropDuplicates" if node.kind == "Deduplicate" else "dropDuplicatesWithinWatermark"
        why = "of rows of one epoch that share the key but not the other columns, the one that comes first is kept"
        change = "select the key columns only before it, or make every column part of the key"
        yield _arbitrary(word, why, change, word)


def _of_expression(part: PlanNode) -> Iterator[Finding]:
    if part.kind in _TIMES:
        yield _of_time(f"{_TIMES[part.kind]}()", _TIMES[part.kind])
    elif part.kind == "Cast" and part.fields.get("dataType") in _TIME_TYPES and _literal(part) in _TIME_WORDS:
        yield _of_time(f"the text {_literal(part)!r} as a time", str(_literal(part)))
    elif part.kind in _CHANCES:
        word = _CHANCES[part.kind]
        why = "drawn by chance; with a seed, from the number of the task and of the row in it"
        yield _arbitrary(f"{word}()", why, "derive it from columns, with xxhash64 for instance", word)
    elif part.kind in _PLACES:
        word = _PLACES[part.kind]
        why = "it depends on how rows are divided among tasks"
        yield _arbitrary(f"{word}()", why, "number rows by their columns", word)
    elif part.kind == "CallMethodViaReflection":
        yield _arbitrary("reflect()", "any method may be behind it", "use a function of Spark's", "reflect")
    elif part.kind == "AesEncrypt" and _draws_vector(part):
        why = "without an initialisation vector Spark draws one by chance"
        yield _arbitrary("aes_encrypt()", why, "give it a vector that comes from columns", "aes_encrypt")
    elif part.kind in _USER_FUNCTIONS and part.fields.get("udfDeterministic") is False:
        name = str(part.fields.get("name") or part.fields.get("udfName") or "a function")
        table = part.kind == "PythonUDTF"
        why = "table functions count as not deterministic" if table else "its author marked it as not deterministic"
        mark = ".asDeterministic()" if table else "leave out .asNondeterministic()"
        yield _arbitrary(f"{name}()", why, f"mark it deterministic if it is ({mark})", name)


def _of_time(what: str, word: str) -> Finding:
    why = "the time at which an epoch is executed is another one the next time"
    return _arbitrary(what, why, "take the time from a column", word)


def _arbitrary(what: str, why: str, change: str, word: str) -> Finding:
    return Finding(SegmentClass.ARBITRARY, what, why, f"{change}, {_SHIPPED}", word)


def _notes(tree: PlanNode) -> Iterator[str]:
    """Yield what the class rests on that nobody can see in a plan."""
    trusted: dict[str, None] = {}
    for node in tree.walk():
        if node.kind in USER_OPERATORS:
            trusted[f"{USER_OPERATORS[node.kind]}()"] = None
        for part in node.parts():
            if (
                part.kind in _USER_FUNCTIONS
                and part.fields.get("udfDeterministic") is True
                and node.kind not in USER_OPERATORS
            ):
                trusted[f"{part.fields.get('name') or 'a function'}()"] = None
            if part.kind in _NO_FILES:
                yield f"{_NO_FILES[part.kind]}() is always the same here: rows come out of a channel, not out of a file"
    if trusted:
        yield f"taken at its author's word to give the same for the same rows, in any order: {', '.join(trusted)}"


def _draws_vector(part: PlanNode) -> bool:
    """Say whether an encryption has no vector of its own; its children are input, key, mode, padding, vector, extra."""
    literals = [_literal(child) for child in part.children]
    return len(literals) > 4 and literals[4] == "" and literals[2] != "ecb"  # noqa: PLR2004  the vector's place


def _literal(part: PlanNode) -> str | None:
    """Return the text below some casts, None if that is not a constant."""
    while part.kind == "Cast":
        part = part.children[0]
    return str(part.fields.get("value")).strip().lower() if part.kind == "Literal" else None


def _output(node: PlanNode) -> set[int] | None:
    """Return the ids of an operator's columns, None if that is not told."""
    if node.kind in ("Project", "Aggregate"):
        named = node.fields.get("projectList") or node.fields.get("aggregateExpressions") or []
        return {_id_of(tree[0]) for tree in named}
    if node.fields.get("output"):
        return {_id_of(tree[0]) for tree in node.fields["output"]}
    if node.kind == "Join" and not re.search("Semi|Anti", node.name_of("joinType")):
        left, right = map(_output, node.children)
        return None if left is None or right is None else left | right
    if node.kind in ("Union", "Join", *_SAME_COLUMNS):
        return _output(node.children[0])
    return None


def _id_of(record: dict[str, object]) -> int:
    found = record.get("exprId")
    return int(found["id"]) if isinstance(found, dict) else -1


def _column(part: PlanNode) -> int:
    return _id_of(part.fields)


def _table(node: PlanNode) -> str:
    return {"LogicalRelation": "files", "HiveTableRelation": "a table of the catalog"}.get(node.kind, node.kind)


def drawn_when_built(what: str) -> Finding:
    """Return the finding of a step that is another plan whenever it is built: it holds a value of that moment."""
    why = "whenever the step is built, on every node and in every run, the plan holds another value"
    return _arbitrary(what, why, "take the value from a column, or settle it outside of the step", "")

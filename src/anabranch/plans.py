"""Building a segment's frame from the user's functions, and checking it before anything runs.

What a step returns is checked here: that it is a streaming DataFrame over the step's own inputs and nothing else that
streams, and that Spark can run its plan in the output mode asked for. The plan's text, freed of the numbers that change
from run to run, is the segment's fingerprint.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from anabranch.errors import AnabranchError, StepError
from anabranch.guarantee.classify import Classification, classify, drawn_when_built
from anabranch.guarantee.places import Place, located
from anabranch.guarantee.plan_tree import plan_tree
from anabranch.merging import unmergeable
from anabranch.spans import Span, combined, operator_spans

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from anabranch.segments import Segment

_STATEFUL = (
    "Aggregate",
    "Deduplicate",
    "Distinct",
    "FlatMapGroups",
    "TransformWithState",
    "Join",
    "GlobalLimit",
    "SessionWindow",
    "Except",
    "Intersect",
)
_PACKAGE = os.path.dirname(__file__) + os.sep
# Files that no user wrote.
_LIBRARIES = re.compile(r"site-packages|[/\\]lib[/\\]python3|^<")
# Spark draws seeds for random functions anew whenever it analyses a plan.
_RANDOM = re.compile(r"\b(?:rand|randn|randstr|uniform|uuid|shuffle)\(")
_SEED = re.compile(r"-?\d{10,}")
_NUMBERS = re.compile(r"#\d+L?|@[0-9a-f]{4,}|lambda \d+|plan_id=\d+")
_VOLATILE = re.compile(_NUMBERS.pattern + r"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


@dataclass(frozen=True)
class BuiltSegment:
    """A segment's frame and what is known of it before it runs.

    `place` is where that stands which decides the class; it is looked up where people will read it, when a node plans.
    """

    segment: Segment
    frame: DataFrame
    schema: pa.Schema
    leaves: tuple[str, ...]
    plan: tuple[str, ...]
    stateful: bool
    span: Span
    unmergeable: str | None
    classification: Classification
    place: Place | None = None

    def identity(self) -> dict[str, Any]:
        """Return what the segment's state depends on."""
        return {
            "inputs": list(self.segment.inputs),
            "output_mode": self.segment.output_mode,
            "columns": [f"{field.name} {field.type}" for field in self.schema],
            "stateful": self.stateful,
            "plan": list(self.plan),
        }


def build_segment(
    spark: SparkSession, segment: Segment, inputs: Mapping[str, DataFrame], *, twice: bool = False
) -> BuiltSegment:
    """Call the steps' functions on the input frames; `StepError` for anything that could not run.

    With `twice`, see whether they make the same plan when they are called again, as every run and every node does.
    """
    frame = _stepped(segment, inputs)
    other = _differing(frame, _stepped(segment, inputs)) if twice else None
    analyzed = frame._jdf.queryExecution().analyzed()
    leaves = _leaves(segment, analyzed)
    _check_output_mode(spark, segment, analyzed)
    tree = plan_tree(frame)
    jvm: Any = spark.sparkContext._jvm
    spans = operator_spans(jvm, analyzed, tree, segment.output_mode)
    found = classify(tree, spans, catalyst_deterministic=bool(analyzed.deterministic()))
    if other is not None:
        found = found.widened(drawn_when_built(other))
    plan = _collapsed(_lines(frame), {name: _lines(given) for name, given in inputs.items()})
    return BuiltSegment(
        segment=segment,
        frame=frame,
        schema=to_arrow_schema(frame.schema, timezone="UTC"),
        leaves=leaves,
        plan=tuple(plan),
        stateful=any(name in line for line in plan for name in _STATEFUL),
        span=combined(spans),
        unmergeable=unmergeable(tree),
        classification=found,
        place=located(segment, found.decided_by) if twice else None,
    )


def _stepped(segment: Segment, inputs: Mapping[str, DataFrame]) -> DataFrame:
    frames = dict(inputs)
    for step in segment.steps:
        arguments = [frames[name] for name in step.inputs]
        # A source's rejects have no function: the frame already holds just the rows that did not fit.
        frames[step.name] = arguments[0] if step.function is None else _call(step.name, step.function, arguments)
    return frames[segment.name]


def _differing(frame: DataFrame, again: DataFrame) -> str | None:
    """Return where the plans of two frames that were built alike differ: a value of the moment is in them."""
    for line, other in zip(_lines(frame, values=True), _lines(again, values=True), strict=False):
        if line != other:
            start = next((n for n, (one, two) in enumerate(zip(line, other, strict=False)) if one != two), 0)
            before = line.rfind(" ", 0, start) + 1
            return f"the value in `{line[before : start + 20].strip()} …`"
    return None


def _lines(frame: DataFrame, *, values: bool = False) -> list[str]:
    text = str(frame._jdf.queryExecution().analyzed().toString())
    return [_normalised(line, values=values) for line in text.splitlines()]


def _collapsed(plan: list[str], inputs: Mapping[str, list[str]]) -> list[str]:
    """Put one line in place of everything that a source adds to shape its rows: that is no part of the segment.

    How a source treats malformed rows may change under existing state: the rows that a segment has seen are the same.
    """
    for name, shape in inputs.items():
        bare = [_bare(line) for line in shape]
        start = 0
        while start + len(bare) <= len(plan):
            if [_bare(line) for line in plan[start : start + len(bare)]] == bare:
                prefix = plan[start].removesuffix(bare[0])
                plan = [*plan[:start], f"{prefix}Input {name}", *plan[start + len(bare) :]]
            start += 1
    return plan


def _bare(line: str) -> str:
    """Return a line of a plan without the branches of the tree before it."""
    return line.lstrip(" :+|-")


def _normalised(line: str, *, values: bool = False) -> str:
    """Free a line of a plan from what changes between runs: numbers, and the options of our own reader.

    With `values`, ids are left that are values, not names of operators.
    """
    before, relation, after = line.partition("~StreamingRelationV2")
    if relation:
        name = re.search(r"input_name=([\w.]+)", after)
        line = f"{before}Input {name[1] if name else ''}"
    if _RANDOM.search(line):
        line = _SEED.sub("#", line)
    return (_NUMBERS if values and "EventTimeWatermark" not in line else _VOLATILE).sub("#", line)


def _call(name: str, function: Any, arguments: list[DataFrame]) -> DataFrame:  # noqa: ANN401  the user's function
    try:
        result = function(*arguments)
    except AnabranchError:
        raise
    except PySparkException as error:
        raise StepError(f"step {name!r} failed while it was built: {spark_message(error)}{_place(error)}") from error
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise StepError(f"step {name!r} failed while it was built: {said}{_place(error)}") from error
    if not isinstance(result, DataFrame):
        raise StepError(
            f"step {name!r} returned {type(result).__name__}, not a DataFrame", hint="return the transformed DataFrame"
        )
    if not result.isStreaming:
        raise StepError(
            f"step {name!r} returned a DataFrame that does not stream", hint="build it from the step's arguments"
        )
    return result


def _place(error: BaseException) -> str:
    """Say in which line of the user's code an error came up, if that can be told."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _LIBRARIES.search(frame.filename)]
    own = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
    return f" ({os.path.basename(own[-1].filename)}, line {own[-1].lineno})" if own else ""


def _leaves(segment: Segment, analyzed: Any) -> tuple[str, ...]:  # noqa: ANN401  a JVM plan
    """Return the distinct inputs in the order in which Spark will poll them."""
    found: dict[str, None] = {}
    leaves = analyzed.collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if not leaf.isStreaming():
            continue
        options = leaf.extraOptions() if leaf.getClass().getSimpleName() == "StreamingRelationV2" else None
        name = options.get("input_name") if options is not None else None
        if name is None:
            raise StepError(
                f"segment {segment.name!r} reads a stream that is not one of its inputs",
                hint="make it a source of the pipeline with pipe.source(…)",
            )
        found[str(name)] = None
    missing = [name for name in segment.inputs if name not in found]
    if missing:
        raise StepError(
            f"segment {segment.name!r} does not use its input {missing[0]!r}",
            hint="remove the input from @pipe.step(…), or read it",
        )
    return tuple(found)


def _check_output_mode(spark: SparkSession, segment: Segment, analyzed: Any) -> None:  # noqa: ANN401  a JVM plan
    jvm: Any = spark.sparkContext._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[segment.output_mode]()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(analyzed, mode)
    except PySparkException as error:
        raise StepError(
            f"step {segment.name!r} cannot run with output_mode={segment.output_mode!r}: {spark_message(error)}",
            hint="choose another output_mode in @pipe.step(…); an aggregate in append mode needs a watermark",
        ) from error


def spark_message(error: BaseException) -> str:
    """Return what an error says, in a few lines: Spark's traces and plans are for those who ask."""
    text = str(getattr(error, "desc", None) or error)
    lines = [line.strip() for line in text.splitlines()]
    python = [line for line in lines if re.match(r"^[\w.]*(Error|Exception|Interrupt|Corrupt|Trimmed)\b.*: ", line)]
    if "Traceback (most recent call last)" in text and python:
        return _said_in_the_jvm(lines, python[-1]) if "Py4JJavaError" in python[-1] else python[-1]
    kept = []
    for line in lines:
        if line.startswith(("at ", "JVM stacktrace", "== ", "+-", "'", 'File "')) or not line:
            break
        kept.append(line)
    return " ".join(kept[:3]) or type(error).__name__


def _said_in_the_jvm(lines: list[str], python: str) -> str:
    """Return what follows a line of Python that says only which call failed: the error, and what caused it at last."""
    below = lines[len(lines) - lines[::-1].index(python) :]
    said = next((line.removeprefix(": ") for line in below if line.startswith(": ")), None)
    if said is None:
        return python
    causes = [line.removeprefix("Caused by: ") for line in below if line.startswith("Caused by: ")]
    return f"{said} ({causes[-1]})" if causes else said

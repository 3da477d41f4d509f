"""Cutting a pipeline into segments. Pure.

A segment is one Spark query: one or more fused steps whose last step, a connector, writes a channel. A step is a
connector if it was asked to be one, if more than one step reads it, if a sink reads it, or if nobody does. A step
whose output mode is not "append" is neither fused with what comes before it nor with what comes after: Spark has one
output mode per query, and fusing would change what its neighbours emit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from anabranch.errors import PipelineError
from anabranch.pipeline import Graph, Guarantee, OutputMode, StepNode
from anabranch.strategies import Strategy
from anabranch.strategies.named import by_name

T = TypeVar("T")


@dataclass(frozen=True)
class Segment:
    """Fused steps in topological order. `inputs` are channels (sources or other segments); the name is the output's."""

    name: str
    steps: tuple[StepNode, ...]
    inputs: tuple[str, ...]
    output_mode: OutputMode


def cut(graph: Graph) -> dict[str, Segment]:
    """Return the segments of a pipeline by name, in topological order."""
    connectors = _connectors(graph)
    segments = {}
    for name in graph.steps:
        if name in connectors:
            segments[name] = _segment(graph, connectors, name)
    return segments


def strategies(graph: Graph, segments: dict[str, Segment]) -> dict[str, Strategy]:
    """Return the strategies that were named, by segment: that of one of its steps, or else the pipeline's."""
    return _asked(graph.strategies, segments, "strategies")


def guarantees(graph: Graph, segments: dict[str, Segment]) -> dict[str, Guarantee]:
    """Return the guarantees that were asked for, by segment: that of one of its steps, or else the pipeline's."""
    return _asked(graph.guarantees, segments, "guarantees")


def _asked(asked: Mapping[str | None, T], segments: dict[str, Segment], what: str) -> dict[str, T]:
    found = {}
    for segment in segments.values():
        own = [asked[step.name] for step in segment.steps if step.name in asked]
        if len(set(own)) > 1:
            raise PipelineError(
                f"steps of segment {segment.name!r} ask for different {what}",
                hint="protect one of them, or make the others connectors",
            )
        chosen = own[0] if own else asked.get(None)
        if chosen is not None:
            found[segment.name] = chosen
    return found


def override(name: str, segments: dict[str, Segment], store: str) -> dict[str, Strategy]:
    """Return one strategy for every segment, chosen by name; `store` is where checkpoints go if they are shipped."""
    chosen = by_name(store)
    if name not in chosen:
        raise PipelineError(f"there is no strategy {name!r}", hint=f"use one of {', '.join(chosen)}")
    return {} if name == "none" else dict.fromkeys(segments, chosen[name])


def consumers(graph: Graph, segments: dict[str, Segment]) -> dict[str, tuple[str, ...]]:
    """Return for every channel the units (segments and sinks) that read it."""
    readers: dict[str, list[str]] = {name: [] for name in [*graph.sources, *segments]}
    for segment in segments.values():
        for name in segment.inputs:
            readers[name].append(segment.name)
    for sink in graph.sinks.values():
        readers[sink.stream].append(sink.name)
    return {name: tuple(units) for name, units in readers.items()}


def awaited(segments: Mapping[str, Segment], strategies: Mapping[str, Strategy]) -> set[str]:
    """Return the segments whose versions others wait for: those before one that publishes only what is shipped.

    A version is never newer than those of the units it reads, so these have to be shipped with every epoch.
    """
    found: set[str] = set()
    waiting = [name for name, strategy in strategies.items() if strategy.policy == "shipped"]
    while waiting:
        before = [read for read in segments[waiting.pop()].inputs if read in segments and read not in found]
        found.update(before)
        waiting += before
    return found


def depth(segments: dict[str, Segment]) -> int:
    """Return the number of segments on the longest path.

    After the last rows, this many empty epochs let every segment emit what its watermark has closed: Spark evicts
    with the watermark of the batch before, once per segment.
    """
    depths: dict[str, int] = {}
    for segment in segments.values():
        depths[segment.name] = 1 + max((depths.get(name, 0) for name in segment.inputs), default=0)
    return max(depths.values(), default=0)


def _connectors(graph: Graph) -> set[str]:
    readers: dict[str, set[str]] = {name: set() for name in graph.steps}
    apart: set[str] = set()
    for step in graph.steps.values():
        for name in step.inputs:
            if name in readers:
                readers[name].add(step.name)
        if step.output_mode != "append":
            apart.update(name for name in step.inputs if name in readers)
            apart.add(step.name)
    sunk = {sink.stream for sink in graph.sinks.values()}
    return {
        step.name
        for step in graph.steps.values()
        if step.connector or step.name in sunk or step.name in apart or len(readers[step.name]) != 1
    }


def _segment(graph: Graph, connectors: set[str], name: str) -> Segment:
    members: set[str] = set()
    inputs: dict[str, None] = {}
    open_names = [name]
    while open_names:
        member = open_names.pop()
        if member in members:
            continue
        members.add(member)
        for read in graph.steps[member].inputs:
            if read in graph.sources or read in connectors:
                inputs[read] = None
            else:
                open_names.append(read)
    steps = tuple(step for step in graph.steps.values() if step.name in members)
    return Segment(name, steps, tuple(inputs), graph.steps[name].output_mode)

"""The public face: a pipeline of sources, steps and sinks. Building one runs nothing.

A step is an ordinary function from DataFrames to a DataFrame. `Pipeline` only writes down what was asked for;
`Pipeline.graph()` checks the whole and returns it as frozen data, which `segments.cut` turns into segments. Nodes
import the module that defines the pipeline themselves, so functions are never sent anywhere.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Literal, get_args

from anabranch.errors import PipelineError
from anabranch.settings import Settings
from anabranch.sinks.sink import Sink
from anabranch.sources.source import Source
from anabranch.strategies import Strategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OutputMode = Literal["append", "update", "complete"]
Guarantee = Literal["precise", "no-loss", "gap"]
StepFunction = Callable[..., "DataFrame"]
_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_]{0,63}\Z")


@dataclass(frozen=True)
class Stream:
    """What a source or a step gives: something that steps and sinks can read. Calling it calls the step's function."""

    name: str
    function: StepFunction | None = None
    rejects_name: str | None = None

    def __call__(self, *frames: DataFrame) -> DataFrame:
        if self.function is None:
            msg = f"{self.name!r} is a source, not a step"
            raise TypeError(msg)
        return self.function(*frames)

    @property
    def rejects(self) -> Stream:
        """The rows of a source that did not fit its schema, where it was made with `malformed="divert"`."""
        if self.rejects_name is None:
            raise PipelineError(
                f"{self.name!r} has no rejects", hint='read a JSON lines or CSV source with malformed="divert"'
            )
        return Stream(self.rejects_name)


@dataclass(frozen=True)
class SourceNode:
    """A named source."""

    name: str
    source: Source


@dataclass(frozen=True)
class StepNode:
    """A named step. `function` is None for the rows that a source could not parse (its rejects)."""

    name: str
    function: StepFunction | None
    inputs: tuple[str, ...]
    connector: bool
    output_mode: OutputMode


@dataclass(frozen=True)
class SinkNode:
    """A named sink and what it reads."""

    name: str
    stream: str
    sink: Sink


@dataclass(frozen=True)
class Graph:
    """A checked pipeline: names are unique, inputs exist, there is no cycle; steps are in topological order."""

    name: str
    settings: Settings
    sources: dict[str, SourceNode]
    steps: dict[str, StepNode]
    sinks: dict[str, SinkNode]
    strategies: dict[str | None, Strategy] = field(default_factory=dict)
    guarantees: dict[str | None, Guarantee] = field(default_factory=dict)


class Pipeline:
    """A pipeline under construction."""

    def __init__(self, name: str, *, settings: Settings | None = None) -> None:
        _check_name("pipeline", name)
        self.name = name
        self.settings = settings or Settings()
        self._guarantees: dict[str | None, Guarantee] = {}
        self._strategies: dict[str | None, Strategy] = {}
        self._sources: dict[str, SourceNode] = {}
        self._steps: dict[str, StepNode] = {}
        self._sinks: dict[str, SinkNode] = {}

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {len(self._sources)} sources, {len(self._steps)} steps)"

    def source(self, name: str, source: Source) -> Stream:
        """Add a source, such as `ab.read_jsonl(…)`."""
        _check_name("source", name)
        self._check_free(name)
        if not hasattr(source, "planner"):
            raise PipelineError(f"source {name!r} is {source!r}", hint="pass one of ab.generate_words, ab.read_…")
        self._sources[name] = SourceNode(name, source)
        if getattr(source, "malformed", None) != "divert":
            return Stream(name)
        rejects = f"{name}.rejects"
        self._steps[rejects] = StepNode(rejects, None, (name,), connector=True, output_mode="append")
        return Stream(name, rejects_name=rejects)

    def step(
        self, *inputs: Stream | str, connector: bool = False, output_mode: OutputMode = "append"
    ) -> Callable[[StepFunction], Stream]:
        """Add the decorated function as a step over one or more inputs; its name is the function's."""

        def add(function: StepFunction) -> Stream:
            name = getattr(function, "__name__", "")
            _check_name("step", name)
            self._check_free(name)
            if not inputs:
                raise PipelineError(
                    f"step {name!r} reads nothing", hint="name its inputs: @pipe.step(source_or_step, …)"
                )
            if output_mode not in get_args(OutputMode):
                raise PipelineError(
                    f"step {name!r} has output_mode={output_mode!r}", hint=f"use one of {get_args(OutputMode)}"
                )
            names = tuple(_stream_name(name, stream) for stream in inputs)
            _check_arity(name, function, len(names))
            self._steps[name] = StepNode(name, function, names, connector=connector, output_mode=output_mode)
            return Stream(name, function=function)

        return add

    def sink(self, stream: Stream | str, sink: Sink) -> None:
        """Deliver a stream's rows, epoch by epoch."""
        name = _stream_name("sink", stream)
        if not hasattr(sink, "deliverer"):
            raise PipelineError(f"the sink of {name!r} is {sink!r}", hint="pass one of ab.parquet, ab.jsonl, ab.call …")
        unique = f"{name}.{sink.kind}"
        number = 2
        while unique in self._sinks:
            unique = f"{name}.{sink.kind}.{number}"
            number += 1
        self._sinks[unique] = SinkNode(unique, name, sink)

    def protect(
        self,
        step: Stream | str | None = None,
        *,
        strategy: Strategy | None = None,
        guarantee: Guarantee | None = None,
    ) -> None:
        """Protect one step's segment, without a step all of them.

        `strategy` is how, such as `ab.PassiveStandby(store="log:DIR")`; without one, that which keeps the guarantee and
        costs least is taken. `guarantee` is what readers of the output are promised: "precise", "no-loss" or "gap". A
        pipeline that cannot keep it is refused before it runs; see `anabranch plan`.
        """
        if guarantee is not None and guarantee not in get_args(Guarantee):
            raise PipelineError(f"guarantee {guarantee!r} is not known", hint=f"use one of {get_args(Guarantee)}")
        name = _stream_name("protect", step) if step is not None else None
        if strategy is not None:
            given: object = strategy
            if not isinstance(given, Strategy):
                hint = "use one such as ab.ActiveStandby(), ab.TrailingStandby() or ab.PassiveStandby(store=…)"
                raise PipelineError(f"strategy {strategy!r} is not known", hint=hint)
            self._strategies[name] = strategy
        if guarantee is not None:
            self._guarantees[name] = guarantee

    def graph(self) -> Graph:
        """Check the whole pipeline and return it as frozen data."""
        known = set(self._sources) | set(self._steps)
        for step in self._steps.values():
            for name in step.inputs:
                if name not in known:
                    raise PipelineError(
                        f"step {step.name!r} reads {name!r}, which does not exist",
                        hint=f"the pipeline has {', '.join(sorted(known)) or 'no source'}",
                    )
        for sink in self._sinks.values():
            if sink.stream not in known:
                raise PipelineError(
                    f"a sink reads {sink.stream!r}, which does not exist",
                    hint=f"the pipeline has {', '.join(sorted(known))}",
                )
        if not self._sources:
            raise PipelineError(f"pipeline {self.name!r} has no source", hint="add one with pipe.source(name, …)")
        if not self._steps:
            raise PipelineError(f"pipeline {self.name!r} has no step", hint="add one with @pipe.step(…)")
        for sink in self._sinks.values():
            if sink.stream in self._sources:
                raise PipelineError(
                    f"a sink reads the source {sink.stream!r} directly",
                    hint="put a step in between, such as one that returns its input",
                )
        self._check_protected()
        return Graph(
            name=self.name,
            settings=self.settings,
            sources=dict(self._sources),
            steps=self._in_order(),
            sinks=dict(self._sinks),
            strategies=dict(self._strategies),
            guarantees=dict(self._guarantees),
        )

    def _check_protected(self) -> None:
        for name in [*self._strategies, *self._guarantees]:
            if name is not None and name not in self._steps:
                raise PipelineError(
                    f"{name!r} is protected, which is no step",
                    hint=f"the pipeline has the steps {', '.join(self._steps)}",
                )

    def _in_order(self) -> dict[str, StepNode]:
        sorter = TopologicalSorter({step.name: set(step.inputs) for step in self._steps.values()})
        try:
            order = list(sorter.static_order())
        except CycleError as error:
            cycle = " -> ".join(reversed(error.args[1]))
            raise PipelineError(
                f"the steps form a cycle: {cycle}", hint="a step cannot read, even indirectly, its own output"
            ) from None
        return {name: self._steps[name] for name in order if name in self._steps}

    def _check_free(self, name: str) -> None:
        if name in self._sources or name in self._steps:
            raise PipelineError(f"the name {name!r} is used twice", hint="sources and steps need names of their own")


def _check_name(kind: str, name: str) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        raise PipelineError(
            f"{kind} name {name!r} is not usable", hint="letters, digits and _, a letter first, at most 64"
        )


def _stream_name(reader: str, stream: object) -> str:
    if isinstance(stream, Stream):
        return stream.name
    if isinstance(stream, str):
        return stream
    if reader == "protect":
        what = getattr(stream, "__name__", repr(stream))
        raise PipelineError(
            f"{what!r} is protected, which is no step", hint="pass what @pipe.step(…) made, or its name"
        )
    raise PipelineError(
        f"{reader!r} reads {stream!r}", hint="pass what pipe.source or @pipe.step returned, or its name"
    )


def _check_arity(name: str, function: StepFunction, inputs: int) -> None:
    parameters: Sequence[Any] = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variable = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    required = [p for p in positional if p.default is p.empty]
    if not (len(required) <= inputs and (variable or inputs <= len(positional))):
        raise PipelineError(
            f"step {name!r} takes {len(positional)} DataFrames but reads {inputs} inputs",
            hint="a step takes one argument per input",
        )

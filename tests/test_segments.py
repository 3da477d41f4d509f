"""Cutting a pipeline into segments: what is fused, what is a channel, and who reads it.

A pipeline is drawn as `{step: its inputs}`; "lines" and "more" are sources. Marks behind a name say what was asked
for: `+` a connector, `!` output mode update, `>` a sink.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch.errors import PipelineError
from anabranch.pipeline import Pipeline
from anabranch.segments import consumers, cut, depth, override


def step(name):
    def function(*frames):
        return frames[0]

    function.__name__ = name
    return function


def drawn(drawing):
    pipe = Pipeline("drawn")
    for name in ("lines", "more"):
        pipe.source(name, ab.generate_words(rows=1))
    for marked, inputs in drawing.items():
        name = marked.rstrip("+!>")
        mode = "update" if "!" in marked else "append"
        pipe.step(*inputs.split(), connector="+" in marked, output_mode=mode)(step(name))
        if ">" in marked:
            pipe.sink(name, ab.console())
    return pipe.graph()


def shown(graph):
    """Return {segment: (its steps, its inputs)}."""
    return {
        name: (" ".join(step.name for step in segment.steps), " ".join(sorted(segment.inputs)))
        for name, segment in cut(graph).items()
    }


PIPELINES = {
    "linear": ({"a": "lines", "b": "a", "c>": "b"}, {"c": ("a b c", "lines")}),
    "linear without a sink": ({"a": "lines", "b": "a"}, {"b": ("a b", "lines")}),
    "linear with a connector": (
        {"a": "lines", "b+": "a", "c>": "b"},
        {"b": ("a b", "lines"), "c": ("c", "b")},
    ),
    "a sink in the middle": ({"a>": "lines", "b>": "a"}, {"a": ("a", "lines"), "b": ("b", "a")}),
    "splitting": (
        {"a": "lines", "left>": "a", "right>": "a"},
        {"a": ("a", "lines"), "left": ("left", "a"), "right": ("right", "a")},
    ),
    "splitting at a source": (
        {"left>": "lines", "right>": "lines"},
        {"left": ("left", "lines"), "right": ("right", "lines")},
    ),
    "merging": ({"a": "lines", "b": "more", "join>": "a b"}, {"join": ("a b join", "lines more")}),
    "merging at sources": ({"join>": "lines more"}, {"join": ("join", "lines more")}),
    "merging with a connector": (
        {"a+": "lines", "b": "more", "join>": "a b"},
        {"a": ("a", "lines"), "join": ("b join", "a more")},
    ),
    # Splits after `a` and merges again, with a side way out of one branch.
    "mixed": (
        {"a": "lines", "left": "a", "right": "a", "side>": "right", "join": "left right", "end>": "join more"},
        {
            "a": ("a", "lines"),
            "right": ("right", "a"),
            "side": ("side", "right"),
            "end": ("left join end", "a more right"),
        },
    ),
    "a step that reads one input twice": ({"a": "lines", "self>": "a a"}, {"self": ("a self", "lines")}),
    "update is kept apart": (
        {"a": "lines", "counts!": "a", "b": "counts", "c>": "b"},
        {"a": ("a", "lines"), "counts": ("counts", "a"), "c": ("b c", "counts")},
    ),
    "update at the end": ({"a": "lines", "counts!>": "a"}, {"a": ("a", "lines"), "counts": ("counts", "a")}),
    "update after update": (
        {"one!": "lines", "two!": "one"},
        {"one": ("one", "lines"), "two": ("two", "one")},
    ),
    "update in one branch": (
        {"a": "lines", "counts!": "lines", "join>": "a counts"},
        {"counts": ("counts", "lines"), "join": ("a join", "counts lines")},
    ),
}


@pytest.mark.parametrize(("drawing", "expected"), PIPELINES.values(), ids=PIPELINES)
def test_steps_are_fused_between_connectors(drawing, expected):
    """Linear, splitting, merging and mixed pipelines (Shen, figure 3.1) fall into the segments they should."""
    assert shown(drawn(drawing)) == expected


@pytest.mark.parametrize("order", [1, -1])
def test_cutting_does_not_depend_on_the_order_of_writing(order):
    """A pipeline written backwards is cut the same way, with segments in topological order."""
    drawing, expected = PIPELINES["mixed"]
    segments = shown(drawn(dict(list(drawing.items())[::order])))
    assert {name: set(steps.split()) for name, (steps, _) in segments.items()} == {
        name: set(steps.split()) for name, (steps, _) in expected.items()
    }
    assert list(segments).index("a") < list(segments).index("right") < list(segments).index("end")


def test_a_segment_has_the_output_mode_of_its_last_step():
    """Only a step that is a segment of its own can have another mode than append."""
    segments = cut(drawn({"a": "lines", "counts!": "a", "b>": "counts"}))
    assert {name: segment.output_mode for name, segment in segments.items()} == {
        "a": "append",
        "counts": "update",
        "b": "append",
    }


def test_rejects_are_a_segment_of_their_own(tmp_path):
    """What a source could not parse is read from the source by a segment without a function."""
    pipe = Pipeline("drawn")
    lines = pipe.source("lines", ab.read_jsonl(tmp_path, schema="a int", malformed="divert"))
    pipe.step(lines)(step("good"))
    pipe.sink(lines.rejects, ab.console())
    graph = pipe.graph()
    assert shown(graph) == {"good": ("good", "lines"), "lines.rejects": ("lines.rejects", "lines")}
    assert cut(graph)["lines.rejects"].steps[0].function is None
    readers = consumers(graph, cut(graph))
    assert set(readers["lines"]) == {"good", "lines.rejects"}
    assert readers["lines.rejects"] == ("lines.rejects.console",)


def test_every_channel_knows_its_consumers():
    """Segments and sinks that read a channel are its consumers; a channel nobody reads has none."""
    graph = drawn({"a>": "lines", "left": "a", "right>": "a", "join": "left right more"})
    readers = {name: sorted(units) for name, units in consumers(graph, cut(graph)).items()}
    assert readers == {
        "lines": ["a"],
        "more": ["join"],
        "a": ["a.console", "join", "right"],
        "right": ["join", "right.console"],
        "join": [],
    }


@pytest.mark.parametrize(
    ("drawing", "expected"),
    [
        ({"a": "lines", "b": "a"}, 1),
        ({"a+": "lines", "b+": "a", "c": "b"}, 3),
        ({"a+": "lines", "b": "a", "c": "lines", "join": "b c"}, 2),
        (PIPELINES["mixed"][0], 3),
        ({"a": "lines", "b": "more"}, 1),
    ],
)
def test_depth_counts_segments_on_the_longest_path(drawing, expected):
    """The number of empty epochs after the last rows is the number of segments in a row."""
    assert depth(cut(drawn(drawing))) == expected


def test_nothing_has_no_depth():
    """Without segments there is nothing to wait for."""
    assert depth({}) == 0


@st.composite
def drawings(draw):
    """Any pipeline of up to eight steps: each reads sources and steps before it."""
    drawing = {}
    names = ["lines", "more"]
    for number in range(draw(st.integers(1, 8))):
        marks = "".join(mark for mark in "+!>" if draw(st.integers(0, 3)) == 0)
        inputs = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        drawing[f"s{number}{marks}"] = " ".join(inputs)
        names.append(f"s{number}")
    return drawing


@given(drawings())
def test_any_pipeline_is_cut_into_whole_segments(drawing):
    """Every step runs in exactly one segment, every edge is inside one or goes through a channel that exists."""
    graph = drawn(drawing)
    segments = cut(graph)
    home = {step.name: name for name, segment in segments.items() for step in segment.steps}
    assert sorted(step.name for segment in segments.values() for step in segment.steps) == sorted(graph.steps)
    done = set(graph.sources)
    for name, segment in segments.items():
        assert segment.steps[-1].name == name
        assert set(segment.inputs) <= done, "segments come in topological order and read channels only"
        done.add(name)
        inside = {step.name for step in segment.steps}
        outside = {read for step in segment.steps for read in step.inputs} - inside
        assert outside == set(segment.inputs)
        if len(inside) > 1:
            assert {step.output_mode for step in segment.steps} == {"append"}
    for sink in graph.sinks.values():
        assert home[sink.stream] == sink.stream
    for step_node in graph.steps.values():
        assert not step_node.connector or step_node.name in segments
    readers = consumers(graph, segments)
    assert {(channel, unit) for channel, units in readers.items() for unit in units} == {
        (read, segment.name) for segment in segments.values() for read in segment.inputs
    } | {(sink.stream, sink.name) for sink in graph.sinks.values()}


def test_one_strategy_may_replace_all_others():
    """By name, for every segment; an unknown name says which there are."""
    segments = cut(drawn({"a": "lines", "b": "a"}))
    assert {type(some) for some in override("active", segments, "memory:").values()} == {ab.ActiveStandby}
    assert override("passive", segments, "log:there")["b"].stores == ("log:there",)
    assert override("none", segments, "memory:") == {}
    with pytest.raises(PipelineError, match="no strategy 'fast'"):
        override("fast", segments, "memory:")

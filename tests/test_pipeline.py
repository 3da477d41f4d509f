"""A pipeline is checked as it is written down and as a whole; every mistake is named, with a way out."""

import pytest

import anabranch as ab
from anabranch.errors import PipelineError
from anabranch.pipeline import Pipeline, Stream
from anabranch.settings import Settings


def words():
    return ab.generate_words(rows=1)


def passes(rows):
    return rows


class Written:
    """A pipeline with one source and one step, to make mistakes with."""

    def __init__(self):
        self.pipe = Pipeline("orders")
        self.source = self.pipe.source("lines", words())
        self.step = self.pipe.step(self.source)(passes)


def named(name):
    def function(rows):
        return rows

    function.__name__ = name
    return function


def two(left, right):
    return left


def cycle(pipe):
    pipe.step("second")(named("first"))
    pipe.step("third")(named("second"))
    pipe.step("first")(named("third"))


def pipeline_without_source():
    pipe = Pipeline("orders")
    return pipe.graph()


def pipeline_without_step():
    pipe = Pipeline("orders")
    pipe.source("lines", words())
    return pipe.graph()


BAD_NAMES = ["", "1st", "_a", "a b", "a/b", "..", "a.b", "ä", "a" * 65, None, 7, "a\n"]

MISTAKES = {
    "source is no source": (lambda w: w.pipe.source("more", "file.csv"), "'more'.*file.csv"),
    "name of a source twice": (lambda w: w.pipe.source("lines", words()), "'lines' is used twice"),
    "name of a step twice": (lambda w: w.pipe.step(w.source)(passes), "'passes' is used twice"),
    "step named as a source": (lambda w: w.pipe.step(w.source)(named("lines")), "'lines' is used twice"),
    "step without inputs": (lambda w: w.pipe.step()(named("alone")), "'alone' reads nothing"),
    "step over a DataFrame": (lambda w: w.pipe.step(object())(named("odd")), "'odd' reads <object"),
    "step without a name": (lambda w: w.pipe.step(w.source)(lambda rows: rows), "'<lambda>'"),
    "one argument for two inputs": (lambda w: w.pipe.step(w.source, w.step)(named("one")), "'one' takes 1 .* 2 inputs"),
    "two arguments for one input": (lambda w: w.pipe.step(w.source)(two), "'two' takes 2 .* 1 inputs"),
    "bad output mode": (lambda w: w.pipe.step(w.source, output_mode="upsert")(named("up")), "'up'.*'upsert'"),
    "unknown input": (lambda w: (w.pipe.step("lime")(named("odd")), w.pipe.graph()), "'odd' reads 'lime'"),
    "sink of something else": (lambda w: w.pipe.sink(7, ab.console()), "'sink' reads 7"),
    "sink is no sink": (lambda w: w.pipe.sink(w.step, "out/"), "'passes' is 'out/'"),
    "sink on a source": (lambda w: (w.pipe.sink(w.source, ab.console()), w.pipe.graph()), "the source 'lines'"),
    "unknown guarantee": (lambda w: w.pipe.protect(guarantee="exact"), "'exact'"),
    "rejects of a source that has none": (lambda w: w.source.rejects, "'lines' has no rejects"),
    "cycle of three": (lambda w: (cycle(w.pipe), w.pipe.graph()), "cycle: .*(first -> second|second -> third)"),
    "step that reads itself": (lambda w: (w.pipe.step("me")(named("me")), w.pipe.graph()), "me -> me"),
    "no source": (lambda _: pipeline_without_source(), "'orders' has no source"),
    "no step": (lambda _: pipeline_without_step(), "'orders' has no step"),
}


@pytest.mark.parametrize(("mistake", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_with_a_hint(mistake, says):
    """Each mistake is a `PipelineError` that names the thing and says what to do, before anything runs."""
    with pytest.raises(PipelineError, match=says) as caught:
        mistake(Written())
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_a_sink_over_nothing_is_named_with_a_hint():
    """A sink that reads a name that does not exist is told which names do."""
    written = Written()
    written.pipe.sink("pases", ab.console())
    with pytest.raises(PipelineError, match="'pases'") as caught:
        written.pipe.graph()
    assert "passes" in caught.value.hint


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("kind", ["pipeline", "source"])
def test_a_bad_name_is_refused(kind, name):
    """Names become directories and query names: letters, digits and underscores, a letter first."""
    with pytest.raises(PipelineError, match=f"^{kind} name") as caught:
        Pipeline(name) if kind == "pipeline" else Written().pipe.source(name, words())
    assert "letters" in caught.value.hint


@pytest.mark.parametrize("name", ["", "1st", "a b", "a-b", "ä", "a" * 65])
def test_a_bad_step_name_is_refused(name):
    """The function's name is the step's, and has to be usable too."""
    with pytest.raises(PipelineError, match=r"^step name"):
        Written().pipe.step("lines")(named(name))


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda left, right: (left, right), 2),
        (lambda *frames: frames, 3),
        (lambda first, *others: (first, others), 3),
        (lambda first, second=None: (first, second), 1),
        (lambda first, second=None: (first, second), 2),
    ],
)
def test_a_step_takes_one_argument_per_input(function, inputs):
    """Variable and optional arguments count as far as they go."""
    function.__name__ = "step"
    pipe = Written().pipe
    pipe.step(*["lines"] * inputs)(function)
    assert pipe.graph().steps["step"].inputs == ("lines",) * inputs


def test_steps_come_in_topological_order():
    """Whatever the order of writing, a step comes after what it reads; names may be used before they exist."""
    pipe = Pipeline("orders")
    pipe.step("middle")(named("last"))
    pipe.step("lines")(named("middle"))
    pipe.source("lines", words())
    assert list(pipe.graph().steps) == ["middle", "last"]


def test_what_was_written_is_in_the_graph():
    """Settings, guarantee, connectors and output modes arrive in the graph, which later writing does not change."""
    settings = Settings(pending_epochs=7)
    pipe = Pipeline("orders", settings=settings)
    lines = pipe.source("lines", words())
    pipe.step(lines, connector=True, output_mode="update")(named("counts"))
    pipe.protect(guarantee="precise")
    graph = pipe.graph()
    pipe.step("counts")(named("later"))
    assert (graph.name, graph.settings, graph.guarantees) == ("orders", settings, {None: "precise"})
    step = graph.steps["counts"]
    assert (step.inputs, step.connector, step.output_mode) == (("lines",), True, "update")
    assert list(graph.steps) == ["counts"]


def test_sinks_of_one_kind_have_names_of_their_own(tmp_path):
    """Two sinks of one kind over one step acknowledge apart."""
    written = Written()
    for number in range(3):
        written.pipe.sink(written.step, ab.jsonl(tmp_path / str(number)))
    written.pipe.sink("passes", ab.console())
    sinks = written.pipe.graph().sinks
    assert list(sinks) == ["passes.jsonl", "passes.jsonl.2", "passes.jsonl.3", "passes.console"]
    assert {sink.stream for sink in sinks.values()} == {"passes"}


def test_a_step_is_still_a_function():
    """What the decorator returns can be called, so a step can be tested by itself; a source cannot."""
    written = Written()
    assert written.step("rows") == "rows"
    with pytest.raises(TypeError, match="'lines' is a source"):
        written.source("rows")


def test_rejects_are_a_stream_of_their_own(tmp_path):
    """A source that diverts what it cannot parse has rejects, which steps and sinks can read."""
    pipe = Pipeline("orders")
    lines = pipe.source("lines", ab.read_jsonl(tmp_path, schema="a int", malformed="divert"))
    pipe.sink(lines.rejects, ab.console())
    graph = pipe.graph()
    step = graph.steps["lines.rejects"]
    assert lines.rejects == Stream("lines.rejects")
    assert (step.function, step.inputs, step.connector) == (None, ("lines",), True)
    assert graph.sinks["lines.rejects.console"].stream == "lines.rejects"

"""Switching protection on: what can be asked for, which segment gets it, and which versions join."""

from types import SimpleNamespace

import pytest

import anabranch as ab
from anabranch.errors import AnabranchError, PipelineError, StoreError
from anabranch.keeper.restoring import Found
from anabranch.keeper.surroundings import upstream_of
from anabranch.keeper.version import Version
from anabranch.rebuilding import choose
from anabranch.segments import awaited, cut, strategies
from anabranch.store.opening import drop, namespaces, open_store


def pipeline():
    pipe = ab.Pipeline("p")
    words = pipe.source("words", ab.generate_words(rows=10))

    @pipe.step(words)
    def first(words):
        return words

    @pipe.step(first, connector=True)
    def second(first):
        return first

    @pipe.step(second)
    def third(second):
        return second

    return pipe


def chosen(pipe):
    graph = pipe.graph()
    return {name: strategy.store for name, strategy in strategies(graph, cut(graph)).items()}


def test_a_step_is_protected_with_its_segment():
    """A step's own strategy goes before the pipeline's; without either a segment is not protected."""
    pipe = pipeline()
    assert chosen(pipe) == {}
    pipe.protect("first", strategy=ab.PassiveStandby(store="log:a"))
    assert chosen(pipe) == {"second": "log:a"}
    pipe.protect(strategy=ab.PassiveStandby(store="log:b"))
    assert chosen(pipe) == {"second": "log:a", "third": "log:b"}
    pipe.protect("second", strategy=ab.PassiveStandby(store="log:c"))
    with pytest.raises(PipelineError, match="different strategies"):
        chosen(pipe)


def test_protecting_what_is_not_there_is_refused():
    """A step that does not exist, and something that is no strategy, are named."""
    pipe = pipeline()
    with pytest.raises(PipelineError, match="'log:a'"):
        pipe.protect(strategy="log:a")
    pipe.protect("fourth", strategy=ab.PassiveStandby(store="log:a"))
    with pytest.raises(PipelineError, match="'fourth'"):
        pipe.graph()


@pytest.mark.parametrize(
    "options",
    [
        {"store": "s3://x"},
        {"store": "log:"},
        {"store": []},
        {"store": ["log:a", "log:a"]},
        {"store": "log:a", "every": 0},
        {"store": "log:a", "every_s": -1.0},
        {"store": "log:a", "every": None},
        {"store": "redis://host:port/0"},
    ],
)
def test_a_strategy_that_cannot_work_is_refused(options):
    """Before anything runs, with a hint."""
    with pytest.raises(AnabranchError) as caught:
        ab.PassiveStandby(**options)
    assert caught.value.hint


# Versions that join


def found(unit, *epochs):
    return [Found(Version(unit, "r", epoch, 0, 0.0, ()), "log:a", f"home/{unit}/r") for epoch in epochs]


def epochs(choice):
    return {unit: some.version.epoch for unit, some in choice.items()}


def test_a_version_is_at_most_as_new_as_what_it_reads():
    """Of a consumer that is ahead an older version is taken; a producer may be ahead."""
    inputs = {"a": ("words",), "b": ("a",), "c": ("a", "b")}
    assert epochs(choose({"a": found("a", 9, 8), "b": found("b", 7), "c": found("c", 5)}, inputs)) == {
        "a": 9,
        "b": 7,
        "c": 5,
    }
    assert epochs(choose({"a": found("a", 9), "b": found("b", 12, 9), "c": found("c", 10, 8)}, inputs)) == {
        "a": 9,
        "b": 9,
        "c": 8,
    }


@pytest.mark.parametrize("versions", [{"a": found("a", 9)}, {"a": found("a", 9), "b": found("b", 12, 10)}])
def test_versions_that_do_not_join_are_refused(versions):
    """A unit without a version, or with newer ones only, is named."""
    with pytest.raises(StoreError, match="'b'"):
        choose(versions, {"a": (), "b": ("a",)})


@pytest.mark.parametrize(
    ("kept", "expected"), [({}, None), ({"a": None}, None), ({"a": 4}, 4), ({"a": 4, "b": 2}, 2), ({"a": -1}, -1)]
)
def test_producers_are_kept_first(kept, expected):
    """A version may be as new as those of its protected producers; sources and unprotected units do not count."""
    assert upstream_of(["a", "b", "words"], kept) == expected


@pytest.mark.parametrize("kind", ["log", "files", "memory"])
def test_namespaces_are_stores_of_their_own(tmp_path, kind):
    """They share nothing, are found by prefix, and go as a whole."""
    url = f"{kind}:{tmp_path / 'store'}"
    assert namespaces(url, "") == []
    for name in ("p/a/r1", "p/a/r2", "q/a/r1"):
        store = open_store(url, name)
        store.write({"key": name.encode()})
        store.close()
    assert namespaces(url, "") == ["p/a/r1", "p/a/r2", "q/a/r1"]
    assert namespaces(url, "p/a/") == ["p/a/r1", "p/a/r2"]
    drop(url, "p/a/r1")
    assert namespaces(url, "") == ["p/a/r2", "q/a/r1"]
    assert open_store(url, "p/a/r2").read("key") == b"p/a/r2"


def test_producers_of_what_is_published_when_shipped_are_awaited():
    """Directly or not; others are shipped as their own strategy says."""
    inputs = {"a": ("words",), "b": ("a",), "c": ("b",), "d": ("a",)}
    segments = {name: SimpleNamespace(inputs=some) for name, some in inputs.items()}
    shipped = ab.PassiveStandby(store="log:/s", release="shipped")
    assert awaited(segments, {"c": shipped, "a": ab.PassiveStandby(store="log:/s")}) == {"a", "b"}
    assert awaited(segments, {"d": shipped}) == {"a"}
    assert awaited(segments, {"a": shipped, "b": ab.PassiveStandby(store="log:/s")}) == set()

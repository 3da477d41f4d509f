"""`anabranch plan`, as people use it: what it shows, what it refuses, and that runs follow it."""

import json

import pytest

from harness import PIPELINES, anabranch

pytestmark = pytest.mark.spark
PROMISING = PIPELINES / "promising.py"


@pytest.fixture
def planned(tmp_path):
    """Run a command over an empty input; return its exit code, what it printed and what it complained of."""
    (tmp_path / "input").mkdir()

    def run(*arguments, **environment):
        done = anabranch(tmp_path, *arguments, TEST_INPUT=str(tmp_path / "input"), **environment)
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_pipeline_that_names_no_strategy_is_given_those_that_keep_its_guarantee(planned):
    """Trailing for what may be merged, shipped checkpoints for what remembers random numbers; all of it is told."""
    code, out, _ = planned("plan", str(PROMISING), "--json")
    told = json.loads(out)
    segments = {segment["segment"]: segment for segment in told["segments"]}
    assert code == 0
    assert told["holds"]
    assert (segments["cleaned"]["class"], segments["cleaned"]["strategy"]) == ("repeatable", "trailing")
    samples = segments["samples"]
    assert (samples["class"], samples["strategy"], samples["release"]) == ("arbitrary", "passive", "shipped")
    assert (samples["place"]["step"], samples["promised"]) == ("samples", "precise")
    assert samples["alternatives"]["active"]["guarantee"] == "no-loss (divergent)"
    assert [sink["promise"].partition(":")[0] for sink in told["sinks"]] == ["exactly once", "at least once"]


def test_asking_for_too_much_is_refused_with_the_line_and_what_to_change(planned, tmp_path):
    """By `plan`, which still shows the whole, and by `run`, before anything is made."""
    code, out, err = planned("plan", str(PROMISING), TEST_STRATEGY="active")
    line = next(n for n, text in enumerate(PROMISING.read_text().splitlines(), 1) if "F.rand()" in text)
    assert code == 2
    assert "is refused" in out
    assert f"because of rand() (promising.py, line {line})" in err
    assert "derive it from columns" in err
    code, _, err = planned("run", str(PROMISING), "--drain", TEST_STRATEGY="active")
    assert code == 2
    assert "is to be precise, but with ActiveStandby it is no-loss (divergent)" in err
    assert not list(tmp_path.glob(".anabranch/*/channels/*")), "nothing was made"


def test_less_may_be_asked_for(planned):
    """Then the same pipeline is fine."""
    code, out, err = planned("plan", str(PROMISING), TEST_STRATEGY="active", TEST_GUARANTEE="no-loss")
    assert (code, err) == (0, "")
    assert "promised no-loss (divergent)" in out


def test_a_value_of_the_moment_in_which_a_step_is_built_is_found(planned):
    """Every run and every node would have another one. A strategy on the command line is not chosen against."""
    code, out, _ = planned("plan", str(PROMISING), "--json", "--strategy", "none", TEST_STAMP="1", TEST_GUARANTEE="gap")
    cleaned, samples = json.loads(out)["segments"]
    assert code == 0
    assert (cleaned["class"], cleaned["strategy"], samples["strategy"]) == ("arbitrary", "none", "none")
    assert "whenever the step is built" in cleaned["findings"][0]["why"]


def test_a_large_pipeline_is_planned_as_a_whole(planned):
    """Every segment has its verdict; how long that took is told."""
    code, out, _ = planned("plan", str(PIPELINES / "thirty_steps.py"), "--json")
    told = json.loads(out)
    assert code == 0
    assert [segment["class"] for segment in told["segments"]] == ["repeatable", "repeatable", "convergent-capable"]
    assert sum(len(segment["steps"]) for segment in told["segments"]) == 30
    assert told["planned_s"] > 0

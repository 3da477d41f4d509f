"""Chaos on real nodes: a pipeline that keeps its promise, and one whose flaw comes to light."""

from __future__ import annotations

import json

import pytest

from anabranch.bench.events import write_input
from anabranch.chaos.history import read_history
from harness import PIPELINES, anabranch, processes_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def verdict_of(ended):
    assert ended.stdout, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_promise_that_is_kept(tmp_path):
    """A window count and a join, by different strategies: killed, paused, and given late and double input."""
    write_input(tmp_path, files=60, rows=50, seed=5)
    ended = anabranch(
        tmp_path,
        "chaos",
        str(PIPELINES / "everything.py"),
        "--faults=kill,pause,late,duplicate",
        "--count=4",
        "--seconds=20",
        "--seed=11",
        "--out=chaos",
        "--json",
        ANABRANCH_TEST_STEPS="windowed,joined",
        ANABRANCH_TEST_STRATEGIES="windowed:active,joined:passive",
    )
    verdict = verdict_of(ended)
    assert ended.returncode == 0, (verdict, ended.stderr[-3000:])
    assert verdict["held"]
    assert sorted(verdict["faults"]) == ["duplicate", "kill", "late", "pause"]
    assert (verdict["lost"], verdict["duplicated"], verdict["wrong"]) == (0, 0, 0)
    assert verdict["rows_expected"] == verdict["rows_delivered"] > 0
    assert verdict["batch"]["expected"] > 0
    assert verdict["batch"]["lost"] == verdict["batch"]["wrong"] == verdict["batch"]["duplicated"] == 0
    kinds = {line["kind"] for line in read_history(tmp_path / "chaos" / "history.jsonl")}
    assert {"began", "fault", "took over", "delivered", "verdict"} <= kinds
    assert "<svg" in (tmp_path / "chaos" / "report.html").read_text()
    assert not (tmp_path / "out").exists(), "the pipeline's own sinks are left alone"
    assert processes_of(tmp_path) == []


def test_a_flaw_comes_to_light(tmp_path):
    """The epoch and the rows that differ are named, and the exit code says so."""
    (tmp_path / "input").mkdir()
    for number in range(30):
        lines = [json.dumps({"key": f"k{index}", "value": index}) for index in range(5)]
        (tmp_path / "input" / f"{number:03d}.jsonl").write_text("\n".join(lines) + "\n")
    ended = anabranch(
        tmp_path,
        "chaos",
        str(PIPELINES / "flawed.py"),
        "--faults=kill",
        "--count=1",
        "--seconds=10",
        "--out=chaos",
        "--json",
        TEST_INPUT=str(tmp_path / "input"),
    )
    verdict = verdict_of(ended)
    assert ended.returncode == 1, (verdict, ended.stderr[-3000:])
    assert not verdict["held"]
    assert verdict["differing"]["stamped.parquet"]
    assert any(f"epoch {verdict['differing']['stamped.parquet'][0]} " in example for example in verdict["examples"])
    assert processes_of(tmp_path) == []

"""What will protect each segment: what its author named, and what nodes will choose where a guarantee is asked for.

The choice follows from the analysed plan, so `anabranch plan` is asked, in a process of its own: a Spark session would
stay in this one, beside the nodes that are watched.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from anabranch.errors import PipelineError
from anabranch.pipeline import Graph
from anabranch.segments import Segment, guarantees, override, strategies
from anabranch.strategies import Strategy
from anabranch.strategies.named import by_name
from anabranch.strategies.strategy import View

_TIMEOUT_S = 300.0


class Asked(Protocol):
    """What of the options of a run this is about: the pipeline's file, a strategy for all of it, Spark settings."""

    @property
    def file(self) -> Path: ...
    @property
    def strategy(self) -> str | None: ...
    @property
    def settings(self) -> Mapping[str, str]: ...


def protection(graph: Graph, segments: dict[str, Segment], store: str, asked: Asked) -> dict[str, Strategy]:
    """Return the strategy of every segment that has one; `PipelineError` if the pipeline asks for too much."""
    if asked.strategy is not None:
        return override(asked.strategy, segments, store)
    named = strategies(graph, segments)
    if all(name in named for name in guarantees(graph, segments)):
        return named
    return {**named, **chosen(_planned(asked), store)}


def chosen(planned: list[Mapping[str, object]], store: str) -> dict[str, Strategy]:
    """Return the strategies that `anabranch plan` says were chosen, by segment. Pure."""
    known = {(some.name, some.policy): some for some in by_name(store).values()}
    return {
        str(segment["segment"]): known[str(segment["strategy"]), str(segment["release"])]  # type: ignore[index]
        for segment in planned
        if segment["chosen"]
    }


def stands_by(strategy: Strategy) -> bool:
    """Say whether a unit that runs well has standbys. Pure."""
    return strategy.standby(View(published=9, waiting=9, saved=9, mergeable=True)) is not None


def _planned(asked: Asked) -> list[Mapping[str, object]]:
    command = [sys.executable, "-m", "anabranch.cli.main", "plan", str(asked.file), "--json"]
    command += [f"--set={key}={value}" for key, value in asked.settings.items()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise PipelineError(
            f"the pipeline cannot be run as it is: {done.stderr.strip()}", hint="see `anabranch plan` for the whole"
        )
    found: list[Mapping[str, object]] = json.loads(done.stdout.splitlines()[-1])["segments"]
    return found

"""Plans of `plan_cases` as steps of one pipeline, so that they can be killed for real, and what each is promised.

Cases that only add columns or aggregates of one kind share a step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plan_cases import CASES, STRATEGIES
from plan_steps import Aggregates, Columns

TOGETHER = {
    "columns": ("functions of text", "a hash", "the time of a column", "encryption with a vector", "input_file_name"),
    "windows": (
        "a tumbling count",
        "sums, extremes, bits",
        "exact fractions",
        "approx_count_distinct",
        "sizes and sorted lists",
    ),
    "totals": ("a running count", "a running sum"),
    "draws": ("rand", "uuid", "shuffle", "current_timestamp"),
}
ALONE = (
    "a filter",
    "explode",
    "a function",
    "a pandas function",
    "mapInArrow",
    "a union",
    "a table in the code",
    "a sliding count",
    "a count in update mode",
    "an interval join",
    "an outer join",
    "duplicates with their time",
    "every window, complete",
    "a sorted table",
    "a join without end",
    "a session",
    "duplicates for ever",
    "duplicates within a while",
    "a function with state",
    "transformWithState",
    "a running first",
)


@dataclass(frozen=True)
class Promised:
    """A step: the cases in it, and what all of these are promised, one letter per strategy."""

    cases: tuple[str, ...]
    build: Callable[..., Any]
    mode: str
    arbitrary: bool
    promises: str

    def strategies(self) -> list[str]:
        """Return the strategies that are not refused."""
        return [name for name, letter in zip(STRATEGIES, self.promises, strict=True) if letter != "x"]

    def letter(self, strategy: str) -> str:
        return self.promises[STRATEGIES.index(strategy)]


def _promised(names: tuple[str, ...]) -> Promised:
    first, *others = (CASES[name] for name in names)
    assert all((case.promises, case.mode) == (first.promises, first.mode) for case in others), names
    build = first.build
    if others:
        makes = [make for name in names for make in CASES[name].build.makes]
        windows = getattr(build, "windows", True)
        build = Columns(*makes) if isinstance(build, Columns) else Aggregates(*makes, windows=windows)
    return Promised(names, build, first.mode, first.kind == "arbitrary", first.promises)


STEPS = {name: _promised(names) for name, names in TOGETHER.items()} | {
    re.sub(r"\W+", "_", name): _promised((name,)) for name in ALONE
}


def runs(most: int) -> list[dict[str, str]]:
    """Return every step with every strategy that it may have, in runs of at most some steps, none twice in one run."""
    found: list[dict[str, str]] = [{}]
    for turn in range(1, len(STRATEGIES)):  # the first is none at all
        for name, step in STEPS.items():
            if turn < len(step.strategies()):
                if len(found[-1]) == most or name in found[-1]:
                    found.append({})
                found[-1][name] = step.strategies()[turn]
    return found


def write_files(directory: Path, epochs: list[list[dict[str, Any]]]) -> list[Path]:
    """Write the rows of every epoch as a file of JSON lines."""
    directory.mkdir()
    paths = []
    for number, rows in enumerate(epochs):
        paths.append(directory / f"{number:05d}.jsonl")
        paths[-1].write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
    return paths

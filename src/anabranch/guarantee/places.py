"""Where in the user's code something stands that a plan shows. Reads the source files of steps."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.guarantee.classify import Finding

if TYPE_CHECKING:
    from anabranch.segments import Segment

# Functions that have several names in PySpark.
_ALIASES = {"avg": ("mean",), "stddev_samp": ("stddev", "std"), "var_samp": ("variance",), "any_value": ("any_value",)}


@dataclass(frozen=True)
class Place:
    """Where in the user's code something stands."""

    step: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}, line {self.line}"


def located(segment: Segment, finding: Finding | None) -> Place | None:
    """Find the line of a step that a finding is about: the first that uses its word, else where the step begins."""
    if finding is None:
        return None
    steps = [(step.name, source) for step in segment.steps if (source := _source(step.function)) is not None]
    for name, (file, first, lines) in steps:
        for number, line in enumerate(lines):
            code = line.partition("#")[0]
            if finding.word and re.search(rf"\b({'|'.join(_ways_to_write(finding.word))})\b", code):
                return Place(name, file, first + number)
    if len(steps) == 1:
        name, (file, first, _) = steps[0]
        return Place(name, file, first)
    return None


def _ways_to_write(word: str) -> list[str]:
    return [re.escape(word), *_ALIASES.get(word, ())]


def _source(function: Any) -> tuple[str, int, list[str]] | None:  # noqa: ANN401  the user's function
    try:
        lines, first = inspect.getsourcelines(function)
        return str(inspect.getsourcefile(function)), first, lines
    except (OSError, TypeError):
        return None

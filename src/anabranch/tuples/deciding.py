"""Which rows pass, in which order, and which windows they make. Pure: no Spark here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Arrivals:
    """Algorithm 3: which rows are the first of their kind. Pure.

    Of every row that is not known to be past, how often each replica brought it, and how often the most of them did.
    """

    def __init__(self, noted: str | None = None) -> None:
        self._counts: dict[str, tuple[int, dict[str, int]]] = {
            key: (at_us, counts) for key, (at_us, counts) in json.loads(noted or "{}").items()
        }

    def first(self, key: str, at_us: int, replica: int) -> bool:
        """Say of a row that has just come whether no replica brought it this often before."""
        _, counts = self._counts.setdefault(key, (at_us, {}))
        most = max(counts.values(), default=0)
        counts[str(replica)] = counts.get(str(replica), 0) + 1
        return counts[str(replica)] > most

    def forget(self, until_us: int) -> None:
        """Forget rows up to a punctuation: whatever comes of them now is a copy, and is not asked about."""
        self._counts = {key: one for key, one in self._counts.items() if one[0] > until_us}

    def noted(self) -> str | None:
        """Return what has to be remembered, None if that is nothing."""
        return json.dumps(self._counts, separators=(",", ":")) if self._counts else None


def released(waiting: Iterable[T], until_us: int, when: Callable[[T], tuple[int, Any]]) -> tuple[list[T], list[T]]:
    """Split rows at a punctuation: those up to it, in their one order, and those that wait on. Pure.

    `when` gives the time of a row in microseconds, and what tells it from others of the same time.
    """
    waiting = list(waiting)
    ready = sorted((row for row in waiting if when(row)[0] <= until_us), key=when)
    return ready, [row for row in waiting if when(row)[0] > until_us]


def windows(
    kept: Sequence[T], position: int, ready: Sequence[T], size: int, slide: int
) -> tuple[list[tuple[int, list[T]]], list[T]]:
    """Return the windows that become whole, with the position of their first row, and the rows to keep. Pure.

    `kept` are the rows before `position`, the newest last, that windows may still need.
    """
    rows, first = [*kept, *ready], position - len(kept)
    end = first + len(rows)
    found = []
    begin = -(-first // slide) * slide
    while begin + size <= end:
        found.append((begin, rows[begin - first : begin - first + size]))
        begin += slide
    return found, rows[max(0, begin - first) :]

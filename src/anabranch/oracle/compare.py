"""Comparing rows as multisets: how many are lost, duplicated, wrong. Pure.

A row that was expected and is missing is lost; a row that is there more often than expected is duplicated; a row that
was never expected is wrong. Nothing here knows how the rows were made.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_EXAMPLES = 3


@dataclass(frozen=True)
class Verdict:
    """What a comparison found; `examples` shows a few rows that differ."""

    expected: int
    delivered: int
    lost: int
    duplicated: int
    wrong: int
    examples: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether both multisets are the same."""
        return not (self.lost or self.duplicated or self.wrong)

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(
            self.expected + other.expected,
            self.delivered + other.delivered,
            self.lost + other.lost,
            self.duplicated + other.duplicated,
            self.wrong + other.wrong,
            (self.examples + other.examples)[:_EXAMPLES],
        )


NOTHING = Verdict(0, 0, 0, 0, 0)


def compare(expected: pa.Table, delivered: pa.Table, *, where: str = "") -> Verdict:
    """Compare two tables as multisets of rows; columns are matched by name."""
    names = sorted(expected.column_names)
    if names != sorted(delivered.column_names):
        difference = f"{where}: columns {sorted(delivered.column_names)}, expected {names}"
        return Verdict(len(expected), len(delivered), len(expected), 0, len(delivered), (difference,))
    left, right = rows_of(expected, names), rows_of(delivered, names)
    missing, surplus = left - right, right - left
    duplicated = sum(count for row, count in surplus.items() if row in left)
    wrong = surplus.total() - duplicated
    examples = [f"{where} lost {row}" for row in list(missing)[:_EXAMPLES]]
    examples += [f"{where} {'duplicated' if row in left else 'wrong'} {row}" for row in list(surplus)[:_EXAMPLES]]
    return Verdict(len(expected), len(delivered), missing.total(), duplicated, wrong, tuple(examples[:_EXAMPLES]))


def rows_of(table: pa.Table, names: list[str]) -> Counter[tuple[Any, ...]]:
    """Return the rows as a multiset of tuples, columns in the order of `names`."""
    if not names:
        return Counter({(): len(table)}) if len(table) else Counter()
    columns = [[_hashable(value) for value in table.column(name).to_pylist()] for name in names]
    return Counter(zip(*columns, strict=True))


def _hashable(value: Any) -> Any:  # noqa: ANN401  any Arrow value
    if isinstance(value, dict):
        return tuple((key, _hashable(inner)) for key, inner in sorted(value.items()))
    if isinstance(value, list | tuple):
        return tuple(_hashable(inner) for inner in value)
    # Not a number is not equal to itself, but as a value of a row it is the same value.
    return "NaN" if isinstance(value, float) and math.isnan(value) else value

"""Comparing what was delivered with what was expected, as multisets: lost, duplicated, wrong."""

import math
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.oracle.compare import NOTHING, Verdict, compare

NAN = math.nan
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def verdict(expected, delivered):
    """Compare two lists of values as one-column tables; return (lost, duplicated, wrong)."""
    kind = pa.array([*expected, *delivered]).type
    found = compare(pa.table({"x": pa.array(expected, kind)}), pa.table({"x": pa.array(delivered, kind)}))
    assert (found.expected, found.delivered) == (len(expected), len(delivered))
    return found.lost, found.duplicated, found.wrong


TABLE = {
    "nothing": ([], [], (0, 0, 0)),
    "the same": ([1, 2, 2], [1, 2, 2], (0, 0, 0)),
    "another order": ([1, 2, 2, 3], [2, 3, 2, 1], (0, 0, 0)),
    "one lost": ([1, 2], [1], (1, 0, 0)),
    "one of two lost": ([2, 2], [2], (1, 0, 0)),
    "all lost": ([1, 2, 3], [], (3, 0, 0)),
    "one twice": ([1, 2], [1, 2, 2], (0, 1, 0)),
    "one three times": ([1, 2], [1, 2, 2, 2], (0, 2, 0)),
    "one wrong": ([1], [1, 9], (0, 0, 1)),
    "one wrong, twice": ([1], [1, 9, 9], (0, 0, 2)),
    "nothing expected": ([], [9], (0, 0, 1)),
    "one instead of another": ([1, 2], [1, 9], (1, 0, 1)),
    "one twice instead of another": ([1, 2], [1, 1], (1, 1, 0)),
    "everything at once": ([1, 2, 3], [1, 1, 9], (2, 1, 1)),
    "null is a value": ([None, 1], [1, None], (0, 0, 0)),
    "null lost": ([None, None, 1], [None, 1], (1, 0, 0)),
    "null twice": ([None], [None, None], (0, 1, 0)),
    "null is not zero": ([None, 1], [0, 1], (1, 0, 1)),
    "null is not empty text": ([None, "a"], ["", "a"], (1, 0, 1)),
    "text": (["größe", "東京"], ["東京", "größe"], (0, 0, 0)),
    "bytes": ([b"\x00"], [b"\x00\x00"], (1, 0, 1)),
    "times": ([NOON], [NOON], (0, 0, 0)),
    "lists": ([[1, 2], [], None], [[], None, [1, 2]], (0, 0, 0)),
    "order in a list counts": ([[1, 2]], [[2, 1]], (1, 0, 1)),
    "structs": ([{"a": 1, "b": [None]}], [{"a": 1, "b": [None]}], (0, 0, 0)),
    "null in a struct": ([{"a": 1, "b": None}], [{"a": None, "b": 1}], (1, 0, 1)),
    "deep": ([{"a": [{"b": {"c": [1]}}]}], [{"a": [{"b": {"c": [2]}}]}], (1, 0, 1)),
    "infinities": ([math.inf, -math.inf], [-math.inf, math.inf], (0, 0, 0)),
    "NaN": ([NAN, 1.0], [1.0, NAN], (0, 0, 0)),
    "NaN lost": ([NAN, NAN], [NAN], (1, 0, 0)),
    "NaN twice": ([NAN], [NAN, NAN], (0, 1, 0)),
    "NaN in a struct": ([{"a": NAN}], [{"a": NAN}], (0, 0, 0)),
    "NaN in a list": ([[NAN, None]], [[NAN, None]], (0, 0, 0)),
}


@pytest.mark.parametrize(("expected", "delivered", "found"), TABLE.values(), ids=TABLE)
def test_rows_are_compared_as_a_multiset(expected, delivered, found):
    """One line of the table: expected, delivered, and (lost, duplicated, wrong). NaN equals itself, as in Spark."""
    assert verdict(expected, delivered) == found


def test_columns_are_matched_by_name():
    """The order of columns does not matter; a value in the other column is another row."""
    left = pa.table({"a": [1, 2], "b": ["x", None]})
    assert compare(left, pa.table({"b": [None, "x"], "a": [2, 1]})).exact
    assert not compare(left, pa.table({"a": [1, 2], "b": [None, "x"]})).exact


@pytest.mark.parametrize("columns", [{"a": [1]}, {"a": [1], "c": [1]}, {"a": [1], "b": [1], "c": [1]}])
def test_other_columns_are_all_wrong(columns):
    """A table of another shape has nothing of what was expected, and says which columns it has."""
    found = compare(pa.table({"a": [1, 2], "b": [1, 2]}), pa.table(columns), where="epoch 3")
    assert (found.lost, found.wrong, found.exact) == (2, 1, False)
    assert found.examples == (f"epoch 3: columns {sorted(columns)}, expected ['a', 'b']",)


def test_rows_without_columns_are_counted():
    """A table without columns still has a number of rows."""
    empty = [pa.table({"a": range(rows)}).select([]) for rows in range(3)]
    assert compare(empty[2], empty[2]).exact
    assert compare(empty[0], empty[0]).exact
    assert (compare(empty[2], empty[1]).lost, compare(empty[1], empty[2]).duplicated) == (1, 1)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[("k", 1), ("l", None)]], pa.map_(pa.string(), pa.int64())),
        pa.array([[("k", {"a": 1})]], pa.map_(pa.string(), pa.struct([("a", pa.int64())]))),
    ],
    ids=["of numbers", "of structs"],
)
def test_maps_are_compared(values):
    """A map column is compared like any other."""
    assert compare(pa.table({"m": values}), pa.table({"m": values})).exact


def test_differences_are_shown():
    """A few rows that differ are named, with where they were; not more than a few."""
    found = compare(pa.table({"x": [1, 2, 2]}), pa.table({"x": [2, 2, 2, 9]}), where="counts epoch 7")
    assert found.examples == ("counts epoch 7 lost (1,)", "counts epoch 7 duplicated (2,)", "counts epoch 7 wrong (9,)")
    assert len(compare(pa.table({"x": range(50)}), pa.table({"x": range(50, 90)})).examples) == 3


def test_verdicts_add_up():
    """Epoch by epoch, counts are summed, and one bad epoch spoils the whole."""
    good, bad = Verdict(3, 3, 0, 0, 0), Verdict(5, 5, 1, 2, 3, ("a", "b", "c"))
    assert good.exact
    assert (NOTHING + good).exact
    total = good + bad + bad
    assert total == Verdict(13, 13, 2, 4, 6, ("a", "b", "c"))
    assert not total.exact
    for one in (Verdict(1, 0, 1, 0, 0), Verdict(1, 2, 0, 1, 0), Verdict(1, 2, 0, 0, 1)):
        assert not one.exact


rows = st.lists(st.tuples(st.integers(0, 3) | st.none(), st.sampled_from("ab")), max_size=8)


@given(rows, rows)
def test_the_books_balance(expected, delivered):
    """Expected rows less the lost, plus duplicated and wrong ones, is what was delivered; exact means equal."""
    tables = [
        pa.table({"n": pa.array([n for n, _ in some], pa.int64()), "s": pa.array([s for _, s in some], pa.string())})
        for some in (expected, delivered)
    ]
    found = compare(*tables)
    assert found.expected - found.lost + found.duplicated + found.wrong == found.delivered
    order = lambda row: (row[0] is None, row[0] or 0, row[1])  # noqa: E731
    assert found.exact == (sorted(expected, key=order) == sorted(delivered, key=order))

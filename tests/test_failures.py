"""What is done about a failed unit, as a table: restart it, or call the epoch poison and wait for someone."""

import pytest

from anabranch.failures import MOST_FAILURES_WITHOUT_PROGRESS, Failure, judge, of_files, poison
from anabranch.plans import spark_message

FIRST = Failure("r000000.aaaaaaaa", 7, "ZeroDivisionError: division by zero")


def failed(run=0, epoch=7, error=FIRST.error, **fields):
    return Failure(f"r{run:06d}.aaaaaaaa", epoch, error, **fields)


def different(count):
    return [failed(run, 7, f"error {run}") for run in range(count)]


TABLE = {
    "first failure": ([], failed(), "restart"),
    "same epoch, same error, another run": ([failed(0)], failed(1), "fail"),
    "same epoch, same error, same run": ([failed(0)], failed(0), "restart"),
    "same epoch, another error": ([failed(0)], failed(1, error="OSError: disk full"), "restart"),
    "another epoch, same error": ([failed(0)], failed(1, epoch=8), "restart"),
    "the same as the one before last": ([failed(0), failed(1, error="OSError: disk full")], failed(2), "fail"),
    "twice in one run, then in another": ([failed(0), failed(0)], failed(1), "fail"),
    "alike, both before they had run anything": ([failed(0, proven=False)], failed(1, proven=False), "restart"),
    "alike, the first after it had run": ([failed(0)], failed(1, proven=False), "fail"),
    "alike, the second after it had run": ([failed(0, proven=False)], failed(1), "fail"),
    "alike, and no files are left to go on from": (
        [failed(run, proven=False) for run in range(MOST_FAILURES_WITHOUT_PROGRESS - 1)],
        failed(90, proven=False),
        "fail",
    ),
    "different errors, one below the limit": (
        different(MOST_FAILURES_WITHOUT_PROGRESS - 2),
        failed(90),
        "restart",
    ),
    "different errors, at the limit": (different(MOST_FAILURES_WITHOUT_PROGRESS - 1), failed(90), "fail"),
    "different errors, beyond the limit": (different(MOST_FAILURES_WITHOUT_PROGRESS + 3), failed(90), "fail"),
}


@pytest.mark.parametrize(("history", "failure", "verdict"), TABLE.values(), ids=TABLE)
def test_a_failure_is_judged_by_those_before_it(history, failure, verdict):
    """One line of the table: the failures since the last release, the new one, and what is done."""
    assert judge(history, failure, floor=6) == verdict


@pytest.mark.parametrize("history", [[], [failed(0)], different(MOST_FAILURES_WITHOUT_PROGRESS + 3)])
def test_who_is_overtaken_does_not_fail(history):
    """Racing replicas went on and what it would read is trimmed: it goes on from their state, as often as need be."""
    assert judge(history, failed(1), floor=7) == "overtaken"


def test_a_unit_that_fails_says_how_often():
    """Twice alike, or too often in different ways."""
    assert "failed twice on epoch 7: ZeroDivisionError" in poison("counts", [failed(0)], failed(1)).message
    assert "failed 5 times without progress, now on epoch 7" in poison("counts", different(4), failed(90)).message


@pytest.mark.parametrize("errors", [["same"] * 10, [f"error {number}" for number in range(10)], ["a", "b"] * 5])
def test_a_unit_that_never_progresses_is_given_up(errors):
    """Whatever a unit fails of, restarts come to an end."""
    history = []
    for run, error in enumerate(errors):
        failure = failed(run, error=error)
        if judge(history, failure, floor=-1) == "fail":
            break
        history.append(failure)
    assert len(history) < MOST_FAILURES_WITHOUT_PROGRESS


def test_judging_changes_nothing():
    """The history is the caller's: it is read, not written."""
    history = [failed(0)]
    judge(history, failed(1), floor=-1)
    assert history == [failed(0)]


def test_files_are_not_doubted_for_what_rows_did():
    """A malformed row and an input that is gone say nothing of the state that a query began with."""
    assert of_files("py4j.protocol.Py4JJavaError: An error occurred while calling o1.collectToPython.")
    assert not of_files("malformed row in source 'events' (a.jsonl, line 3): {")
    assert not of_files("anabranch.errors.Trimmed: slot 2 is at or below the floor 4")


FAILED_IN_THE_JVM = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "unit.py", line 244, in _batch
    self._execute(statistics, batch_id)
py4j.protocol.Py4JJavaError: An error occurred while calling o523.collectToPython.
: org.apache.spark.SparkException: [CANNOT_LOAD_STATE_STORE] An error occurred during loading state.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotLoadStore(QueryExecutionErrors.scala:2941)
Caused by: java.io.IOException: cannot read
\t... 41 more
Caused by: java.io.EOFException: the file ends
\t... 52 more
"""
FAILED_IN_PYTHON = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "unit.py", line 244, in _batch
anabranch.errors.Trimmed: slot 2 is at or below the floor 4
"""


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (
            FAILED_IN_THE_JVM,
            f"{FAILED_IN_THE_JVM.splitlines()[4][2:]} (java.io.EOFException: the file ends)",
        ),
        (FAILED_IN_THE_JVM.partition("Caused by")[0], FAILED_IN_THE_JVM.splitlines()[4][2:]),
        (FAILED_IN_THE_JVM.partition("\n: ")[0], FAILED_IN_THE_JVM.splitlines()[3]),
        (FAILED_IN_PYTHON, "anabranch.errors.Trimmed: slot 2 is at or below the floor 4"),
        ("[TABLE_NOT_FOUND] no such table\n\tat org.apache", "[TABLE_NOT_FOUND] no such table"),
    ],
    ids=["caused", "not caused", "nothing said", "in Python", "no trace"],
)
def test_why_a_query_failed_is_told_in_a_line(told, message):
    """What the JVM said, and what caused that at last: Python knows only which call it was, by a number."""
    assert spark_message(RuntimeError(told)) == message

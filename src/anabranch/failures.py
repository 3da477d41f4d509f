"""What to do when a unit fails. Pure.

A query that fails is started again, as a new run. An epoch that failed on two runs with the same error is poison: the
unit is marked failed and waits for someone to act, because a third try would only fail again, and elsewhere a standby
would take over just to die of it too. Runs that failed before they had run anything may have failed of the files that
they began with, and there may be others to go on from: so these are tried a few times more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anabranch.errors import AnabranchError, SinkError, UnitFailed

MALFORMED = "malformed row"
# Different errors in a row, with no epoch released in between, are a fault that restarts do not heal.
MOST_FAILURES_WITHOUT_PROGRESS = 5


@dataclass(frozen=True)
class Failure:
    """One failed run; `proven` if the state that it began with is no reason: it had run something, or had none."""

    run: str
    epoch: int
    error: str
    proven: bool = True


def judge(history: list[Failure], failure: Failure, *, floor: int) -> Literal["restart", "overtaken", "fail"]:
    """Say what to do about a failure, given the ones before it since the unit last released an epoch.

    `floor` is up to where an input is trimmed. What is trimmed was safe, so a replica that fails there was overtaken by
    one that races with it: it goes on from that one's state, and the epoch is no poison, however often this happens.
    """
    if failure.epoch <= floor:
        return "overtaken"
    if _repeated(history, failure):
        return "fail"
    return "fail" if len(history) + 1 >= MOST_FAILURES_WITHOUT_PROGRESS else "restart"


def _repeated(history: list[Failure], failure: Failure) -> bool:
    """Say whether it is the epoch that fails: the files that two runs began with may both be damaged."""
    same = [past for past in history if past.epoch == failure.epoch and past.error == failure.error]
    return any(past.run != failure.run and (past.proven or failure.proven) for past in same)


def of_files(error: str) -> bool:
    """Say whether a query may have failed of the files it began with: not if it was of rows, or of their absence."""
    return not error.startswith(MALFORMED) and "Trimmed" not in error


def poison(unit: str, history: list[Failure], failure: Failure) -> AnabranchError:
    """Return the error of a unit that failed twice in the same way, or too often."""
    hint = "fix the cause, then run again; it goes on with the same epoch"
    if failure.error.startswith(MALFORMED):
        hint = (
            'give the source malformed="divert", then run again: it goes on, and the row goes to the source\'s rejects'
        )
    often = "twice" if _repeated(history, failure) else f"{len(history) + 1} times without progress, now"
    return UnitFailed(f"unit {unit!r} failed {often} on epoch {failure.epoch}: {failure.error}", hint=hint)


def sink_failure(name: str, epoch: int, failure: BaseException, message: str) -> AnabranchError:
    """Return the error of a sink that failed, which `message` explains."""
    if isinstance(failure, AnabranchError):
        return failure
    return SinkError(
        f"sink {name!r} failed on epoch {epoch}: {type(failure).__name__}: {message}",
        hint="fix the cause, then run again; the epoch is delivered again",
    )

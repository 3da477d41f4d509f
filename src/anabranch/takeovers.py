"""How long takeovers take, phase by phase: noticing, restoring, the first output, catching up. Pure but for notes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

# A unit that is this close to its inputs has caught up: one epoch is always in hand.
_CAUGHT_UP_EPOCHS = 1


@dataclass(frozen=True)
class Taken:
    """A role taken from another node: when, and how long before that its holder was last heard, if known."""

    role: str
    generation: int
    at: float
    detected_s: float | None


@dataclass(frozen=True)
class Seen:
    """What shows how far a takeover is; None: not yet."""

    running: bool
    first_output_s: float | None
    published: int
    waiting: int


@dataclass
class _Phases:
    taken: Taken
    restore_s: float | None = None
    first_output_s: float | None = None


@dataclass(frozen=True)
class Recovery:
    """A takeover that is over. Seconds from one phase to the next; `total_s` from the last sign of life to the end."""

    role: str
    generation: int
    detected_s: float | None
    restore_s: float
    first_output_s: float
    catch_up_s: float
    total_s: float


class Takeovers:
    """The takeovers of one node that are under way."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._underway: dict[str, _Phases] = {}
        self.recoveries: list[Recovery] = []

    def begin(self, taken: Taken) -> None:
        """Follow a takeover from now on."""
        self._underway[taken.role] = _Phases(taken)

    def drop(self, role: str) -> None:
        """Follow it no more: the role is another's."""
        self._underway.pop(role, None)

    def look(self, now_s: float, see: Callable[[str], Seen]) -> None:
        """Note what has been reached since the last look."""
        for role, phases in list(self._underway.items()):
            seen = see(role)
            began_s = phases.taken.at
            if seen.running and phases.restore_s is None:
                phases.restore_s = now_s - began_s
            if seen.first_output_s is not None and phases.first_output_s is None:
                phases.first_output_s = seen.first_output_s - began_s
            if phases.restore_s is None or phases.first_output_s is None:
                continue
            if seen.waiting - seen.published <= _CAUGHT_UP_EPOCHS:
                del self._underway[role]
                recovery = _recovery(phases.taken, phases.restore_s, phases.first_output_s, now_s - began_s)
                self.recoveries.append(recovery)
                self._note("recovered", **asdict(recovery))


def _recovery(taken: Taken, restore_s: float, first_output_s: float, all_s: float) -> Recovery:
    first_output_s = max(restore_s, first_output_s)
    return Recovery(
        taken.role,
        taken.generation,
        taken.detected_s,
        restore_s=restore_s,
        first_output_s=first_output_s - restore_s,
        catch_up_s=max(0.0, all_s - first_output_s),
        total_s=(taken.detected_s or 0.0) + max(all_s, first_output_s),
    )

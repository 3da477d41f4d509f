"""The input: rows that come in the course of time, cut into ranges by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.simulator.world import World
    from anabranch.sources.source import Limit, Range


class SimSource:
    """A source of the rows that are there by now."""

    def __init__(self, world: World) -> None:
        self._world = world

    def planner(self, snapshot: dict[str, Any] | None) -> SimPlanner:
        return SimPlanner(self._world, 0 if snapshot is None else int(snapshot["end"]))


class SimPlanner:
    """Takes all rows that wait, up to a limit."""

    def __init__(self, world: World, end: int) -> None:
        self._world = world
        self._end = end

    def waiting(self, now_s: float) -> bool:
        del now_s
        return len(self._world.input) > self._end

    def backlogged(self, now_s: float, limit: Limit) -> bool:
        del now_s
        return len(self._world.input) - self._end >= limit.rows

    def plan(self, now_s: float, limit: Limit) -> Range:
        del now_s
        end = min(len(self._world.input), self._end + limit.rows)
        return {"start": self._end, "end": end} if end > self._end else {}

    def apply(self, planned: Range) -> None:
        if planned:
            if planned["start"] != self._end:
                self._world.violate(f"a plan begins at row {planned['start']}, but {self._end} rows were taken")
            self._end = int(planned["end"])

    def close(self, now_s: float) -> None:
        """Input does not end."""

    def ended(self, now_s: float) -> bool:
        del now_s
        return False

    def snapshot(self) -> dict[str, Any]:
        return {"end": self._end}

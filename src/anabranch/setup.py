"""What a node knows before it hosts anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anabranch.clock import Clock
from anabranch.node_options import NodeOptions
from anabranch.pipeline import Graph, Guarantee
from anabranch.segments import Segment
from anabranch.strategies import Strategy
from anabranch.strategies.strategy import Unprotected
from anabranch.work import Work

_UNPROTECTED = Unprotected()


@dataclass(frozen=True)
class Setup:
    """What a node knows before it hosts anything."""

    graph: Graph
    segments: dict[str, Segment]
    consumers: dict[str, tuple[str, ...]]
    strategies: dict[str, Strategy]
    work: Work
    options: NodeOptions
    clock: Clock
    life: str
    wanted: dict[str, Guarantee] = field(default_factory=dict)

    def strategy(self, unit: str) -> Strategy:
        """Return what protects a unit."""
        return self.strategies.get(unit, _UNPROTECTED)

    def note(self, kind: str, **fields: Any) -> None:  # noqa: ANN401  JSON
        """Append one line to the history."""
        self.work.note(kind, **fields, at=self.clock.now_s())

"""What the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Severity = Literal["damage", "untidy"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, where, and what can be done about it.

    `kind` is for programs. `remove` names files that can go without losing anything: nothing refers to them, or they
    are the torn beginning of something that never happened.
    """

    kind: str
    where: str
    what: str
    severity: Severity = "damage"
    advice: str = ""
    remove: tuple[Path, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        return {
            "kind": self.kind,
            "where": self.where,
            "what": self.what,
            "severity": self.severity,
            "advice": self.advice,
            "repairable": bool(self.remove),
        }

"""Which nodes run which units. Pure: who is there goes in, who runs what comes out.

Every node works this out for itself, from the same announcements and leases, by the same rule: nobody assigns anything.
Where two nodes see different neighbours for a moment, a unit has a replica too many or too few for that moment, which
costs work and no correctness: an epoch is published once.

Replicas of a unit never share a node and, as long as there are enough of them, no zone; among the nodes that are left
the one with the least to do is taken. The node that holds the lease is always one of them. A node that is no longer
chosen goes on until the others are where it is, so that moving a replica never leaves one too few.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.errors import PipelineError


@dataclass(frozen=True)
class Host:
    """A node that is ready. Nodes without a zone share none."""

    name: str
    zone: str | None = None


def placed(
    copies: Mapping[str, int], hosts: Sequence[Host], leaders: Mapping[str, str | None]
) -> dict[str, tuple[str, ...]]:
    """Return the nodes that run each unit, the leader first; fewer than asked for if there are not enough nodes."""
    load: Counter[str] = Counter()
    found: dict[str, tuple[str, ...]] = {}
    by_name = {host.name: host for host in hosts}
    for unit in sorted(copies):
        leader = leaders.get(unit)
        chosen = [by_name[leader]] if leader in by_name else []
        while len(chosen) < min(copies[unit], len(hosts)):
            chosen.append(_best(unit, [host for host in hosts if host not in chosen], chosen, load))
        load.update(host.name for host in chosen)
        found[unit] = tuple(host.name for host in chosen)
    return found


def _best(unit: str, left: Sequence[Host], chosen: Sequence[Host], load: Mapping[str, int]) -> Host:
    return min(left, key=lambda host: _cost(unit, host, chosen, load))


def _cost(unit: str, host: Host, chosen: Sequence[Host], load: Mapping[str, int]) -> tuple[bool, int, int, str]:
    """Compare nodes for the next replica: a new zone, little to do, then by a number that is the same everywhere."""
    shared = host.zone is not None and any(other.zone == host.zone for other in chosen)
    return shared, load.get(host.name, 0), zlib.crc32(f"{unit}/{host.name}".encode()), host.name


def check_nodes(copies: Mapping[str, int], nodes: int) -> None:
    """Refuse to run with fewer nodes than a unit needs to survive what it should."""
    for unit, wanted in copies.items():
        if wanted > nodes:
            raise PipelineError(
                f"segment {unit!r} needs {wanted} nodes to survive the loss of {wanted - 1}, and has {nodes}",
                hint=f"run it with --nodes {wanted}" + (f", or ask for KSafe({nodes - 1})" if nodes > 1 else ""),
            )

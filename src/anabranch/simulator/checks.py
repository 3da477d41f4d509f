"""Whether promises were kept, judged from what was published and delivered, never from what the nodes believed."""

from __future__ import annotations

import random
from typing import Any

from anabranch.channel.manifest import Manifest
from anabranch.simulator.segments import Row
from anabranch.simulator.world import World
from anabranch.strategies import Amnesia, Strategy

_FEW = 6


def check(world: World, strategies: dict[str, Strategy]) -> None:
    """Compare everything that was published with a run without faults over the same epochs."""
    source = world.channels[world.source]
    epochs = sorted(source.ever)
    _check_ranges(world, epochs)
    truth = {world.source: {epoch: tuple(world.ever_rows(world.source, epoch)) for epoch in epochs}}
    for name, segment in world.segments.items():
        published = world.channels[name].ever
        model = segment.model()
        if not model.deterministic:
            _check_chain(world, name)
            truth[name] = {epoch: rows for epoch, (_, rows) in published.items()}
            continue
        truth[name] = {}
        lossy = any(isinstance(strategies.get(unit), Amnesia) for unit in _upstream(world, name))
        for epoch in epochs:
            rows = [row for read in segment.inputs for row in truth[read].get(epoch, ())]
            truth[name][epoch] = model.batch(rows, random.Random(0)).rows
            if epoch in published:
                manifest, found = published[epoch]
                _compare(world, name, manifest, found, truth[name][epoch], lossy=lossy)
    output = list(world.segments)[-1]
    for epoch, delivered in world.delivered.items():
        if delivered != world.channels[output].ever[epoch][1]:
            world.violate(f"epoch {epoch} was delivered with other rows than were published")
    if set(world.delivered) != set(range(len(world.delivered))):
        world.violate("an epoch was never delivered, though later ones were")


def _compare(
    world: World, name: str, manifest: Manifest, found: tuple[Row, ...], expected: tuple[Row, ...], *, lossy: bool
) -> None:
    named = manifest.gap or manifest.incomplete
    if named and not lossy:
        world.violate(f"epoch {manifest.epoch} of {name} is marked incomplete, though nothing may be lost")
    if not named and found != expected:
        world.violate(
            f"epoch {manifest.epoch} of {name}, published by {manifest.producer.run}, is {_short(found)}, "
            f"not {_short(expected)}"
        )


def _check_ranges(world: World, epochs: list[int]) -> None:
    """Every row of the input is taken once, in order."""
    end = 0
    if epochs != list(range(len(epochs))):
        world.violate("an epoch of the source is missing")
    for epoch in epochs:
        planned = world.channels[world.source].ever[epoch][0].planned
        if planned:
            if planned["start"] != end:
                world.violate(f"epoch {epoch} begins at row {planned['start']}, but the one before ended at {end}")
            end = planned["end"]


def _check_chain(world: World, name: str) -> None:
    """See that each epoch goes on from the state that the one before published, where rows differ every time."""
    published = world.channels[name].ever
    before = 0
    for epoch in sorted(published):
        given = sum(1 for read in world.segments[name].inputs for _ in world.ever_rows(read, epoch))
        for row in published[epoch][1]:
            if row[2] != before:
                world.violate(f"epoch {epoch} of {name} does not go on from what was published before it")
            if row[3] != given:
                world.violate(f"epoch {epoch} of {name} was made of {row[3]} rows, not of {given}")
            before = row[1]


def _upstream(world: World, name: str) -> list[str]:
    """Return a segment and all before it."""
    found = [name]
    for read in world.segments[name].inputs:
        if read in world.segments:
            found += _upstream(world, read)
    return found


def _short(rows: tuple[Any, ...]) -> str:
    return repr(rows) if len(rows) <= _FEW else f"{rows[:_FEW]!r}… ({len(rows)} rows)"

"""The sink contract: rows leave the pipeline epoch by epoch.

A sink reads an exit channel, so every result can also be read with `anabranch read`. `Sink` is what the user writes
down; `Deliverer` does the work in a node that holds the sink's lease. Epochs arrive in order; after a crash the last
one may arrive again, and the deliverer makes that invisible (directories) or passes it on (user functions).
Epochs without rows are not delivered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.channel.channel import Channel
    from anabranch.channel.manifest import Manifest


ONCE = "exactly once: an epoch is one file, and its name is taken once"
AT_LEAST_ONCE = "at least once: after a failure the last epoch may come again, with the same number and the same rows"


@dataclass(frozen=True)
class Delivery:
    """What a deliverer is given: the session, its channel, the work directory's id, its lease generation."""

    spark: SparkSession
    channel: Channel
    work_id: str
    generation: int


class Deliverer(Protocol):
    """Delivers epochs of one channel."""

    def deliver(self, manifest: Manifest) -> None:
        """Deliver one epoch that has rows. On return it has been delivered, durably where the medium can."""
        ...


class Sink(Protocol):
    """Where rows go."""

    @property
    def kind(self) -> str:
        """A short name, such as "parquet"."""
        ...

    @property
    def promise(self) -> str:
        """How often an epoch reaches its readers when nodes fail, in a few words."""
        ...

    def check(self, work_id: str | None = None) -> None:
        """Raise `SinkError`, with a hint, if this sink cannot be used at all. Creates nothing.

        `work_id` is the id of the work directory, None if it is new.
        """
        ...

    def deliverer(self, delivery: Delivery) -> Deliverer:
        """Make ready to deliver; `SinkError` if the place belongs to another pipeline."""
        ...

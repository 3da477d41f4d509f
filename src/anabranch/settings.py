"""What a pipeline may be told about pacing, size and Spark, in one frozen object with checked defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.errors import PipelineError

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Settings:
    """Settings of one pipeline.

    `shortest_interval_s` and `longest_interval_s` bound the time between epochs of a source; after the longest one an
    empty epoch is claimed, so that event time and trimming move on. `largest_epoch_rows` and `largest_epoch_bytes`
    bound an epoch (a source uses the measure it knows). `pending_epochs` bounds the epochs in flight; beyond it the
    source waits. `retain_epochs` is what an exit channel keeps for its readers; None keeps everything, everywhere.
    `state_partitions` is the number of buckets of every stateful operator (default: Spark's parallelism); it is
    fixed when the work directory is made. `spark` holds any further Spark settings.
    """

    shortest_interval_s: float = 0.0
    longest_interval_s: float = 10.0
    largest_epoch_rows: int = 2_000_000
    largest_epoch_bytes: int = 64 * MEBIBYTE
    pending_epochs: int = 4
    retain_epochs: int | None = 1_000
    state_partitions: int | None = None
    timezone: str = "UTC"
    spark: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        positive = {
            "longest_interval_s": self.longest_interval_s,
            "largest_epoch_rows": self.largest_epoch_rows,
            "largest_epoch_bytes": self.largest_epoch_bytes,
            "pending_epochs": self.pending_epochs,
            "retain_epochs": self.retain_epochs,
            "state_partitions": self.state_partitions,
        }
        for name, value in positive.items():
            if value is not None and not value > 0:
                raise PipelineError(f"settings: {name} is {value!r}", hint=f"{name} must be more than zero")
        if not 0 <= self.shortest_interval_s <= self.longest_interval_s:
            raise PipelineError(
                f"settings: shortest_interval_s is {self.shortest_interval_s!r}",
                hint="it must lie between 0 and longest_interval_s",
            )

"""A user function as a sink: `function(frame, epoch)` or `function(frame, epoch, generation)`.

At least once: after a crash the last epoch may be handed over again, with the same epoch number and the same rows,
and perhaps with a higher generation. A function that makes its effect conditional on the epoch (an upsert, a table
keyed by epoch, "skip what I have") is exactly-once; one that refuses lower generations is safe from a deposed node too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anabranch.channel.reader import epoch_frame
from anabranch.errors import PipelineError
from anabranch.sinks.sink import AT_LEAST_ONCE

if TYPE_CHECKING:
    from anabranch.channel.manifest import Manifest
    from anabranch.sinks.sink import Delivery

_WITH_GENERATION = 3


@dataclass(frozen=True)
class CallSink:
    """Calls a function with every epoch that has rows."""

    function: Callable[..., Any]

    @property
    def kind(self) -> str:
        return "call"

    @property
    def promise(self) -> str:
        return AT_LEAST_ONCE

    def check(self, work_id: str | None = None) -> None:
        if not any(_callable_with(self.function, count) for count in (2, _WITH_GENERATION)):
            raise PipelineError(
                f"ab.call got {self.function!r}", hint="pass a function (frame, epoch) or (frame, epoch, generation)"
            )

    def deliverer(self, delivery: Delivery) -> CallDeliverer:
        return CallDeliverer(self.function, delivery)


class CallDeliverer:
    """Reads an epoch as a plain DataFrame and calls the function."""

    def __init__(self, function: Callable[..., Any], delivery: Delivery) -> None:
        self._function = function
        self._delivery = delivery
        self._wants_generation = _callable_with(function, _WITH_GENERATION)

    def deliver(self, manifest: Manifest) -> None:
        spark = self._delivery.spark
        frame = epoch_frame(spark, self._delivery.channel, manifest.epoch, spark.sparkContext.defaultParallelism)
        if self._wants_generation:
            self._function(frame, manifest.epoch, self._delivery.generation)
        else:
            self._function(frame, manifest.epoch)


def _callable_with(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def call(function: Callable[..., Any]) -> CallSink:
    """Deliver to a function of your own; see the module's documentation for what it is promised."""
    return CallSink(function)

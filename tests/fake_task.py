"""Plays Spark's part inside a task: what a micro-batch's tasks are told about themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyspark
import pytest


class FakeTask:
    """A task of a micro-batch."""

    def __init__(self, partition: int, attempt: int, batch_id: int | None) -> None:
        self._partition, self._attempt, self._batch_id = partition, attempt, batch_id

    def partitionId(self) -> int:  # noqa: N802  Spark's name
        return self._partition

    def taskAttemptId(self) -> int:  # noqa: N802  Spark's name
        return self._attempt

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802  Spark's name
        return str(self._batch_id) if key == "streaming.sql.batchId" and self._batch_id is not None else None


@contextmanager
def inside_task(partition: int = 0, attempt: int = 0, batch_id: int | None = 0) -> Iterator[None]:
    """Run a block as if in a task of a micro-batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyspark.TaskContext, "get", lambda: FakeTask(partition, attempt, batch_id))
        yield

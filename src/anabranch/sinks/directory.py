"""Directory sinks: one file per epoch, exactly once.

An epoch's rows are written to a hidden temporary file, flushed, and linked to the name of the epoch; the first link
wins, so a repeated delivery changes nothing and a reader never sees half an epoch. The directory remembers which work
directory fills it: epoch 7 of another run would otherwise pass for already delivered.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.durable import TEMPORARY_PREFIX, fsync_directory, link_first, sweep_temporaries
from anabranch.errors import Corrupt, SinkError
from anabranch.sinks.sink import ONCE

if TYPE_CHECKING:
    from anabranch.channel.manifest import Manifest
    from anabranch.sinks.sink import Delivery

_OWNER = "_anabranch.json"
_ROW_GROUP = 1 << 20


@dataclass(frozen=True)
class DirectorySink:
    """A directory of files of one format."""

    directory: Path
    kind: str

    @property
    def promise(self) -> str:
        return ONCE

    def check(self, work_id: str | None = None) -> None:
        present = self.directory
        while not present.exists():
            present = present.parent
        if not present.is_dir():
            raise SinkError(f"{present} is a file, not a directory", hint="choose another output directory")
        if not os.access(present, os.W_OK | os.X_OK):
            raise SinkError(f"cannot write to {present}", hint="choose another directory, or change its permissions")
        if present == self.directory:
            owner = self._owner()
            if owner is not None and owner.get("work_id") != work_id:
                raise self._taken()

    def deliverer(self, delivery: Delivery) -> DirectoryDeliverer:
        self.directory.mkdir(parents=True, exist_ok=True)
        mine = {"work_id": delivery.work_id, "channel": delivery.channel.spec.name, "kind": self.kind}
        if self._owner() is None:
            link_first(self.directory / _OWNER, json.dumps(mine).encode())
        if self._owner() != mine:
            raise self._taken()
        sweep_temporaries(self.directory)
        return DirectoryDeliverer(self, delivery)

    def _owner(self) -> dict[str, Any] | None:
        """Return who fills the directory, None if it is empty; `SinkError` if somebody who does not say so."""
        try:
            found: dict[str, Any] = json.loads((self.directory / _OWNER).read_bytes())
            return found
        except FileNotFoundError:
            strangers = [name for name in os.listdir(self.directory) if not name.startswith((".", "_"))]
        except ValueError as error:
            raise SinkError(f"{self.directory / _OWNER} is unreadable", hint="choose an empty directory") from error
        if strangers:
            raise SinkError(
                f"{self.directory} already holds files that this pipeline did not write, such as {strangers[0]!r}",
                hint="choose an empty directory for the sink",
            )
        return None

    def _taken(self) -> SinkError:
        return SinkError(
            f"{self.directory} was filled by another run or another step",
            hint="choose an empty directory, or continue with the work directory that wrote it",
        )


class DirectoryDeliverer:
    """Writes and links one file per epoch."""

    def __init__(self, sink: DirectorySink, delivery: Delivery) -> None:
        self._sink = sink
        self._channel = delivery.channel

    def deliver(self, manifest: Manifest) -> None:
        target = self._sink.directory / f"epoch-{manifest.epoch:012d}.{self._sink.kind}"
        if target.exists():
            # Whoever wrote it may have died before its name was durable.
            fsync_directory(self._sink.directory)
            return
        temporary = self._sink.directory / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        try:
            rows = self._write(temporary, self._channel.batches(manifest))
            if rows != manifest.rows:
                raise Corrupt(f"epoch {manifest.epoch} of {self._channel.spec.name!r} holds {rows} rows, not its count")
            _flush(temporary)
            with contextlib.suppress(FileExistsError):
                os.link(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        fsync_directory(self._sink.directory)

    def _write(self, path: Path, batches: Iterable[pa.RecordBatch]) -> int:
        rows = 0
        schema = self._channel.spec.schema
        if self._sink.kind == "parquet":
            # Texts repeat, numbers and times hardly do: trying a dictionary on those doubles the time it takes.
            texts = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_binary(field.type)]
            with pq.ParquetWriter(path, schema, use_dictionary=texts) as writer:
                for batch in batches:
                    writer.write_batch(batch, row_group_size=_ROW_GROUP)
                    rows += batch.num_rows
            return rows
        with path.open("w", encoding="utf-8") as lines:
            for batch in batches:
                lines.writelines(json_line(row) + "\n" for row in batch.to_pylist())
                rows += batch.num_rows
        return rows


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_line(row: Any) -> str:  # noqa: ANN401  whatever Arrow gives
    """Return a row as JSON that any reader takes: numbers that JSON has no word for become text, as in Spark."""
    try:
        return json.dumps(row, default=json_value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(row), default=json_value, allow_nan=False)


def _finite(value: Any) -> Any:  # noqa: ANN401  whatever Arrow gives
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def json_value(value: Any) -> Any:  # noqa: ANN401  whatever Arrow gives
    """Give JSON what it has no type for: times in ISO 8601, bytes in hexadecimal, the rest as text."""
    if isinstance(value, bytes):
        return value.hex()
    isoformat = getattr(value, "isoformat", None)
    return isoformat() if isoformat is not None else str(value)


def parquet(directory: str | os.PathLike[str]) -> DirectorySink:
    """Deliver as Parquet, one file per epoch, exactly once."""
    return DirectorySink(Path(directory).absolute(), "parquet")


def jsonl(directory: str | os.PathLike[str]) -> DirectorySink:
    """Deliver as JSON lines, one file per epoch, exactly once; times in ISO 8601, bytes in hexadecimal."""
    return DirectorySink(Path(directory).absolute(), "jsonl")

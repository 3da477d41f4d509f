"""One replica of a channel, as its files show it; nothing is ever written there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from anabranch.channel.manifest import Manifest, decode
from anabranch.channel.parts import read_part
from anabranch.errors import Corrupt, SourceError, Trimmed
from anabranch.ledger.directory import DirectoryLedger

# A replica that could not be read is asked again after this long.
_AWAY_S = 1.0


class Replica:
    """A channel in the work directory of another pipeline."""

    def __init__(self, place: Path, schema: pa.Schema) -> None:
        self.place = place
        self._schema = schema
        self._ledger: DirectoryLedger | None = None
        self._away_until_s = float("-inf")

    def __str__(self) -> str:
        """Return the work directory."""
        return str(self.place.parent.parent)

    def away(self, now_s: float) -> None:
        """Take note that it could not be read."""
        self._away_until_s = now_s + _AWAY_S

    def is_away(self, now_s: float) -> bool:
        """Say whether it could not be read just before."""
        return now_s < self._away_until_s

    def ask_again(self) -> bool:
        """Forget that it could not be read; say whether it is there at all."""
        self._away_until_s = float("-inf")
        return self._there()

    def manifest(self, epoch: int, now_s: float) -> Manifest | None:
        """Return the manifest of an epoch, None if it is not there, or nobody knows; `Trimmed` if it is gone."""
        if self.is_away(now_s):
            return None
        try:
            # Making a ledger makes its directory, and this one is somebody else's.
            if self._ledger is None and self._there():
                self._ledger = DirectoryLedger(self.place / "ledger")
            record = None if self._ledger is None else self._ledger.read(epoch)
            manifest = None if record is None else decode(record, f"epoch {epoch} of {self.place}")
        except (OSError, Corrupt):
            self.away(now_s)
            return None
        # A directory that is not mounted just now has no epochs either.
        if (manifest is None and not self._there()) or (manifest is not None and manifest.epoch != epoch):
            self.away(now_s)
            return None
        return manifest

    def _there(self) -> bool:
        return (self.place / "ledger").is_dir()

    def rows(self, manifest: Manifest) -> list[pa.RecordBatch]:
        """Return the rows of an epoch, checked."""
        if manifest.planned and not manifest.parts and manifest.rows != 0:
            raise SourceError(
                f"{self.place.name!r} is a source of {self}: its rows are where it has them from",
                hint="read what a step publishes",
            )
        read = [batch for part in manifest.parts for batch in read_part(self.place / "parts", part)]
        return [_fitted(batch, self._schema, self.place) for batch in read]

    def became_another(self, epoch: int, mark: str | None, now_s: float) -> bool:
        """Say whether an epoch that was taken is gone, though not trimmed, or is not the one that was taken."""
        if mark is None:
            return False
        try:
            manifest = self.manifest(epoch, now_s)
        except Trimmed:
            return False
        return not self.is_away(now_s) and (manifest is None or mark_of(manifest) != mark)


def mark_of(manifest: Manifest) -> str:
    """Return what tells an epoch from one of another history with the same number."""
    return f"{manifest.producer.run} {manifest.digest}"


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, place: Path) -> pa.RecordBatch:
    try:
        columns = [batch.column(field.name).cast(field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    except (KeyError, pa.ArrowException) as error:
        raise SourceError(
            f"the rows of {place} do not fit the columns of this source: {error}",
            hint="replicas of a channel have the same columns",
        ) from error

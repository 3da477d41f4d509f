"""An order-independent digest of rows.

Each row gets a 64-bit hash inside Spark (`xxhash64`, generated code); a task adds up the hashes and, as a second sum, a
spread-out copy of each hash, so that differences cannot cancel out. Sums modulo 2^64 do not depend on the order of rows
or on how they were spread over tasks; two multisets of rows that differ agree with a probability of about 2^-64.

`xxhash64` skips nulls, so (null, 1) and (1, null) would hash alike; the null flags of nullable columns are hashed too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HASH_COLUMN = "__anabranch_hash"
_MASK = (1 << 64) - 1
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def row_hash(frame: DataFrame) -> Column:
    """Return the expression that hashes one row of a frame."""
    from pyspark.sql import functions as F  # noqa: N812  tasks import this module without needing Spark SQL

    columns = [F.col(f"`{name.replace('`', '``')}`") for name in frame.columns]
    nullable = [field.nullable for field in frame.schema.fields]
    flags = [column.isNull() for column, may in zip(columns, nullable, strict=True) if may]
    return F.xxhash64(*columns, *flags).alias(HASH_COLUMN)


class Digest:
    """Adds up row hashes; digests of disjoint shares add up to the digest of the whole."""

    def __init__(self) -> None:
        self._sum = 0
        self._spread_sum = 0

    def update(self, hashes: pa.Array) -> None:
        """Add the hashes of some rows."""
        values = hashes.to_numpy(zero_copy_only=False).view(np.uint64)
        spread = (values ^ (values >> np.uint64(29))) * _SPREAD
        self.add(int(values.sum(dtype=np.uint64)), int((spread ^ (spread >> np.uint64(32))).sum(dtype=np.uint64)))

    def add(self, total: int, spread_total: int) -> None:
        """Add the sums of another share."""
        self._sum = (self._sum + total) & _MASK
        self._spread_sum = (self._spread_sum + spread_total) & _MASK

    def merge_hex(self, text: str) -> None:
        """Add another share's digest."""
        self.add(int(text[:16], 16), int(text[16:], 16))

    def hex(self) -> str:
        """Return the digest as 32 hexadecimal digits."""
        return f"{self._sum:016x}{self._spread_sum:016x}"

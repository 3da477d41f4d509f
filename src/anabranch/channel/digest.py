"""An order-independent digest of rows.

Each row gets a 64-bit hash inside Spark (`xxhash64`, generated code); a task adds up the hashes and, as a second sum, a
spread-out copy of each hash, so that differences cannot cancel out. Sums modulo 2^64 do not depend on the order of rows
or on how they were spread over tasks; two multisets of rows that differ agree with a probability of about 2^-64.

`xxhash64` skips nulls, so (null, 1) and (1, null) would hash alike; the null flags of nullable columns are hashed too.
It skips them inside of structs, arrays and maps as well, and does not count elements: of such columns their text as
JSON is hashed too. Text alone would not do: it leaves out the microseconds of a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructField

HASH_COLUMN = "__anabranch_hash"
# The same on every node, whatever the time zone of its session.
_SHOWN = {"ignoreNullFields": "false", "timeZone": "UTC"}
_MASK = (1 << 64) - 1
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def row_hash(fields: Iterable[StructField], *seeds: int) -> Column:
    """Return the expression that hashes these columns of a row; hashes with other seeds are independent ones."""
    from pyspark.sql import functions as F  # noqa: N812  tasks import this module without needing Spark SQL
    from pyspark.sql import types as spark

    hashed = [F.lit(seed) for seed in seeds]
    for field in fields:
        column = F.col(f"`{field.name.replace('`', '``')}`")
        hashed.append(column)
        if field.nullable:
            hashed.append(column.isNull())
        if isinstance(field.dataType, spark.StructType | spark.ArrayType | spark.MapType):
            hashed.append(F.to_json(F.struct(column), _SHOWN))
    return F.xxhash64(*hashed)


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

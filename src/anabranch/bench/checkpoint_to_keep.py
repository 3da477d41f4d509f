"""A real query with 200 state partitions, for what its commits write."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812

from anabranch.keeper.contents import CommitContents
from anabranch.session import SessionOptions, build_session

BATCHES = 6
PARTITIONS = 200
ROWS = 20_000


def commits(directory: Path) -> list[dict[str, bytes | None]]:
    """Run a running count over a growing directory; return for every commit the files that are new in it."""
    spark = build_session(
        SessionOptions(
            name="checkpoint to keep",
            master="local[2]",
            timezone="UTC",
            state_partitions=PARTITIONS,
            settings={},
            module_directory=Path.cwd(),
        )
    )
    source, checkpoint = directory / "source", directory / "checkpoint"
    source.mkdir(parents=True)
    found: list[dict[str, bytes | None]] = []
    known: set[str] = set()
    try:
        counts = spark.readStream.schema("key long").parquet(str(source)).groupBy("key").count()
        query = (
            counts.writeStream.outputMode("update")
            .foreachBatch(lambda frame, _: frame.write.format("noop").mode("overwrite").save())
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        contents = CommitContents(checkpoint)
        for batch_id in range(BATCHES):
            rows = spark.range(ROWS).select((F.col("id") * (batch_id + 1)).alias("key")).coalesce(1)
            rows.write.mode("append").parquet(str(source))
            query.processAllAvailable()
            needed = [path for path in contents.files(batch_id) if path not in known]
            known.update(needed)
            found.append({f"files/{path}": Path(os.path.join(checkpoint, path)).read_bytes() for path in needed})
        query.stop()
    finally:
        spark.stop()
    return found

"""Rows that differ in anything have different hashes."""

import pytest

from anabranch.channel.digest import row_hash

pytestmark = pytest.mark.spark
UNLIKE = {
    "columns": ("null, 5", "5, null", "a int, b int"),
    "structs": ("named_struct('x', null, 'y', 5)", "named_struct('x', 5, 'y', null)", "a struct<x: int, y: int>"),
    "lengths": ("array(array(1), array(2))", "array(array(1, 2), array())", "a array<array<int>>"),
    "a null in an array": ("array(null)", "array()", "a array<int>"),
    "a null in a map": ("map(1, null)", "map()", "a map<int, int>"),
    "microseconds": ("array(timestamp_micros(1))", "array(timestamp_micros(2))", "a array<timestamp>"),
    "a strange name": ("1", "null", "`a``.b` int"),
}


@pytest.mark.parametrize("seeds", [(), (7,)])
@pytest.mark.parametrize(("one", "other", "shape"), UNLIKE.values(), ids=UNLIKE)
def test_unlike_rows_have_unlike_hashes(spark, one, other, shape, seeds):
    """Spark's own hash skips nulls, and takes nested values apart without counting them."""
    schema = spark.createDataFrame([], shape).schema
    rows = spark.sql(f"VALUES ({one}), ({other})").toDF(*schema.names).to(schema)
    assert rows.select(row_hash(rows.schema.fields, *seeds)).distinct().count() == 2


def test_a_hash_does_not_depend_on_the_time_zone(spark):
    """Nodes may have different ones."""
    rows = spark.sql("SELECT array(timestamp_micros(1)) AS a")
    before = spark.conf.get("spark.sql.session.timeZone")
    found = set()
    try:
        for zone in ("UTC", "Asia/Tokyo"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            found.add(rows.select(row_hash(rows.schema.fields)).first()[0])
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert len(found) == 1

"""Schema strings, read without Spark."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from anabranch.errors import PipelineError
from anabranch.sources import ddl

ATOMIC = [
    spark.BooleanType(),
    spark.ByteType(),
    spark.ShortType(),
    spark.IntegerType(),
    spark.LongType(),
    spark.FloatType(),
    spark.DoubleType(),
    spark.StringType(),
    spark.BinaryType(),
    spark.DateType(),
    spark.TimestampType(),
    spark.TimestampNTZType(),
    spark.DecimalType(10, 2),
    spark.DecimalType(38, 0),
]

names = st.text(min_size=1, max_size=8).filter(lambda name: name.strip())


def structs(types):
    fields = st.lists(st.tuples(names, types), min_size=1, max_size=4, unique_by=lambda field: field[0].lower())
    return fields.map(lambda found: spark.StructType([spark.StructField(name, kind) for name, kind in found]))


types = st.recursive(
    st.sampled_from(ATOMIC),
    lambda inner: st.one_of(
        inner.map(spark.ArrayType), st.tuples(inner, inner).map(lambda pair: spark.MapType(*pair)), structs(inner)
    ),
    max_leaves=6,
)


@given(structs(types))
def test_every_schema_survives_being_written_and_read(schema):
    """Rendering a schema and parsing the text gives the schema back, whatever its names and nesting."""
    assert ddl.parse(ddl.render(schema)) == schema


@pytest.mark.parametrize(
    ("text", "names", "kinds"),
    [
        ("ts timestamp, word string", ["ts", "word"], ["timestamp", "string"]),
        ("a INT NOT NULL COMMENT 'it''s', b Long", ["a", "b"], ["int", "bigint"]),
        ("a: int, `b c`: array<struct<x: int, y: map<string, double>>>", ["a", "b c"], None),
        ("struct<a:int,b:decimal(5)>", ["a", "b"], ["int", "decimal(5,0)"]),
        ("a decimal, b numeric(4 , 2)", ["a", "b"], ["decimal(10,0)", "decimal(4,2)"]),
        ("struct int, array string", ["struct", "array"], ["int", "string"]),
        ("1a int, größe double", ["1a", "größe"], ["int", "double"]),
        ("  a\n  int  ,\n b int ", ["a", "b"], ["int", "int"]),
    ],
)
def test_notations_that_spark_takes(text, names, kinds):
    """Colons, comments, constraints, quoted names and a struct around the whole are all read."""
    schema = ddl.parse(text)
    assert schema.names == names
    assert kinds is None or [field.dataType.simpleString() for field in schema.fields] == kinds
    assert all(field.nullable for field in schema.fields)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("a", "ends where the type of column 'a'"),
        ("a int,", "ends where a column name"),
        ("a int b int", "unexpected 'b'"),
        ("a integre", "unknown type 'integre'"),
        ("a char(3)", "unknown type 'char'"),
        ("a int, A string", "names the column 'A' twice"),
        ("a array<int", "ends where '>'"),
        ("a map<int>", "needs ','"),
        ("a decimal(40,2)", "decimal(40,2)"),
        ("a decimal(x)", "needs a number"),
        ("a int; b int", "cannot be read from '; b int' on"),
        ("a int NOT b", "where NOT needs 'null'"),
        (", int", "where a column name should be"),
    ],
)
def test_mistakes_are_named(text, says):
    """A schema that cannot be read is refused with the place and a hint."""
    with pytest.raises(PipelineError) as caught:
        ddl.parse(text)
    assert says in caught.value.message
    assert caught.value.hint


def test_arrow_schema_has_utc_timestamps():
    """Times are instants in UTC on the way into Spark."""
    schema = ddl.to_arrow(ddl.parse("ts timestamp, local timestamp_ntz, n int"))
    assert schema == pa.schema(
        [("ts", pa.timestamp("us", tz="UTC")), ("local", pa.timestamp("us")), ("n", pa.int32())],
    )

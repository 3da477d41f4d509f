"""Shapes in Spark: the rows are those of Spark's own readers, and malformed records cannot slip through."""

import json

import pyarrow as pa
import pytest

from anabranch import sources
from anabranch.sources import ddl
from anabranch.sources.source import Limit

pytestmark = pytest.mark.spark

LIMIT = Limit(rows=0, size_bytes=1 << 30)


def frame(spark, source):
    """Return all that a source holds, as its steps would see it."""
    from pyspark.sql.pandas.types import from_arrow_schema

    planner = source.planner()
    planner.close(0.0)
    batches = list(source.read(planner.plan(0.0, LIMIT)))
    table = pa.Table.from_batches(batches, schema=source.raw_schema())
    return source.shape(spark.createDataFrame(table, from_arrow_schema(table.schema)))


def rows_of(data):
    return sorted(map(repr, data.collect()))


JSON_SCHEMA = (
    "id int, name string, amount double, price decimal(10,2), at timestamp, local timestamp_ntz, day date, "
    "tags array<string>, place struct<city: string, geo: struct<lat: double>>, counts map<string,bigint>, `a.b` boolean"
)
JSON_GOOD = """
{"id":1,"name":"plain","amount":1.5,"price":12.34,"at":"2026-01-01T00:00:00Z","day":"2026-01-01","a.b":true}
{"id":2,"name":null,"amount":null,"at":null,"tags":null,"place":null}
{"id":3}
{"id":4,"extra":{"deep":[1,2,{"x":"y"}]},"name":"extra"}
{"id":5,"tags":["a","b",null],"place":{"city":"Köln","geo":{"lat":50.9}},"counts":{"x":1,"y":2}}
{"id":6,"at":"2026-01-01T02:00:00+02:00","local":"2026-01-01T02:00:00","day":"2026-12-31"}
{"id":7,"at":"2026-01-01 00:00:00.123456","name":"\\u00e4 \\ud83d\\ude00 \\"quoted\\" \\n"}
{"id":8,"name":"日本語 — naïve 😀"}
{"id":9,"name":12,"amount":3}

   \t
{"id":10,"price":"7.5","amount":1e3}\r
  {"id":11,"name":"indented"}
{"id":12,"id":13}
{}
"""
JSON_BAD = [
    ("not json at all", "is not one JSON object"),
    ('{"id":1,"name":"cut', "is not one JSON object"),
    ('{"id":"x"}', "does not fit id int"),
    ('{"id":99999999999,"amount":"much"}', "does not fit id int, amount double"),
    ('{"at":"yesterday"}', "does not fit at timestamp"),
    ('{"place":{"geo":{"lat":"north"}}}', "does not fit place struct<city:string,geo:struct<lat:double>>"),
    ("[1,2]", "is not one JSON object"),
    ("null", "is not one JSON object"),
]


def test_json_rows_are_those_of_spark(spark, tmp_path):
    """Good JSON records give exactly the rows and types of `spark.read.json` over the same file."""
    (tmp_path / "a.jsonl").write_text(JSON_GOOD, encoding="utf-8", newline="")
    ours = frame(spark, sources.read_jsonl(tmp_path, schema=JSON_SCHEMA))
    theirs = spark.read.schema(JSON_SCHEMA).json(str(tmp_path))
    assert ours.schema == theirs.schema
    assert rows_of(ours) == rows_of(theirs)
    assert ours.count() == 13


@pytest.mark.parametrize("narrow", ["everything", "one column", "count", "filtered out", "aggregated"])
@pytest.mark.parametrize("record", [JSON_BAD[0][0], JSON_BAD[2][0], "\xff"])
def test_a_malformed_json_record_fails_whatever_is_asked_for(spark, tmp_path, narrow, record):
    """Catalyst cannot prune the check: not by columns, counts, filters or aggregates."""
    (tmp_path / "a").write_bytes(b'{"id":1}\n' + record.encode("latin-1") + b"\n")
    data = frame(spark, sources.read_jsonl(tmp_path, schema="id int, name string"))
    narrowed = {
        "everything": data,
        "one column": data.select("name"),
        "count": data.groupBy().count(),
        "filtered out": data.filter("id = 1 and name = 'nobody'").select("name"),
        "aggregated": data.groupBy("name").count(),
    }[narrow]
    with pytest.raises(Exception, match=sources.MALFORMED) as caught:
        narrowed.collect()
    assert record.replace("\xff", "\ufffd") in str(caught.value)


def test_the_failure_shows_the_beginning_of_a_record_and_its_place(spark, tmp_path):
    """The message holds 200 characters of the record; a located source adds file and byte."""
    (tmp_path / "a").write_text('{"id":1}\n' + "x" * 1000 + "\n")
    source = sources.read_jsonl(tmp_path, schema="id int")
    with pytest.raises(Exception, match=sources.MALFORMED + ": x{200} "):
        frame(spark, source).collect()
    with pytest.raises(Exception, match=sources.MALFORMED + " in a at byte 9: x{200} "):
        frame(spark, source.located()).collect()


def test_diverted_json_records_become_rejects(spark, tmp_path):
    """Good rows go on, and every other record is a reject with its place and the guilty fields."""
    bad = [record for record, _ in JSON_BAD]
    (tmp_path / "a").write_bytes("\n".join([*bad[:4], JSON_GOOD, *bad[4:]]).encode() + b"\n\xff\xfe\n")
    source = sources.read_jsonl(tmp_path, schema=JSON_SCHEMA, malformed="divert")
    assert frame(spark, source).count() == 13
    assert frame(spark, source).groupBy().count().collect()[0][0] == 13
    rejects = frame(spark, source.rejects())
    assert rejects.dtypes == [("file", "string"), ("offset", "bigint"), ("record", "string"), ("reason", "string")]
    content = (tmp_path / "a").read_bytes()
    found = rejects.orderBy("offset").collect()
    assert [(row.record, row.reason) for row in found] == [*JSON_BAD, ("\ufffd\ufffd", "is not UTF-8")]
    for row in found[:-1]:
        assert row.file == "a"
        assert content[row.offset :].startswith(row.record.encode() + b"\n")


@pytest.mark.parametrize("malformed", ["fail", "divert"])
def test_a_record_is_parsed_once(spark, tmp_path, malformed):
    """The executed plan holds one parser, for any choice of columns: parsing is what costs."""
    (tmp_path / "a").write_text('{"id":1}\n')
    data = frame(spark, sources.read_jsonl(tmp_path, schema="id int, name string", malformed=malformed))
    for narrowed in (data, data.select("name"), data.filter("id > 3"), data.groupBy().count()):
        plan = narrowed._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count("from_json(") == 1


CSV_SCHEMA = "id int, name string, amount double, at timestamp, day date"
CSV_GOOD = """1,plain,1.5,2026-01-01T00:00:00Z,2026-01-01
2,,,,
3,"quoted, with comma",2,2026-01-01 00:00:00,

   \t
4,"back\\"slash",1e3,2026-01-01T02:00:00+02:00,\r
5,日本語 😀,NaN,,2026-12-31
"6","",-0.5,,
7, padded ,0,,
"""
CSV_BAD = [
    ("x,name,1,,", "does not fit id int"),
    ("1,short", "does not have 5 fields"),
    ("1,a,2,,,more", "does not have 5 fields"),
    ("2,a,b,yesterday,", "does not fit amount double, at timestamp"),
    ('3,"open,1,,', "does not have 5 fields"),
]


@pytest.mark.parametrize("header", [False, True])
def test_csv_rows_are_those_of_spark(spark, tmp_path, header):
    """Good CSV records give exactly the rows and types of `spark.read.csv` over the same files."""
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(("\nh,e,a,d,r\n" if header else "") + CSV_GOOD, encoding="utf-8", newline="")
    ours = frame(spark, sources.read_csv(tmp_path, schema=CSV_SCHEMA, header=header))
    theirs = spark.read.schema(CSV_SCHEMA).csv(str(tmp_path), header=header)
    assert ours.schema == theirs.schema
    assert rows_of(ours) == rows_of(theirs)
    assert ours.count() == 14


def test_csv_takes_another_delimiter(spark, tmp_path):
    """Fields may be separated by any one character."""
    (tmp_path / "a").write_text("1\tx,y\n2\t\n")
    rows = frame(spark, sources.read_csv(tmp_path, schema="id int, name string", delimiter="\t")).collect()
    assert [tuple(row) for row in rows] == [(1, "x,y"), (2, None)]


@pytest.mark.parametrize("narrow", ["everything", "one column", "count"])
def test_a_malformed_csv_record_fails_whatever_is_asked_for(spark, tmp_path, narrow):
    """A record that does not fit fails the query, also where Spark's own reader would prune the field."""
    (tmp_path / "a").write_text("1,a\nx,b\n")
    data = frame(spark, sources.read_csv(tmp_path, schema="id int, name string"))
    narrowed = {"everything": data, "one column": data.select("name"), "count": data.groupBy().count()}[narrow]
    with pytest.raises(Exception, match=sources.MALFORMED + ": x,b"):
        narrowed.collect()
    assert narrowed._jdf.queryExecution().optimizedPlan().toString().count("from_csv(") == 1


def test_diverted_csv_records_become_rejects(spark, tmp_path):
    """Good rows go on, and every other record is a reject that says what is wrong; the header is neither."""
    bad = [record for record, _ in CSV_BAD]
    (tmp_path / "a").write_text("\n".join(["header", *bad[:2], CSV_GOOD, *bad[2:]]), encoding="utf-8", newline="")
    source = sources.read_csv(tmp_path, schema=CSV_SCHEMA, malformed="divert", header=True)
    assert frame(spark, source).count() == 7
    rejects = frame(spark, source.rejects()).orderBy("offset").collect()
    assert [(row.record, row.reason) for row in rejects] == CSV_BAD


def test_text_rows_are_those_of_spark(spark, tmp_path):
    """Lines are cut as Spark's text reader cuts them: all line ends, blank lines and a byte-order mark."""
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n\nthree\rfour\n\r\n \nlast\r\r\nbad\xffbyte\nnul\x00x\nend")
    (tmp_path / "b").write_bytes(b"\xef\xbb\xbf")
    (tmp_path / "c").write_bytes(b"\n")
    ours = frame(spark, sources.read_text(tmp_path))
    theirs = spark.read.text(str(tmp_path))
    as_bytes = "cast(value as binary) as value"
    assert ours.schema == theirs.schema
    assert rows_of(ours.selectExpr(as_bytes)) == rows_of(theirs.selectExpr(as_bytes))


def test_parquet_rows_are_those_of_spark(spark, tmp_path):
    """Files that Spark wrote give the same rows and types, nested ones and old-style times included."""
    spark.sql(
        "select id, timestamp'2026-01-01 00:00:00.000001' + make_interval(0,0,0,0,0,0,id) as ts, "
        "date'2026-01-01' as d, cast(id as decimal(10,2)) as m, timestamp_ntz'2026-01-01 00:00:00' as n, "
        "array(id) as a, map('k', id) as mm, cast(null as string) as z, "
        "named_struct('x', id, 'ts', timestamp'2026-01-01 00:00:00') as s from range(100)"
    ).coalesce(1).write.parquet(str(tmp_path / "out"))
    ours = frame(spark, sources.read_parquet(tmp_path / "out"))
    theirs = spark.read.parquet(str(tmp_path / "out"))
    assert ours.schema == theirs.schema
    assert rows_of(ours) == rows_of(theirs)


def test_schema_strings_mean_what_spark_says(spark):
    """Our parser and Spark's give the same schema, nullability aside."""
    from pyspark.sql.types import StructType

    odd = "a: int, `b``c` array<map<string,struct<x:real,`y z`:dec(4)>>>, c struct<int: byte>"
    for text in (JSON_SCHEMA, CSV_SCHEMA, odd):
        assert ddl.parse(text) == StructType.fromDDL(text)
        assert StructType.fromDDL(ddl.render(ddl.parse(text))) == ddl.parse(text)


def test_specs_shape_alike(spark, tmp_path):
    """A source made from a spec, as in another process, shapes rows in the same way."""
    (tmp_path / "a").write_text('{"id":1}\nbad\n')
    source = sources.read_jsonl(tmp_path, schema="id int", malformed="divert").rejects()
    again = sources.from_spec(json.loads(json.dumps(source.spec())))
    assert rows_of(frame(spark, again)) == rows_of(frame(spark, source))

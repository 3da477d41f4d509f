"""Spark's schema strings (`ts timestamp, tags array<string>`), read without a Spark session.

PySpark's own parser lives in the JVM, but a pipeline is defined before a JVM runs, and files are read in worker
processes that have none. The grammar is small, so a mistake in a schema is found where it is written.

Everything is nullable, as in Spark's own file sources: `NOT NULL` and `COMMENT` are read and have no effect.
Types that cannot come out of a file or go through Arrow (intervals, variant, char) are refused.

Rejected: starting a session to parse (seconds, for every command), and a second notation for schemas.
"""

from __future__ import annotations

import functools
import re
from typing import NoReturn

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from anabranch.errors import PipelineError

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|(\w+)|('(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")|([<>(),:]))")
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ATOMIC: dict[str, spark.DataType] = {
    **dict.fromkeys(("boolean",), spark.BooleanType()),
    **dict.fromkeys(("tinyint", "byte"), spark.ByteType()),
    **dict.fromkeys(("smallint", "short"), spark.ShortType()),
    **dict.fromkeys(("int", "integer"), spark.IntegerType()),
    **dict.fromkeys(("bigint", "long"), spark.LongType()),
    **dict.fromkeys(("float", "real"), spark.FloatType()),
    **dict.fromkeys(("double",), spark.DoubleType()),
    **dict.fromkeys(("string",), spark.StringType()),
    **dict.fromkeys(("binary",), spark.BinaryType()),
    **dict.fromkeys(("date",), spark.DateType()),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), spark.TimestampType()),
    **dict.fromkeys(("timestamp_ntz",), spark.TimestampNTZType()),
}
_DECIMAL = ("decimal", "dec", "numeric")
_TYPES_HINT = (
    "types are boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), string, binary, date, timestamp, "
    "timestamp_ntz, array<…>, map<…,…> and struct<name: type, …>"
)
_LARGEST_PRECISION = 38


@functools.lru_cache(maxsize=64)
def parse(ddl: str) -> spark.StructType:
    """Return the schema that a string describes, all of it nullable; `PipelineError` saying what is wrong and where."""
    if not isinstance(ddl, str):
        raise PipelineError(f"schema is {ddl!r}", hint="write it as a string: 'ts timestamp, word string'")
    return _Parser(ddl).schema()


def render(schema: spark.StructType) -> str:
    """Return a string that `parse`, and Spark, read as this schema."""
    return ", ".join(f"{quote(field.name)} {_render_type(field.dataType)}" for field in schema.fields)


def quote(name: str) -> str:
    """Return a column's name in backticks where Spark needs them."""
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def to_arrow(schema: spark.StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark takes rows of this schema; timestamps are in UTC."""
    return to_arrow_schema(schema, timezone="UTC")


def _render_type(kind: spark.DataType) -> str:
    match kind:
        case spark.ArrayType():
            return f"array<{_render_type(kind.elementType)}>"
        case spark.MapType():
            return f"map<{_render_type(kind.keyType)},{_render_type(kind.valueType)}>"
        case spark.StructType():
            inner = ",".join(f"{quote(field.name)}:{_render_type(field.dataType)}" for field in kind.fields)
            return f"struct<{inner}>"
        case _:
            return kind.simpleString()


class _Parser:
    """A recursive descent over the tokens of one schema string."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = self._tokenise(ddl)
        self._next = 0

    def schema(self) -> spark.StructType:
        if not self._tokens:
            self._fail("is empty")
        # `struct<…>` around the whole is allowed, unless `struct` is the name of the first column.
        if self._tokens[0].lower() == "struct" and self._tokens[1:2] == ["<"]:
            found = self._type("the schema")
            if not isinstance(found, spark.StructType):
                self._fail("is not a struct")
            schema = found
        else:
            schema = self._fields()
        if self._next < len(self._tokens):
            self._fail(f"has an unexpected {self._tokens[self._next]!r}")
        return schema

    def _tokenise(self, ddl: str) -> list[str]:
        tokens = []
        position = 0
        end = len(ddl.rstrip())
        while position < end:
            match = _TOKEN.match(ddl, position)
            if match is None:
                self._fail(f"cannot be read from {ddl[position:].strip()[:20]!r} on")
            tokens.append(match.group(match.lastindex or 0))
            position = match.end()
        return tokens

    def _fields(self) -> spark.StructType:
        fields: list[spark.StructField] = []
        seen: set[str] = set()
        while True:
            name = self._name()
            if name.lower() in seen:
                self._fail(f"names the column {name!r} twice")
            seen.add(name.lower())
            self._take_if(":")
            fields.append(spark.StructField(name, self._type(f"column {name!r}"), nullable=True))
            self._skip_constraints()
            if not self._take_if(","):
                return spark.StructType(fields)

    def _name(self) -> str:
        token = self._take("a column name")
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            self._fail(f"has {token!r} where a column name should be")
        return token

    def _type(self, owner: str) -> spark.DataType:
        word = self._take(f"the type of {owner}").lower()
        if word in _DECIMAL:
            return self._decimal(owner)
        if word == "array":
            self._expect("<", owner)
            element = self._type(owner)
            self._expect(">", owner)
            return spark.ArrayType(element)
        if word == "map":
            self._expect("<", owner)
            key = self._type(owner)
            self._expect(",", owner)
            value = self._type(owner)
            self._expect(">", owner)
            return spark.MapType(key, value)
        if word == "struct":
            self._expect("<", owner)
            inner = self._fields()
            self._expect(">", owner)
            return inner
        if word not in _ATOMIC:
            self._fail(f"gives {owner} the unknown type {word!r}", hint=_TYPES_HINT)
        return _ATOMIC[word]

    def _decimal(self, owner: str) -> spark.DecimalType:
        if not self._take_if("("):
            return spark.DecimalType()
        precision = self._number(owner)
        scale = self._number(owner) if self._take_if(",") else 0
        self._expect(")", owner)
        if not (1 <= precision <= _LARGEST_PRECISION and scale <= precision):
            self._fail(
                f"gives {owner} the type decimal({precision},{scale})", hint="precision is 1 to 38, scale at most that"
            )
        return spark.DecimalType(precision, scale)

    def _number(self, owner: str) -> int:
        token = self._take(f"a number for {owner}")
        if not token.isdecimal():
            self._fail(f"has {token!r} where {owner} needs a number")
        return int(token)

    def _skip_constraints(self) -> None:
        while self._next < len(self._tokens):
            word = self._tokens[self._next].lower()
            if word == "not":
                self._next += 1
                self._expect("null", "NOT")
            elif word == "comment":
                self._next += 2
            else:
                return

    def _take(self, what: str) -> str:
        if self._next >= len(self._tokens):
            self._fail(f"ends where {what} should be")
        self._next += 1
        return self._tokens[self._next - 1]

    def _take_if(self, token: str) -> bool:
        if self._next < len(self._tokens) and self._tokens[self._next] == token:
            self._next += 1
            return True
        return False

    def _expect(self, token: str, owner: str) -> None:
        found = self._take(f"{token!r} of {owner}")
        if found.lower() != token:
            self._fail(f"has {found!r} where {owner} needs {token!r}")

    def _fail(self, what: str, *, hint: str = "write it as in 'ts timestamp, word string'") -> NoReturn:
        raise PipelineError(f"schema {self._ddl!r} {what}", hint=hint)

"""CSV: one record per line, parsed by Spark's `from_csv`, with Spark's rules for quotes, nulls and types.

A record fits if it has as many fields as the schema and each holds its declared type; an empty field is null. Blank
lines are no records. A record is one line: a quoted field cannot hold a newline, because a growing file must be cut
at record ends without reading it from its start. With `header=True` the first record of every file is skipped, not
compared with the schema.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from anabranch.errors import PipelineError
from anabranch.sources import ddl, parsed
from anabranch.sources.files import absolute
from anabranch.sources.lines import TRIMMED_BYTES, LineSource
from anabranch.sources.parsed import Malformed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


def read_csv(
    directory: str | os.PathLike[str],
    *,
    schema: str,
    header: bool = False,
    delimiter: str = ",",
    malformed: Malformed = "fail",
    pattern: str = "*",
) -> CsvFiles:
    """Return a source of the records in the CSV files of a directory, which may grow.

    `schema` is Spark's notation: `"ts timestamp, user string, amount double"`; fields are matched by place. One
    record per line: a quoted field cannot hold a newline. `malformed="fail"` stops the pipeline at a record that does
    not fit the schema; `"divert"` sends such records to the source's rejects, and goes on.
    """
    return CsvFiles(
        directory=absolute(directory),
        schema=schema,
        header=header,
        delimiter=delimiter,
        malformed=malformed,
        pattern=pattern,
    )


@dataclass(frozen=True, kw_only=True)
class CsvFiles(LineSource):
    """The source; made by `read_csv`. With `rejecting`, its rows are the records that do not fit."""

    schema: str
    header: bool = False
    delimiter: str = ","
    malformed: Malformed = "fail"
    rejecting: bool = False

    kind: ClassVar[str] = "csv"
    blank: ClassVar[bytes | None] = TRIMMED_BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in parsed.check_schema(self.schema, self.malformed).fields:
            if field.dataType.typeName() in ("array", "map", "struct", "binary"):
                raise PipelineError(
                    f"column {field.name!r} has the type {field.dataType.simpleString()}, which CSV cannot hold",
                    hint="declare it as string, and parse it in a step",
                )
        if not isinstance(self.header, bool):
            raise PipelineError(f"header is {self.header!r}", hint="header is True or False")
        if not isinstance(self.delimiter, str) or len(self.delimiter) != 1 or self.delimiter in '"\\\r\n\0':
            raise PipelineError(
                f"delimiter is {self.delimiter!r}", hint="one character, and no quote, backslash or newline"
            )

    @property
    def skips_header(self) -> bool:
        return self.header

    def shape(self, raw: DataFrame) -> DataFrame:
        schema = ddl.parse(self.schema)
        grammar = CsvGrammar(self.delimiter)
        if self.rejecting:
            return parsed.misfit_rows(raw, grammar, schema)
        return parsed.fitting_rows(raw, grammar, schema, self.malformed)

    def rejects(self) -> CsvFiles:
        """Return a source over the same ranges with `file, offset, record, reason` of the diverted records."""
        if self.malformed != "divert":
            raise PipelineError(f"read_csv({self.directory!r}) has no rejects", hint='use malformed="divert"')
        return replace(self, with_location=True, rejecting=True)


@dataclass(frozen=True)
class CsvGrammar:
    """One record per line, fields between delimiters."""

    delimiter: str

    def parse(self, value: Column, schema: str, misfit: str) -> Column:
        from pyspark.sql import functions as F  # noqa: N812  PySpark's convention

        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": misfit, "sep": self.delimiter}
        return F.from_csv(value, schema, options)

    def legible(self, value: Column) -> Column | None:
        return None

    def reason(self, value: Column, schema: StructType, misfit: str) -> Column:
        """Compare with the record read as texts: a field that is null only as its type is one that does not fit."""
        from pyspark.sql import functions as F  # noqa: N812

        texts_schema = ", ".join(f"{ddl.quote(name)} string" for name in schema.names)
        texts = self.parse(value, f"{texts_schema}, {misfit} string", misfit)
        typed = self.parse(value, f"{ddl.render(schema)}, {misfit} string", misfit)
        guilty = [
            F.when(texts.getField(field.name).isNotNull() & typed.getField(field.name).isNull(), F.lit(shown))
            for field, shown in ((field, ddl.render(type(schema)([field]))) for field in schema.fields)
        ]
        return F.when(
            texts.getField(misfit).isNotNull(), F.lit(f"does not have {len(schema.fields)} fields")
        ).otherwise(F.concat(F.lit("does not fit "), F.array_join(F.array_compact(F.array(*guilty)), ", ")))

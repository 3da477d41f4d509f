"""JSON lines: one JSON object per line, parsed by Spark's `from_json`, with Spark's rules for types.

A record fits if it is one JSON object and every declared field that it has holds the declared type. Missing fields and
`null` are null, undeclared fields are ignored, blank lines are no records. That is what `spark.read.json` gives for
the same files, except that an array of objects on a line is malformed here, and that a number or object read into a
string column is written anew (`1.50` becomes `1.5`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from anabranch.errors import PipelineError
from anabranch.sources import ddl, parsed
from anabranch.sources.files import absolute
from anabranch.sources.lines import LineSource
from anabranch.sources.parsed import Malformed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


def read_jsonl(
    directory: str | os.PathLike[str], *, schema: str, malformed: Malformed = "fail", pattern: str = "*"
) -> JsonlFiles:
    """Return a source of the JSON objects in the files of a directory, which may grow.

    `schema` is Spark's notation: `"ts timestamp, user string, amount double"`. A line is a row once its newline is
    written. `malformed="fail"` stops the pipeline at a record that does not fit the schema; `"divert"` sends such
    records to the source's rejects, and goes on.
    """
    return JsonlFiles(directory=absolute(directory), schema=schema, malformed=malformed, pattern=pattern)


@dataclass(frozen=True, kw_only=True)
class JsonlFiles(LineSource):
    """The source; made by `read_jsonl`. With `rejecting`, its rows are the records that do not fit."""

    schema: str
    malformed: Malformed = "fail"
    rejecting: bool = False

    kind: ClassVar[str] = "jsonl"
    blank: ClassVar[bytes | None] = b" \t"

    def __post_init__(self) -> None:
        super().__post_init__()
        parsed.check_schema(self.schema, self.malformed)

    def shape(self, raw: DataFrame) -> DataFrame:
        schema = ddl.parse(self.schema)
        if self.rejecting:
            return parsed.misfit_rows(raw, JsonGrammar(), schema)
        return parsed.fitting_rows(raw, JsonGrammar(), schema, self.malformed)

    def rejects(self) -> JsonlFiles:
        """Return a source over the same ranges with `file, offset, record, reason` of the diverted records."""
        if self.malformed != "divert":
            raise PipelineError(f"read_jsonl({self.directory!r}) has no rejects", hint='use malformed="divert"')
        return replace(self, with_location=True, rejecting=True)


class JsonGrammar:
    """One JSON object per record."""

    def parse(self, value: Column, schema: str, misfit: str) -> Column:
        from pyspark.sql import functions as F  # noqa: N812  PySpark's convention

        return F.from_json(value, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": misfit})

    def legible(self, value: Column) -> Column | None:
        """Ask for UTF-8: `spark.read.json` does not take anything else, while `from_json` would patch it up."""
        from pyspark.sql import functions as F  # noqa: N812

        return F.is_valid_utf8(value)

    def reason(self, value: Column, schema: StructType, misfit: str) -> Column:
        """Parse each field on its own to name the guilty ones: slow, but only for records that are rejected."""
        from pyspark.sql import functions as F  # noqa: N812

        def fails(columns: str) -> Column:
            return self.parse(value, f"{columns}{misfit} string", misfit).getField(misfit).isNotNull()

        fields = [ddl.render(type(schema)([field])) for field in schema.fields]
        guilty = F.array_compact(F.array(*(F.when(fails(f"{field}, "), F.lit(field)) for field in fields)))
        return (
            F.when(~F.is_valid_utf8(value), F.lit("is not UTF-8"))
            .when(fails(""), F.lit("is not one JSON object"))
            .otherwise(F.concat(F.lit("does not fit "), F.array_join(guilty, ", ")))
        )

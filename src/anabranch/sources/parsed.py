"""Records that Spark parses (JSON lines, CSV), and what becomes of those that do not fit the schema.

Spark's own parser runs in its permissive mode, with one more column that holds the record if it does not fit. Under
`malformed="fail"` a filter raises at such a record; under `"divert"` it drops it, and the source's `rejects` read the
same ranges for just those records, with their place and what is wrong with them.

The parser stands inside `explode(array(…))`. In a plain projection, Catalyst would push the filter below it with a
copy of the parser: every record parsed twice. Nothing is pushed below a generator whose output it needs, so a record
is parsed once, and no later choice of columns, not even a count, can prune the check away.

Rejected: Spark's FAILFAST mode (skipped where no column is asked for), and DROPMALFORMED (what it drops depends on
the columns asked for, and is gone).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, get_args

from anabranch.errors import PipelineError
from anabranch.sources import ddl

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

Malformed = Literal["fail", "divert"]

#: Begins the message of every failure caused by a record that does not fit.
MALFORMED = "anabranch: malformed row"
_SHOWN_CHARACTERS = 200
_MISFIT = "__anabranch_misfit"
_ROW = "__anabranch_row"


class Grammar(Protocol):
    """What a record means. All methods build Spark expressions."""

    def parse(self, value: Column, schema: str, misfit: str) -> Column:
        """Return a struct of the schema's columns; the one named `misfit` is the record itself if it does not fit."""
        ...

    def legible(self, value: Column) -> Column | None:
        """Return whether the bytes of a record can be read at all, None if any can."""
        ...

    def reason(self, value: Column, schema: StructType, misfit: str) -> Column:
        """Return what is wrong with a record that does not fit."""
        ...


def check_schema(schema: str, malformed: Malformed) -> StructType:
    """Return the parsed schema; `PipelineError` if it, or the choice for malformed records, cannot be used."""
    if malformed not in get_args(Malformed):
        raise PipelineError(
            f"malformed is {malformed!r}",
            hint='"fail" stops at a record that does not fit, "divert" sends it to the source\'s rejects',
        )
    parsed = ddl.parse(schema)
    for name in (_MISFIT, _ROW):
        if name in parsed.names:
            raise PipelineError(f"the column name {name!r} is taken", hint="choose another name")
    return parsed


def fitting_rows(raw: DataFrame, grammar: Grammar, schema: StructType, malformed: Malformed) -> DataFrame:
    """Return the rows of the records that fit; at any other the query fails or, if they are diverted, goes on."""
    from pyspark.sql import functions as F  # noqa: N812  PySpark's convention

    value = F.col("value")
    located = "offset" in raw.columns
    legible = grammar.legible(value)
    if legible is not None:
        # Below the generator, so that rows need not carry the record through it.
        record = F.make_valid_utf8(value)
        raw = raw.filter(legible if malformed == "divert" else _or_fail(legible, record, located=located))
    return _fitting(_parsed(raw, grammar, schema), schema, malformed, located=located)


def misfit_rows(raw: DataFrame, grammar: Grammar, schema: StructType) -> DataFrame:
    """Return `file, offset, record, reason` of the records that do not fit; `raw` must be located."""
    from pyspark.sql import functions as F  # noqa: N812

    value = F.col("value")
    misfits = F.col(_ROW).getField(_MISFIT).isNotNull()
    legible = grammar.legible(value)
    rows = _parsed(raw, grammar, schema).filter(misfits if legible is None else misfits | ~legible)
    reason = grammar.reason(value, schema, _MISFIT)
    return rows.select("file", "offset", F.make_valid_utf8(value).alias("record"), reason.alias("reason"))


def _parsed(raw: DataFrame, grammar: Grammar, schema: StructType) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    parsed = grammar.parse(F.col("value"), _columns(schema), _MISFIT)
    return raw.select("*", F.explode(F.array(parsed)).alias(_ROW))


def _columns(schema: StructType) -> str:
    return f"{ddl.render(schema)}, {_MISFIT} string"


def _fitting(rows: DataFrame, schema: StructType, malformed: Malformed, *, located: bool) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    misfit = F.col(_ROW).getField(_MISFIT)
    fits = misfit.isNull()
    rows = rows.filter(fits if malformed == "divert" else _or_fail(fits, misfit, located=located))
    return rows.select(*(F.col(_ROW).getField(name).alias(name) for name in schema.names))


def _or_fail(condition: Column, record: Column, *, located: bool) -> Column:
    """Return a condition that is true, or raises an error that shows the record."""
    from pyspark.sql import functions as F  # noqa: N812

    place = [F.lit(" in "), F.col("file"), F.lit(" at byte "), F.col("offset").cast("string")] if located else []
    message = F.concat(F.lit(MALFORMED), *place, F.lit(": "), F.substring(record, 1, _SHOWN_CHARACTERS))
    return F.when(condition, F.lit(True)).otherwise(F.raise_error(message).cast("boolean"))

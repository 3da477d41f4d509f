r"""Several JSON records in one raw row, because Spark's `from_json` costs more to start than a record costs to parse.

Each call of `from_json` makes a parser with buffers of its own; over records of 100 bytes that is 60% of the time. So
the lines of a piece travel in bundles of up to 64, and Spark parses a bundle as one document:

    a line \n a line   →   {"bundle":[{"record": a line },\n{"record": a line }]}

If the whole document fits, with as many records as there were lines, its records are the rows. If not, the lines are
split and parsed one by one: what fits, and what does not, is always decided as if each line had been alone. The line
end stays in the document because no JSON string may hold one, so no two broken lines can pass as one good string.

Lines that are not UTF-8 travel alone, with the count 0: Spark would patch them up, and they must not fit.

Rejected: Arrow's own JSON reader (ten times faster, but its rules for types, times and errors are not Spark's).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SCHEMA = pa.schema([pa.field("value", pa.string()), pa.field("records", pa.int32())])
#: Beyond this the start of the parser is no longer seen, and a bad line would spoil more good ones.
MOST_RECORDS = 64
#: A bundle is held in memory a few times over, per task.
_MOST_BYTES = 64 << 10
_BLANK_LINES = re.compile(rb"^[ \t]*(?:\n|\Z)", re.MULTILINE)
_BLANK_STARTS = np.frombuffer(b"\n \t", dtype=np.uint8)
_LF = 10
_ILLEGIBLE = "not UTF-8: "
_PARSED = "__anabranch_bundle"


def bundle(data: bytes) -> pa.RecordBatch:
    """Return the lines of some bytes in bundles; blank lines are left out, line ends are `\\n` throughout."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    ends = _line_ends(data)
    begins = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    # A line can be blank only if it starts so; few do, and a search by pattern is slow.
    if np.isin(np.frombuffer(data, dtype=np.uint8)[begins[begins < len(data)]], _BLANK_STARTS).any():
        data = _BLANK_LINES.sub(b"", data)
        ends = _line_ends(data)
    if not _is_utf8(data):
        lines = data.removesuffix(b"\n").split(b"\n") if data else []
        return _batch(lines, [int(_is_utf8(line)) for line in lines])
    size = max(1, min(MOST_RECORDS, _MOST_BYTES * len(ends) // max(len(data), 1)))
    last = np.append(ends[size - 1 : -1 : size], ends[-1:])
    first = np.concatenate(([0], last[:-1] + 1)) if len(last) else last
    counts = np.diff(np.append(np.arange(0, len(ends), size), len(ends)))
    view = memoryview(data)
    return _batch([view[begin:end] for begin, end in zip(first.tolist(), last.tolist(), strict=True)], counts)


def _line_ends(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return where each line ends; the last one need not be terminated."""
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == _LF)
    return ends if not data or data.endswith(b"\n") else np.append(ends, len(data))


def _batch(texts: list[bytes] | list[memoryview], counts: object) -> pa.RecordBatch:
    offsets = np.zeros(len(texts) + 1, dtype=np.int32)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    values = pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(b"".join(texts)))
    return pa.RecordBatch.from_arrays([values, pa.array(counts, pa.int32())], schema=SCHEMA)


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def unbundled(raw: DataFrame, columns: str, misfit: str, row: str) -> DataFrame:
    """Return one struct `row` per record, with the columns and, in `misfit`, the record itself if it does not fit.

    `columns` declares `misfit` too. The struct is null where the record was the word `null`, which does not fit either.
    """
    from pyspark.sql import functions as F  # noqa: N812  PySpark's convention

    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": misfit}
    value, records = F.col("value"), F.col("records")
    document = F.concat(F.lit('{"bundle":[{"record":'), F.replace(value, F.lit("\n"), F.lit('},\n{"record":')), F.lit("}]}"))
    document_columns = f"bundle array<struct<record: struct<{columns}>>>, {misfit} string"
    # The generator keeps Catalyst from copying the parser into every place that looks at its result.
    parsed = raw.select(
        "value", "records", F.explode(F.array(F.from_json(document, document_columns, options))).alias(_PARSED)
    )
    whole = F.col(_PARSED).getField("bundle")
    fits = F.col(_PARSED).getField(misfit).isNull() & (F.size(whole) == records)

    def alone(line: Column) -> Column:
        return F.from_json(line, columns, options)

    legible = F.when(records == 0, F.concat(F.lit(_ILLEGIBLE), F.make_valid_utf8(value))).otherwise(value)
    one_by_one = F.transform(F.split(legible, "\n"), alone)
    return parsed.select(F.explode_outer(F.when(fits, whole.getField("record")).otherwise(one_by_one)).alias(row))

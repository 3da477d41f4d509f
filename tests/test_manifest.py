"""Manifests survive the way to the ledger and back; anything else in a slot is told from one."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.channel.manifest import Manifest, Part, Producer, decode
from anabranch.errors import Corrupt

PRODUCER = Producer("counts", "r000003.0a1b2c3d", 2)
PARTS = (Part("7-r000003.0a1b2c3d-0-11.arrow", 3, 900, 12345), Part("7-r000003.0a1b2c3d-1-12.arrow", 2, 850, 0))
WHOLE = Manifest(
    epoch=7,
    producer=PRODUCER,
    released_s=1_767_225_600.25,
    rows=5,
    digest="0f" * 16,
    parts=PARTS,
    event_time_us=(1, 2),
    watermark_ms=1_000,
    late_rows=4,
)
WHERE = "epoch 7 of channel 'counts'"

counts = st.integers(0, 1 << 62)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def manifests(draw):
    """Any manifest that can be made: a planned range, or parts whose rows add up."""
    epoch = draw(st.integers(0, 10**12 - 1))
    names = draw(st.lists(st.tuples(counts, counts), max_size=4, unique=True))
    parts = tuple(
        Part(
            f"{epoch}-r.{task:x}_Z-{task}-{attempt}.arrow", draw(counts), draw(counts), draw(st.integers(0, 2**32 - 1))
        )
        for task, attempt in names
    )
    planned = draw(st.none() | st.dictionaries(st.text(), json_values, max_size=3)) if not parts else None
    return Manifest(
        epoch=epoch,
        producer=Producer(draw(st.text()), draw(st.text()), draw(counts)),
        released_s=draw(st.floats(0, 1e12)),
        rows=sum(part.rows for part in parts) if planned is None else draw(st.none() | counts),
        digest=draw(st.text("0123456789abcdef", min_size=32, max_size=32)),
        parts=parts,
        planned=planned,
        event_time_us=draw(st.none() | st.tuples(st.integers(), st.integers())),
        watermark_ms=draw(st.none() | counts),
        late_rows=draw(counts),
        gap=draw(st.booleans()),
        incomplete=draw(st.booleans()),
    )


@given(manifests())
def test_a_manifest_comes_back_as_it_was(manifest):
    """Encoding and decoding changes nothing, and the same manifest always gives the same bytes."""
    again = decode(manifest.encode(), WHERE)
    assert again == manifest
    assert again.encode() == manifest.encode()


def record(**changes):
    """Return the record of WHOLE with some fields changed; a field given as `...` is left out."""
    fields = {**json.loads(WHOLE.encode()), **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format_is_not_guessed_at(version):
    """A record of another format version is refused, with the versions in the message and a way out in the hint."""
    with pytest.raises(Corrupt, match=f"epoch 7 .* format {version}.* reads 1") as caught:
        decode(record(format=version), WHERE)
    assert "version of Anabranch" in caught.value.hint


part = json.loads(WHOLE.encode())["parts"][0]
DAMAGE = {
    "nothing": b"",
    "no JSON": b"\x00\xff\x00",
    "half a record": record()[: len(record()) // 2],
    "no object": b"[1, 2]",
    "null": b"null",
    "no format": record(format=...),
    "no epoch": record(epoch=...),
    "epoch below zero": record(epoch=-1),
    "epoch as text": record(epoch="7"),
    "an unknown field": record(colour="red"),
    "no parts": record(parts=...),
    "parts are missing": record(parts=[part]),
    "rows do not add up": record(rows=6),
    "rows unknown though there are parts": record(rows=None),
    "part without checksum": record(parts=[{"name": part["name"], "rows": 5, "size_bytes": 1}], rows=5),
    "part of another place": record(parts=[{**part, "name": "../../secret.arrow"}], rows=3),
    "part below zero": record(parts=[{**part, "rows": -5}, {**part, "rows": 10}], rows=5),
    "parts and an empty range": record(planned={}),
    "producer without a run": record(producer={"segment": "a", "generation": 1}),
    "producer of another kind": record(producer="counts"),
    "half an event time": record(event_time_us=[1]),
    "event time as text": record(event_time_us=["early", "late"]),
    "late rows below zero": record(late_rows=-1),
    "digest of another length": record(digest="0f"),
    "digest as number": record(digest=17),
    "no digest": record(digest=...),
    "released at no time": record(released_s="noon"),
    "a gap that is no flag": record(gap="no"),
    "watermark as text": record(watermark_ms="1000"),
    "event time without end": record(event_time_us=[0, float("inf")]),
    "a part name with a line end": record(parts=[{**part, "name": part["name"] + "\n"}], rows=3),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_an_altered_record_is_refused(damage):
    """A record with a field missing, added or of another kind is corrupt, and the place and a hint are given."""
    with pytest.raises(Corrupt, match=f"^{WHERE} does not hold a manifest") as caught:
        decode(damage, WHERE)
    assert "copy" in caught.value.hint


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_foreign_records_are_corrupt_and_nothing_else(content):
    """Whatever bytes a slot holds, reading them raises `Corrupt`."""
    with pytest.raises(Corrupt):
        decode(content, WHERE)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"epoch": -1}, "from zero"),
        ({"late_rows": -1}, "from zero"),
        ({"planned": {}}, "no parts"),
        ({"planned": {"start": 0}, "rows": 10**6}, "another number"),
        ({"rows": 4}, "counts 4 rows"),
        ({"parts": ()}, "counts 5 rows"),
    ],
)
def test_a_manifest_that_contradicts_itself_cannot_be_made(changes, says):
    """Counts that do not fit are refused before they can be published."""
    with pytest.raises(ValueError, match=says):
        replace(WHOLE, **changes)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x.arrow",
        "7-r-0.arrow",
        "r-7-0-0.arrow",
        "7-r-0-0.parquet",
        "7-../r-0-0.arrow",
        "/7-r-0-0.arrow",
        "7-r-0-0.arrow.tmp",
        "-7-r-0-0.arrow",
    ],
)
def test_a_part_has_a_name_of_ours(name):
    """A part is never looked for under a name that Anabranch does not give."""
    with pytest.raises(ValueError, match="part name"):
        Part(name, 1, 1, 1)


@pytest.mark.parametrize(
    ("content", "empty"),
    [
        ({"rows": 0}, True),
        ({"rows": 5, "parts": PARTS}, False),
        ({"planned": {}, "rows": 0}, True),
        ({"planned": {"files": []}, "rows": None}, False),
    ],
)
def test_an_epoch_without_rows_is_known_as_such(content, empty):
    """No parts, or the empty range, is an epoch without rows; a range of unknown size is not."""
    assert Manifest(epoch=0, producer=PRODUCER, released_s=0.0, **content).empty is empty

"""Spark's checkpoint directory as files: what was committed, and the next run's directory, which appears whole.

Offset entries are written by hand, as Spark writes them: a version, the metadata, and one line per source.
"""

import itertools
import json
import os

import pytest

from anabranch.channel.writer import Planned, planned_batch
from anabranch.checkpoint import Commit, last_batch, last_commit, link_checkpoint
from anabranch.errors import Corrupt, Misaligned


class Crash(BaseException):
    """The process is gone: no handler of the code under test may catch this."""


def entry(*epochs, watermark_ms=0):
    """Return an offset log entry; None stands for a source without an offset."""
    metadata = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": 1_767_225_600_000, "conf": {}}
    offsets = ["-" if epoch is None else json.dumps({"epoch": epoch}) for epoch in epochs]
    return "\n".join(["v1", json.dumps(metadata), *offsets])


def log_batch(checkpoint, batch_id, *epochs, committed=True, watermark_ms=0):
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch_id)).write_text(entry(*epochs, watermark_ms=watermark_ms))
    if committed:
        (checkpoint / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def tree(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


# Which epoch a micro-batch is


@pytest.mark.parametrize(
    ("epochs", "watermark_ms", "expected"),
    [
        ((7,), 0, Planned(7, None)),
        ((0,), 5_000, Planned(0, 5_000)),
        ((7, 7, 7), 1, Planned(7, 1)),
        ((7, None, 7), 0, Planned(7, None)),
    ],
)
def test_the_offset_log_says_the_epoch(tmp_path, epochs, watermark_ms, expected):
    """All inputs of a batch are at one epoch, and the watermark in force is known; the batch id means nothing."""
    log_batch(tmp_path, 3, *epochs, watermark_ms=watermark_ms)
    assert planned_batch(tmp_path, 3) == expected


@pytest.mark.parametrize("epochs", [(7, 8), (8, 7), (7, 7, 6), (-1, 0), (None, None), ()])
def test_inputs_that_disagree_are_misaligned(tmp_path, epochs):
    """A batch whose inputs are at different epochs has no epoch, and is never published."""
    log_batch(tmp_path, 3, *epochs)
    with pytest.raises(Misaligned, match=r"micro-batch 3 reads epochs \["):
        planned_batch(tmp_path, 3)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "v1",
        "1\n{}\n{}",
        "v1\nnot json\n{}",
        'v1\n{}\n{"offset": 7}',
        'v1\n{}\n{"epoch": "seven"}',
        "v1\n{}\n7",
        'v1\n{}\n{"epoch": 7',
        'v1\n[]\n{"epoch": 7}',
    ],
)
def test_a_damaged_entry_is_corrupt(tmp_path, content):
    """An entry that Spark cannot have written for our source is named, not guessed at."""
    log_batch(tmp_path, 3, 7)
    (tmp_path / "offsets" / "3").write_text(content)
    with pytest.raises(Corrupt, match="offsets/3"):
        planned_batch(tmp_path, 3)


def test_the_last_batch_is_the_highest_number(tmp_path):
    """Numbers count as numbers, and what is no entry does not count at all."""
    assert last_batch(tmp_path / "commits") is None
    (tmp_path / "commits").mkdir()
    assert last_batch(tmp_path / "commits") is None
    for name in ("2", "10", "9", ".11.crc", ".12.1f2e.tmp", "13.tmp", "metadata"):
        (tmp_path / "commits" / name).touch()
    assert last_batch(tmp_path / "commits") == 10


def test_only_a_commit_counts(tmp_path):
    """A batch that was planned but not committed is not part of the history."""
    assert last_commit(tmp_path) is None
    log_batch(tmp_path, 0, 4, committed=False)
    assert last_commit(tmp_path) is None
    log_batch(tmp_path, 0, 4)
    log_batch(tmp_path, 1, 5, committed=False)
    assert last_commit(tmp_path) == Commit(0, Planned(4, None))


# The next run's directory

STATE = ("state/0/0/1_a.changelog", "state/0/0/2_b.zip", "state/0/1/SSTs/000008.sst", "state/0/_metadata/metadata")


def old_checkpoint(directory):
    """Make a checkpoint of batches 0…2 at epochs 10…12, with a misaligned batch 3 that was planned and never ran."""
    for batch_id in range(3):
        log_batch(directory, batch_id, 10 + batch_id, 10 + batch_id)
    log_batch(directory, 3, 13, 12, committed=False)
    for name in ("metadata", "offsets/.2.crc", "offsets/.3.crc", "commits/.2.9d.tmp", "state/0/0/.3_c.tmp", *STATE):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return last_commit(directory)


KEPT = {
    "metadata",
    "offsets/.2.crc",
    *[f"{log}/{batch}" for log in ("offsets", "commits") for batch in range(3)],
    *STATE,
}


def test_a_checkpoint_is_linked_at_its_commit(tmp_path):
    """Everything up to the last commit is in the new directory; what was planned after it, and temporaries, are not."""
    commit = old_checkpoint(tmp_path / "old")
    link_checkpoint(tmp_path / "old", tmp_path / "new", commit)
    assert tree(tmp_path / "new") == KEPT
    assert last_commit(tmp_path / "new") == commit == Commit(2, Planned(12, None))
    assert os.listdir(tmp_path) in (["old", "new"], ["new", "old"])


def test_a_misaligned_batch_is_not_carried_over(tmp_path):
    """The poisoned entry that the old run died of is gone from the new one: Spark would run it before anything else."""
    commit = old_checkpoint(tmp_path / "old")
    with pytest.raises(Misaligned):
        planned_batch(tmp_path / "old", 3)
    link_checkpoint(tmp_path / "old", tmp_path / "new", commit)
    assert last_batch(tmp_path / "new" / "offsets") == 2
    assert not (tmp_path / "new" / "offsets" / "3").exists()
    assert not (tmp_path / "new" / "offsets" / ".3.crc").exists()


def test_an_older_commit_leaves_newer_ones_behind(tmp_path):
    """Linking at batch 1 takes neither the offsets nor the commit of batch 2."""
    old_checkpoint(tmp_path / "old")
    link_checkpoint(tmp_path / "old", tmp_path / "new", Commit(1, Planned(11, None)))
    assert {last_batch(tmp_path / "new" / log) for log in ("offsets", "commits")} == {1}


def test_files_are_linked_not_copied(tmp_path):
    """A new run costs no space; each file is the same file, and survives the removal of the old run."""
    link_checkpoint(tmp_path / "old", tmp_path / "new", old_checkpoint(tmp_path / "old"))
    for name in KEPT:
        assert (tmp_path / "new" / name).samefile(tmp_path / "old" / name)
    for name in tree(tmp_path / "old"):
        (tmp_path / "old" / name).unlink()
    assert (tmp_path / "new" / STATE[1]).read_text() == STATE[1]


def test_a_file_replaced_by_the_old_run_stays_as_it_was(tmp_path):
    """Spark replaces files, it never writes into one: a run thought dead cannot change its successor's directory."""
    link_checkpoint(tmp_path / "old", tmp_path / "new", old_checkpoint(tmp_path / "old"))
    (tmp_path / "temporary").write_text("another life")
    os.replace(tmp_path / "temporary", tmp_path / "old" / "commits" / "2")
    assert "nextBatch" in (tmp_path / "new" / "commits" / "2").read_text()


@pytest.mark.parametrize("operation", ["link", "mkdir", "rename"])
def test_half_a_directory_is_never_seen(tmp_path, operation):
    """Wherever linking stops, there is no directory under the new name; after it there is the whole."""
    for number in itertools.count(1):
        home = tmp_path / str(number)
        commit = old_checkpoint(home / "old")
        real, calls = getattr(os, operation), itertools.count(1)

        def stop(*given, real=real, calls=calls, number=number, **options):
            if next(calls) >= number:
                raise Crash
            return real(*given, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, operation, stop)
            try:
                link_checkpoint(home / "old", home / "new", commit)
            except Crash:
                assert not (home / "new").exists()
                assert last_commit(home / "new") is None
                continue
        assert tree(home / "new") == KEPT
        assert number > {"link": len(KEPT), "mkdir": 5, "rename": 1}[operation]
        return


def test_what_names_its_own_place_is_renamed(tmp_path):
    """The new run finds its schemas in its own directory, wherever that is; the old run's file stays as it was."""
    old, new = tmp_path / "runs" / "r1" / "checkpoint", tmp_path / 'runs "two"' / "r2" / "checkpoint"
    log_batch(old, 0, 4)
    schema, noted = old / "state/0/_stateSchema/default/0_ab", old / "state/0/_metadata/v2/0"
    for path in (schema, noted):
        path.parent.mkdir(parents=True)
    schema.write_text("a schema")
    told = {"stateStoreInfo": [{"stateSchemaFilePaths": [f"file:{schema}", f"file:{schema}c"]}], "other": "/state/x"}
    noted.write_text("v2\n" + json.dumps(told))
    new.parent.mkdir(parents=True)
    link_checkpoint(old, new, last_commit(old))
    version, found = (new / "state/0/_metadata/v2/0").read_text().split("\n")
    moved = f"file:{new}/state/0/_stateSchema/default/0_ab"
    assert version == "v2"
    assert json.loads(found) == {**told, "stateStoreInfo": [{"stateSchemaFilePaths": [moved, f"{moved}c"]}]}
    assert json.loads(noted.read_text().split("\n")[1]) == told
    assert (new / "state/0/_stateSchema/default/0_ab").samefile(schema)

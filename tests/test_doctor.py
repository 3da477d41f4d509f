"""The doctor finds every kind of damage, and repairs only what cannot lose anything."""

import json
import os
import shutil
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Producer
from anabranch.channel.parts import PartWriter
from anabranch.clock import SystemClock
from anabranch.doctor.doctor import look, repair
from anabranch.doctor.state_files import state_file_problem
from anabranch.errors import StoreError, WorkDirectoryError
from anabranch.keeper.keeper import Keeper, KeeperOptions
from anabranch.store.opening import open_store
from anabranch.work import Work
from fake_checkpoint import FakeCheckpoint
from harness import anabranch

SCHEMA = pa.schema([("n", pa.int64())])
RUN = "r000001.0a1b2c3d"


def kinds(findings):
    return {finding.kind for finding in findings}


def everything(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x20
    path.write_bytes(content)


def with_checksum(path, chunk=512):
    """Write Hadoop's checksum file beside a file."""
    content = path.read_bytes()
    sums = [struct.pack(">I", zlib.crc32(content[at : at + chunk])) for at in range(0, len(content), chunk)]
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\x00" + struct.pack(">I", chunk) + b"".join(sums))


@pytest.fixture
def checkpoint(tmp_path):
    made = FakeCheckpoint(tmp_path / "checkpoint")
    for epoch in range(8):
        made.commit(epoch)
        if epoch in (2, 5):
            made.snapshot()
    for path in list(made.path.rglob("*")):
        if path.is_file():
            with_checksum(path)
    return made


def remove(pattern):
    return lambda path: next(iter(sorted(path.glob(pattern)))).unlink()


def empty(pattern):
    def act(path):
        found = next(iter(sorted(path.glob(pattern))))
        found.write_bytes(b"")
        found.with_name(f".{found.name}.crc").unlink()

    return act


def written(name, content):
    return lambda path: (path / name).write_bytes(content)


DAMAGE = {
    "metadata gone": (remove("metadata"), "metadata", set()),
    "metadata unreadable": (written("metadata", b"{"), "metadata", set()),
    "a hole in the plans": (remove("offsets/4"), "hole in offsets", set()),
    "a hole in the commits": (remove("commits/4"), "hole in commits", set()),
    "the last plan gone": (remove("offsets/7"), "commit without plan", set()),
    "commits lost": (lambda path: [(path / "commits" / str(n)).unlink() for n in (6, 7)], "commits lost", set()),
    "a torn plan that was executed": (written("offsets/7", b"v1\n{"), "torn plan", set()),
    # Whether a sink has micro-batch 8 nobody can say: the plan stays.
    "a torn plan without a commit": (written("offsets/8", b"v1"), "torn plan", set()),
    "an empty plan without a commit": (written("offsets/8", b""), "torn plan", set()),
    "all commits lost": (
        lambda path: [entry.unlink() for entry in (path / "commits").iterdir()],
        "commits lost",
        set(),
    ),
    "both logs lost": (
        lambda path: [entry.unlink() for log in ("commits", "offsets") for entry in (path / log).iterdir()],
        "logs lost",
        set(),
    ),
    "a torn last commit": (empty("commits/7"), "torn commit", {"commits/7"}),
    "a torn earlier commit": (written("commits/5", b""), "torn commit", set()),
    "a changelog gone": (remove("state/0/0/8_*.changelog"), "state lost", set()),
    "a snapshot and its changelog gone": (
        lambda path: [found.unlink() for found in (path / "state/0/1").glob("6_*")],
        "state lost",
        set(),
    ),
    "a partition gone": (lambda path: shutil.rmtree(path / "state/0/1"), "state lost", set()),
    "an empty changelog": (empty("state/0/0/8_*.changelog"), "state altered", set()),
    "an altered changelog": (lambda path: flip(next(path.glob("state/0/0/8_*.changelog"))), "altered", set()),
    "an altered SST": (lambda path: flip(next(path.glob("state/0/0/SSTs/*.sst"))), "altered", set()),
    "an altered plan": (lambda path: flip(path / "offsets/3"), "altered", set()),
    "a snapshot that is no archive": (
        lambda path: next(path.glob("state/0/0/6_*.zip")).write_bytes(b"no archive"),
        "state lost",
        set(),
    ),
    "temporaries": (written("offsets/.8.1234.tmp", b"v"), "leftovers", {"offsets/.8.1234.tmp"}),
}


def test_a_sound_checkpoint_is_called_sound(checkpoint):
    """Nothing is found where nothing is wrong, also with a plan that is not committed yet."""
    assert look(str(checkpoint.path)) == []
    checkpoint.plan(8)
    assert look(str(checkpoint.path)) == []


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_to_a_checkpoint_is_found(checkpoint, tmp_path, name):
    """Each kind is named; repairing removes only what may go, after a backup, and touches nothing else."""
    damage, kind, may_go = DAMAGE[name]
    damage(checkpoint.path)
    findings = look(str(checkpoint.path))
    assert kind in kinds(findings)
    before = everything(checkpoint.path)
    removed = repair(str(checkpoint.path), findings, tmp_path / "backup")
    gone = {str(path.relative_to(checkpoint.path)) for path in removed}
    assert {path for path in gone if not path.endswith(".crc")} == may_go
    assert everything(checkpoint.path) == {path: content for path, content in before.items() if path not in gone}
    assert everything(tmp_path / "backup") == {path: before[path] for path in gone}
    if may_go:
        assert look(str(checkpoint.path)) == []


# Work directories


def publish(channel, epoch):
    writer = PartWriter(channel.parts / f"{epoch}-{RUN}-0-{epoch}.arrow", SCHEMA)
    writer.write(pa.record_batch({"n": [epoch]}, SCHEMA))
    part = writer.close()
    producer = Producer("counts", RUN, 0)
    channel.release(Manifest(epoch=epoch, producer=producer, released_s=0.0, rows=1, parts=(part,)))


@pytest.fixture
def work(tmp_path):
    made = Work.create(tmp_path / "work")
    made.pin({"pipeline": "p", "spark": "4", "timezone": "UTC", "state_partitions": 2, "sources": {}, "segments": {}})
    channel = Channel.create(made.channel_path("counts"), ChannelSpec("counts", SCHEMA))
    checkpoint = FakeCheckpoint(made.unit_path("counts") / "runs" / RUN / "checkpoint")
    for epoch in range(6):
        publish(channel, epoch)
        checkpoint.commit(epoch)
    return made


LEDGER = "channels/counts/ledger"
WORK_DAMAGE = {
    "identity gone": (remove("identity.json"), "identity lost", set()),
    "identity unreadable": (written("identity.json", b"{"), "identity lost", set()),
    "channel unreadable": (written("channels/counts/channel.json", b"{"), "channel unreadable", set()),
    "a slot gone": (remove(f"{LEDGER}/{2:012d}"), "gap in ledger", set()),
    "a slot altered": (lambda path: flip(path / LEDGER / f"{2:012d}"), "slot altered", set()),
    "a part gone": (remove("channels/counts/parts/3-*"), "part damaged", set()),
    "a part altered": (lambda path: flip(next(path.glob("channels/counts/parts/3-*"))), "part damaged", set()),
    "an orphaned part": (
        written("channels/counts/parts/3-other-0-0.arrow", b"x"),
        "leftovers",
        {"channels/counts/parts/3-other-0-0.arrow"},
    ),
    "output lost": (
        lambda path: [(path / LEDGER / f"{slot:012d}").unlink() for slot in (4, 5)],
        "output lost",
        set(),
    ),
    "state lost": (remove(f"units/counts/runs/{RUN}/checkpoint/state/0/0/3_*"), "state lost", set()),
    "a commit torn": (
        written(f"units/counts/runs/{RUN}/checkpoint/commits/5", b""),
        "torn commit",
        {f"units/counts/runs/{RUN}/checkpoint/commits/5"},
    ),
}


def test_a_sound_work_directory_is_called_sound(work):
    """Nothing is found where nothing is wrong; a part of an epoch that is not decided belongs to a writer at work."""
    (work.path / "channels/counts/parts/6-other-0-0.arrow").write_bytes(b"x")
    assert look(str(work.path)) == []


@pytest.mark.parametrize("name", WORK_DAMAGE)
def test_damage_to_a_work_directory_is_found(work, tmp_path, name):
    """Each kind is named; repairing removes only what may go."""
    damage, kind, may_go = WORK_DAMAGE[name]
    damage(work.path)
    findings = look(str(work.path))
    assert kind in kinds(findings)
    before = everything(work.path)
    removed = {str(path.relative_to(work.path)) for path in repair(str(work.path), findings, tmp_path / "backup")}
    assert removed == may_go
    assert everything(work.path) == {path: content for path, content in before.items() if path not in removed}


# Stores


@pytest.mark.parametrize("kind", ["log", "files"])
def test_damage_to_a_store_is_found(work, tmp_path, kind):
    """A whole store is called sound; a missing or altered file and an unreadable record are each named."""
    url = f"{kind}:{tmp_path / 'store'}"
    store = open_store(url, f"p-1/counts/{RUN}")
    keeper = Keeper({url: store}, KeeperOptions(work.path, "counts", RUN), SystemClock())
    keeper.start()
    assert keeper.finish(60)
    assert look(url) == []
    kept = next(key for key in store.keys("files/") if key.endswith(".changelog"))
    value = store.read(kept)
    for damaged in (None, value + b"?"):
        store.write({kept: damaged})
        assert kinds(look(url)) == {"kept file damaged"}
    record = store.keys("versions/")[0]
    whole = store.read(record)
    store.write({kept: value, record: b"torn"})
    assert kinds(look(url)) == {"version unreadable"}
    store.write({record: whole})
    assert look(url) == []
    keeper.stop()
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file() and path.name != "writer" and path.stat().st_size > 100:
            flip(path)
    assert kinds(look(url)) & {"store damaged", "version unreadable", "kept file damaged"}


# The command


def test_the_command_says_what_it_found(checkpoint, tmp_path):
    """Exit code 0 for a sound directory, 8 for a damaged one, and what was repaired is said."""
    sound = anabranch(tmp_path, "doctor", str(checkpoint.path))
    assert (sound.returncode, sound.stdout) == (0, f"{checkpoint.path} is sound\n")
    (checkpoint.path / "commits" / "7").write_bytes(b"")
    damaged = anabranch(tmp_path, "doctor", str(checkpoint.path), "--json")
    assert damaged.returncode == 8
    found = [(finding["kind"], finding["repairable"]) for finding in json.loads(damaged.stdout)["findings"]]
    assert ("torn commit", True) in found
    repaired = anabranch(tmp_path, "doctor", str(checkpoint.path), "--repair")
    assert repaired.returncode == 0, repaired.stdout
    assert "removed" in repaired.stdout
    backups = [name for name in os.listdir(tmp_path) if ".doctor-" in name]
    assert len(backups) == 1
    assert Path(tmp_path, backups[0], "commits", "7").exists()


@pytest.mark.parametrize("place", ["nowhere", "log:nowhere", "s3://bucket"])
def test_a_place_that_is_nothing_is_an_error(tmp_path, place):
    """What is neither a directory we know nor a store is not called sound."""
    answer = anabranch(tmp_path, "doctor", place)
    assert answer.returncode != 0
    assert "Traceback" not in answer.stderr
    assert os.listdir(tmp_path) == []
    if ":" not in place:
        with pytest.raises(WorkDirectoryError):
            look(place)


def blocks(*contents):
    """Return what Spark's LZ4 stream looks like; an odd content is stored as it is."""
    made = b""
    for number, content in enumerate([*contents, b""]):
        raw = number % 2 == 1 or not content
        packed = content if raw else bytes(pa.Codec("lz4_raw").compress(content))
        checksum = xxhash.xxh32_intdigest(content, seed=0x9747B28C) & 0xFFFFFFF if content else 0
        made += b"LZ4Block" + struct.pack("<BiiI", 0x16 if raw else 0x26, len(packed), len(content), checksum) + packed
    return made


def test_every_flipped_byte_of_a_changelog_is_found(tmp_path):
    """Wherever it is, and wherever the file is cut off; a whole one and one of another kind are fine."""
    path = tmp_path / "8.changelog"
    whole = blocks(b",".join(b"%d" % n for n in range(90)), os.urandom(60), b";".join(b"%d" % n for n in range(50)))
    path.write_bytes(whole)
    assert state_file_problem(path) is None
    for position in range(8, len(whole)):
        if whole[position] in (0x16, 0x26) and whole[position - 8 : position] == b"LZ4Block":
            continue  # half of the token says how the block was compressed, and nothing else
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        assert state_file_problem(path) is not None or position >= len(whole) - 4, position
    for length in range(9, len(whole)):
        path.write_bytes(whole[:length])
        assert state_file_problem(path) is not None, length
    path.write_bytes(b"something else")
    assert state_file_problem(path) is None


def test_a_source_log_that_a_plan_refers_to_is_missed(tmp_path):
    """Sources of files keep a log of their own; without it Spark reads the files again, or none."""
    fake = FakeCheckpoint(tmp_path / "checkpoint")
    fake.commit(0)
    plan = fake.path / "offsets" / "0"
    plan.write_text(plan.read_text() + '\n{"logOffset":3}')
    assert [finding.kind for finding in look(str(fake.path))] == ["source log lost"]
    log = fake.path / "sources" / "1"
    log.mkdir(parents=True)
    (log / "3.compact").write_text("v1")
    assert look(str(fake.path)) == []


def test_a_partition_that_nobody_names_is_missed(tmp_path):
    """Without unique ids the operator's own description says how many partitions there are."""
    fake = FakeCheckpoint(tmp_path / "checkpoint")
    fake.commit(0)
    commit = fake.path / "commits" / "0"
    commit.write_text('v1\n{"nextBatchWatermarkMs":0}')
    for store in fake.stores:
        changelog = next(store.glob("1_*.changelog"))
        changelog.rename(store / "1.changelog")
    description = fake.path / "state" / "0" / "_metadata" / "metadata"
    description.write_text('v1\n{"operatorInfo":{},"stateStoreInfo":[{"storeName":"default","numPartitions":2}]}')
    assert look(str(fake.path)) == []
    shutil.rmtree(fake.path / "state" / "0" / "1")
    assert [finding.kind for finding in look(str(fake.path))] == ["state lost"]


def test_a_work_directory_without_its_directories_is_damaged(tmp_path):
    """What is missing is named, and not made."""
    work = Work.create(tmp_path / "work")
    shutil.rmtree(work.path / "leases")
    (work.path / "channels" / "counts").mkdir()
    kinds = [finding.kind for finding in look(str(work.path))]
    assert kinds.count("directory missing") == 4
    assert os.listdir(work.path / "channels" / "counts") == []


@pytest.mark.parametrize(
    ("place", "said"),
    [("log:", "names no directory"), ("redis://localhost:abc/0", "not the address"), ("redis://h/x", "not a number")],
)
def test_a_wrong_address_is_explained(place, said):
    """As `restore` would explain it."""
    with pytest.raises(StoreError, match=said):
        look(place)

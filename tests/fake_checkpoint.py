"""Plays Spark's part in a checkpoint directory: logs, changelogs and snapshots of a stateful query, written by hand."""

import json
import uuid
import zipfile


class FakeCheckpoint:
    """A query with some partitions, each with some state stores (a join has several)."""

    def __init__(self, directory, partitions=2, stores=("",)):
        self.path = directory
        self.stores = [
            directory / "state" / "0" / str(partition) / store for partition in range(partitions) for store in stores
        ]
        self.per_partition = len(stores)
        self.batch_id = -1
        self.ids = {}
        for log in ("offsets", "commits"):
            (directory / log).mkdir(parents=True)
        (directory / "metadata").write_text('{"id":"x"}')
        (directory / "state" / "0" / "_metadata").mkdir(parents=True)
        (directory / "state" / "0" / "_metadata" / "metadata").write_text("v1")
        for store in self.stores:
            (store / "_metadata").mkdir(parents=True)
            (store / "_metadata" / "schema").write_text("schema")
            (store / "SSTs").mkdir()

    def plan(self, epoch):
        self.batch_id += 1
        lines = ["v1", '{"batchWatermarkMs":0}', json.dumps({"epoch": epoch})]
        (self.path / "offsets" / str(self.batch_id)).write_text("\n".join(lines))

    def commit(self, epoch, size=20):
        """Run one micro-batch: plan it, write a changelog per store, commit. Return its id."""
        self.plan(epoch)
        version = self.batch_id + 1
        self.ids[version] = [str(uuid.uuid4()) for _ in self.stores]
        for store, unique_id in zip(self.stores, self.ids[version], strict=True):
            (store / f"{version}_{unique_id}.changelog").write_bytes(f"{version} {unique_id} ".encode() * size)
        per = self.per_partition
        ids = [self.ids[version][start : start + per] for start in range(0, len(self.stores), per)]
        content = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": ids}}
        (self.path / "commits" / str(self.batch_id)).write_text("v2\n" + json.dumps(content))
        return self.batch_id

    def snapshot(self, version=None, *, missing=False):
        """Write a snapshot of a version in every store, with an SST of its own that may be missing."""
        version = version or self.batch_id + 1
        for store, unique_id in zip(self.stores, self.ids[version], strict=True):
            name = f"{version:06d}-{uuid.uuid4()}.sst"
            if not missing:
                (store / "SSTs" / name).write_bytes(b"sst of %d" % version)
            content = {"sstFiles": [{"localFileName": "1.sst", "dfsSstFileName": name, "sizeBytes": 8}]}
            with zipfile.ZipFile(store / f"{version}_{unique_id}.zip", "w") as archive:
                archive.writestr("metadata", "v1\n" + json.dumps(content))

    def clean(self, before):
        """Remove versions and log entries before a batch, as Spark's maintenance does."""
        for store in self.stores:
            for path in store.iterdir():
                if path.name[0].isdigit() and int(path.name.partition("_")[0]) < before + 1:
                    path.unlink()
        for log in ("offsets", "commits"):
            for path in (self.path / log).iterdir():
                if int(path.name) < before:
                    path.unlink()

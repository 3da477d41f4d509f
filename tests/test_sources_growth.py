"""A model of a growing directory: whatever happens, every complete record comes once, in its file's order."""

import json
import re
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from anabranch import sources
from anabranch.sources import lines
from anabranch.sources.source import Limit

NAMES = ["a", "b", "m", "z"]
fragments = st.lists(
    st.sampled_from([b"x", b"yy", b"zzzzz", b"\n", b"\n", b"\r\n", b"\r", b"\n\n"]), min_size=1, max_size=12
).map(b"".join)


def spark_lines(data):
    records = re.split(rb"\r\n|\r|\n", data)
    return records[:-1] if records[-1] == b"" else records


class GrowingDirectory(RuleBasedStateMachine):
    """The model is the content of the files; what was taken is compared with it when all is drained."""

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="anabranch-growth-"))
        self.patch = mock.patch.object(lines, "PIECE_BYTES", 7)
        self.patch.start()
        self.source = sources.read_text(self.directory)
        self.planner = self.source.planner()
        self.content = {}
        self.taken = {}
        # Content that was taken as it stood, without a newline at its end, when the source was drained.
        self.drained = {}
        self.now_s = 0.0

    @initialize(located=st.booleans())
    def start(self, located):
        self.source = self.source.located() if located else self.source

    @rule(name=st.sampled_from(NAMES), data=fragments)
    def grow(self, name, data):
        """A writer appends any bytes: half lines, several lines, a new file under any name."""
        before = self.content.get(name, b"")
        if name in self.drained and len(self.drained[name]) == len(before) and not before.endswith((b"\n", b"\r")):
            data = b"\n" + data
        with (self.directory / name).open("ab") as file:
            file.write(data)
        self.content[name] = before + data

    @rule(size_bytes=st.integers(1, 40), ways=st.integers(1, 4))
    def epoch(self, size_bytes, ways):
        """The pacer decides an epoch, and tasks read their shares of it."""
        self.now_s += 0.001
        planned = json.loads(json.dumps(self.planner.plan(self.now_s, Limit(0, size_bytes))))
        if planned:
            assert self.planner.waiting(self.now_s)
        self.planner.apply(planned)
        shares = self.source.split(planned, ways)
        assert len(shares) <= ways
        assert [piece for share in shares for piece in share["pieces"]] == planned.get("pieces", [])
        for share in shares:
            for piece in share["pieces"]:
                rows = [row for batch in self.source.read({"pieces": [piece]}) for row in batch.to_pylist()]
                self.taken.setdefault(piece["file"], []).extend(row["value"].encode() for row in rows)
                for row in rows:
                    if "offset" in row:
                        assert self.content[piece["file"]][row["offset"] :].startswith(row["value"].encode())

    @rule(size_bytes=st.integers(1, 40))
    def plan_in_vain(self, size_bytes):
        """A plan that loses the race for its epoch has no effect."""
        self.planner.plan(self.now_s, Limit(0, size_bytes))

    @rule()
    def restore(self):
        """Another pacer goes on from a snapshot."""
        self.planner = self.source.planner(json.loads(json.dumps(self.planner.snapshot())))

    @precondition(lambda self: self.content)
    @rule()
    def drain_and_go_on(self):
        """A drain takes what is there, unterminated lines too; a later run goes on."""
        self.drain()
        self.drained = dict(self.content)
        self.planner = self.source.planner(self.planner.snapshot())

    def drain(self):
        self.now_s += 1
        self.planner.close(self.now_s)
        for _ in range(10_000):
            if self.planner.ended(self.now_s):
                return
            self.epoch(30, 2)
        raise AssertionError("the drain does not end")

    def teardown(self):
        try:
            self.drain()
            assert not self.planner.waiting(self.now_s + 1)
            expected = {name: spark_lines(content) for name, content in self.content.items()}
            assert self.taken == {name: records for name, records in expected.items() if records}
        finally:
            self.patch.stop()
            shutil.rmtree(self.directory)


GrowingDirectory.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestGrowingDirectory = GrowingDirectory.TestCase

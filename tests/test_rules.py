"""The rules of docs/architecture.md that keep it exact, each taken out in turn: some test must notice.

A copy of the package with one rule missing is put in front of the real one, and the tests that guard the rule run
against it in a process of their own. They pass on the real package, as the suite shows; here they must fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from changed_package import changed_package

TESTS = Path(__file__).parent
FAILED = 1


@dataclass(frozen=True)
class Without:
    """One rule, what of the code is replaced by what, and the tests that must fail then."""

    rule: str
    path: str
    old: str
    new: str
    tests: str


RULES = [
    Without(
        "1 merging: a merged batch ends before the last published epoch",
        "strategies/strategy.py",
        "    while end + 1 < published and not late(end + 2):",
        "    while end < published and not late(end + 2):",
        "test_merging.py test_strategies.py",
    ),
    Without(
        "1 merging: epochs with late rows are not merged",
        "strategies/strategy.py",
        "    while end + 1 < published and not late(end + 2):",
        "    while end + 1 < published:",
        "test_merging.py test_strategies.py",
    ),
    Without(
        "2 parts: what an open slot may still name is not swept",
        "channel/channel.py",
        "if names is None or entry.name in names:",
        "if names is not None and entry.name in names:",
        "test_channel.py",
    ),
    Without(
        "2 parts: a loser leaves what the winner names",
        "channel/channel.py",
        "            if part.name not in kept:\n                (self.parts",
        "            if kept is not None:\n                (self.parts",
        "test_channel.py",
    ),
    Without(
        "3 floor: a claimer reads the floor after its link",
        "ledger/directory.py",
        "        if slot <= floor:\n            self._make_floor_durable()",
        "        if slot <= floor and not won:\n            self._make_floor_durable()",
        "test_ledger.py",
    ),
    Without(
        "3 floor: readers ignore what lies at or below it",
        "ledger/directory.py",
        "        if slot <= floor:\n            raise self._trimmed(slot, floor)\n        return None if content",
        "        return None if content",
        "test_ledger.py",
    ),
    Without(
        "4 safe: nothing is trimmed that a consumer needs",
        "pacing.py",
        "return min([last - retain, *safe])",
        "return last - retain",
        "test_pacing.py",
    ),
    Without(
        "4 safe: a start below the floor is refused",
        "unit.py",
        "if channel.ledger.floor() > after:",
        "if channel.ledger.floor() > after + 1_000:",
        "test_unit_runs.py",
    ),
    Without(
        "5 upstream backup: a replay brings the watermark to where it was before rows were dropped",
        "strategies/upstream_backup.py",
        "if one.late_rows and one.epoch > low]",
        "if one.late_rows < 0]",
        "test_strategies.py",
    ),
    Without(
        "5 upstream backup: what has no low epoch is refused",
        "strategies/upstream_backup.py",
        "if span.ms is None else None",
        "if span is None else None",
        "test_strategies.py",
    ),
    Without(
        "6 losing a claim: the loser compares",
        "publishing.py",
        "return (published.digest, published.rows) != (batch.share.digest, batch.share.rows)",
        "return False",
        "test_unit_runs.py",
    ),
    Without(
        "6 losing a claim: other rows end a run whose state is no longer the history",
        "releasing.py",
        "            if (published.digest, published.rows) != (manifest.digest, manifest.rows):",
        "            if published is None:",
        "test_releasing.py",
    ),
    Without(
        "7 amnesia: epochs are incomplete until the watermark has passed what was lost",
        "strategies/amnesia.py",
        "self._lost = before_ms - self._span.ms <= self._lost_before_ms",
        "self._lost = before_ms <= self._lost_before_ms - self._span.ms",
        "test_strategies.py",
    ),
    Without(
        "7 amnesia: what is incomplete makes its readers incomplete",
        "strategies/amnesia.py",
        "        if flagged:\n            self._lost = self._unsure = True",
        "        if flagged and self._lost:\n            self._unsure = True",
        "test_strategies.py",
    ),
    Without(
        "8 shipping: a version is no newer than what it reads",
        "keeper/surroundings.py",
        "return min(epochs, default=None)",
        "return max(epochs, default=None)",
        "test_protecting.py",
    ),
    Without(
        "8 shipping: what is pending goes with its parts",
        "pending.py",
        "return [*pending.files(up_to), *parts]",
        "return [*pending.files(up_to)]",
        "test_releasing.py",
    ),
    Without(
        "9 versions: state belongs to the run that published its epoch",
        "choosing.py",
        "return _producer(output, epoch) in (run.name, made_by(run, epoch))",
        "return True",
        "test_releasing.py",
    ),
    Without(
        "4 safe: a standby whose input is trimmed is not promoted",
        "replicas.py",
        "standby.unit.failure() is not None or _overtaken(standby)",
        "standby.unit.failure() is not None",
        "test_replicas.py",
    ),
    Without(
        "9 versions: what is published and shipped is not executed again from an older state",
        "choosing.py",
        "    least = floor if wanted.output is None else max(floor, wanted.output.last_epoch())",
        "    least = floor",
        "test_choosing.py",
    ),
    Without(
        "9 versions: a state that is not whole is not gone on from",
        "choosing.py",
        "    whole = since is not None and epoch >= since\n",
        "    whole = True\n",
        "test_choosing.py",
    ),
    Without(
        "9 versions: files of an earlier start of the system stay such when they are linked",
        "runs.py",
        "    if before.boot is not None:",
        "    if before.boot is None and before.boot:",
        "test_trusted_runs.py",
    ),
    Without(
        "9 versions: batches that were planned and not committed are left behind",
        "checkpoint.py",
        "return not digits.isdigit() or int(digits) > batch_id",
        "return not digits.isdigit()",
        "test_checkpoint.py",
    ),
    Without(
        "9 versions: a snapshot counts only with all its files",
        "keeper/contents.py",
        "names = self._snapshot_files(store, snapshot.name)",
        "names = self._snapshot_files(store, snapshot.name) or []",
        "test_keeper_versions.py",
    ),
    Without(
        "10 runs: no directory is opened by two runs",
        "runs.py",
        "    if path.exists():\n        raise FileExistsError",
        "    if path.is_file():\n        raise FileExistsError",
        "test_unit_runs.py",
    ),
    Without(
        "10 runs: a directory that is in use is refused",
        "presence.py",
        '        raise InUse(\n            f"{work.path} is in use',
        '        continue\n        raise InUse(\n            f"{work.path} is in use',
        "test_agent.py",
    ),
    Without(
        "11 pacing: a partly claimed epoch is completed first",
        "pacer.py",
        "if self.last_epoch >= 0 and not self._claim(self.last_epoch, empty=False):",
        "if self.last_epoch < -1:",
        "test_pacer.py",
    ),
    Without(
        "11 pacing: an epoch that was decided elsewhere is claimed whole or not at all",
        "pacer.py",
        "        if self._elsewhere and not all(plans.values()):\n            return False\n",
        "",
        "test_replicas_paced.py",
    ),
    Without(
        "8 keeping: what a run began with is not kept before it has come to anything itself",
        "keeper/calibration.py",
        "if epochs <= 0 or (inherited and not trigger.inherited):",
        "if epochs <= 0:",
        "test_keeper_versions.py",
    ),
    Without(
        "8 keeping: what a run began with does not take the place of what the run before kept",
        "keeping.py",
        "return settled and version.run == version.made_by",
        "return settled",
        "test_keepers_losses.py",
    ),
    Without(
        "8 keeping: what the run kept that came to a state is restored before what others linked and kept",
        "keeper/version.py",
        "return epoch, run == made_by, run",
        "return epoch, True, run",
        "test_keeper_versions.py",
    ),
    Without(
        "12 poison: the same error on two runs is not tried a third time",
        "failures.py",
        '    if _repeated(history, failure):\n        return "fail"\n',
        "",
        "test_failures.py",
    ),
    Without(
        "13 patience: the time doubles with each generation that published nothing",
        "detector.py",
        " * 2**self._barren",
        "",
        "test_detector.py",
    ),
    Without(
        "13 patience: it outlives the nodes that take over",
        "leading.py",
        "        self.held[role] = mine\n        self._host.begin",
        "        self.held[role] = mine\n        self._progress.pop(role, None)\n        self._host.begin",
        "test_leading.py",
    ),
    Without(
        "13 patience: a new generation is given time to restore",
        "detector.py",
        "if begun else self._limits.grace_s",
        "if True else 0.0",
        "test_detector.py",
    ),
    Without(
        "14 sinks: rows are flushed before they get their name",
        "sinks/directory.py",
        "            _flush(temporary)\n",
        "",
        "test_sinks.py",
    ),
    Without(
        "15 files: what was planned is what is read",
        "sources/parquet.py",
        'if _checksum(memoryview(content), file.metadata, piece["start"], piece["end"]) != piece["crc"]:',
        "if piece is None:",
        "test_sources_parquet.py",
    ),
    Without(
        "16 code and settings: a change under existing state is refused",
        "work.py",
        "        if changes:\n            raise IdentityChanged(",
        "        if changes is None:\n            raise IdentityChanged(",
        "test_work.py",
    ),
]


@pytest.mark.parametrize("without", RULES, ids=[without.rule for without in RULES])
def test_a_missing_rule_is_noticed(tmp_path, without):
    """Every rule has a test that fails when the rule is taken out."""
    copy = changed_package(tmp_path, without.path, without.old, without.new)
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(TESTS / name) for name in without.tests.split())],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == FAILED, ended.stdout[-3000:] + ended.stderr[-3000:]

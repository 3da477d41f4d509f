"""Seeded histories of faults: every promise is kept in all of them, and broken in some of each broken variant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from anabranch.simulator.history import run
from changed_package import PACKAGE, changed_package

HISTORIES = int(os.environ.get("ANABRANCH_HISTORIES", "2000"))
# Seeds of histories that once broke a promise, or the simulator. A seed means another history when more or fewer things
# are left to chance than before; what the older ones found has tests or broken variants of its own.
_EARLIER = (6, 12, 22, 35, 57, 64, 81, 343, 463, 934, 942, 1056, 1350, 6996, 10297, 10528, 10734, 11185, 11204)
_LATER = (102028, 102229, 102965, 105827, 203231, 306415, 337365, 344629, 387575, 423097)
_DAMAGED = (374, 2382, 3120, 3720, 6539, 525070)
ONCE_BROKEN = (*_EARLIER, *_LATER, *_DAMAGED)
BROKEN, KEPT = 3, 0
MOST_HISTORIES = 3000


@dataclass(frozen=True)
class Broken:
    """One rule, what of the code is replaced by what, and a seed that caught it."""

    rule: str
    path: str
    old: str
    new: str
    seed: int = 0


VARIANTS = [
    Broken(
        "1 merging: a merged batch may hold the last published epoch",
        "strategies/strategy.py",
        "    while end + 1 < published and not late(end + 2):",
        "    while end < published and not (end + 2 <= published and late(end + 2)):",
    ),
    Broken(
        "1 merging: what must not be merged is",
        "replicas.py",
        "mergeable=built.unmergeable is None,",
        "mergeable=True,",
    ),
    Broken(
        "4 safe: channels are trimmed to the newest epoch",
        "pacing.py",
        "return min([last - retain, *safe])",
        "return last - retain",
    ),
    Broken(
        "4 safe: what is committed counts as safe, though no store has it",
        "upkeep.py",
        "unit.declare_safe(self._kept.kept_epoch(name))",
        "unit.declare_safe(None)",
    ),
    Broken(
        "5 upstream backup: inputs are kept from one epoch too late",
        "upkeep.py",
        "unit.declare_safe(low - 1)",
        "unit.declare_safe(low)",
    ),
    Broken(
        "5 upstream backup: a replay begins one epoch too late",
        "strategies/upstream_backup.py",
        "        low = self.replay_from(view)\n",
        "        low = self.replay_from(view) + 1\n",
    ),
    Broken(
        "5 upstream backup: the state is taken to reach back half as far",
        "strategies/upstream_backup.py",
        "oldest_ms = before.watermark_ms - span.ms",
        "oldest_ms = before.watermark_ms + span.ms",
    ),
    Broken(
        "6 losing a claim: a run goes on though other rows were published",
        "releasing.py",
        "            if (published.digest, published.rows) != (manifest.digest, manifest.rows):",
        "            if published is None:",
    ),
    Broken(
        "7 amnesia: nothing is marked incomplete",
        "publishing.py",
        "            incomplete=batch.incomplete,",
        "            incomplete=False,",
    ),
    Broken(
        "7 amnesia: what reads an incomplete epoch is not incomplete",
        "strategies/amnesia.py",
        "        if flagged:\n            self._lost = self._unsure = True",
        "        if flagged and self._lost:\n            self._unsure = True",
    ),
    Broken(
        "7 amnesia: epochs count as complete too early",
        "strategies/amnesia.py",
        "self._lost = before_ms - self._span.ms <= self._lost_before_ms",
        "self._lost = before_ms <= self._lost_before_ms - self._span.ms",
    ),
    Broken(
        "7 amnesia: what is given up is not published as a gap",
        "replicas.py",
        "        if how.gaps is not None:\n            self._give_up(name, generation, how.gaps)\n",
        "",
    ),
    Broken(
        "8 shipping: an epoch is published before its checkpoint is stored",
        "releasing.py",
        '        if self._policy == "shipped":\n            self.pending.add(manifest)\n            return None\n',
        "",
    ),
    Broken(
        "8 shipping: producers of shipped units ship when they please",
        "segments.py",
        "        found.update(before)\n",
        "        found.update(before[:0])\n",
    ),
    Broken(
        "9 versions: a state is gone on from though other rows were published of what it has pending",
        "choosing.py",
        "    if any(not _agrees(output, manifest) for manifest in pending if manifest.epoch <= published):\n"
        "        return False\n",
        "",
    ),
    Broken(
        "11 pacing: positions are noted one epoch ahead",
        "pacer.py",
        "paced.channel.note_position(self._applied[name],",
        "paced.channel.note_position(self._applied[name] + 1,",
    ),
    Broken(
        "11 pacing: a range that another pacer decided is not followed",
        "pacer.py",
        "self._planners[name].apply(decided.planned or {})\n                self._applied[name] = epoch\n"
        "            any_",
        "self._applied[name] = epoch\n            any_",
    ),
    Broken(
        "replay: a gate opens one epoch further than it was told",
        "channel/inputs.py",
        "        if self.at_once > begun:\n            return self.at_once\n",
        "        if self.at_once > begun:\n            return self.at_once + 1\n",
    ),
    Broken(
        "replay: a primary does not pass over what it was told to",
        "channel/inputs.py",
        "begun = max(epoch, self.after)",
        "begun = epoch",
    ),
    Broken(
        "racing: a replica that was overtaken counts as one that failed",
        "failures.py",
        "    if failure.epoch <= floor:\n",
        "    if failure.epoch < 0:\n",
        423097,
    ),
    Broken(
        "keeping: a version that was brought back in vain is brought back again",
        "choosing.py",
        "if run.version and run.doubted == run.version[1]]",
        "if run.version and run.doubted == -2]",
        525070,
    ),
    Broken(
        "shipping: files of an earlier start of the system are published from before anyone has read them",
        "choosing.py",
        "newest(runs(), replace(wanted, settled=True), sure=True)",
        "newest(runs(), wanted, sure=True)",
    ),
    Broken(
        "detection: the dead are never suspected",
        "roles.py",
        "    return view.suspicion\n",
        "    return None\n",
    ),
]


def simulated(package: Path, first: int, last: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Run histories against a copy of the package."""
    return subprocess.run(
        [sys.executable, "-m", "anabranch.simulator", str(first), str(last), *options],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_seed_is_a_history():
    """The same seed gives the same history, to the last event; another one another."""
    assert run(1) == run(1)
    assert run(1).history != run(2).history


@pytest.mark.timeout(1800)
def test_every_promise_is_kept():
    """In thousands of histories of faults, and in those that once broke one."""
    for seed in ONCE_BROKEN:
        assert run(seed).held, run(seed)
    ended = simulated(PACKAGE, 0, HISTORIES, "--jobs", str(os.cpu_count() or 1))
    print(ended.stdout[-2000:])  # noqa: T201  the seeds, and histories per second
    assert ended.returncode == KEPT, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert json.loads(ended.stdout.splitlines()[-1])["histories"] == HISTORIES


@pytest.mark.timeout(900)
@pytest.mark.parametrize("broken", VARIANTS, ids=[broken.rule for broken in VARIANTS])
def test_a_broken_variant_is_caught(tmp_path, broken):
    """Some history breaks a promise when a rule is taken out: the checks can fail."""
    copy = changed_package(tmp_path, broken.path, broken.old, broken.new)
    ended = simulated(
        copy, broken.seed, broken.seed + MOST_HISTORIES, "--until-broken", "--jobs", str(os.cpu_count() or 1)
    )
    assert ended.returncode == BROKEN, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert json.loads(ended.stdout.splitlines()[0])["violations"], "a promise is named that was broken"

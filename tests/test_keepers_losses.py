"""Keepers whose store is taken away under them, and those that meet what others have kept."""

import shutil

import pytest

from anabranch.keeper.restoring import find_versions
from anabranch.keeper.version import run_path
from anabranch.pending import note_origin
from anabranch.runs import make_run
from anabranch.testing.wait import wait_until
from fake_checkpoint import FakeCheckpoint
from test_keepers import NOTHING_AROUND, TIMEOUT_S, Home, KeptRun


@pytest.fixture
def url(tmp_path):
    return f"log:{tmp_path / 'store'}"


@pytest.mark.parametrize("kind", ["log", "files"])
def test_a_store_that_was_removed_under_a_keeper_is_given_everything_anew(tmp_path, kind):
    """What is written to files that nobody can find any more is not kept."""
    url = f"{kind}:{tmp_path / 'store'}"
    home = Home(tmp_path / "home", url, "1" * 32)
    run = "r000000.00000001"
    checkpoint = FakeCheckpoint(home.path / run_path("counts", run) / "checkpoint")
    home.keepers.begin(KeptRun("counts", run), (), home.around)
    checkpoint.commit(0)
    wait_until(lambda: home.keepers.kept_epoch("counts") == 0, TIMEOUT_S, "the first version")
    shutil.rmtree(tmp_path / "store")
    checkpoint.commit(1)
    wait_until(lambda: home.keepers.kept_epoch("counts") == -1, TIMEOUT_S, "the loss to be noticed")
    checkpoint.commit(2)
    wait_until(lambda: home.keepers.kept_epoch("counts") == 2, TIMEOUT_S, "everything anew")
    assert home.keepers.restore("counts", tmp_path / "restored").epoch == 2
    home.keepers.finish(in_order=True)


def test_what_is_still_written_is_not_dropped(tmp_path, url):
    """A standby that took over may be older than the run that led before, whose keeper has not noticed yet."""
    leads, led = Home(tmp_path / "home", url, "1" * 32), Home(tmp_path / "home", url, "1" * 32)
    older = "r000000.00000001"
    checkpoint = FakeCheckpoint(leads.path / run_path("counts", older) / "checkpoint")
    leads.keepers.begin(KeptRun("counts", older), (), leads.around)
    checkpoint.commit(0)
    wait_until(lambda: leads.keepers.kept_epoch("counts") == 0, TIMEOUT_S, "its version")
    led.run("r000002.00000002", 2)
    checkpoint.commit(1)
    wait_until(lambda: leads.keepers.kept_epoch("counts") == 1, TIMEOUT_S, "its next version")
    leads.keepers.finish(in_order=True)
    assert leads.keepers.restore("counts", tmp_path / "restored").epoch == 1


def test_what_a_run_began_with_takes_nobodys_place(tmp_path, url):
    """It is linked from files that may be damaged since they were kept: the version of the run before comes first."""
    home = Home(tmp_path / "home", url, "a" * 32)
    home.run("r000000.00000001", 1)
    run = "r000001.00000002"
    note_origin(make_run(home.path / "units" / "counts", run, "node-1"), "r000000.00000001", 0)
    FakeCheckpoint(home.path / run_path("counts", run) / "checkpoint").commit(0)
    home.keepers.begin(KeptRun("counts", run), (), NOTHING_AROUND)
    home.keepers.finish(in_order=True)
    found = [(some.version.run, some.version.made_by) for some in find_versions([url])["counts"]]
    assert found == [("r000000.00000001", "r000000.00000001"), (run, "r000000.00000001")]

"""`anabranch prepare` makes an archive of classes, and Spark's JVM maps it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.preparation.making import Background
from anabranch.processes import of_session
from anabranch.testing.wait import wait_until

pytestmark = pytest.mark.spark
ANNOUNCED = "nodes/node-1.json"
PREPARE = [sys.executable, "-m", "anabranch.cli.main", "prepare", "--json"]
MAPS = """
from pathlib import Path
from anabranch.session import SessionOptions, build_session
spark = build_session(SessionOptions("maps", "local[1]", "UTC", 2, {}, Path.cwd()))
pid = spark._jvm.java.lang.ProcessHandle.current().pid()
print(Path(f"/proc/{pid}/maps").read_text())
"""


def said(command, **environment):
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=280
    )
    return done.stdout


def test_an_archive_is_made_once_and_mapped_by_spark(tmp_path):
    """The second call finds it; a session of a node has it mapped unless that is switched off."""
    place = str(tmp_path / "cache")
    first = json.loads(said(PREPARE, ANABRANCH_ARCHIVE=place))
    again = json.loads(said(PREPARE, ANABRANCH_ARCHIVE=place))
    assert (first["ready"], first["made"]) == (True, True)
    assert (again["ready"], again["made"]) == (True, False)
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} == {".jsa", ".lock"}  # nothing is left over
    assert first["archive"] in said([sys.executable, "-c", MAPS], ANABRANCH_ARCHIVE=place)
    assert first["archive"] not in said([sys.executable, "-c", MAPS], ANABRANCH_ARCHIVE="off")


def test_an_archive_that_cannot_be_made_is_not_tried_again_and_again(tmp_path, monkeypatch):
    """Java writes none if a directory on Spark's class path holds files; everything works without."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("")
    place = tmp_path / "cache"
    monkeypatch.setenv("ANABRANCH_ARCHIVE", str(place))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    made = subprocess.run(
        [sys.executable, "-m", "anabranch.preparation.making"], capture_output=True, text=True, check=False, timeout=280
    )
    assert made.returncode == 1
    assert "Java wrote no archive" in made.stderr
    with Background(wanted=True) as background:
        assert not background.start()


def test_making_that_is_told_to_end_leaves_nothing(tmp_path):
    """No half archive, no directory, no process."""
    place = tmp_path / "cache"
    maker = subprocess.Popen(
        [sys.executable, "-m", "anabranch.preparation.making"],
        env={**os.environ, "ANABRANCH_ARCHIVE": str(place)},
        start_new_session=True,
    )
    try:
        wait_until(lambda: any(place.glob(f".making-*/work/{ANNOUNCED}")), 60.0, "the node of the sample")
        (node,) = [json.loads(path.read_text())["pid"] for path in place.glob(f".making-*/work/{ANNOUNCED}")]
    finally:
        maker.send_signal(signal.SIGTERM)
        maker.wait()
    assert [path.suffix for path in place.iterdir()] == [".lock"]
    assert not list(of_session(node))
    assert not Path(f"/proc/{node}").exists()

"""Killing a session ends everything in it, also what is forked while it is being killed."""

import subprocess
import sys
from pathlib import Path

from anabranch.processes import give_way, gives_way, kill_session, of_session
from anabranch.testing.wait import wait_until

# A parent that goes on forking: whoever reads a list of its children has an old one.
FORKING = """
import os, signal
print("running", flush=True)
for _ in range(3000):
    if os.fork() == 0:
        signal.pause()
"""


def test_nobody_outlives_the_session():
    """Children that were forked while others were being killed are as dead as these."""
    with subprocess.Popen([sys.executable, "-c", FORKING], start_new_session=True, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"running\n"
        assert kill_session(parent.pid)
        parent.wait()
        assert not list(of_session(parent.pid))


def test_a_session_that_is_gone():
    """Killing what is not there says so."""
    gone = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    gone.wait()
    assert not kill_session(gone.pid)


def test_a_session_gives_way_and_takes_it_back():
    """Where Linux shares the CPU between sessions; elsewhere, and for one that is gone, nothing happens."""
    with subprocess.Popen([sys.executable, "-c", "input()"], start_new_session=True, stdin=subprocess.PIPE) as sleeper:
        place = Path(f"/proc/{sleeper.pid}/autogroup")

        def shows(niceness):
            # Linux refuses a change that follows too soon on another.
            give_way(sleeper.pid, niceness)
            return not place.exists() or place.read_text().endswith(f"nice {niceness}\n")

        for niceness in (15, 0):
            wait_until(lambda niceness=niceness: shows(niceness), 10.0, f"niceness {niceness}")
            assert gives_way(sleeper.pid) == (niceness > 0 and place.exists())
        sleeper.stdin.close()
    give_way(sleeper.pid, 3)
    assert not gives_way(sleeper.pid)

"""Killing a session ends everything in it, also what is forked while it is being killed."""

import subprocess
import sys

from anabranch.processes import kill_session, of_session

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

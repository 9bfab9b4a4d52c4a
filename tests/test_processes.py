"""Processes that work for another one end with it."""

import os
import signal
import subprocess
import sys
import time

import pytest

WORKER = """
import sys, time
from mpdeploy.processes import end_with_parent
end_with_parent(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(300)
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def is_there(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_a_worker_ends_with_its_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT, WORKER], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    assert is_there(worker)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 30
    while is_there(worker) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_there(worker)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_a_worker_whose_parent_is_gone_already_ends_at_once():
    done = subprocess.run([sys.executable, "-c", WORKER, "1"], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"")

"""Processes that are forked are as those that are started."""

from __future__ import annotations

import signal

import pytest

from scripts import begin, begin_anew, finished

pytestmark = pytest.mark.slow

TELL = """
import os, sys
print(os.environ["WORD"], sys.argv, sys.path[0], __name__, os.getcwd())
sys.stderr.write("wrong")
sys.exit(3)
"""


def test_words_environment_output_and_status():
    """Told as by a process that has imported nothing before."""
    told = []
    for process in (
        begin("-c", TELL, "a", "b", WORD="here"),
        begin_anew("-c", TELL, "a", "b", WORD="here"),
    ):
        told.append((*process.communicate(), process.returncode, process.poll()))
    assert told[0] == told[1]
    assert told[0][1:] == ("wrong", 3, 3)
    assert told[0][0].startswith("here ['-c', 'a', 'b']")


def test_one_that_is_killed():
    process = begin("-c", "import time; time.sleep(600)")
    assert process.poll() is None
    process.kill()
    assert process.returncode == -signal.SIGKILL


def test_one_that_does_not_end():
    """It says where it was, and where the process was that it has forked."""
    text = "import os, time\nif os.fork():\n    os.wait()\nelse:\n    time.sleep(600)"
    with pytest.raises(AssertionError, match=r"(?s)timed out.*Aborted.*Aborted"):
        finished(begin("-c", text), patience_s=2.0)


def test_elman_is_imported_anew():
    """Nothing of it is there before."""
    text = "import sys; print([name for name in sys.modules if name.partition('.')[0] == 'elman'])"
    assert finished(begin("-c", text)) == "[]\n"

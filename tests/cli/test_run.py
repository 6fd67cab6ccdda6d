"""`elman run`: programs in processes of their own, as python runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import environment

PROGRAM = """
import sys, pickle
import importlib.util
assert "torch" not in sys.modules
assert importlib.util.find_spec("torch").loader  # as packages ask whether there is one
import torch
from torch.nn import GRU


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.cell = GRU(3, 4), torch.nn.LSTMCell(3, 4)


if __name__ == "__main__":
    net = pickle.loads(pickle.dumps(Net()))
    print(type(net.rnn), net.rnn(torch.randn(5, 2, 3))[0].shape)
    print(sys.argv, sys.path[0], __file__, __package__, sys.modules["__main__"].Net is Net)
"""
TOLD = """\
elman: on elman: 1 torch.nn.GRU, engine auto: reference
elman: left alone: torch.nn.LSTMCell: elman.LSTM takes all steps at once
elman: functions replaced: none
"""


def python(folder: Path, *words: str, status: int = 0) -> tuple[str, str]:
    """Run Python in a folder: what it wrote to both streams."""
    env = environment() | {"ELMAN_ENGINE": "reference"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("program.py", "--out", "x"), ("-m", "program", "-m", "y"), ("-m", "package")]
)
def test_a_program(folder, words):
    """It sees what it sees of python; three lines tell what ran."""
    want, _ = python(folder, *words)
    said, told = python(folder, "-m", "elman_command", "run", *words)
    assert said == want
    assert told == TOLD


FAILURES = {
    "raise": ("def f():\n    1 / 0\n\nf()\n", 1),
    "syntax": ("f(\n", 1),
    "exit": ("import sys\nsys.exit(3)\n", 3),
    "text": ("raise SystemExit('no')\n", 1),
    "chained": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError from e\n",
        1,
    ),
    "hook": ("import sys\nsys.excepthook = lambda *told: print(told[1])\n1 / 0\n", 1),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures(tmp_path, name):
    """Exit status, text and traceback are python's."""
    text, status = FAILURES[name]
    (tmp_path / "program.py").write_text(text)
    want = python(tmp_path, "program.py", status=status)
    said, told = python(tmp_path, "-m", "elman_command", "run", "program.py", status=status)
    last = "elman: the program did not import torch\n"
    assert (said, told.removesuffix(last)) == want


def test_what_cannot_be_run(tmp_path):
    """A plain line; no trace."""
    for words, status, line in (
        (("nothing.py",), 2, "elman run: can't open the program: [Errno 2]"),
        (("-m", "nothing"), 1, "elman run: no module to run is named nothing"),
    ):
        said, told = python(tmp_path, "-m", "elman_command", "run", *words, status=status)
        assert not said
        assert told.startswith(line)
        assert told.count("\n") == 1
    _, told = python(tmp_path, "-m", "elman_command", "run", status=2)
    assert "name a program" in told


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_interrupt_and_forks(tmp_path):
    """Ctrl-C is Python's; a process that forks tells once."""
    (tmp_path / "program.py").write_text(
        "import os, sys\nif os.fork() == 0:\n    sys.exit()\nos.wait()\nos.kill(os.getpid(), 2)\n"
    )
    _, told = python(
        tmp_path, "-m", "elman_command", "run", "program.py", status=128 + signal.SIGINT
    )
    assert told.count("elman: ") == 1
    assert "KeyboardInterrupt" in told
    assert os.path.basename("elman_command") not in told

"""The command line finds its commands, helps, and tells errors as text."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from elman.cli import app
from elman.cli.train import EXAMPLES_OF_TASKS
from elman.train.loop.loop import defer_signals
from elman.version import __version__
from scripts import PATIENCE_S


def test_every_file_is_a_command():
    """Each file has the function of its name and a line of help."""
    for name, line in app.commands().items():
        assert line.endswith("."), name
        assert callable(app.load(name)), name


def test_help_names_all_commands(elman):
    """`elman --help` names each, `elman` alone helps too."""
    code, out, _ = elman("--help")
    assert code == 0
    for name in app.commands():
        assert name in out


def test_the_version(elman):
    """`elman --version` is that of the package."""
    assert elman("--version") == (0, f"elman {__version__}\n", "")


@pytest.mark.parametrize("name", app.commands())
def test_help_of_each_command(elman, name):
    """`elman NAME --help` shows its options, and command lines to copy, whose options it has."""
    code, out, _ = elman(name, "--help")
    assert code == 0
    assert name in out
    shown = " ".join(out.split())
    for line in importlib.import_module(f"elman.cli.{name}").EXAMPLES:
        assert line.startswith(f"elman {name}")
        assert " ".join(line.split()) in shown


@pytest.mark.parametrize(
    "words", [(name,) for name in app.commands()] + [("train", task) for task in EXAMPLES_OF_TASKS]
)
def test_help_fits_a_terminal(elman, monkeypatch, words):
    """At 80 columns no type is broken into lines, and options stand in panels by topic."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = elman(*words, "--help")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.count("<") != line.replace("[x>=", "").count(">")]
    titles = [line.split()[1] for line in lines if line.startswith("╭")]
    options = [line for line in lines if line.startswith("│ --")]
    assert len(options) < 6 or len(titles) > 2, titles
    examples = out.partition("Examples:")[2]
    assert examples
    of_tasks = rf"train (?:{'|'.join(EXAMPLES_OF_TASKS)}) .*" if words == ("train",) else "$^"
    used = re.findall(r" (--[a-z-]+)", re.sub(of_tasks, "", examples))
    assert {*used} <= {*re.findall(r"│ (--[a-z-]+)", out)}


def test_unknown_command_and_option(elman):
    """A wrong call exits with 2."""
    assert elman("fly")[0] == 2
    assert elman("runs", "--fly")[0] == 2


def test_errors_are_text(elman, tmp_path):
    """What elman raises is printed, without a traceback, and exits with 1."""
    code, out, err = elman("resume", str(tmp_path))
    assert code == 1
    assert "this is not a run folder" in err
    assert "Traceback" not in err + out


def test_missing_package_is_text(elman, monkeypatch):
    """A package that only this command needs is named."""
    missing = ModuleNotFoundError("No module named 'lightning_fabric'", name="lightning_fabric")

    def fail(name):
        raise missing

    monkeypatch.setattr(app, "load", fail)
    line = 'error: elman train needs the package lightning-fabric: pip install "elman[train]"\n'
    assert elman("train") == (1, "", line)
    missing.name = "sklearn"
    code, _, err = elman("train")
    assert code == 1
    assert "sklearn" in err


@pytest.mark.parametrize("allocate", [torch.empty, bytearray])
def test_too_little_memory_is_text(elman, monkeypatch, allocate):
    """What torch and Python say of it; other errors are bugs, and keep their traceback."""
    monkeypatch.setattr(app, "load", lambda name: lambda: allocate(1 << 60))
    code, _, err = elman("doctor")
    assert code == 1
    assert err.startswith("error: there is not enough memory\n")
    assert "hint  fewer samples" in err
    assert ("  said  " in err) == (allocate is torch.empty)
    monkeypatch.setattr(app, "load", lambda name: lambda: torch.empty(-1))
    with pytest.raises(RuntimeError, match="negative"):
        elman("doctor")


@pytest.mark.parametrize(
    "package", ["numpy", "torch", pytest.param("lightning_fabric", marks=pytest.mark.long)]
)
def test_interrupted_while_it_imports(package, tmp_path):
    """Ctrl-C within the first seconds: one line, not a traceback of imports."""
    mark = tmp_path / "imported"
    (tmp_path / f"{package}.py").write_text(
        f"import pathlib, time\npathlib.Path({str(mark)!r}).touch()\n"
        "try:\n    time.sleep(60)\nexcept BaseException:\n    pass  # as some imports do\n"
    )
    path = os.pathsep.join([str(tmp_path), str(app.ROOM.parents[1])])
    process = subprocess.Popen(
        [sys.executable, "-c", "from elman_command import main; main()", "train"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )
    while not mark.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, *said) == (130, "", "interrupted\n")


SIGNALS = {"interrupted": signal.SIGINT, "terminated": signal.SIGTERM}


@pytest.mark.parametrize("line", SIGNALS)
def test_interrupted_in_a_command(elman, monkeypatch, line):
    """What is under way is put away, one line tells it, and handlers are as they were."""
    number, done = SIGNALS[line], []

    def command() -> None:
        try:
            signal.raise_signal(number)
        finally:
            done.append("put away")

    before = signal.getsignal(number)
    monkeypatch.setattr(app, "load", lambda name: command)
    assert elman("doctor") == (128 + number, "", f"{line}\n")
    assert done == ["put away"]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("line", SIGNALS)
def test_asked_to_stop_twice(elman, monkeypatch, line):
    """The first is a wish; the second ends the command in one line, too."""
    number = SIGNALS[line]

    def command() -> None:
        with defer_signals() as wish:
            signal.raise_signal(number)
            assert wish
            signal.raise_signal(number)

    monkeypatch.setattr(app, "load", lambda name: command)
    assert elman("doctor") == (128 + number, "", f"{line}\n")


IMPORTS = """
import gc, os, signal, sys
sys.argv = ["/usr/bin/elman", "train"]
collected, environment = [], dict(os.environ)
gc.callbacks.append(lambda phase, info: collected.append(phase))
enabled = gc.isenabled()
import elman
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
changed = {name for name in environment.keys() ^ os.environ.keys()}
assert not [name for name in changed if name.startswith(("TORCH", "ELMAN"))], changed
assert gc.isenabled() is enabled and collected

import torch
x = torch.randn(9, 3, 5, requires_grad=True)
elman.GRU(5, 13)(x)[0].sum().backward()
assert x.grad is not None
print([name for name in ("sympy", "torch._dynamo", "triton", "rich") if name in sys.modules])

import elman.cli.app as app
app.build_app("")
print([name for name in ("rich", "lightning_fabric", "matplotlib") if name in sys.modules])
"""


def test_what_is_imported(empty_cache):
    """`import elman` leaves signals, environment and garbage collector alone, also if the program
    is called elman; a first step imports neither computer algebra nor a compiler of torch's, which
    take longer than the step; the command line nothing that only some of its commands need."""
    ran = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    assert ran.stdout == "[]\n['rich']\n", ran.stdout + ran.stderr

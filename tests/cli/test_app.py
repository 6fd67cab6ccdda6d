"""The command line finds its commands, helps, and tells errors as text."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elman.cli import app


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


@pytest.mark.parametrize("name", app.commands())
def test_help_of_each_command(elman, name):
    """`elman NAME --help` shows its options."""
    code, out, _ = elman(name, "--help")
    assert code == 0
    assert name in out


def test_unknown_command_and_option(elman):
    """A wrong call exits with 2."""
    assert elman("fly")[0] == 2
    assert elman("runs", "--fly")[0] == 2


def test_errors_are_text(elman, tmp_path):
    """What elman raises is printed, without a traceback, and exits with 1."""
    code, out, err = elman("train", "--resume", str(tmp_path))
    assert code == 1
    assert "this is no run folder" in err
    assert "Traceback" not in err + out


def test_missing_package_is_text(elman, monkeypatch):
    """A package that only this command needs is named."""
    missing = ModuleNotFoundError("No module named 'lightning_fabric'", name="lightning_fabric")

    def fail(name):
        raise missing

    monkeypatch.setattr(app, "load", fail)
    code, _, err = elman("train")
    assert code == 1
    assert "lightning_fabric" in err


def test_help_imports_no_torch():
    """Help comes at once: nothing heavy is imported by the command line itself."""
    program = "import sys, elman.cli.app as app; app.build_app(''); print('rich' in sys.modules)"
    program += (
        "; print([name for name in ('lightning_fabric', 'matplotlib') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.split("\n")[:2] == ["True", "[]"], ran.stderr

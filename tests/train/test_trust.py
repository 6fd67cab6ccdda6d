"""Whose code a run folder has run: nobody's but the user's own, unless the call says so."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import sys

import pytest
from rich.console import Console

import elman
from elman import cell_files
from elman.cell_files import find_cell
from elman.cli import main
from elman.errors import InputError, RunError
from elman.train.distributed import launch as launching
from elman.train.loop.task import Trained
from elman.train.run import run as running
from run_folders import changed

CELL = """
from pathlib import Path
from elman import cell, ops
Path(__file__).with_suffix(".ran").touch()
@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def mine(x, h, W, R):
    return ops.tanh(W @ x + R @ h)
"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, small_config):
    """The folder of a run that this user stopped behind its first step; the file of its cell."""
    root = tmp_path_factory.mktemp("trust")
    file = root / "cells" / "mine.py"
    file.parent.mkdir()
    file.write_text(CELL)
    config = dataclasses.replace(
        small_config, steps=2, engine="reference", validate_every=2, cell=f"{file}:mine"
    )
    console = Console(file=io.StringIO())
    folder = running.start(config, root / "runs", console, comparing=False).folder.path
    (folder / "result.json").unlink()
    return folder, file


@pytest.fixture
def file(stopped):
    """The file of a cell, which leaves a mark when it is run; alone in its folder."""
    _, path = stopped
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    path.write_text(CELL)
    return path


@pytest.fixture
def mark(file):
    """Where the mark is."""
    return file.with_suffix(".ran")


@pytest.fixture
def begun(stopped, file, tmp_path):
    """A copy of that folder, and the file as it was."""
    cell_files._module_of.cache_clear()  # as a new process
    return shutil.copytree(stopped[0], tmp_path / "begun")


@pytest.fixture
def sent(begun, file, tmp_path):
    """The same as somebody else has sent it, with a file of its own."""
    folder = shutil.copytree(begun, tmp_path / "sent")
    shutil.move(file, folder / "mine.py")
    changed(folder / "config.json", "cell", f"{folder / 'mine.py'}:mine")
    return folder


def test_a_run_that_was_sent_runs_nothing(sent, resume):
    """By no way that opens it; the message says what to write."""
    for way in (elman.load, resume):
        with pytest.raises(RunError, match=r"not run unasked(.|\n)*no record(.|\n)*trust=True"):
            way(sent)
    assert not (sent / "mine.ran").exists()
    assert isinstance(elman.load(sent, trust=True), Trained)
    assert (sent / "mine.ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["sample"],
        ["resume"],
        ["export", "--c=out"],
        ["runs"],
        ["runs", "--report"],
    ],
    ids=" ".join,
)
def test_commands_run_nothing_of_it(sent, words, capsys, tmp_path, monkeypatch):
    """One of the commands asks for --trust, or needs no code."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main((*words, str(sent)))
    said = capsys.readouterr().err
    assert not (sent / "mine.ran").exists()
    if words[0] == "runs":
        assert not left.value.code
    else:
        assert left.value.code == 1
        assert "--cell FILE.py:mine, or --trust" in said
    if words[0] in ("sample", "export"):
        with pytest.raises(SystemExit) as left:
            main((*words, str(sent), "--trust"))
        assert not left.value.code
        assert (sent / "mine.ran").exists()


def test_a_run_of_ones_own_needs_no_word(begun, mark, resume, tmp_path):
    """Wherever its folder is by now."""
    moved = shutil.move(begun, tmp_path / "first")
    assert isinstance(elman.load(moved), Trained)
    assert mark.exists()
    assert resume(moved).complete


@pytest.mark.parametrize(
    "harm, found",
    [
        (lambda folder, file: file.write_text(f"{CELL}# more\n"), "the file has changed"),
        (lambda folder, file: file.unlink(), "the file cannot be read"),
        (lambda folder, file: changed(folder / "config.json", "seed", 7), "no record"),
        (lambda folder, file: changed(folder / "model.json", "formula", ""), "no record"),
    ],
)
def test_what_has_changed_since_is_not_run(begun, file, mark, harm, found):
    """The cell's file, or what the folder says of the run."""
    harm(begun, file)
    with pytest.raises(RunError, match=f"not run unasked(.|\n)*{found}"):
        elman.load(begun)
    assert not mark.exists()


def test_without_a_record(begun, mark, empty_cache):
    """On another machine, or where the cache was emptied; a file that the call names is run."""
    with pytest.raises(RunError, match="no record"):
        elman.load(begun)
    assert not mark.exists()
    file = shutil.move(mark.with_suffix(".py"), mark.with_name("other.py"))
    run = elman.load(begun, cell=f"{file}:mine")
    assert run.config.cell == f"{file}:mine"
    assert mark.with_name("other.ran").exists()


def test_records_that_others_can_write(begun, mark, empty_cache):
    """They are no records."""
    (empty_cache / "runs").mkdir()
    (empty_cache / "runs").chmod(0o777)
    with pytest.raises(RunError, match="where others can write"):
        elman.load(begun)
    assert not mark.exists()


def test_the_formula_comes_first(sent, resume):
    """Of a file that is trusted, before the weights are read."""
    (sent / "mine.py").write_text(CELL.replace("tanh", "sigmoid"))
    shutil.rmtree(sent / "checkpoints")
    for options in ({"trust": True}, {"cell": f"{sent / 'mine.py'}:mine"}):
        with pytest.raises(RunError, match="the cell of the run has changed"):
            elman.load(sent, **options)


def test_cells_that_are_no_file(begun, small_config, train):
    """What `cell` is for is said."""
    with pytest.raises(InputError, match="names no file"):
        elman.load(begun, cell="gru")
    plain = train(dataclasses.replace(small_config, steps=2, engine="reference")).folder.path
    with pytest.raises(InputError, match=r"the cell of the run is in no file(.|\n)*leave cell out"):
        elman.load(plain, cell="mine.py:mine")


@pytest.mark.usefixtures("empty_cache")
def test_restarts_by_torchrun_name_the_file(begun, small_config, console, file, monkeypatch):
    """The call that goes on is the call that began, so it needs no record."""
    attempt = launching.Attempt(earlier_run=begun)
    monkeypatch.setattr(launching, "find_attempt", lambda timeout, out=None: attempt)
    file.write_text(f"{CELL}# more\n")
    config = dataclasses.replace(small_config, cell=f"{file}:mine")
    assert running.start(config, begun.parent, console, comparing=False).complete


@pytest.mark.parametrize("spell", ["{}", "{}:", "mine", "os.path"])
def test_cells_that_no_run_names(begun, file, mark, resume, spell):
    """A file without its cell would be run to list the cells that it has."""
    changed(begun / "config.json", "cell", spell.format(file))
    for way in (elman.load, resume):
        with pytest.raises(RunError, match=r"the run is damaged|not run unasked"):
            way(begun)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_folders_that_are_elsewhere(begun, resume, tmp_path, name):
    """A link in a run folder does not lead its writes into other folders."""
    other = tmp_path / "other" / "step-000000001"
    other.mkdir(parents=True)
    shutil.rmtree(begun / name, ignore_errors=True)
    (begun / name).symlink_to(other.parent)
    with pytest.raises(RunError, match=f"elsewhere(.|\n)*{other.parent}"):
        resume(begun)
    assert list(other.parent.iterdir()) == [other]


def test_files_as_python_has_them(tmp_path):
    """Dataclasses look their module up by its name; what is imported lies beside the file, which
    leaves nothing on the path."""
    (tmp_path / "neighbour_of_a_cell.py").write_text("SCALE = 0.5\n")
    file = tmp_path / "file_of_a_cell.py"
    before = list(sys.path)
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import neighbour_of_a_cell\n"
        "@dataclass\nclass Sizes:\n    hidden: int = 8\n" + CELL
    )
    assert find_cell(f"{file}:mine").name == "mine"
    assert sys.modules["file_of_a_cell"].Sizes().hidden == 8
    assert sys.path == before
    file.write_text("import no_such_package_anywhere\n")
    with pytest.raises(RunError, match="does not run"):
        find_cell(f"{file}:mine")
    assert "file_of_a_cell" not in sys.modules
    assert sys.path == before


def test_files_named_as_other_modules(tmp_path):
    """They take nobody's place."""
    (tmp_path / "json.py").write_text(CELL)
    (tmp_path / "my.cells.py").write_text(CELL)
    for name in ("json.py", "my.cells.py"):
        assert find_cell(f"{tmp_path / name}:mine").name == "mine"
    assert sys.modules["json"] is json

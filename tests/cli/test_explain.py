"""`elman explain`, `elman draw` and `elman doctor`, as a user types them."""

from __future__ import annotations

import re
import sys

import pytest
import torch

from elman import cells
from elman.cell_files import find_cell
from elman.cli import doctor

CELL = '''
import elman

@elman.cell(input="x[I]", state="h[H]", weights="W[P, I], U[H, P], R[H, H]")
def low_rank(x, h, W, U, R):
    """Through a bottleneck."""
    return elman.ops.tanh(U @ (W @ x) + R @ h)

@elman.cell(input="x[I]", state="h[2H]", weights="W[2H, I]")
def doubled(x, h, W):
    """Two halves."""
    return 0.9 * h + W @ x
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's file with a cell."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "mine.py"
    path.write_text(CELL)
    return f"{path}:low_rank"


def test_explain_own_cell_and_one_stage(elman, own):
    """A cell of the user's, with a further dim; one stage alone."""
    words = ("explain", own, "--hidden=16", "--dim=P=4", "--no-measure", "--stage=program")
    code, said, _ = elman(*words)
    assert code == 0
    assert said.startswith("low_rank: H=16 I=16 P=4")
    assert "Engines" not in said


def test_explain_heads(elman):
    """Heads of a cell with a matrix per sample are samples; others are units."""
    words = ("--hidden=16", "--batch=3", "--heads=2", "--no-measure")
    code, said, _ = elman("explain", "gated_delta_net", *words)
    assert code == 0
    assert "T = 100, B = 6" in said
    code, said, _ = elman("explain", "gru", *words, "--stage=program")
    assert code == 0
    assert "H=8 I=16" in said
    code, _, told = elman("explain", "gru", "--hidden=16", "--heads=3", "--no-measure")
    assert code != 0
    assert "cannot be divided among 3 heads" in told


def test_explain_without(elman):
    """What is left out is gone from the program; what there is to leave out is listed."""
    words = ("explain", "gru", "--hidden=16", "--no-measure", "--stage=program")
    _, usual, _ = elman(*words)
    code, said, _ = elman(*words, "--without=merging", "--without", "hoisting")
    assert code == 0
    assert "without hoisting, without merging" in said
    assert "[R.1 R.2 R.0] @ h" in usual
    assert "[R.1] @ h ; [W.1] @ x" in said
    code, _, told = elman(*words, "--without=speed")
    assert code != 0
    assert "there is no optimization 'speed'" in told


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A user's file that imports its neighbours, one of them only when the cell is traced."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in (("of_mine", "from elman.ops import tanh"), ("rates", "RATE = 0.5")):
        (tmp_path / f"elman_test_{name}.py").write_text(f"{text}\n")
    text = CELL.replace("import elman\n", "import elman\nfrom elman_test_of_mine import tanh\n")
    late = "    from elman_test_rates import RATE\n    return tanh(RATE * U"
    text = text.replace("    return elman.ops.tanh(U", late)
    (tmp_path / "cells.py").write_text(text)
    yield f"{tmp_path / 'cells.py'}:low_rank"
    for name in ("of_mine", "rates"):
        sys.modules.pop(f"elman_test_{name}", None)


def test_a_file_imports_its_neighbours(elman, beside, tmp_path, monkeypatch):
    """As when Python runs it, whatever the folder the command is called in."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, said, err = elman("explain", beside, "--no-measure", "--hidden=8", "--dim=P=4")
    assert code == 0, err
    assert "low_rank" in said


@pytest.mark.parametrize("cell", cells.ALL)
def test_every_cell_of_the_library_is_found(cell):
    """By the name that the gallery has, whatever else the cell takes."""
    assert find_cell(cell.name) is cell


def test_cells_that_read_more_than_a_sequence(elman, tmp_path):
    """They are drawn; they are trained with what their inputs are made of."""
    file = tmp_path / "cell.svg"
    assert elman("draw", "phased_lstm", str(file))[0] == 0
    assert "phased_lstm" in file.read_text()
    code, _, err = elman("train", "--cell", "phased_lstm")
    assert code == 1
    assert "phased_lstm reads x[I], t, not one input of any size" in err
    assert "elman.Recurrent" in err


def test_cells_that_do_not_exist(elman, own, tmp_path):
    """The nearest name, in a form that every command takes; what is no cell."""

    def told(name: str) -> str:
        code, _, err = elman("explain", name)
        assert code == 1
        assert "Traceback" not in err
        return err

    err = told("grux")
    assert "no cell is called 'grux'" in err
    assert re.search(r"hint  gru, .*my_file.py:my_cell for a cell of your own", err)
    assert "--cell" not in err
    assert "no cell is called 'ALL'" in told("ALL")
    err = told(own.replace("low_rank", "low_rang"))
    assert "the file has no cell 'low_rang'" in err
    assert f"hint  {own}" in err
    file = own.partition(":")[0]
    err = told(file)
    assert "which cell of the file?" in err
    assert f"hint  {own}" in err
    empty = tmp_path / "empty.py"
    empty.write_text("")
    assert "@elman.cell(input=" in told(str(empty))
    err = told(own.replace("low_rank", "elman"))
    assert "'elman' in the file is not a cell" in err
    assert "@elman.cell(input=" in err


GIVEN = [  # a mistake, and how the command line mends it
    (("ealstm",), "unknown dim S: give it with --dim S=…"),
    (("cfc", "--dim=I=4"), "unknown dim U: give it with --dim U=…"),
    (("mgu", "--dim=H=4", "--hidden=8", "--dim=Q=3"), "'Q'"),
    (("own", "--hidden=5"), "--hidden is 5, which no H makes equal to 2H"),
]


@pytest.mark.parametrize("command", ["explain", "tune", "draw", "export", "bench"])
@pytest.mark.parametrize("words, said", GIVEN, ids=lambda value: value[0])
def test_mistakes_are_told_in_the_words_of_the_command_line(
    elman, own, tmp_path, command, words, said
):
    """Not in Python's: whatever the command."""
    where = {"draw": (str(tmp_path / "a.svg"),), "export": (f"--c={tmp_path}",)}
    cell = own.replace("low_rank", "doubled") if words[0] == "own" else words[0]
    code, _, err = elman(command, cell, *where.get(command, ()), *words[1:])
    assert code == 1
    assert said in err
    for python in ("by keyword", "Recurrent", "input_size", "hidden_size"):
        assert python not in err


def test_draw_mistakes(elman, tmp_path):
    """A wrong suffix and a folder that is not there."""
    code, _, err = elman("draw", "gru", str(tmp_path / "gru.png"))
    assert code == 1
    assert "draw writes .svg" in err
    code, _, err = elman("draw", "gru", str(tmp_path / "none" / "gru.svg"))
    assert code == 1
    assert "cannot write the picture" in err
    for words in (("gru",), ()):
        assert elman("draw", *words)[0] == 2


def test_draw(elman, own, tmp_path):
    """A cell with another tape; one of the user's."""
    path = tmp_path / "cell.svg"
    shapes = {}
    for name, *more in (("lstm", "--tape=save"), ("lstm", "--tape=recompute"), (own, "--dim=P=4")):
        code, said, _ = elman("draw", name, str(path), *more)
        assert (code, said.strip()) == (0, str(path))
        shapes[more[0]] = 'class="shape taped needed"' in path.read_text(encoding="utf-8")
    assert shapes["--tape=save"]
    assert not shapes["--tape=recompute"]


def test_doctor(elman):
    """Whatever was found is told, with each engine's answer; nothing is broken."""
    code, said, _ = elman("doctor")
    assert code == 0
    for word in ("compiler", "vector ISA", "thread pool", "torch", "GPU", "cache", "ziglang"):
        assert word in said
    for name in ("aten", "reference"):
        assert name in said


class Card:
    """A GPU that is not there, as torch tells of one."""

    def __init__(self, monkeypatch, reason):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Card 9000")
        asked = doctor.refusal

        def refusal(name, job):
            return reason if name == "triton" and job.spec.device == "cuda" else asked(name, job)

        monkeypatch.setattr(doctor, "refusal", refusal)


def test_doctor_asks_the_engines_about_a_gpu(monkeypatch):
    """Who runs there is what engines say, not a text of its own."""
    Card(monkeypatch, None)
    (found,) = (finding for finding in doctor.machine() if finding.name == "GPU")
    assert found.result.startswith("Card 9000, ")
    assert found.result.endswith(": triton, aten, deer, scan-backward, reference run there")
    assert not found.fix
    Card(monkeypatch, "triton is not part of this installation")
    (found,) = (finding for finding in doctor.machine() if finding.name == "GPU")
    assert "triton" not in found.result
    assert found.fix == "no generated kernels there: triton is not part of this installation"


def test_doctor_without_a_compiler(elman, monkeypatch, empty_cache):
    """No compiler: how to mend it, and exit code 0, since everything still runs."""
    monkeypatch.setenv("ELMAN_CC", "/nothing/cc")
    code, said, _ = elman("doctor")
    assert code == 0
    assert "no C compiler" in said
    assert "unset ELMAN_CC" in said
    assert "trains on engine aten" in said


def test_doctor_with_a_wrong_isa(elman, monkeypatch, empty_cache):
    """An instruction set that is not there is told, with its remedy."""
    monkeypatch.setenv("ELMAN_ISA", "z80")
    _, said, _ = elman("doctor")
    assert "unset ELMAN_ISA" in said


def test_doctor_when_nothing_runs(elman, monkeypatch):
    """If not even a small GRU trains, the exit code says so."""

    def fail(*args):
        raise RuntimeError("no luck")

    monkeypatch.setattr(doctor, "choose", fail)
    code, said, _ = elman("doctor")
    assert code == 1
    assert "RuntimeError: no luck" in said
    assert "please report this" in said


@pytest.mark.parametrize("first", ["gcc", "none"])
def test_doctor_says_why_zig_is_not_used(monkeypatch, first):
    """ziglang is last in line; its kernels would share torch's pool like any other's."""
    from elman.engines.c.compilation.build import Compiler

    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    found = doctor.zig(Compiler(("gcc",), "13") if first == "gcc" else "no C compiler")
    if first == "gcc":
        assert "not used: gcc comes first" in found.result
        assert "shares torch's pool" in found.result
    else:
        assert found.fix


def test_explain_begins_with_the_answer(elman, nothing_known, monkeypatch):
    """Engine, time and memory in three lines; a busy machine is told; the stages with --all."""
    monkeypatch.setattr("elman.cli.explain.Waiting.share", lambda self: 0.4)
    words = ("explain", "rnn", "--hidden=8", "--inputs=3", "--steps=4", "--batch=2")
    code, said, _ = elman(*words)
    assert code == 0
    title, engine, time, memory, busy = said.splitlines()[:5]
    assert title.startswith("rnn: ")
    assert engine.startswith("engine  rnn on ")
    assert re.match(r"time    [\d.]+ (µs|ms) for a training step of T = 4, B = 2", time)
    assert memory.startswith("memory  ")
    assert "Other programs took the cores for 40%" in busy or "only one that can" in said
    assert "The formula as written" not in said
    assert "The formula as written" in elman(*words, "--all")[1]

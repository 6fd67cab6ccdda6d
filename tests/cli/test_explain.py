"""`elman explain`, `elman draw` and `elman doctor`, as a user types them."""

from __future__ import annotations

import pytest

from elman.cli import doctor

CELL = '''
import elman

@elman.cell(input="x[I]", state="h[H]", weights="W[P, I], U[H, P], R[H, H]")
def low_rank(x, h, W, U, R):
    """Through a bottleneck."""
    return elman.ops.tanh(U @ (W @ x) + R @ h)
'''


@pytest.fixture
def own(tmp_path):
    """A user's file with a cell."""
    path = tmp_path / "mine.py"
    path.write_text(CELL)
    return f"{path}:low_rank"


def test_explain_all_stages(elman):
    """Every stage is printed."""
    code, said, _ = elman("explain", "gru", "--hidden", "16", "--no-measure")
    assert code == 0
    for word in ("The formula as written", "r = ", "hoisted", "taped     z hn r n", "Engines"):
        assert word.replace("r = ", "= sigmoid(") in said


def test_explain_own_cell_and_one_stage(elman, own):
    """A cell of the user's, with a further dim; one stage alone."""
    words = ("explain", own, "--hidden=16", "--dim=P=4", "--no-measure", "--stage=program")
    code, said, _ = elman(*words)
    assert code == 0
    assert said.startswith("low_rank: H=16 I=16 P=4")
    assert "Engines" not in said


def test_explain_measures(elman, empty_cache):
    """Engines are timed and the one that runs is marked."""
    words = ("explain", "rnn", "--hidden=8", "--inputs=3", "--steps=4", "--batch=2")
    code, said, _ = elman(*words, "--stage=engines")
    assert code == 0
    assert "<- runs" in said or "the only one that can" in said


def test_explain_mistakes(elman, own):
    """What does not fit is told without a traceback."""
    assert elman("explain", "grux")[0] == 1
    code, _, err = elman("explain", own, "--no-measure")
    assert code == 1
    assert "P" in err
    assert elman("explain", "gru", "--dim=P")[0] == 2
    assert elman("explain", "gru", "--stage=nothing", "--no-measure")[0] == 2
    assert elman("explain", "gru", "--engine=nothing")[0] == 1


def test_draw(elman, own, tmp_path):
    """A picture of a cell of the library, and of the user's."""
    for name, more in (("gru", ()), (own, ("--dim=P=4",))):
        path = tmp_path / "cell.svg"
        code, said, _ = elman("draw", name, str(path), *more)
        assert code == 0
        assert str(path) in said
        assert path.read_text(encoding="utf-8").startswith("<svg")


def test_draw_mistakes(elman, tmp_path):
    """A wrong suffix and a folder that is not there."""
    code, _, err = elman("draw", "gru", str(tmp_path / "gru.png"))
    assert code == 1
    assert "draw writes .svg" in err
    code, _, err = elman("draw", "gru", str(tmp_path / "none" / "gru.svg"))
    assert code == 1
    assert "cannot write the picture" in err


def test_doctor(elman):
    """Whatever was found is told, with each engine's answer; nothing is broken."""
    code, said, _ = elman("doctor")
    assert code == 0
    for word in ("compiler", "vector ISA", "thread pool", "torch", "GPU", "cache", "ziglang"):
        assert word in said
    for name in ("aten", "reference"):
        assert name in said


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
    from elman.engines.c.build import Compiler

    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    found = doctor.zig(Compiler(("gcc",), "13") if first == "gcc" else "no C compiler")
    if first == "gcc":
        assert "not used: gcc comes first" in found.found
        assert "shares torch's pool" in found.found
    else:
        assert found.mend

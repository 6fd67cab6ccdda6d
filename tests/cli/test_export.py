"""Whole models of runs as C, from the command line."""

from __future__ import annotations

import re
import subprocess

import numpy as np
import pytest
import torch

import elman as library
from elman.errors import InputError
from helpers import need_engine
from run_folders import small_run

FEW = ("--steps=3", "--hidden=6", "--threads=1", "--batch=8", "--no-compare", "--seed=1")


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """Files of a classification and of regressions, far from zero."""
    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    x = draw.normal(30, 2, (24, 12, 2))
    sums = (x[:, :, :1] - 30).cumsum(1) * 100 + 7
    named = {"steps": (x, sums), "ends": (x, sums[:, -1]), "classes": (x, sums[:, -1, 0] > 0)}
    for name, (inputs, targets) in named.items():
        halves = {
            f"{kind}_{half}": value
            for half in ("train", "test")
            for kind, value in (("x", inputs), ("y", targets))
        }
        extra = {f"static_{half}": x[:, 0] for half in ("train", "test")} if name == "ends" else {}
        np.savez(folder / f"{name}.npz", **halves)
        np.savez(folder / f"{name}_static.npz", **halves, **extra)
    return folder


@pytest.fixture
def trained(elman, without_charts, arrays, tmp_path):
    """Train a small run and give its folder."""

    def run(task: str, *words: str):
        code, said, _ = elman("train", task, *words, *FEW, f"--out={tmp_path / 'runs'}")
        assert code == 0, said
        return max((tmp_path / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)

    return run


def checked(folder) -> str:
    """What the check of an exported folder prints at the end."""
    command = ["make", "-s", "-C", str(folder), "check", "CFLAGS=-O1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "task, file, options, sizes",
    [
        ("series", "classes", ("--patch=2",), "x [4] and gives y [2]"),
        ("series", "classes", ("--layers=2", "--residual"), "x [2] and gives y [2]"),
        ("regression", "steps", ("--cell=mingru",), "x [2] and gives y [1]"),
        ("regression", "ends", (), "x [2] and gives y [1]"),
    ],
)
def test_whole_models(elman, trained, arrays, tmp_path, task, file, options, sizes):
    """Each is the loaded run's own result, in the unit of the data; in integers, too."""
    need_engine("c")
    folder = trained(task, str(arrays / f"{file}.npz"), *options)
    code, said, _ = elman("export", str(folder), f"--c={tmp_path / 'c'}", "--model")
    assert code == 0
    assert sizes in said
    assert "largest error" in checked(tmp_path / "c")
    code, said, _ = elman("export", str(folder), f"--c={tmp_path / 'i'}", "--quantize=8")
    assert code == 0
    assert re.search(r"; x in units of 2\^-?\d+, y in units of 2\^-?\d+", said.replace("\n", " "))
    assert "0 of" in checked(tmp_path / "i")

    run = library.load(folder)
    with np.load(arrays / f"{file}.npz") as data:
        x = data["x_test"].astype(np.float32)
    module = run.as_module()
    patch = module.random().shape[-1] // x.shape[-1]
    rows = torch.from_numpy(x).reshape(len(x), -1, patch * x.shape[-1])
    got = module(rows)
    want = run.predict(x)
    got = got.softmax(-1) if task == "series" else got
    np.testing.assert_allclose(got.detach().numpy(), np.asarray(want), rtol=1e-4, atol=1e-3)


def test_text(elman, tmp_path):
    """Numbers of tokens, of the whole vocabulary, to logits."""
    need_engine("c")
    run = small_run(tmp_path)
    for option in ("--model", "--quantize=8"):
        code, said, _ = elman("export", str(run), f"--c={tmp_path / option}", option)
        assert code == 0
        assert "takes ids [1] and gives y" in said
        checked(tmp_path / option)


def test_what_has_no_whole_model(elman, trained, arrays, tmp_path):
    """It is said, before anything is written."""
    c = f"--c={tmp_path / 'c'}"
    static = trained("regression", str(arrays / "ends_static.npz"))
    code, _, err = elman("export", str(static), c, "--model")
    assert code != 0
    assert "no export has static inputs" in err
    plain = trained("regression", str(arrays / "ends.npz"))
    for words in ((f"--onnx={tmp_path / 'm.onnx'}", c), ()):
        code, _, err = elman("export", str(plain), "--quantize=8", *words)
        assert code == 2
    code, _, err = elman("export", "gru", c, "--model")
    assert code == 2
    assert "for run folders" in err
    for bits in (0, 99):
        code, _, err = elman("export", str(plain), c, f"--quantize={bits}")
        assert code != 0
    assert not (tmp_path / "c").exists()
    run = library.load(trained("series", str(arrays / "classes.npz"), "--bidirectional"))
    with pytest.raises(InputError, match="from its end"):
        run.as_module()
    blocks = trained("regression", str(arrays / "steps.npz"), "--cell=gla")
    code, _, err = elman("export", str(blocks), c, "--model")
    assert code != 0
    assert "residual blocks of gla" in err

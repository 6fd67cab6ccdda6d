"""What works without the packages of extras, and what is said where one is missing."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from elman.errors import ElmanError, MissingPackageError
from elman.extras import EXTRAS, install_line, missing_package, require
from forked import Forked
from run_folders import small_run
from scripts import begin, finished
from test_layers import imports_of

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DECLARED = {
    extra: {re.split(r"[<>=;\[]", line)[0].replace("-", "_") for line in lines}
    for extra, lines in PROJECT["optional-dependencies"].items()
}
BROUGHT = {re.split(r"[<>=]", line)[0] for line in PROJECT["dependencies"]}
OPTIONAL = ("train", "data", "export", "compiler")  # of users; others are of this repository
HIDE = """
import sys

class Partial:  # a finder that does not see some packages
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *more):
        return None if name.partition(".")[0] in NAMES else self.finder.find_spec(name, *more)

NAMES = set(%r)
for module in [name for name in sys.modules if name.partition(".")[0] in NAMES]:
    del sys.modules[module]
sys.meta_path[:] = map(Partial, sys.meta_path)
"""
COMMAND = "import elman_command; sys.argv = ['elman', *%r]; elman_command.main()"


def without(packages: set[str], program: str) -> Forked:
    """Start a program in a process in which these packages are not installed."""
    return begin("-W", "ignore", "-c", HIDE % sorted(packages) + program)


def test_a_plain_install_is_small():
    """Torch, and what the cache of kernels needs."""
    assert sorted(BROUGHT) == ["filelock", "numpy", "platformdirs", "torch"]


def test_the_table_is_what_the_extras_bring():
    """Each package of an extra for users is known by the extra's name, and no other is."""
    for extra in OPTIONAL:
        assert {name for name, brought in EXTRAS.items() if brought == extra} == DECLARED[extra]
    assert set(EXTRAS.values()) == set(OPTIONAL)
    assert '"elman[train,export]"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_every_import_is_declared():
    """No file of the package imports what comes only with something else."""
    ours = {"dev", "docs", "release"}
    known = BROUGHT.union(*(names for extra, names in DECLARED.items() if extra not in ours))
    known |= {"elman", "elman_command"} | sys.stdlib_module_names
    for path in sorted((ROOT / "src").rglob("*.py")):
        for line, module, _ in imports_of(path):
            first = module.partition(".")[0]
            assert first in known, f"{path}:{line}: {module}"


def test_a_missing_package_is_one_error(monkeypatch):
    """It is elman's and an ImportError, in one line; a package that lacks another is not it."""
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(MissingPackageError) as caught:
        require("lightning_fabric", "a run")
    assert isinstance(caught.value, ElmanError)
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == "lightning_fabric"
    text = 'a run needs the package lightning-fabric: pip install "elman[train]"'
    assert str(caught.value) == text
    assert missing_package(ModuleNotFoundError("…", name="sklearn.base"), "a run") is None
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ModuleNotFoundError, match="sklearn"):
        require("sklearn", "a run")


PLAIN = """
import torch
from elman import *
import elman

@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def plain(x, h, W, R):
    return elman.ops.tanh(W @ x + R @ h)

net = elman.Recurrent(plain, 3, 5, engine="c")
out, last = net(torch.randn(4, 2, 3))
out.sum().backward()
model = elman.accelerate(torch.nn.Sequential(torch.nn.GRU(3, 5)))
assert isinstance(model[0], elman.GRU)
print(elman.explain(net, torch.randn(4, 2, 3), measure=False))
elman.draw(net, "net.svg")
elman.export.to_c(net, "c")
elman.measure(plain, input_size=3, hidden_size=5, steps=4, batch=2, seconds=0.01)
for call in (lambda: elman.export.to_onnx(net, "net.onnx"), lambda: elman.load(RUN)):
    try:
        call()
    except elman.errors.MissingPackageError as error:
        print(error)
"""


@pytest.mark.slow
def test_python_needs_no_extra(tmp_path, monkeypatch):
    """Cells, layers, explain, draw, measure and C work without any; ONNX and runs name theirs."""
    run = small_run(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    said = finished(without(set(EXTRAS), f"RUN = {str(run)!r}\n{PLAIN}"))
    assert said.splitlines()[-2:] == [
        f"to_onnx needs the package onnx: {install_line('export')}",
        f"a file of tensors needs the package safetensors: {install_line('train')}",
    ]


TRAIN = ("train", "--data=text.txt", "--tensorboard", "--minutes=0.01")
NEEDED = {  # package -> who says that it is missing
    "lightning_fabric": "error: elman train",
    "safetensors": "error: a run",
    "tensorboard": "error: --tensorboard",
    "typer": "the command elman",
    "jinja2": "error: elman train",
    "markupsafe": "error: elman train",
    "matplotlib": "error: elman train",
    "rich": "the command elman",
}


def test_all_of_training_is_tried():
    assert set(NEEDED) == DECLARED["train"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "package",
    [pytest.param(name, marks=[pytest.mark.long] * (k > 1)) for k, name in enumerate(NEEDED)],
)
def test_the_command_names_the_extra(package, tmp_path, monkeypatch):
    """One line, status 1, and nothing was begun that could not be ended."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the cat sat on the mat\n" * 100)
    process = without({package}, COMMAND % (TRAIN,))
    out, err = process.communicate(timeout=60)
    name = package.replace("_", "-")
    line = f"{NEEDED[package]} needs the package {name}: {install_line('train')}\n"
    assert (process.returncode, out, err) == (1, "", line)
    assert not Path("runs").exists()


@pytest.mark.slow
def test_commands_that_need_less_work(tmp_path, monkeypatch):
    """Looking at cells needs no package of training; `doctor` lists those that are missing."""
    monkeypatch.chdir(tmp_path)
    shown = {"rich", "typer"}
    rest = set(EXTRAS) - shown
    draw = f"try:\n    {COMMAND % (('draw', 'gru', 'gru.svg'),)}\nexcept SystemExit as end:\n"
    said = finished(without(rest, f"{draw}    assert not end.code\n{COMMAND % (('doctor',),)}"))
    assert Path("gru.svg").exists()
    for name in DECLARED["train"] - shown:
        assert re.search(rf"{name} .*elman\[train\]", said), name

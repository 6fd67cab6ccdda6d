"""Every public name has an example in its docstring, and it runs.

Those of ``elman.ops`` are lines of a formula: they run inside a cell, while it is traced.
"""

from __future__ import annotations

import doctest
import inspect
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import elman
from elman import export, ops, weights
from helpers import forced
from run_folders import small_run

SIGNATURE = {
    "input": "x[I]",
    "state": "h[H], c[H]",
    "weights": "W[H, I], V[3H, I], R[H, H], M[H, I+H], b[H]",
}
NAMES = [
    f"{place}{name}"
    for place, room in (("", elman), ("export.", export), ("weights.", weights))
    for name in room.__all__
    if callable(getattr(room, name))
]


def _run(name: str, thing: Any, names: dict[str, Any]) -> None:
    found = doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", names, name, None, 0)
    assert found.examples, f"{name} has no example"
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    failed, _ = runner.run(found, out=told.append)
    assert not failed, "".join(told)


@pytest.mark.parametrize("name", NAMES)
def test_public_names(name, tmp_path, monkeypatch, request):
    thing = elman
    for part in name.split("."):
        thing = getattr(thing, part)
    if "onnx" in name.lower():
        if not find_spec("onnxscript"):
            pytest.skip("needs onnxscript")
        request.getfixturevalue("translations_read_once")
    monkeypatch.chdir(tmp_path)
    if name == "load":
        (tmp_path / "runs").mkdir()
        small_run(tmp_path).rename("runs/first")
    with forced("reference"):
        _run(name, thing, {"elman": elman, "torch": torch})


@pytest.mark.parametrize("name", ops.__all__)
def test_operations(name):
    calls = {each: getattr(ops, each) for each in ops.__all__}

    @elman.cell(**SIGNATURE)
    def inside(x, h, c, W, V, R, M, b):
        own = {"x": x, "h": h, "c": c, "W": W, "V": V, "R": R, "M": M, "b": b}
        _run(name, calls[name], {**calls, **own})
        return h, c


def test_what_lacks_an_example_fails():
    def bare():
        """Nothing to run."""

    with pytest.raises(AssertionError, match="bare has no example"):
        _run("bare", bare, {})
    bare.__doc__ = "Example:\n    >>> 1 + 1\n    3\n"
    with pytest.raises(AssertionError, match="Expected"):
        _run("bare", bare, {})

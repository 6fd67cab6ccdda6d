"""Signature strings: what they mean, and what is told about those that mean nothing."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import elman
from elman import cell
from elman.errors import ShapeError, TraceError
from elman.frontend.reserved import OF_CALLS, OF_MODULES
from elman.frontend.signature import parse_signature
from elman.ir.types import parse_dim, show_dim, show_shape
from elman.nn.options.registry import CallOptions
from elman.ops import split, tanh


@pytest.mark.parametrize(
    "text, gate_blocks, shown",
    [
        ("H", ("H",), "H"),
        ("3H", ("H", "H", "H"), "3H"),
        ("3*H", ("H", "H", "H"), "3H"),
        (" I + H ", ("I", "H"), "I+H"),
        ("2H+P+H", ("H", "H", "P", "H"), "2H+P+H"),
        ("4", (4,), "4"),
        ("H+4", ("H", 4), "H+4"),
        ("hidden_2", ("hidden_2",), "hidden_2"),
    ],
)
def test_dims(text, gate_blocks, shown):
    """A dim is a tuple of gate blocks, and prints as it is written."""
    assert parse_dim(text) == gate_blocks
    assert show_dim(gate_blocks) == shown


@pytest.mark.parametrize(
    "text, what",
    [
        ("", "cannot read the dim ''"),
        ("H-1", "cannot read the dim 'H-1': write a name, a number, 3H or I+H"),
        ("H+", "cannot read the dim 'H+'"),
        ("0H", "the dim '0H' has a zero in it"),
        ("0", "the dim '0' has a zero in it"),
        ("1", "a dim of 1 is written as a scalar: `m`, not `m[1]`"),
        ("H*3", "cannot read the dim"),
        ("G*K", "write a name, a number, 3H or I+H; a product is a name of its own"),
        ("H+1", "no single unit in 'H+1': declare a scalar of its own beside it"),
        ("1.5H", "cannot read the dim"),
    ],
)
def test_dims_that_mean_nothing(text, what):
    """Each is told with the way to write it."""
    with pytest.raises(ValueError) as caught:
        parse_dim(text)
    assert what in str(caught.value)


def test_names_and_shapes():
    """Names in order; a bare name is a scalar."""
    found = parse_signature("weights", " x[I] ,m, W[3H, I+H]", 2, "")
    assert [(entry.name, show_shape(entry.shape)) for entry in found] == [
        ("x", "[I]"),
        ("m", "scalar"),
        ("W", "[3H, I+H]"),
    ]
    assert [str(entry) for entry in found] == ["x[I]", "m", "W[3H, I+H]"]
    assert parse_signature("weights", "", 2, "") == ()


def declare(arguments: str = "x, h, W", **signature):
    """A cell with these strings; its function takes ``arguments``."""
    names = {"tanh": tanh, "split": split}
    exec(f"def one({arguments}):\n    return tanh(h)\n", names)
    fields = {"input": "x[I]", "state": "h[H]", "weights": "W[H, I]", **signature}
    return cell(**fields)(names["one"])


BAD = {  # name -> (strings, what the message says, the hint)
    "no name": (
        {"input": "[I]"},
        "cannot read '[I]' in input='[I]'",
        'write names of the letters a to z, dims in brackets: "x[I], m"',
    ),
    "open bracket": ({"input": "x[I"}, "cannot read 'x[I' in input='x[I'", "write names"),
    "two words": ({"state": "h h2[H]"}, "cannot read 'h h2[H]' in state=", "write names"),
    "of one": (
        {"input": "x[I], m[1]"},
        "input='x[I], m[1]': a dim of 1 is written as a scalar: `m`, not `m[1]`",
        "",
    ),
    "zero": ({"weights": "W[0H, I]"}, "weights='W[0H, I]': the dim '0H' has a zero in it", ""),
    "batch": (
        {"input": "x[B, I]"},
        "input x[B, I] has a dim B",
        "a cell knows neither batch nor time: one sample, one step",
    ),
    "three dims": (
        {"weights": "W[H, I, H]"},
        "weights W[H, I, H] has 3 dims, at most 2 here",
        "declare a matrix for each slice: W0[H, I], W1[H, I]",
    ),
    "three dims of a sample": (
        {"state": "S[C, Y, X]"},
        "state S[C, Y, X] has 3 dims, at most 2 here",
        "a cell knows neither batch nor time: one sample, one step; heads are an option",
    ),
    "matrix output": (
        {"output": "y[B, H]"},
        "output y[B, H] has a dim B",
        "a cell knows neither batch nor time",
    ),
    "twice": ({"weights": "W[H], W[H]"}, "'W' is declared twice in weights='W[H], W[H]'", ""),
    "in two strings": ({"state": "x[H]"}, "'x' is declared twice", ""),
    "a list": ({"output": ["y[H]", "e"]}, "output is one text, not a list", 'output="y[H], e"'),
    "no state": ({"state": ""}, "a recurrent cell has at least one state", ""),
    "other arguments": (
        {"weights": "W[H, I], b[H]"},
        "one takes (x, h, W), but its signature declares (x, h, W, b)",
        "def one(x, h, W, b):",
    ),
    "other order": (
        {"weights": "W[H, I]", "arguments": "h, x, W"},
        "one takes (h, x, W), but its signature declares (x, h, W)",
        "def one(x, h, W):",
    ),
    "an option that no * stands before": (
        {"weights": "W[H, I]", "arguments": "x, h, W, a=0.5, f=max"},
        "one takes (x, h, W, a, f), but its signature declares (x, h, W)",
        "def one(x, h, W, *, a=0.5, f=…):",
    ),
    "init of nothing declared": (
        {"init": {"V": 1}},
        "init names 'V', which is neither a weight nor a state",
        "there are W, h",
    ),
    "init of an input": (
        {"init": {"x": 1}, "weights": "", "arguments": "x, h"},
        "init names 'x', which is neither a weight nor a state",
        "there are h",
    ),
    "scheme for matrices for a state": (
        {"init": {"h": "orthogonal"}},
        "init of h: orthogonal is for matrices, which h[H] is not",
        "init={'h': 0.5}, or 'zeros' or 'ones', or a function",
    ),
    "misspelt scheme": (
        {"init": {"W": "ortogonal"}},
        "init of W: no scheme 'ortogonal'",
        "init={'W': 'orthogonal'}",
    ),
    "no scheme": (
        {"init": {"W": "best"}},
        "init of W: no scheme 'best'",
        "there are orthogonal, xavier_uniform, xavier_normal, kaiming_uniform, kaiming_normal, ",
    ),
    "scheme for matrices": (
        {"init": {"b": "orthogonal"}, "weights": "W[H, I], b[H]", "arguments": "x, h, W, b"},
        "init of b: orthogonal is for matrices, which b[H] is not",
        "init={'b': 0.5}, or 'zeros' or 'ones', or a function",
    ),
    "init by a list": (
        {"init": {"W": [1.0]}},
        "init of W: a list says nothing about a weight",
        "torch.tensor([1.0])",
    ),
    "init by a long tuple": (
        {"init": {"W": (1.0,) * 40}},
        "init of W: a tuple says nothing about a weight",
        "torch.tensor(…)",
    ),
    "init by a set": (
        {"init": {"W": {1.0}}},
        "init of W: a set says nothing about a weight",
        "give a number, the name of a scheme, a tensor, or a function of the parameter",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_signatures_that_mean_nothing(name):
    """Told with the string and the cell's line."""
    strings, what, hint = BAD[name]
    with pytest.raises(TraceError) as caught:
        declare(**strings)
    text = str(caught.value)
    assert what in text.splitlines()[0], text
    assert "at    <string>:1:" in text, text
    assert (f"hint  {hint}" in text) if hint else True, text


def test_the_line_of_a_wrong_signature():
    """The cell's own file and line."""
    with pytest.raises(TraceError) as caught:

        @cell(input="x[I]", state="h[H]")  # here
        def one(x, h, W):
            return h

    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.endswith("# here")
    )
    assert f"at    {Path(__file__).name}:{line}:" in str(caught.value)


def test_dims_are_bound():
    """I and H from the module's arguments, solved where they are multiples; others by keyword."""
    plain = declare()
    assert plain.bind(3, 5) == {"I": 3, "H": 5}
    assert plain.bind(0, 5) == {"I": 0, "H": 5}
    pairs = declare(state="h[2K]", weights="W[K, I]")
    assert pairs.bind(3, 64) == {"I": 3, "K": 32}
    wide = declare(input="x[I+4]")
    assert wide.bind(7, 5) == {"I": 3, "H": 5}
    matrix = declare(state="h[2K, V]", weights="W[V, I]")
    assert matrix.bind(3, 5, K=2) == {"I": 3, "V": 5, "K": 2}
    matrix = declare(input="x[3K, 2I]", state="h[K+P+4+4, 2V]", weights="W[V, I]")
    assert matrix.bind(6, 8, K=2, P=1) == {"I": 3, "V": 4, "K": 2, "P": 1}
    assert str(matrix.states[0]) == "h[K+P+8, 2V]"
    projected = declare(weights="W[P, I]")
    assert projected.bind(3, 5, P=2) == {"I": 3, "H": 5, "P": 2}


UNBOUND = {  # name -> (strings, call, what)
    "missing": ({"weights": "W[P, Q]"}, {}, "unknown dim P, Q: give it by keyword, e.g. P=…, Q=…"),
    "unknown": ({}, {"Q": 2}, "'Q' is not a dim of this cell (its dims: H, I)"),
    "odd": ({"state": "h[2K]"}, {"H": 4}, "hidden_size is 7, which no K makes equal to 2K"),
    "too small": ({"state": "h[K+9]"}, {"H": 4}, "hidden_size is 7, which no K makes equal to K+9"),
    "fixed": (
        {"state": "h[4]"},
        {"H": 4},
        "hidden_size is 7, but the first state h[4] has 4 units",
    ),
    "contradiction": ({}, {"H": 4}, "hidden_size is 7, but the first state h[H] has 4 units"),
    "parts of a state": (
        {"state": "h[2H]"},
        {"H": 4},
        "hidden_size is 7, but the first state h[2H] has 8 units",
    ),
    "a matrix": (
        {"state": "h[K, V]", "weights": "W[V, I]"},
        {"K": 2, "V": 5},
        "hidden_size is 7, but the first state h[K, V] has 5 columns\n"
        "  hint  input_size is that of the first input, hidden_size that of the first state; of a"
        " matrix the last axis, here V",
    ),
    "columns of two parts": (
        {"state": "h[K, 2V]", "weights": "W[V, I]"},
        {"K": 2},
        "hidden_size is 7, which no V makes equal to 2V",
    ),
    "two unknowns": ({"state": "h[J+K]"}, {"H": 4}, "J+K has several unknown dims, give K by key"),
}


@pytest.mark.parametrize("name", UNBOUND)
def test_sizes_that_do_not_fit(name):
    """Each is told with its numbers."""
    strings, given, what = UNBOUND[name]
    made = declare(**strings)
    with pytest.raises(ShapeError) as caught:
        made.bind(3, 7, **given)
    assert what in str(caught.value)


@cell(input="x[I]", state="h[H]", weights="W[H, I]", constants="mask[H]")
def with_mask(x, h, W, mask):
    """A constant may have the name of an option of calls, which take no constants."""
    return tanh(mask * (W @ x + h))


@pytest.mark.parametrize("name", [*OF_MODULES, *OF_CALLS, "self"])
def test_names_that_modules_take(name):
    """An option, a dim or a constant that a module could not be given is refused where it is
    declared, at its line."""
    kinds = {
        "option": f'("W[H, I]", "")\ndef mine(x, h, W, *, {name}=1.0):\n    return W @ x',
        "dim": f'("W[H, I], U[{name}, H]", "")\ndef mine(x, h, W, U):\n    return W @ x',
        "constant": f'("W[H, I]", "{name}[H]")\ndef mine(x, h, W, {name}):\n    return W @ x',
    }

    def declared(weights, constants):
        return cell(input="x[I]", state="h[H]", weights=weights, constants=constants)

    for kind, text in kinds.items():
        if kind == "constant" and name in OF_CALLS:
            continue
        with pytest.raises(TraceError, match=f"^{kind} '{name}' has the name of an arg") as told:
            exec(f"@declared{text}", {"declared": declared})
        assert f"another name: cell_{name}" in str(told.value)
        assert "<string>:1" in str(told.value)


def test_all_names_that_modules_take():
    """The list has every argument of Recurrent, and of its calls; so has the page on cells."""
    parameters = inspect.signature(elman.Recurrent).parameters.values()
    assert [*OF_MODULES] == sorted(
        (p.name for p in parameters if p.kind is not p.VAR_KEYWORD), key=[*OF_MODULES].index
    )
    assert {*OF_CALLS} == {"state", *CallOptions.__annotations__}
    page = (Path(__file__).parents[2] / "docs" / "cells.md").read_text()
    for names in (OF_MODULES, OF_CALLS):
        assert ", ".join(f"`{name}`" for name in names) in " ".join(page.split())

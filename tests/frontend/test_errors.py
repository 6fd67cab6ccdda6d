"""Mistakes in a cell: told at the cell's own line, with the replacement."""

from __future__ import annotations

import ast
import linecache
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import elman
from elman import cell, cells, ops
from elman.errors import ElmanError, ShapeError, TraceError
from elman.ops import amax, concat, mean, sigmoid, softmax, split, tanh, where

HERE = Path(__file__)
FILE = "mistaken.py"
NAMES = {
    "math": math,
    "np": np,
    "torch": torch,
    "cells": cells,
    **{f.__name__: f for f in (amax, concat, mean, sigmoid, softmax, split, tanh, where)},
}


def line_of(mark: str) -> str:
    """``file:line`` of this file's line that ends in ``# <mark>``."""
    for number, text in enumerate(HERE.read_text(encoding="utf-8").splitlines(), 1):
        if text.endswith(f"# {mark}"):
            return f"{HERE.name}:{number}: {text.strip()}"
    raise AssertionError(f"no line is marked {mark!r}")


def is_expression(line: str) -> bool:
    try:
        ast.parse(line, mode="eval")
    except SyntaxError:
        return False
    return True


def written(text: str):
    """``step(x, h, W, R, b)`` of a text, and its last line; what is an expression is returned."""
    lines = [f"return {line}" if is_expression(line) else line for line in text.splitlines()]
    end = [] if lines[-1].startswith("return ") else ["return h"]
    source = ["def step(x, h, W, R, b):", *(f"    {line}" for line in [*lines, *end])]
    linecache.cache[FILE] = (0, None, [f"{line}\n" for line in source], FILE)
    names = dict(NAMES)
    exec(compile("\n".join(source), FILE, "exec"), names)
    return names["step"], f"{FILE}:{1 + len(lines)}: {lines[-1]}"


def rnn(step):
    """Trace ``step(x, h, W, R, b)`` as a simple cell."""

    def formula(x, h, W, R, b):
        return step(x, h, W, R, b)

    return declared(formula)


def declared(function, **signature):
    fields = {"input": "x[I]", "state": "h[H]", "weights": "W[3H, I], R[H, H], b[H]", **signature}
    return cell(**fields)(function)


def told(error: ElmanError, what: str, line: str, hint: str) -> None:
    """The message says what, where, and what to write instead."""
    text = str(error)
    assert text.startswith(what), text
    assert f"at    {line}" in text, text
    assert f"hint  {hint}" in text, text


MISTAKES = {  # error -> (what the message says first, its hint) -> formulas
    TraceError: {
        ("a traced value has no truth value", "use where(condition, a, b)"): [
            "if h > 0: return h",
            "where(h > 0 and h < 1, h, 0)",
            "where(0 < h < 1, h, 0)",
        ],
        ("a loop cannot depend on values", "run as many iterations as any sample"): [
            "while h: h = h - 1"
        ],
        ("a traced value is not an integer", "run as many iterations as any sample"): [
            "for _ in range(mean(x)): h = tanh(h)",
            "[h, x][mean(x)]",
        ],
        ("a traced value cannot be printed", "print(elman.explain(cell))"): [
            'print("h is", h)',
            'name = f"{h}"',
            'name = f"{h:.3f}"',
        ],
        ("torch.tanh cannot take a traced value", "from elman.ops import tanh"): ["torch.tanh(h)"],
        ("torch.softplus cannot take a traced value", "from elman.ops import softplus"): [
            "torch.nn.functional.softplus(h)"
        ],
        ("a torch tensor cannot take part", 'declare it: weights="s[H]"'): [
            "h * torch.ones(3)",
            "torch.ones(3) * h",
            "torch.add(torch.ones(3), h)",
            "where(torch.ones(3) < h, h, 0)",
            "torch.nn.Parameter(torch.ones(3, 3)) @ h",
        ],
        (
            "a torch tensor cannot take part",
            "write float(t) for a number, or declare it as a weight",
        ): ["torch.tensor(0.5) * h"],
        ("a traced value cannot be changed in place", "make a new one: where("): ["h[0] = 1"],
        ("a traced value cannot be indexed", "cut it into parts: a, b = split"): [
            "del h[0]",
            "h[0]",
        ],
        ("a traced value is rounded to whole", "round(v * 100) / 100"): ["round(h, 2)"],
        ("cells have no trunc", "write where(v < 0, -floor(-v), floor(v))"): ["math.trunc(h) * h"],
        ("a traced value is not a number", "use the function of the same name"): [
            "math.tanh(h)",
            "h * float(b)",
        ],
        ("numpy.tanh cannot take a traced value", "from elman.ops import tanh"): ["np.tanh(h)"],
        ("numpy cannot take a traced value", "use the function of that name"): ["np.asarray(h)"],
        ("a numpy array cannot take part", "declare it: weights="): ["h * np.ones(3)"],
        ("a traced value cannot be unpacked", "cut it first: a, b = split(v, 2)"): [
            "i, f = W @ x",
            "sum(v for v in h)",
            "first, *_ = h",
        ],
        ("a traced value has no length", "v.shape[0] is its number of units"): ["h / len(h)"],
        ("a traced value has no .tanh", "from elman.ops import tanh"): ["h.tanh()"],
        ("a traced value has no .chunk", "write split(v, 2)"): ["(W @ x).chunk(3)[0]"],
        ("torch.cat cannot take a traced value", "write concat(a, b)"): ["tanh(torch.cat((x, h)))"],
        ("a traced value has no .detach", "write stop_gradient(v)"): ["h.detach()"],
        ("numpy.maximum cannot take", "from elman.ops import maximum"): ["np.maximum(h, b)"],
        ("a traced value has no .sigmoids", "elman.ops has no sigmoids; th"): ["h.sigmoids()"],
        ("torch.fft_fft cannot", "elman.ops has no fft_fft: write it with"): ["torch.fft.fft(h)"],
        ("a str cannot take part", "use numbers, the cell's arguments"): ['h ** "2"', 'h + "1"'],
        ("cells have no //", "write floor(v / w)"): ["h // 1.0"],
        ("cells have no & | ^ ~", "write a * b for and"): [
            "where((h > 0) & (h < 1), h, 0)",
            "where(~(h > 0), h, 0)",
        ],
        ("a NoneType cannot take part", "use numbers, the cell's arguments"): ["tanh(h + None)"],
        ("Python's sum() cannot take", "from elman.ops import sum"): ["h * sum(R @ h)"],
        ("Python's max() cannot take", "amax(v) from elman.ops"): ["h * max(R @ h)"],
        ("Python's max() cannot choose", "maximum(a, b)"): ["max(h, R @ h)"],
        ("gru(…): missing a required", "gru(x, h, W, R, b, c)"): ["cells.gru(x, h, W)"],
        ("rnn(…): too many positional", "rnn(x, h, W, R, b"): ["cells.rnn(x, h, W, R, b, b, b)"],
        ("lif(…): got an unexpected", "lif(x, m, W, b, beta,"): [
            'cells.lif(x, h, W, b, rest="zero")[1]'
        ],
        ("reset_mechanism must be one of", 'reset_mechanism="sub'): [
            'cells.lif(h, h, R, h, reset_mechanism="never")[1]'
        ],
        ("a matrix may depend on weights alone", "multiply the vector instead: W @ (m * h)"): [
            "(mean(h) * R) @ h"
        ],
        (
            "cannot split [3H] into 2 equal parts",
            'for unequal parts name them: split(v, "H, H, P")',
        ): ["i, f = split(W @ x, 2)"],
        (
            "cannot split [H] into 2 equal parts",
            "a vector that is cut is declared by its parts: [2P] in place of [H]",
        ): ["a, c = split(h, 2)"],
        ("cannot split [I+H] into 2 equal parts", "for unequal parts"): [
            "i, f = split(concat(x, h), 2)"
        ],
        (
            "cannot split [3H] into 'H, H', which is [2H]",
            "the parts, in order, are the whole vector",
        ): ['i, f = split(W @ x, "H, H")'],
        ("cannot split ", "split takes a vector such as W @ x"): ["split(mean(h), 2)[0] * h"],
        ("split takes a number of parts or their dims, not None", "split("): ["split(h, None)"],
        ("cannot softmax ", "softmax takes a vector such as W @ x"): ["h * softmax(mean(h))"],
        ("only a matrix has a transpose", "outer(k, v)"): ["h.T"],
    },
    ShapeError: {
        ("cannot add [3H] and [H]", "split the wide operand"): ["cells.gru(x, h, W, R, b, h)"],
        ("cannot add [3H] and [H]", "split the wide operand first: split(v, 3)"): [
            "tanh(W @ x + R @ h)"
        ],
        ("cannot multiply [3H, I] and [H]", "W @ v needs v of shape [I]; W.T is the transpose"): [
            "W @ h"
        ],
        ("cannot multiply [H] and [H]", "the dot product of two vectors is sum(h * b)"): ["h @ b"],
        (
            "cannot multiply [H] and [H, H]",
            "the left side of @ is a weight matrix: W @ v, or W.T @ v",
        ): ["h @ R"],
        ("cannot multiply scalar and [H]", "a scalar is multiplied by *: m * v"): ["mean(h) @ h"],
        ("cannot add [I+H] and [H]", "values of one elementwise op have the same dims"): [
            "concat(x, h) + h"
        ],
        (
            "cannot multiply [H, H] and [H, H]",
            "the right side of @ is a vector: write U @ (V @ h)",
        ): ["R @ R"],
        (
            "cannot sub [H] and [H, H]",
            "what follows inputs or states is a vector, never a matrix: W @ v, or, of all pairs of",
        ): ["mean(h - R) * h"],
        ("cannot mul [1] and [H]", "sum(v) of one unit [1] is that unit"): [
            "one, _, _ = split(amax(W @ x, groups=3), 3)\none * h"
        ],
        ("cannot concat [3H, I] and [H, H]", "matrices that are joined have equal columns"): [
            "concat(W, R) @ h"
        ],
    },
}
ROWS = [
    (kind, text, *message)
    for kind, mistakes in MISTAKES.items()
    for message, texts in mistakes.items()
    for text in texts
]


@pytest.mark.parametrize("kind, text, what, hint", ROWS, ids=[row[1] for row in ROWS])
def test_mistakes(kind, text, what, hint):
    """Each is refused where it stands, with what to write instead; of a cell of the library at the
    line of who calls it, for shapes with the library's line too."""
    step, line = written(text)
    with pytest.raises(kind) as caught:
        declared(step)
    told(caught.value, what, line, hint)
    assert ("in    gru.py:" in str(caught.value)) == (text == "cells.gru(x, h, W, R, b, h)")


def test_a_traced_value_is_no_key():
    """Values are compared as formulas, so they cannot be looked up."""
    with pytest.raises(TypeError, match="unhashable"):
        declared(written("{h: 1}")[0])


OPERANDS = {  # formula -> the two sides as they are written; of a name, what it was given
    "tanh(W @ x + R @ h)": ("W @ x: [3H]", "R @ h: [H]"),
    "wide = W @ x\ntanh(wide + R @ h)": ("wide = W @ x: [3H]", "R @ h: [H]"),
    "concat(tanh(h), x) * sigmoid(b)": ("concat(tanh(h), x): [H+I]", "sigmoid(b): [H]"),
    "h @ b": ("h: [H]", "b: [H]"),
    "W @ h": ("W: [3H, I]", "h: [H]"),
}


@pytest.mark.parametrize("text", OPERANDS)
def test_both_operands_are_shown(text):
    """As they are written, with their shapes."""
    with pytest.raises(ShapeError) as caught:
        declared(written(text)[0])
    left, right = OPERANDS[text]
    assert f"\n  left  {left}\n  right {right}\n" in str(caught.value)


def nothing(x, h, W, R, b):
    tanh(h)


RETURNS = {
    "h, h": (TraceError, "step returns 2 values, but declares 1: h[H]", "return h"),
    "W @ x": (ShapeError, "step returns [3H] for h[H]", "h is declared as [H]"),
    "0.0": (ShapeError, "step returns a constant for h[H]", "0 * h + constant"),
    "mean(h)": (ShapeError, "step returns scalar for h[H]", "h is declared as [H]"),
}


@pytest.mark.parametrize("text", RETURNS)
def test_what_a_cell_returns(text):
    """Wrong number, wrong shape: told at the return."""
    kind, what, hint = RETURNS[text]
    step, line = written(text)
    with pytest.raises(kind) as caught:
        declared(step)
    told(caught.value, what, line, hint)


def test_a_cell_that_returns_nothing():
    """Told at the function, which has no return."""
    with pytest.raises(TraceError) as caught:
        declared(nothing)
    line = f"{HERE.name}:{nothing.__code__.co_firstlineno}: def nothing"
    told(caught.value, "nothing returns None for h[H]", line, "return h")


def test_an_output_is_returned_first():
    """One value too few is told with all declared names."""
    with pytest.raises(TraceError, match=r"declares 2: y\[P\], h\[H\]"):
        declared(nothing, output="y[P]", weights="W[3H, I], R[H, H], b[H]")


def test_options_that_do_not_exist():
    """Named, with those that do."""

    @cell(input="x[H]", state="h[H]")
    def one(x, h, *, gain=1.0, squash=tanh):
        return squash(gain * h + x)

    assert one.with_options(gain=2.0).options == {"gain": 2.0, "squash": tanh}
    assert one.with_options(squash=sigmoid).graph.output.op == "sigmoid"
    with pytest.raises(TraceError, match=r"one takes no option 'gian' \(it takes: gain, squash\)"):
        one.with_options(gian=2.0)


def test_a_cell_is_no_function_of_numbers():
    """Calling it with tensors says how it is used."""

    @cell(input="x[H]", state="h[H]")
    def one(x, h):
        return tanh(h + x)

    with pytest.raises(TraceError) as caught:
        one(torch.ones(3), torch.ones(3))
    text = str(caught.value)
    assert text.startswith("one is a formula and cannot be called with numbers")
    assert "hint  net = elman.Recurrent(one, input_size, hidden_size); net(x)" in text


def test_numpy_numbers_are_numbers():
    """On either side of an operator; arrays are not."""
    half = np.float32(0.5)
    graph = rnn(lambda x, h, W, R, b: half * h + h * half - np.float64(1.0) / (h * h + half)).graph
    assert sorted(n.data[0] for n in graph.walk() if n.op == "const") == [0.5, 0.5, 0.5, 1.0]
    for other in (np.ones(3), np.array("a"), np.array(1j), np.array(None)):
        with pytest.raises(TraceError, match="a numpy array cannot take part"):
            rnn(lambda x, h, W, R, b, other=other: other * h)
    for gate in (ops.gelu, ops.silu):
        with pytest.raises(TraceError, match="a tuple cannot take part"):
            rnn(lambda x, h, W, R, b, gate=gate: gate(h.shape) * h)


@pytest.mark.parametrize("v", [math.nan, math.inf, -math.inf, 0.0, -0.0, -1.5, 2.5, -3, 1e308])
def test_numbers_that_python_refuses(v):
    """Where Python's functions raise or leave the real numbers, they have torch's values."""
    exact = torch.tensor(float(v), dtype=torch.float64)
    got = [ops.round(v), ops.abs(v)]
    want = [exact.round(), exact.abs()]
    for w in (math.nan, math.inf, 0.0, 0.5, -1.5, -1, -2, 3, 1e308, -1e308):
        got.append(ops.pow(v, w))
        want.append(exact.pow(torch.tensor(float(w), dtype=torch.float64)))
    torch.testing.assert_close(
        torch.tensor([float(n) for n in got], dtype=torch.float64), torch.stack(want),
        equal_nan=True,
    )  # fmt: skip


def test_whole_numbers_beyond_all_floating_point_numbers():
    """They are refused at the user's line."""
    with pytest.raises(TraceError, match="too large for a floating-point number") as caught:

        @cell(input="x[I]", state="h[I]")
        def step(x, h):
            return ops.tanh(x + h * 10**400)

    assert "10**400" in str(caught.value)


def test_functions_that_python_has_too():
    """Of numbers and lists they are Python's, inside formulas and outside."""
    assert ops.abs(-1.5) == 1.5
    assert ops.round(0.126, 2) == 0.13
    assert ops.pow(2, 3) == 8
    assert ops.sum(number for number in range(4)) == ops.sum([1, 2], 3) == 6
    graph = rnn(lambda x, h, W, R, b: ops.sum([h, b, h]) * ops.abs(-2) + ops.round(0.6)).graph
    assert {n.data[0] for n in graph.walk() if n.op == "const"} >= {2.0, 1.0}
    assert not any(n.op in ("sum", "abs", "round") for n in graph.walk())


@pytest.mark.parametrize(
    "mistake, hint",
    [
        (lambda x, h, W, R, b: (R * b) @ h, r"W @ \(s \* v\) scales the columns of W"),
        (lambda x, h, W, R, b: ops.noise(h, 0.1), r"0\.1 \* noise\(v\)"),
        (lambda x, h, W, R, b: ops.round(h, 2), r"0\.01 \* round\(100 \* v\)"),
        (lambda x, h, W, R, b: h + ops.sum(R, axis=2) + W @ x, r"sum\(W, axis=1\)"),
    ],
)
def test_hints(mistake, hint):
    with pytest.raises(ElmanError, match=hint):
        rnn(mistake)


def test_cell_without_its_arguments():
    """``@cell`` and ``@cell()`` say what is missing, at the function."""
    whole = '@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H]")'
    for decorate, what in (
        (cell, "@cell does not say what the function's arguments are"),
        (cell(), "a recurrent cell has at least one state"),
    ):
        with pytest.raises(TraceError) as caught:
            decorate(nothing)
        text = str(caught.value)
        assert text.startswith(what), text
        assert f"{HERE.name}:{nothing.__code__.co_firstlineno}: def nothing" in text, text
        assert f"hint  {whole}" in text, text


def test_a_helper_is_not_blamed():
    """A mistake inside a called function is told at that function's line."""

    def helper(v):
        return math.exp(v)  # helper

    def step(x, h, W, R, b):
        return helper(h)

    with pytest.raises(TraceError) as caught:
        rnn(step)
    told(caught.value, "a traced value is not a number", line_of("helper"), "use the function")


def test_options_of_cells_of_the_library():
    """A wrong one is told where the module is made, or the cell is asked for its formula."""
    with pytest.raises(TraceError) as caught:
        elman.Recurrent(cells.lif, 3, 4, reset_mechanism="never")  # module
    told(
        caught.value,
        "reset_mechanism must be one of",
        line_of("module"),
        'reset_mechanism="subtract"',
    )
    made = cells.slstm.with_options(forget="never")
    with pytest.raises(TraceError) as caught:
        _ = made.graph  # formula
    told(caught.value, "forget must be sigmoid or exp", line_of("formula"), 'forget="sigmoid"')
    net = elman.Recurrent(cells.lif, 3, 4, reset_mechanism="zero")
    assert net.cell.options["reset_mechanism"] == "zero"


def test_what_no_result_depends_on_is_warned_of_at_the_cell():
    with pytest.warns(UserWarning, match="unfinished declares 'z', 'U', but no result") as told:

        @cell(input="x[H], z[H]", state="h[H]", weights="R[H, H], U[H, H]")  # unread
        def unfinished(x, z, h, R, U):
            return tanh(x + R @ h)

    assert [Path(warning.filename) for warning in told] == [HERE]
    assert f"{HERE.name}:{told[0].lineno}: " in line_of("unread")

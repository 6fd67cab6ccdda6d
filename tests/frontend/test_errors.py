"""Mistakes in a cell: told at the cell's own line, with the replacement."""

from __future__ import annotations

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


def line_of(mark: str) -> str:
    """``file:line`` of this file's line that ends in ``# <mark>``."""
    for number, text in enumerate(HERE.read_text(encoding="utf-8").splitlines(), 1):
        if text.endswith(f"# {mark}"):
            return f"{HERE.name}:{number}: {text.strip()}"
    raise AssertionError(f"no line is marked {mark!r}")


def rnn(step):
    """Trace ``step(x, h, W, R, b)`` as a simple cell."""

    def formula(x, h, W, R, b):
        return step(x, h, W, R, b)

    return cell(input="x[I]", state="h[H]", weights="W[3H, I], R[H, H], b[H]")(formula)


def told(error: ElmanError, what: str, mark: str, hint: str) -> None:
    """The message says what, where, and what to write instead."""
    text = str(error)
    assert text.startswith(what), text
    assert f"at    {line_of(mark)}" in text, text
    assert f"hint  {hint}" in text, text


def with_if(x, h, W, R, b):
    if h > 0:  # if
        return h
    return tanh(h)


def with_while(x, h, W, R, b):
    while h:  # while
        h = h - 1
    return h


def with_range(x, h, W, R, b):
    for _ in range(mean(x)):  # range
        h = tanh(h)
    return h


def with_item(x, h, W, R, b):
    return [h, x][mean(x)]  # item


def with_and(x, h, W, R, b):
    return where(h > 0 and h < 1, h, 0)  # and


def with_chain(x, h, W, R, b):
    return where(0 < h < 1, h, 0)  # chain


def with_print(x, h, W, R, b):
    print("h is", h)  # noqa: T201  # print
    return h


def with_fstring(x, h, W, R, b):
    name = f"{h}"  # f-string
    return h if name else b


def with_format(x, h, W, R, b):
    name = f"{h:.3f}"  # format
    return h if name else b


def with_torch(x, h, W, R, b):
    return torch.tanh(h)  # torch


def with_functional(x, h, W, R, b):
    return torch.nn.functional.softplus(h)  # functional


def with_tensor(x, h, W, R, b):
    return h * torch.ones(3)  # tensor


def with_tensor_left(x, h, W, R, b):
    return torch.ones(3) * h  # tensor left


def with_tensor_added(x, h, W, R, b):
    return torch.add(torch.ones(3), h)  # tensor added


def with_tensor_of_one(x, h, W, R, b):
    return torch.tensor(0.5) * h  # tensor of one


def with_tensor_compared(x, h, W, R, b):
    return where(torch.ones(3) < h, h, 0)  # tensor compared


def with_parameter(x, h, W, R, b):
    return torch.nn.Parameter(torch.ones(3, 3)) @ h  # parameter


def with_change(x, h, W, R, b):
    h[0] = 1  # change
    return h


def with_deletion(x, h, W, R, b):
    del h[0]  # deletion
    return h


def with_digits(x, h, W, R, b):
    return round(h, 2)  # digits


def with_trunc(x, h, W, R, b):
    return math.trunc(h) * h  # trunc


def with_math(x, h, W, R, b):
    return math.tanh(h)  # math


def with_float(x, h, W, R, b):
    return h * float(b)  # float


def with_numpy(x, h, W, R, b):
    return np.tanh(h)  # numpy


def with_asarray(x, h, W, R, b):
    return np.asarray(h)  # asarray


def with_array(x, h, W, R, b):
    return h * np.ones(3)  # array


def with_index(x, h, W, R, b):
    return h[0]  # index


def with_unpacking(x, h, W, R, b):
    i, f = W @ x  # unpacking
    return i * f


def with_loop(x, h, W, R, b):
    return sum(v for v in h)  # loop


def with_len(x, h, W, R, b):
    return h / len(h)  # len


def with_method(x, h, W, R, b):
    return h.tanh()  # method


def with_chunk(x, h, W, R, b):
    return (W @ x).chunk(3)[0]  # chunk


def with_cat(x, h, W, R, b):
    return tanh(torch.cat((x, h)))  # cat


def with_detach(x, h, W, R, b):
    return h.detach()  # detach


def with_maximum(x, h, W, R, b):
    return np.maximum(h, b)  # maximum


def with_misspelt(x, h, W, R, b):
    return h.sigmoids()  # misspelt


def with_unknown(x, h, W, R, b):
    return torch.fft.fft(h)  # unknown


def with_power(x, h, W, R, b):
    return h ** "2"  # power


def with_division(x, h, W, R, b):
    return h // 1.0  # division


def with_conditions(x, h, W, R, b):
    return where((h > 0) & (h < 1), h, 0)  # conditions


def with_not(x, h, W, R, b):
    return where(~(h > 0), h, 0)  # not


def with_text(x, h, W, R, b):
    return h + "1"  # text


def with_none(x, h, W, R, b):
    return tanh(h + None)  # none


def with_set(x, h, W, R, b):
    return {h: 1}  # set


TRACE = {  # function -> what the message says first, the line's mark, the hint
    with_if: ("a traced value has no truth value", "if", "use where(condition, a, b)"),
    with_while: ("a loop cannot depend on values", "while", "run as many iterations as any sample"),
    with_range: (
        "a traced value is not an integer",
        "range",
        "run as many iterations as any sample",
    ),
    with_item: ("a traced value is not an integer", "item", "run as many iterations as any sample"),
    with_and: ("a traced value has no truth value", "and", "use where(condition, a, b)"),
    with_chain: ("a traced value has no truth value", "chain", "use where(condition, a, b)"),
    with_print: ("a traced value cannot be printed", "print", "print(elman.explain(cell))"),
    with_fstring: ("a traced value cannot be printed", "f-string", "print(elman.explain(cell))"),
    with_format: ("a traced value cannot be printed", "format", "print(elman.explain(cell))"),
    with_torch: ("torch.tanh cannot take a traced value", "torch", "from elman.ops import tanh"),
    with_functional: (
        "torch.softplus cannot take a traced value",
        "functional",
        "from elman.ops import softplus",
    ),
    with_tensor: ("a torch tensor cannot take part", "tensor", 'declare it: weights="s[H]"'),
    with_tensor_left: ("a torch tensor cannot take part", "tensor left", "declare it: weights="),
    with_tensor_added: ("a torch tensor cannot take part", "tensor added", "declare it: weights="),
    with_tensor_compared: ("a torch tensor cannot", "tensor compared", "declare it: weights="),
    with_parameter: ("a torch tensor cannot take part", "parameter", 'declare it: weights="s[H]"'),
    with_tensor_of_one: (
        "a torch tensor cannot take part",
        "tensor of one",
        "write float(t) for a number, or declare it as a weight",
    ),
    with_change: ("a traced value cannot be changed in place", "change", "make a new one: where("),
    with_deletion: ("a traced value cannot be indexed", "deletion", "cut it into parts"),
    with_digits: ("a traced value is rounded to whole", "digits", "round(v * 100) / 100"),
    with_trunc: ("cells have no trunc", "trunc", "write where(v < 0, -floor(-v), floor(v))"),
    with_math: ("a traced value is not a number", "math", "use the function of the same name"),
    with_float: ("a traced value is not a number", "float", "use the function of the same name"),
    with_numpy: ("numpy.tanh cannot take a traced value", "numpy", "from elman.ops import tanh"),
    with_asarray: ("numpy cannot take a traced value", "asarray", "use the function of that name"),
    with_array: ("a ndarray cannot take part", "array", "use numbers, the cell's arguments"),
    with_index: ("a traced value cannot be indexed", "index", "cut it into parts: a, b = split"),
    with_unpacking: (
        "a traced value cannot be unpacked",
        "unpacking",
        "cut it first: a, b = split(v, 2)",
    ),
    with_loop: ("a traced value cannot be unpacked", "loop", "cut it first"),
    with_len: ("a traced value has no length", "len", "dims are names inside a cell"),
    with_method: ("a traced value has no .tanh", "method", "from elman.ops import tanh"),
    with_chunk: ("a traced value has no .chunk", "chunk", "write split(v, 2)"),
    with_cat: ("torch.cat cannot take a traced value", "cat", "write concat(a, b)"),
    with_detach: ("a traced value has no .detach", "detach", "write stop_gradient(v)"),
    with_maximum: ("numpy.maximum cannot take", "maximum", "from elman.ops import maximum"),
    with_misspelt: ("a traced value has no .sigmoids", "misspelt", "elman.ops has no sigmoids; th"),
    with_unknown: ("torch.fft_fft cannot", "unknown", "elman.ops has no fft_fft: write it with"),
    with_power: ("a str cannot take part", "power", "use numbers, the cell's arguments"),
    with_division: ("cells have no //", "division", "write floor(v / w)"),
    with_conditions: ("cells have no & | ^ ~", "conditions", "write a * b for and"),
    with_not: ("cells have no & | ^ ~", "not", "write a * b for and"),
    with_text: ("a str cannot take part", "text", "use numbers, the cell's arguments"),
    with_none: ("a NoneType cannot take part", "none", "use numbers, the cell's arguments"),
}


@pytest.mark.parametrize("step", TRACE, ids=lambda step: step.__name__)
def test_what_is_no_formula(step):
    """Each is refused where it stands, with what to write instead."""
    what, mark, hint = TRACE[step]
    with pytest.raises(TraceError) as caught:
        rnn(step)
    told(caught.value, what, mark, hint)


def test_a_traced_value_is_no_key():
    """Values are compared as formulas, so they cannot be looked up."""
    with pytest.raises(TypeError, match="unhashable"):
        rnn(with_set)


def add_wide(x, h, W, R, b):
    return tanh(W @ x + R @ h)  # add wide


def multiply_unlike(x, h, W, R, b):
    return W @ h  # multiply unlike


def multiply_vectors(x, h, W, R, b):
    return h @ b  # multiply vectors


def multiply_turned(x, h, W, R, b):
    return h @ R  # multiply turned


def multiply_scalar(x, h, W, R, b):
    return mean(h) @ h  # multiply scalar


def add_unlike(x, h, W, R, b):
    return concat(x, h) + h  # add unlike


def multiply_matrices(x, h, W, R, b):
    return R @ R  # multiply matrices


def state_matrix(x, h, W, R, b):
    return (mean(h) * R) @ h  # state matrix


def bad_split(x, h, W, R, b):
    i, f = split(W @ x, 2)  # bad split
    return i + f


def unlike_parts(x, h, W, R, b):
    i, f = split(concat(x, h), 2)  # unlike parts
    return i + f


def named_split(x, h, W, R, b):
    i, f = split(W @ x, "H, H")  # named split
    return i + f


def split_scalar(x, h, W, R, b):
    return split(mean(h), 2)[0] * h  # split scalar


def split_by_none(x, h, W, R, b):
    return split(h, None)  # split by none


def mean_of_scalar(x, h, W, R, b):
    return h * softmax(mean(h))  # mean of scalar


def transposed_vector(x, h, W, R, b):
    return h.T  # transposed vector


def joined_unlike(x, h, W, R, b):
    return concat(W, R) @ h  # joined unlike


def split_named(x, h, W, R, b):
    a, c = split(h, 2)  # split named
    return concat(c, a)


def subtract_pairs(x, h, W, R, b):
    return mean(h - R) * h  # subtract pairs


def scale_by_unit(x, h, W, R, b):
    one, _, _ = split(amax(W @ x, groups=3), 3)
    return one * h  # scale by unit


SHAPES = {  # function -> error, what the message says first, the line's mark, the hint
    add_wide: (ShapeError, "cannot add [3H] and [H]", "split the wide operand first: split(v, 3)"),
    multiply_unlike: (
        ShapeError,
        "cannot multiply [3H, I] and [H]",
        "W @ v needs v of shape [I]; W.T is the transpose",
    ),
    multiply_vectors: (
        ShapeError,
        "cannot multiply [H] and [H]",
        "the dot product of two vectors is sum(h * b)",
    ),
    multiply_turned: (
        ShapeError,
        "cannot multiply [H] and [H, H]",
        "the left side of @ is a weight matrix: W @ v, or W.T @ v",
    ),
    multiply_scalar: (
        ShapeError,
        "cannot multiply scalar and [H]",
        "a scalar is multiplied by *: m * v",
    ),
    add_unlike: (
        ShapeError,
        "cannot add [I+H] and [H]",
        "values of one elementwise op have the same dims",
    ),
    multiply_matrices: (
        ShapeError,
        "cannot multiply [H, H] and [H, H]",
        "the right side of @ is a vector: write U @ (V @ h)",
    ),
    state_matrix: (
        TraceError,
        "a matrix may depend on weights alone",
        "multiply the vector instead: W @ (m * h)",
    ),
    bad_split: (
        TraceError,
        "cannot split [3H] into 2 equal parts",
        'for unequal parts name them: split(v, "H, H, P")',
    ),
    split_named: (
        TraceError,
        "cannot split [H] into 2 equal parts",
        "a vector that is cut is declared by its parts: [2P] in place of [H]",
    ),
    subtract_pairs: (
        ShapeError,
        "cannot sub [H] and [H, H]",
        "what follows inputs or states is a vector, never a matrix: W @ v, or, of all pairs of",
    ),
    scale_by_unit: (ShapeError, "cannot mul [1] and [H]", "sum(v) of one unit [1] is that unit"),
    unlike_parts: (TraceError, "cannot split [I+H] into 2 equal parts", "for unequal parts"),
    named_split: (
        TraceError,
        "cannot split [3H] into 'H, H', which is [2H]",
        "the parts, in order, are the whole vector",
    ),
    split_scalar: (TraceError, "cannot split ", "split takes a vector such as W @ x"),
    split_by_none: (TraceError, "split takes a number of parts or their dims, not None", "split("),
    mean_of_scalar: (TraceError, "cannot softmax ", "softmax takes a vector such as W @ x"),
    transposed_vector: (TraceError, "only a weight matrix has a transpose", "sum(v * k)"),
    joined_unlike: (
        ShapeError,
        "cannot concat [3H, I] and [H, H]",
        "matrices that are joined have equal columns",
    ),
}


@pytest.mark.parametrize("step", SHAPES, ids=lambda step: step.__name__)
def test_shapes_that_do_not_fit(step):
    """Told with both shapes, at the line."""
    kind, what, hint = SHAPES[step]
    with pytest.raises(kind) as caught:
        rnn(step)
    told(caught.value, what, step.__name__.replace("_", " "), hint)


def add_named(x, h, W, R, b):
    wide = W @ x
    return tanh(wide + R @ h)  # add named


def add_called(x, h, W, R, b):
    return concat(tanh(h), x) * sigmoid(b)  # add called


OPERANDS = {  # function -> the two sides as they are written; of a name, what it was given
    add_wide: ("W @ x: [3H]", "R @ h: [H]"),
    add_named: ("wide = W @ x: [3H]", "R @ h: [H]"),
    add_called: ("concat(tanh(h), x): [H+I]", "sigmoid(b): [H]"),
    multiply_vectors: ("h: [H]", "b: [H]"),
    multiply_unlike: ("W: [3H, I]", "h: [H]"),
}


@pytest.mark.parametrize("step", OPERANDS, ids=lambda step: step.__name__)
def test_both_operands_are_shown(step):
    """As they are written, with their shapes."""
    with pytest.raises(ShapeError) as caught:
        rnn(step)
    left, right = OPERANDS[step]
    assert f"\n  left  {left}\n  right {right}\n" in str(caught.value)


def two_for_one(x, h, W, R, b):
    return h, h  # two for one


def nothing(x, h, W, R, b):
    tanh(h)


def wide_state(x, h, W, R, b):
    return W @ x  # wide state


def a_number(x, h, W, R, b):
    return 0.0  # a number


def a_scalar(x, h, W, R, b):
    return mean(h)  # a scalar


def declared(function, **signature):
    fields = {"input": "x[I]", "state": "h[H]", "weights": "W[3H, I], R[H, H], b[H]", **signature}
    return cell(**fields)(function)


RETURNS = {
    two_for_one: (TraceError, "two_for_one returns 2 values, but declares 1: h[H]", "return h"),
    nothing: (TraceError, "nothing returns None for h[H]", "return h"),
    wide_state: (ShapeError, "wide_state returns [3H] for h[H]", "h is declared as [H]"),
    a_number: (ShapeError, "a_number returns a constant for h[H]", "0 * h + constant"),
    a_scalar: (ShapeError, "a_scalar returns scalar for h[H]", "h is declared as [H]"),
}


@pytest.mark.parametrize("function", RETURNS, ids=lambda step: step.__name__)
def test_what_a_cell_returns(function):
    """Wrong number, None, wrong shape: told at the return."""
    kind, what, hint = RETURNS[function]
    with pytest.raises(kind) as caught:
        declared(function)
    text = str(caught.value)
    assert text.startswith(what), text
    assert f"hint  {hint}" in text, text
    if function is not nothing:
        assert line_of(function.__name__.replace("_", " ")) in text, text
    else:
        assert f"{HERE.name}:{nothing.__code__.co_firstlineno}: def nothing" in text, text


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
        with pytest.raises(TraceError, match="a ndarray cannot take part"):
            rnn(lambda x, h, W, R, b, other=other: other * h)
    for gate in (ops.gelu, ops.silu):
        with pytest.raises(TraceError, match="a tuple cannot take part"):
            rnn(lambda x, h, W, R, b, gate=gate: gate(h.shape) * h)


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
    told(caught.value, "a traced value is not a number", "helper", "use the function")


def with_sum(x, h, W, R, b):
    return h * sum(R @ h)  # Python's sum


def with_max(x, h, W, R, b):
    return h * max(R @ h)  # Python's max


def with_larger(x, h, W, R, b):
    return max(h, R @ h)  # Python's max of two


def with_unpacking(x, h, W, R, b):
    first, *_ = h  # unpacked
    return first


BUILTINS = {
    with_sum: ("Python's sum() cannot take", "Python's sum", "from elman.ops import sum"),
    with_max: ("Python's max() cannot take", "Python's max", "amax(v) from elman.ops"),
    with_larger: ("Python's max() cannot choose", "Python's max of two", "maximum(a, b)"),
    with_unpacking: ("a traced value cannot be unpacked", "unpacked", "cut it first"),
}


@pytest.mark.parametrize("step", BUILTINS, ids=lambda step: step.__name__)
def test_pythons_own_functions(step):
    """Which iterate over a value, or ask for its truth, without a line of their own."""
    what, mark, hint = BUILTINS[step]
    with pytest.raises(TraceError) as caught:
        rnn(step)
    told(caught.value, what, mark, hint)


def with_too_few(x, h, W, R, b):
    return cells.gru(x, h, W)  # too few


def with_too_many(x, h, W, R, b):
    return cells.rnn(x, h, W, R, b, b, b)  # too many


def with_unknown_option(x, h, W, R, b):
    return cells.lif(x, h, W, b, rest="zero")[1]  # unknown option


def with_wrong_option(x, h, W, R, b):
    return cells.lif(h, h, R, h, reset_mechanism="never")[1]  # wrong option


def with_wrong_shape(x, h, W, R, b):
    return cells.gru(x, h, W, R, b, h)  # wrong shape


INLINED = {
    with_too_few: ("gru(…): missing a required", "too few", "gru(x, h, W, R, b, c)"),
    with_too_many: ("rnn(…): too many positional", "too many", "rnn(x, h, W, R, b"),
    with_unknown_option: ("lif(…): got an unexpected", "unknown option", "lif(x, m, W, b, beta,"),
    with_wrong_option: ("reset_mechanism must be one of", "wrong option", 'reset_mechanism="sub'),
    with_wrong_shape: ("cannot add [3H] and [H]", "wrong shape", "split the wide operand"),
}


@pytest.mark.parametrize("step", INLINED, ids=lambda step: step.__name__)
def test_cells_of_the_library_inside_others(step):
    """Told at the line of who calls them; for shapes the library's line too."""
    what, mark, hint = INLINED[step]
    with pytest.raises((TraceError, ShapeError)) as caught:
        rnn(step)
    told(caught.value, what, mark, hint)
    assert ("in    gru.py:" in str(caught.value)) == (step is with_wrong_shape)


def test_options_of_cells_of_the_library():
    """A wrong one is told where the module is made, or the cell is asked for its formula."""
    with pytest.raises(TraceError) as caught:
        elman.Recurrent(cells.lif, 3, 4, reset_mechanism="never")  # module
    told(caught.value, "reset_mechanism must be one of", "module", 'reset_mechanism="subtract"')
    made = cells.slstm.with_options(forget="never")
    with pytest.raises(TraceError) as caught:
        _ = made.graph  # formula
    told(caught.value, "forget must be sigmoid or exp", "formula", 'forget="sigmoid"')
    net = elman.Recurrent(cells.lif, 3, 4, reset_mechanism="zero")
    assert net.cell.options["reset_mechanism"] == "zero"

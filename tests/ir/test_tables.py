"""One op, one row in every table: none missing, none left over."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from elman import compiler, ops
from elman.autodiff.rules import VJP
from elman.engines.c.spelling.ops import REDUCE, SPELL
from elman.engines.c.text.units import file
from elman.engines.triton.text.ops import FOLDS
from elman.engines.triton.text.ops import SPELL as TRITON
from elman.frontend.cell import Cell, cell
from elman.ir.build import Builder
from elman.ir.evaluate import MEANING
from elman.ir.graph import Node, walk
from elman.ir.ops import COMPARISONS, OPS, REDUCTIONS, STAND_INS, STEPS, TRANSCENDENTAL
from elman.passes.canonical import canonical
from functions_of_one import FUNCTIONS

LEAVES = {op.name for op in OPS.values() if op.kind == "leaf"}
WRITTEN = {"add", "sub", "neg"}  # only before the canonical form: a sum with coefficients after it
_MOVED = {"split", "concat", "training", "per_sample", "reblock"}  # gone after the canonical form
STRUCTURAL = {"lin", "matmul", "bmm", "outer", "transpose"} | {  # own C code
    op.name for op in OPS.values() if op.kind in ("reduce", "spread", "scan")
}


def test_every_op_has_a_meaning():
    """The interpreter knows every op; leaves and cuts are its own matter."""
    own = {"split", "concat", "training", "uniform"}
    assert MEANING.keys() == OPS.keys() - LEAVES - own


def test_every_canonical_op_has_a_derivative():
    """One VJP row per op that the canonical form leaves."""
    assert VJP.keys() == OPS.keys() - LEAVES - WRITTEN - _MOVED


def test_every_canonical_op_is_spelled():
    """One spelling per elementwise op; sums, reductions and products are loops of their own."""
    pointwise = {op.name for op in OPS.values() if op.kind == "pointwise"}
    assert SPELL.keys() == TRITON.keys() == pointwise - WRITTEN - {"lin"}
    assert OPS.keys() - LEAVES - WRITTEN - _MOVED - SPELL.keys() == STRUCTURAL


def test_every_reduction_is_spelled():
    """By functions in C; in Triton as a fold or made of folds, and by a function of groups."""
    library = files("elman.engines.triton").joinpath("library.py").read_text()
    assert REDUCE.keys() == set(REDUCTIONS)
    functions = {text.partition("(")[0] for text in REDUCE.values()}
    heads = re.findall(r"^SHARED T (\w+)\(const Units ", file("reductions.h"), re.MULTILINE)
    assert set(heads) == functions
    assert FOLDS.keys() | {"mean", "var", "argmax"} == set(REDUCTIONS)
    assert [name for name in REDUCTIONS if f"def group_{name}(" not in library] == []


def test_every_function_of_one_value_is_tested():
    """By the tests that read the table of functions."""
    single = {op.name for op in OPS.values() if op.kind == "pointwise" and op.arity == 1}
    assert FUNCTIONS.keys() == single - {"neg", "stop"}


def test_spellings_take_as_many_operands_as_ops_do():
    """``{0}``, ``{1}`` … and no more; a stand-in is its first operand."""
    for name, text in (*SPELL.items(), *TRITON.items()):
        arity = 1 if name in STAND_INS else OPS[name].arity
        assert arity is not None, name
        assert [f"{{{i}}}" in text for i in range(4)] == [i < arity for i in range(4)], name


def test_names_of_groups_are_ops():
    """Comparisons and transcendental ops are drawn from the table."""
    assert set(COMPARISONS) <= SPELL.keys()
    assert {"tanh", "sigmoid", "exp"} <= set(TRANSCENDENTAL) <= SPELL.keys()


EVERY = {  # what a cell author may call -> a call of it on vectors x, h, a scalar m
    "amax": lambda x, h, m: h * ops.amax(x),
    "clip": lambda x, h, m: ops.clip(h, -1, 1),
    "dropout": lambda x, h, m: ops.dropout(h, 0.5),
    "zoneout": lambda x, h, m: ops.zoneout(x, h, 0.5),
    "columns": lambda x, h, m: (ops.outer(x, h) * ops.columns(x)) @ h,
    "concat": lambda x, h, m: ops.split(ops.concat(x, h), 2)[0],
    "layer_norm": lambda x, h, m: ops.layer_norm(h),
    "maximum": lambda x, h, m: ops.maximum(x, h),
    "minimum": lambda x, h, m: ops.minimum(x, m),
    "clip_gradient": lambda x, h, m: ops.clip_gradient(h, 0.5),
    "straight_through": lambda x, h, m: ops.straight_through(h > x, ops.sigmoid(h)),
    "mean": lambda x, h, m: h * ops.mean(x),
    "outer": lambda x, h, m: ops.outer(x, h).T @ h,
    "pow": lambda x, h, m: ops.pow(x, h) + h**2.5 + 2**h,
    "remainder": lambda x, h, m: ops.remainder(h, x) + h % 0.5 + 2 % h,
    "rows": lambda x, h, m: ops.sum(ops.rows(h) + ops.outer(x, h), axis=1),
    "shift": lambda x, h, m: ops.shift(ops.outer(x, h), x) @ h,
    "split": lambda x, h, m: ops.split(h, 1)[0],
    "spread": lambda x, h, m: ops.spread(ops.mean(h, groups=4), x),
    "sum": lambda x, h, m: h * ops.sum(x),
    "var": lambda x, h, m: h * ops.var(x),
    "where": lambda x, h, m: ops.where(m, x, h),
}


@pytest.mark.parametrize("name", ops.__all__)
def test_every_name_of_a_cell_author_traces(name):
    """Each function of elman.ops gives nodes of the table, and a pair that verifies."""
    own: Any = EVERY.get(name) or (lambda x, h, m: getattr(ops, name)(h))

    @cell(input="x[H], m", state="h[H]")
    def one(x, m, h):
        return own(x, h, m) + 0 * h

    for value in one.graph.walk():
        assert value.op in OPS
        assert value.where, f"{value!r} does not know its line"
    assert compiler.pair_of(one).d_states[0].shape == (("H",),)


def formula(text: str) -> Cell:
    """``h' = <text>`` over x, h [H], a scalar m and weights W [H, H], w [H]."""

    @cell(input="x[H], m", state="h[H]", weights="W[H, H], w[H]")
    def one(x, m, h, W, w):
        names = {name: getattr(ops, name) for name in ops.__all__}
        return eval(text, names, {"x": x, "m": m, "h": h, "W": W, "w": w})

    return one


def step_of(text: str) -> Node:
    """The canonical next state of a formula."""
    (root,) = canonical(formula(text).graph, Builder()).next_states
    return root


P = "(W @ h)"
SUMS = {  # as written -> (coefficients, bias) of the sum over a product
    f"{P} + {P} + {P}": ((3.0,), 0.0),
    f"{P} - 2 * {P}": ((1.0, -2.0), 0.0),  # unlike signs stay apart: inf - inf is NaN
    f"{P} - {P}": ((1.0, -1.0), 0.0),
    f"0 * {P} + {P}": ((0.0, 1.0), 0.0),  # 0 * inf is NaN
    f"1 - (2 - {P})": ((1.0,), -1.0),
    f"3 + 2 * ({P} + 1) + {P} / 4": ((2.25,), 5.0),
    f"-({P} - 1)": ((-1.0,), 1.0),
    f"{P} / 4": ((0.25,), 0.0),
    f"4 * ({P} / 2)": ((2.0,), 0.0),
}


@pytest.mark.parametrize("text", SUMS)
def test_sums_with_products_are_gathered(text):
    """Nested sums, differences and scalings of one product are one sum."""
    root = step_of(text)
    assert root.op == "lin"
    coefs, bias = SUMS[text]
    assert sorted(root.data[0]) == sorted(coefs)
    assert root.data[1] == bias
    assert {arg.op for arg in root.args} == {"matmul"}


def depth(value: Node) -> int:
    """How many sums lie in one another."""
    inside = max((depth(arg) for arg in value.args), default=0)
    return inside + (value.op == "lin")


AS_WRITTEN = {  # -> how many sums are rounded, one inside the other
    "(h + 12582912.0) - 12582912.0": 2,  # rounds h; it is no h
    "h + h + h": 1,  # 2 h is exact
    "0.3 * h + h + 1": 3,
    "3 + 2 * (h + 1)": 2,
    "0.1 * (x - h)": 2,
    "(h > 0) + (tanh(h) - stop_gradient(tanh(h)))": 2,
    "(h - 1 > 0) * h": 1,
    "(x + (x - 0.3)) * (W @ h)": 2,
}


@pytest.mark.parametrize("text", AS_WRITTEN)
def test_sums_without_products_stay_as_written(text):
    """No term moves from one to another, and no number is folded."""
    assert depth(step_of(text)) == AS_WRITTEN[text]


@pytest.mark.parametrize("test", ["v - x > 0", "0 <= x - v", "where(v - x, h, x)", "v == x"])
def test_what_a_step_function_takes_is_one_value(test):
    """v is computed once: the threshold is asked of what the state will be."""

    @cell(input="x[H]", state="s[H], v[H]", weights="W[H, H], b[H]")
    def spiking(x, s, v, W, b):
        h = s
        v = 0.9 * v + W @ x + b
        names = {"v": v, "x": x, "h": h, "where": ops.where}
        return h + eval(test, names), v

    step = canonical(spiking.graph, Builder())
    (v,) = step.next_states[1:]
    asked = [value for value in walk(step.roots) if value.op in STEPS]
    assert asked
    assert all(v in walk(value.args[:1] if "where" in test else value.args) for value in asked)


@pytest.mark.parametrize("text", ["inf", "-inf", "nan"])
def test_sums_times_what_is_no_number_stay_sums(text):
    """inf * (h + x) is not inf * h + inf * x, nor is its bias inf * 0; so is every cotangent."""
    root = step_of(f"float({text!r}) * (h + x)")
    assert (root.op, root.bias, [arg.op for arg in root.args]) == ("lin", 0.0, ["lin"])
    pair = compiler.pair_of(formula(f"float({text!r}) * h + x"))
    assert {d.bias for d in walk(pair.d_states) if d.op == "lin"} == {0.0}


def test_equal_formulas_are_one_node():
    """The order of writing does not matter; nor does a spelling by other means."""
    build = Builder()

    def root(text: str) -> Node:
        return canonical(formula(text).graph, build).next_states[0]

    same = [
        ("x * h", "h * x"),
        ("W @ h + x + w", "w + (x + W @ h)"),
        ("1 - h", "-h + 1"),
        ("maximum(x, h)", "maximum(h, x)"),
        ("2 * (W @ h)", "W @ h + W @ h"),
    ]
    for left, right in same:
        assert root(left).op == root(right).op
        assert shown(root(left)) == shown(root(right)), (left, right)
    assert shown(root("x / h")) != shown(root("h / x"))


def shown(value: Node) -> str:
    """A node as text, arguments in the order of their own texts where the op commutes."""
    inside = [shown(arg) for arg in value.args]
    coefs = value.data[0] if value.op == "lin" else ()
    if value.op == "lin":
        pairs = sorted(zip(inside, coefs))
        return f"lin({pairs}, {value.data[1]})"
    if value.op in ("mul", "maximum", "minimum"):
        inside.sort()
    return f"{value.op}{value.data}({', '.join(inside)})"


def test_sums_are_regrouped_by_rate():
    """State terms + (input terms + (weight terms))."""
    root = step_of("W @ h + (W @ x + w) + h * w + w * w")
    assert sorted(arg.op for arg in root.args) == ["lin", "matmul", "mul"]
    (inner,) = (arg for arg in root.args if arg.op == "lin")
    assert inner.rate.name == "INPUT"
    (weights,) = (arg for arg in inner.args if arg.op == "lin")
    assert weights.rate.name == "WEIGHT"


def test_numbers_move_out_of_products():
    """2 * P * (3 * h) is one product, scaled once; 0 scales too, and does not divide."""
    root = step_of(f"(2 * {P}) * (3 * (W @ x))")
    assert (root.op, root.data) == ("lin", ((6.0,), 0.0))
    assert root.args[0].op == "mul"
    assert step_of(f"(0 * {P}) * h").data == ((0.0,), 0.0)
    zero = step_of(f"{P} * (0 * m) * (0 * sum(x))")
    assert all(value.op != "const" for value in walk([zero]))


def test_division_by_a_number_that_has_no_inverse():
    """x / 0 and x / 1e-310 stay divisions: their inverse is infinite, 0 / 1e-310 is 0."""
    assert step_of("h / 0").op == "div"
    assert step_of("h / 1e-310").op == "div"

"""Wrong arguments of everything public: elman's own errors, which name the argument.

Kinds of mistakes are written out; robustness/random_arguments.py draws thousands, some here.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

import elman
import elman.nn
from elman.errors import ElmanError, InputError, ShapeError, TraceError
from elman.ops import *  # noqa: F403
from random_calls import EXAMPLES, random_call
from scripts import begin, finished

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "robustness" / "random_arguments.py"
X = torch.ones(5, 2, 3)


def gru(**options):
    return elman.GRU(3, 4, **options)


def mgu(*more, **options):
    return elman.Recurrent(elman.cells.mgu, 3, 4, *more, **options)


WRONG = {  # kind of mistake -> a call that has it, and what the error says
    "no model": (lambda: elman.accelerate(3), "elman.accelerate takes a torch.nn.Module, not 3"),
    "a dict for a model": (lambda: elman.restore({}), "elman.restore takes a torch.nn.Module"),
    "no records": (lambda: elman.nn.pin(gru(), 0), "pin takes the records of a model's layers"),
    "a list for a tensor": (
        lambda: elman.linear_scan([1.0], [2.0]),
        r"linear_scan: a must be a tensor, got a list\n.*torch.as_tensor\(a\)",
    ),
    "x of a drop-in is a list": (lambda: gru()([[1.0]]), r"input of GRU .*\n.*torch.as_tensor\(x"),
    "x of a drop-in is an array": (lambda: gru()(X.numpy()), r"got a ndarray\n.*torch.as_tensor"),
    "x is a list": (lambda: mgu()([[1.0]]), "input of mgu is a tensor, got list"),
    "a state is a list": (
        lambda: gru()(X, [torch.ones(1, 2, 4)]),
        "state of GRU must be a tensor, got a list",
    ),
    "a state is one of two": (
        lambda: elman.LSTM(3, 4)(X, (torch.ones(1, 2, 4),)),
        r"state of LSTM must be two tensors, \(h, c\)",
    ),
    "a state is a dict": (lambda: gru()(X, {}), "state of GRU must be a tensor, got {}"),
    "a state is empty": (lambda: mgu()(X, []), "mgu has 1 state, h, but 0 were given"),
    "lengths of None": (lambda: gru()(X, lengths=[None]), "lengths must be whole numbers"),
    "lengths of a text": (lambda: gru()(X, lengths="abc"), "lengths must be whole numbers.*'abc'"),
    "lengths beyond 64 bits": (lambda: mgu()(X, lengths=[2**70, 1]), "lengths must be whole"),
    "lengths of words": (lambda: mgu()(X, lengths=numpy.array(["a", "b"])), "lengths must be who"),
    "more heads than units": (lambda: gru(heads=2**40), "heads must be at most|cannot be divided"),
    "more heads than are": (lambda: mgu(heads=2**20), "cannot be divided among 1048576 heads"),
    "layers without end": (lambda: gru(num_layers=2**63), "num_layers must be at most 10000, got"),
    "layers beyond memory": (lambda: mgu(2**63), "num_layers must be at most 10000, got"),
    "units beyond memory": (lambda: mgu(2**63), "must be at most"),
    "without of a number": (lambda: elman.PlanOptions(without=3), "without must be words, got 3"),
    "a flag that is none": (lambda: mgu(residual=torch.ones(2)), "residual must be True or False"),
    "an array for a word": (lambda: mgu()(X, outputs=numpy.ones(2)), "outputs must be None or"),
    "an array for an engine": (lambda: gru(engine=numpy.ones(2)), "no engine a ndarray"),
    "a type that trains nothing": (lambda: mgu(dtype=torch.int64), "dtype must be a type that wei"),
    "no such device": (lambda: mgu(device="nope"), "device='nope' holds no tensors"),
    "a share that is none": (lambda: mgu(dropout="a"), r"dropout must be in \[0, 1\], got 'a'"),
    "no path": (lambda: elman.draw(elman.cells.gru, 3), "path must be a path, got 3"),
    "an empty path": (lambda: elman.export.to_c(gru(), ""), "folder must be a path, got ''"),
    "a number for a run": (lambda: elman.load(3), "path must be a path, got 3"),
    "no function": (lambda: elman.deer(3, X[0], X), "step must be a function, got 3"),
    "no model to tune": (lambda: elman.tune(X, X), "elman.tune takes a torch.nn.Module, not "),
    "a list to tune on": (lambda: elman.tune(gru(), [X]), "explain needs an example input of this"),
    "no plan to draw": (lambda: elman.draw(elman.cells.gru, plan=X), "plan must be an elman.Plan"),
    "no plan to explain": (lambda: elman.explain(elman.cells.gru, plan=3), "plan must be an elman"),
    "a tensor for a size": (lambda: gru(proj_size=X), "proj_size should be of type int"),
    "a step with lengths": (lambda: gru().step(X[0], lengths=3), "lengths=3 is of a whole"),
    "deer on a scalar": (
        lambda: elman.deer(lambda y, x: y, X[0], X[0, 0, 0]),
        r"deer: x is \[T, 2, …\] beside y0",
    ),
    "a class of layers": (
        lambda: elman.deer(lambda y, x: y + x, X[0], X, report=elman.GRU),
        r"report must take \(solved\)",
    ),
    "a limit that is a weight": (
        lambda: mgu(clip_gradient=torch.nn.Parameter(torch.ones(3))),
        "clip_gradient must be a positive number",
    ),
    "a share that is a weight": (
        lambda: mgu(recurrent_dropout=torch.nn.Parameter(torch.ones(3))),
        r"recurrent_dropout must be in \[0, 1\]",
    ),
    "shares that are weights": (
        lambda: mgu(zoneout=torch.nn.Parameter(torch.ones(3))),
        r"zoneout must be in \[0, 1\]",
    ),
    "a function of one": (lambda: elman.deer(abs, X[0], X), r"step must take \(y, x\)|must be"),
    "nothing to explain": (lambda: elman.explain([]), "explain takes a cell or a module"),
    "static of a drop-in": (lambda: gru()(X, static=X[0]), "has no static inputs(.|\n)*ealstm"),
    "static of a step": (lambda: gru().step(X[0], static=X[0]), "has no static inputs"),
    "a stream of static": (lambda: elman.Stream(mgu(), static=X[0]), "has no static inputs"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arguments_are_told(kind):
    call, text = WRONG[kind]
    with pytest.raises(ElmanError, match=text):
        call()


FORMULAS = {  # what stands in a formula -> what the error says
    "sum(h, dim=-1)": r"sum\(\) got an unexpected keyword argument 'dim'(.|\n)*hint  sum\(v, ",
    "tanh(h, x)": r"tanh\(\) takes 1 positional argument(.|\n)*hint  tanh\(v\)",
    "dropout(h)": r"dropout\(\) missing 1 (.|\n)*hint  dropout\(v, p, per='step'\)",
    "concat(sum(h), h)": r"is not a vector(.|\n)*spread\(s, v\) is a scalar s as a vector",
    "v @ h.T": r"only a matrix has a transpose(.|\n)*outer\(k, v\)",
    "torch.outer(v, h)": r"cannot take a traced value(.|\n)*outer\(k, v\) from elman.ops",
    "spike(v, v)": "spike knows no surrogate a Tracer",
}


@pytest.mark.parametrize("text", FORMULAS)
def test_calls_inside_a_formula_are_told(text):
    """At the user's line, with how the function is called; the formula's own TypeErrors stay."""
    with pytest.raises(TraceError, match=FORMULAS[text]):

        @elman.cell(input="x[I]", state="h[H]", weights="W[H, I]")
        def some(x, h, W):
            v = W @ x
            return eval(text, globals(), locals())

    with pytest.raises(TypeError, match="unsupported operand"):

        @elman.cell(input="x[I]", state="h[H]", weights="W[H, I]")
        def other(x, h, W):
            return [] / 2


def test_all_pairs_of_units_are_a_vector():
    """What the hint on outer products says is one."""

    @elman.cell(input="x[I]", state="A[N]", weights="V[H, I], K[H, I]", constants="P[N, H]")
    def pairs(x, A, V, K, P):
        v, k = V @ x, K @ x
        return A + spread(v, A) * (P @ k)  # noqa: F405

    net = elman.Recurrent(pairs, 3, 16, H=4, P=torch.eye(4).repeat(4, 1), engine="reference")
    x = torch.randn(1, 2, 3)
    v, k = (x[0] @ weight.T for weight in (net.V_l0, net.K_l0))
    expected = torch.einsum("bi,bj->bij", v, k).flatten(1)
    torch.testing.assert_close(net(x)[0][0], expected)


def test_what_a_cell_declares_is_told():
    with pytest.raises(TraceError, match=r"no argument 'states'(.|\n)*hint  state=…"):
        elman.cell(input="x[I]", states="h[H]")  # type: ignore[call-arg]
    with pytest.raises(TraceError, match=r"option 'g' of some has no default value"):

        @elman.cell(input="x[I]", state="h[I]")
        def some(x, h, *, g):
            return g(x + h)

    with pytest.raises(TraceError, match=r"has 3 dims(.|\n)*a map of channels and pixels is one"):

        @elman.cell(input="x[C, Y, X]", state="h[C, Y, X]")
        def convolved(x, h):
            return h

    with pytest.raises(TraceError, match="@cell decorates a function, not the class GRU"):
        elman.cell(input="x[I]", state="h[H]")(elman.GRU)


def test_no_size_is_allocated_before_it_is_refused():
    for size in (2**31, 2**63, 2**70):
        for make in (
            lambda size: elman.Recurrent(elman.cells.gru, size, 4),
            lambda size: elman.Recurrent(elman.cells.gru, 3, size),
            lambda size: elman.cells.gru.bind(3, size),
            lambda size: elman.LinearCrossEntropyLoss(size, 4),
            lambda size: elman.cells.gru.with_heads(size),
            lambda size: gru(zoneout=0.1).draws(size, 2),
        ):
            with pytest.raises((InputError, ShapeError), match="must be at most"):
                make(size)


def test_random_calls_are_drawn_from_their_seed():
    """Every example is drawn, and a seed is one call."""
    drawn = [random_call(seed) for seed in range(1000)]
    assert EXAMPLES.keys() <= {call.target for call in drawn}
    assert all(EXAMPLES.values())
    assert drawn[:20] == [random_call(seed) for seed in range(20)]


@pytest.mark.slow
def test_random_calls_return_or_are_told():
    """Twenty of them; the script ends with its counts."""
    words = ("--count=20", "--seed=40000", "--workers=1")
    said = finished(begin("-W", "ignore", str(SCRIPT), *words))
    assert said.rstrip().endswith("20 calls, 0 failed")


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor_is_told():
    """torch has no kernel for it, and says so at length."""
    a = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)
    with pytest.raises(InputError, match=r"linear_scan: a is quantized\n.*a.dequantize\(\)"):
        elman.linear_scan(a, a)

"""Exported ONNX, run by ONNX Runtime, beside the module it was made of."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

import elman
from elman import cells, ops
from elman.cli.app import build_app
from elman.errors import InputError, MissingPackageError, RunError
from elman.export import to_onnx
from elman.frontend.cell import cell
from elman.ir.graph import walk
from elman.ir.ops import POINTWISE
from elman.ir.types import names_in
from functions_of_one import AUTHORS, within
from helpers import assert_same, forced
from kernels import cell_from
from library_sizes import DIMS
from matrix_parts import PARTS, PARTS_SIZES
from products import every
from random_cells import drawn_cells
from unseen import UNSEEN, of_heads

# a second for each layer
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("translations_read_once")]


@pytest.fixture
def runtime():
    """ONNX Runtime, which says nothing of initial states that may be given."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    found = pytest.importorskip("onnxruntime")
    found.set_default_logger_severity(3)
    return found


def by_onnx(runtime, module, path, inputs, more=(), made=None, **options):
    """What an exported module makes of inputs, static ones and states by name; ``made``: exported
    before."""
    made = made or to_onnx(module, path, **options)
    session = runtime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
    required = [slot.name for slot in session.get_inputs()]
    feed = dict(zip(required, [value.numpy() for value in inputs], strict=True))
    values = session.run([*made.outputs], feed | {k: v.numpy() for k, v in dict(more).items()})
    return made, dict(zip(made.outputs, map(torch.from_numpy, values), strict=True))


def check(runtime, module, folder, T=5, B=3, states=False, lengths=None, **options):
    """Outputs and last states, from zeros or from drawn states, as on engine reference: within the
    tolerance of float32, or four times as far as float32 is there."""
    torch.manual_seed(1)
    module = module.eval()
    sizes, signature = module.runtime, module.runtime.signature
    lead = (B, T) if module.batch_first else (T, B)
    inputs = [torch.randn(*lead, *shape) for shape in sizes.input_sizes]
    static = [torch.randn(B, *shape) for shape in sizes.static_sizes]
    starts = [torch.randn(signature.lead, B, *shape) for shape in sizes.state_sizes]
    more = {f"{name}_0": v for (name, _), v in zip(signature.states, starts)} if states else {}
    every = [*inputs, *static]
    if lengths is not None:
        options["lengths"], lengths = True, torch.tensor(lengths)
        every.append(lengths)
    made, got = by_onnx(runtime, module, folder / "m.onnx", every, more, **options)

    def results(net, kind):
        values = [tuple(v.to(kind) for v in group) for group in (inputs, starts, static)]
        given = {"static": values[2]} if static else {}
        start = signature.form.nest(values[1]) if states else None
        with torch.no_grad(), forced("reference"):
            x = values[0] if len(inputs) > 1 else values[0][0]
            out, last = net(x, start, lengths=lengths, **given)
        outs = out if isinstance(out, tuple) else (out,)
        return [outs, signature.form.arrays(last)]

    single, (outs, ends) = (
        results(module, torch.float32),
        results(copy.deepcopy(module).double(), torch.float64),
    )
    assert [*got] == [
        *(f"out_{k}" if k else "out" for k in range(len(outs))),
        *(f"{name}_n" for name, _ in signature.states),
    ]
    for name, value, in_float32 in zip(got, (*outs, *ends), (*single[0], *single[1]), strict=True):
        assert got[name].shape == value.shape, name
        if not (got[name] - value).abs().max() <= 4 * (in_float32 - value).abs().max():
            assert_same(name, got[name], value, torch.float32, T)
    return made


@pytest.mark.parametrize("one", every(14, cells.ALL))
def test_every_cell(one, runtime, tmp_path):
    """Of the library, from states that are given; those with matrix states, too."""
    sizes = {"input_size": 6, "hidden_size": 6} | DIMS.get(one.name, {})
    steps = 2 if one in cells.MATRIX else 5  # keys of any length: matrices grow
    check(runtime, elman.Recurrent(one, **sizes), tmp_path, T=steps, states=True)


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"batch_first": True}])
def test_heads_of_matrices(options, runtime, tmp_path):
    """They have an axis of their own in all inputs, states and outputs."""
    net = elman.Recurrent(cells.mamba2, 6, 9, heads=3, **options)
    made = check(runtime, net, tmp_path, states=True, lengths=[2, 5, 4])
    lead = ("B", "T") if options.get("batch_first") else ("T", "B")
    assert made.inputs["x"] == (*lead, 3, 2)
    assert made.inputs["A"] == ("B", 3)
    assert made.outputs["S_n"] == (len(net.runners), "B", 3, 2, 3)


@pytest.mark.parametrize("one", every(2, PARTS))
def test_axes_of_several_parts(one, runtime, tmp_path):
    """Of matrices, joined and cut."""
    net = elman.Recurrent(one, **PARTS_SIZES[one.name])
    check(runtime, net, tmp_path, T=2, states=True)


@pytest.mark.parametrize("one", every(12, [*UNSEEN]))
def test_cells_that_nobody_thought_of(one, runtime, tmp_path):
    """Scalars, masks, delays, groups, products of products, outputs that are no states."""
    sizes = UNSEEN[one]
    fixed = {k: v for k, v in DIMS.get(one.name, {}).items() if k in one.constants}
    more = {**dict(sizes.more), **fixed}
    module = elman.Recurrent(one, max(1, sizes.I), max(1, sizes.H), **more)
    check(runtime, module, tmp_path, T=sizes.T, B=sizes.B, states=True)


@pytest.mark.long
@settings(max_examples=8, derandomize=True, suppress_health_check=[*HealthCheck])
@given(drawn=drawn_cells())
def test_random_cells(drawn, runtime, tmp_path):
    """Cells nobody has written; the same ones in every run: a floor may fall either way."""
    one = cell_from(drawn.text)
    declared = (*one.inputs, *one.states, *one.weights)
    more = {"P": drawn.P} if "P" in {n for e in declared for n in names_in(e.shape)} else {}
    module = elman.Recurrent(one, drawn.I, drawn.H, **more)
    check(runtime, module, tmp_path, T=3, B=2, states=True)


LENGTHS = [3, 5, 1]
STANDARD = {
    "RNN": lambda **o: elman.RNN(4, 6, **o),
    "RNN relu": lambda **o: elman.RNN(4, 6, nonlinearity="relu", **o),
    "GRU": lambda **o: elman.GRU(4, 6, clip_gradient=1.0, **o),
    "LSTM": lambda **o: elman.LSTM(4, 6, **o),
    "GRU cell": lambda **o: elman.Recurrent(cells.gru, 4, 6, **o),
}


@pytest.mark.parametrize("name", every(2, [*STANDARD]))
def test_standard_operators(name, runtime, tmp_path):
    """RNN, GRU and LSTM are ONNX's own, by whatever class, where gradients are clipped, too; with
    lengths they are scans."""
    net = STANDARD[name](num_layers=2, bidirectional=name == "GRU")
    made = check(runtime, net, tmp_path, states=True)
    assert made.operators == [name.split()[0]] * (4 if name == "GRU" else 2)


SHAPES = {
    "no bias": lambda: elman.GRU(4, 6, bias=False),
    "no bias, LSTM": lambda: elman.LSTM(4, 6, bias=False, bidirectional=True),
    "projection": lambda: elman.LSTM(4, 6, 2, proj_size=3),
    "heads": lambda: elman.GRU(4, 6, 2, heads=2),
    "norms of heads": lambda: elman.Recurrent(cells.lstm_layernorm, 4, 6, 2, heads=2),
    "scalars of heads": lambda: elman.Recurrent(of_heads, 4, 6, 2, heads=2),
    "batch first": lambda: elman.LSTM(4, 6, batch_first=True, bidirectional=True),
    "batch first scan": lambda: elman.Recurrent(cells.mgu, 4, 6, 2, batch_first=True),
    "residual": lambda: elman.Recurrent(cells.mgu, 6, 6, 3, residual=True, bidirectional=False),
    "residual GRU": lambda: elman.GRU(6, 6, 3, residual=True),
    "both ways": lambda: elman.Recurrent(cells.lem, 4, 6, 2, bidirectional=True),
    "option": lambda: elman.Recurrent(cells.rnn, 4, 6, activation=ops.relu),
}


@pytest.mark.parametrize("name", every(3, [*SHAPES]))
def test_layers_directions_heads_and_layouts(name, runtime, tmp_path):
    """Layers, directions, heads, residual connections, layouts."""
    check(runtime, SHAPES[name](), tmp_path, states=True)


@pytest.mark.parametrize("name", every(3, ["projection", "residual", "both ways", "batch first"]))
def test_padded_batches(name, runtime, tmp_path):
    """Padding reaches neither outputs nor last states."""
    check(runtime, SHAPES[name](), tmp_path, states=True, lengths=LENGTHS)


def test_learned_initial_states(runtime, tmp_path):
    """They are what a sequence begins with that is given none."""
    module = elman.LSTM(4, 6, 2, learn_initial=True)
    with torch.no_grad():
        module.initial_h.normal_()
        module.initial_c.normal_()
    check(runtime, module, tmp_path)


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]", init={"h": 0.75})
def beginning(x, h, W, R):
    return ops.tanh(W @ x + R @ h)


def test_what_a_cell_begins_with(runtime, tmp_path):
    """A buffer, as what is learned is a parameter."""
    check(runtime, elman.Recurrent(beginning, 4, 6, 2, bidirectional=True), tmp_path)


@cell(
    input="x[I], m",
    static="s[S], k",
    state="h[H], t",
    weights="W[H, I], R[H, H], V[H, S], a",
    constants="A[H, H]",
    output="y[2H], z",
)
def everything(x, m, s, k, h, t, W, R, V, a, A):
    """Scalars, static inputs, constants, several outputs."""
    gate = ops.sigmoid(V @ s + k)
    h = ops.tanh(W @ x + R @ (m * h) + A @ gate + a * t)
    t = 0.5 * t + ops.mean(h) * ops.sum(x) + m
    return ops.concat(h, gate), t * k, h, t


@pytest.mark.parametrize("options", every(2, [{}, {"batch_first": True}]))
def test_everything_of_a_cell(options, runtime, tmp_path):
    """Of one cell; weights that are constants are exported as they are."""
    module = elman.Recurrent(everything, 4, 4, S=3, A=torch.eye(4), **options)
    check(runtime, module, tmp_path, states=True, lengths=LENGTHS)


@pytest.mark.parametrize("both", every(2, [False, True]))
def test_layers_of_their_own(both, runtime, tmp_path):
    """Cells and sizes of each layer, operators beside a Scan, and the states of each."""
    one = [cells.gru, cells.mgu, cells.lstm]
    net = elman.Recurrent(one, 5, [6, 4, 7], bidirectional=both, learn_initial=True)
    for value in net._initial():
        torch.nn.init.normal_(value)
    made = check(runtime, net, tmp_path)
    assert made.operators == [kind for kind in ("GRU", "Scan", "LSTM") for _ in range(1 + both)]
    assert made.outputs["c_l2_n" if not both else "c_l2_reverse_n"] == (1, "B", 7)
    check(runtime, net, tmp_path, states=True, made=made)


def test_only_the_last_layer_hands_out_everything(runtime, tmp_path):
    """Several outputs, layers and directions."""

    @cell(input="x[H]", state="h[H]", weights="R[H, H]", output="y[H], g[H]")
    def two(x, h, R):
        """Output, and the gate."""
        g = ops.sigmoid(x + R @ h)
        return g * x, g, ops.tanh(g - h)

    check(runtime, elman.Recurrent(two, 4, 4, 3), tmp_path)
    check(runtime, elman.Recurrent(two, 4, 4, bidirectional=True), tmp_path)


def test_what_does_not_depend_on_the_state(runtime, tmp_path):
    """A next state, or an output, of inputs or of weights alone; a formula that reads no input."""

    @cell(input="x[H]", state="h[H], c[H]", weights="b[H]", output="y[H]")
    def still(x, h, c, b):
        """Nothing of it is kept."""
        return ops.exp(b), ops.tanh(x), ops.sin(b)

    @cell(input="x[I]", state="h[H]", weights="R[H, H]")
    def alone(x, h, R):
        """It goes on by itself."""
        return ops.cos(R @ h + 1)

    check(runtime, elman.Recurrent(still, 4, 4), tmp_path, states=True)
    check(runtime, elman.Recurrent(alone, 3, 4), tmp_path)


def test_sizes_are_those_of_a_call(runtime, tmp_path):
    """One file for every T and B, and states may be given or not."""
    module = elman.Recurrent(cells.lem, 4, 6)
    made = to_onnx(module, tmp_path / "m.onnx")
    assert made.inputs == {"x": ("T", "B", 4), "y_0": (1, "1 or B", 6), "z_0": (1, "1 or B", 6)}
    assert made.outputs == {"out": ("T", "B", 6), "y_n": (1, "B", 6), "z_n": (1, "B", 6)}
    session = runtime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
    for T, B in ((1, 1), (7, 2), (2, 5)):
        x = torch.randn(T, B, 4)
        out, *_ = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(out), module(x)[0].detach())


ONE = {  # op -> a formula of it on vectors x and h
    **{name: lambda x, h, name=name: getattr(ops, name)(within(name, x + h)) for name in AUTHORS},
    "log": lambda x, h: ops.log(ops.abs(x * h)),
    "sqrt": lambda x, h: ops.sqrt(x * x + h),
    "softplus": lambda x, h: ops.softplus(30 * x - h),
    "lin": lambda x, h: x + ops.uniform(h),  # in eval() its mean
    "stop": lambda x, h: ops.stop_gradient(x) + h,
    "add": lambda x, h: x + 0.5 * h,
    "sub": lambda x, h: x - h,
    "neg": lambda x, h: ops.exp(-ops.abs(h) + x),
    "mul": lambda x, h: x * h,
    "div": lambda x, h: x / (h + 0.5),
    "pow": lambda x, h: ops.pow(ops.abs(x) + 0.5, h) + x**3,
    "remainder": lambda x, h: ops.remainder(x, h) + h % 0.3 + h % -0.7,
    "minimum": lambda x, h: ops.minimum(x, h),
    "maximum": lambda x, h: ops.maximum(x, 0.5 * h),
    "where": lambda x, h: ops.where(x > h, x, h / 2) + ops.where(ops.floor(h), x, 1.0),
    "lt": lambda x, h: x + (x < h),
    "le": lambda x, h: x + (ops.floor(h) <= 0.0),
    "gt": lambda x, h: x + (x > h),
    "ge": lambda x, h: x + (ops.floor(h) >= 0.0),
    "eq": lambda x, h: x + (ops.floor(h) == 0.0),
    "ne": lambda x, h: x + (ops.floor(h) != 0.0),
    "sum": lambda x, h: x + 0.1 * ops.sum(h),
    "mean": lambda x, h: x - ops.mean(ops.concat(x, h)),
    "var": lambda x, h: x * ops.var(h + 1),
    "amax": lambda x, h: ops.softmax(x + h) + ops.amax(h),
    "argmax": lambda x, h: ops.hardmax(x, groups=3) + ops.hardmax(h),
    "one_hot": lambda x, h: (
        x * ops.hardmax(h, groups=2) + ops.split(ops.hardmax(ops.concat(x, h)), 2)[1]
    ),
    "spread": lambda x, h: (
        ops.spread(ops.var(h, groups=3), x) + ops.spread(ops.mean(ops.sin(x)), h)
    ),
    "cumsum": lambda x, h: x - ops.cumsum(h),
}


@cell(input="x[H]", state="h[H]", output=", ".join(f"y_{name}[H]" for name in ONE))
def every_op(x, h):
    return (*(ops.concat(of(x, h)) for of in ONE.values()), ops.tanh(h))


def test_every_op(runtime, tmp_path):
    """On drawn values, among them zeros, infinities and NaN where the formula makes them."""
    found = {value.op for value in walk(every_op.graph.roots)}
    assert {*POINTWISE} - {"sign", "clip_gradient", "surrogate", "uniform"} <= found
    check(runtime, elman.Recurrent(every_op, 6, 6), tmp_path, T=1, states=True)


def test_matrices_are_cut_and_joined(runtime, tmp_path):
    """What a formula does with matrices of weights before it multiplies with them."""

    @cell(input="x[I]", state="h[H]", weights="W[2H, I], R[H, H], s")
    def woven(x, h, W, R, s):
        """Transposed, split, scaled, added, concatenated."""
        a, b = ops.split(W, 2)
        both = (a - 0.5 * b) @ x
        joined = ops.concat(R * s, R.T + ops.exp(R)) @ h
        low, high = ops.split(joined, 2)
        return ops.tanh(both + R.T @ low - s * high)

    check(runtime, elman.Recurrent(woven, 4, 6), tmp_path, states=True)


def test_random_numbers_are_those_of_training(runtime, tmp_path):
    """What is exported is the cell in eval()."""

    @cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
    def noisy(x, h, W, R):
        """A state that is dropped in training."""
        return ops.tanh(W @ x + R @ ops.dropout(h, 0.5))

    check(runtime, elman.Recurrent(noisy, 4, 6), tmp_path, states=True)


TAKEN = {
    "h_0": lambda h_0, h: ops.tanh(h_0 + h),
    "lengths": lambda lengths, h: ops.tanh(lengths + h),
    "out": lambda out, h: ops.tanh(out + h),
}


@pytest.mark.parametrize("name", TAKEN)
def test_names_that_are_taken(name, tmp_path):
    """An input cannot have the name of another value of the model."""
    formula = cell(input=f"{name}[H]", state="h[H]")(TAKEN[name])
    with pytest.raises(InputError, match=f"input {name} has the name"):
        to_onnx(elman.Recurrent(formula, 4, 4), tmp_path / "m.onnx", lengths=True)


def test_what_is_refused(tmp_path, monkeypatch):
    """No module of elman's; no package onnx."""
    with pytest.raises(InputError, match="takes a recurrent module, not Linear"):
        to_onnx(torch.nn.Linear(3, 3), tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingPackageError, match=r"to_onnx needs .* install \"elman\[export\]"):
        to_onnx(elman.GRU(3, 3), tmp_path / "m.onnx")


def test_command(runtime, tmp_path):
    """`elman export`: C, ONNX, both; but not nothing."""

    def call(*words):
        return CliRunner().invoke(build_app("export"), ["export", *map(str, words)])

    path = tmp_path / "net.onnx"
    told = call("gru", "--hidden", 6, "--inputs", 4, "--layers", 2, "--onnx", path)
    assert told.exit_code == 0, told.output
    assert told.output.split("\n")[:3] == [
        f"{path}: GRU, GRU",
        "takes x [T, B, 4], h_0 [2, 1 or B, 6]",
        "gives out [T, B, 6], h_n [2, B, 6]",
    ]
    runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert call("mgu", "--hidden", 4, "--onnx", path, "--c", tmp_path / "c").exit_code == 0
    assert (tmp_path / "c" / "model.c").exists()
    assert "--onnx FILE" in call("mgu").output
    missing = call("mgu", "--hidden", 4, "--onnx", tmp_path / "no" / "net.onnx")
    assert isinstance(missing.exception, RunError)

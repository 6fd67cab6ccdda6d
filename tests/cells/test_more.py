"""Cells of ``elman.cells.MORE`` against loops in torch that know nothing of elman."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, sigmoid, tanh

import elman
from calls import call
from elman import cells, compiler
from elman.autodiff.structure import structure
from elman.cells.t_lstm import fast
from elman.errors import TraceError
from elman.frontend.cell import Cell
from elman.tuning.kernels import kernel_of
from helpers import Sizes, assert_all_same, job_of, need, need_engine, random_case, run

F64 = torch.float64
Weights = dict[str, Tensor]


class Fires(torch.autograd.Function):
    """1 above 0; the derivative is what a function says."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, slope: Any) -> Tensor:
        ctx.save_for_backward(v)
        ctx.slope = slope
        return (v > 0).to(v)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:  # type: ignore[override]
        (v,) = ctx.saved_tensors
        return d * ctx.slope(v), None


def fires(v: Tensor) -> Tensor:
    """snnTorch's atan."""
    return Fires.apply(v, lambda v: 1 / (1 + (math.pi * v).pow(2)))  # type: ignore[return-value]


def reset_by(reset: str, base: Tensor, current: Tensor, m: Tensor, threshold: float) -> Tensor:
    fired = (m - threshold > 0).to(m).detach()
    if reset == "subtract":
        return base + current - fired * threshold
    if reset == "zero":
        return base + current - fired * (base + current)
    return (base - fired * base if reset == "zero_before" else base) + current


def lif(x, m, w: Weights, reset="subtract", threshold=1.0):
    m = reset_by(reset, 0.9 * m, x @ w["W"].T + w["b"], m, threshold)
    return fires(m - threshold), (m,)


def rlif(x, s, m, w: Weights, reset="subtract"):
    current = x @ w["W"].T + w["b"] + s @ w["R"].T + w["c"]
    m = reset_by(reset, 0.9 * m, current, m, 1.0)
    s = fires(m - 1.0)
    return s, (s, m)


def synaptic(x, i, m, w: Weights, reset="subtract"):
    i = 0.9 * i + x @ w["W"].T + w["b"]
    m = reset_by(reset, 0.8 * m, i, m, 1.0)
    return fires(m - 1.0), (i, m)


def alif(x, s, m, a, w: Weights):
    keep, slow = math.exp(-1 / 20), math.exp(-1 / 200)
    a = slow * a + (1 - slow) * s
    limit = 0.01 + 1.6 * a
    m = keep * m + (1 - keep) * (x @ w["W"].T + s @ w["R"].T) - s * limit
    scaled = (m - limit) / limit
    s = Fires.apply(scaled, lambda v: 0.3 * torch.relu(1 - v.abs()))
    return s, (s, m, a)


def ligru(a, h, w: Weights):
    at, zt = (a + h @ w["U"].T).chunk(2, -1)
    z = sigmoid(zt)
    h = z * h + (1 - z) * torch.relu(at)
    return h, (h,)


def fastgrnn(x, h, w: Weights):
    pre = x @ w["W"].T + h @ w["U"].T
    bg, bu = w["b"].chunk(2)
    z, c = sigmoid(pre + bg), tanh(pre + bu)
    h = z * h + (sigmoid(w["zeta"]) * (1 - z) + sigmoid(w["nu"])) * c
    return h, (h,)


def indgru(x, h, w: Weights):
    xr, xz, xn = (x @ w["W"].T + w["b"]).chunk(3, -1)
    ur, uz, un = w["u"].chunk(3)
    r, z = sigmoid(xr + h * ur), sigmoid(xz + h * uz)
    h = z * h + (1 - z) * tanh(xn + r * h * un)
    return h, (h,)


def rhn(x, s, w: Weights):
    matrices, biases = w["R"], w["b"]
    depth = len(biases) // (2 * s.shape[-1])
    for layer, (R, b) in enumerate(zip(matrices.chunk(depth), biases.chunk(depth))):
        pre = s @ R.T + b
        if layer == 0:
            pre = pre + x @ w["W"].T
        candidate, gate = pre.chunk(2, -1)
        s = tanh(candidate) * sigmoid(gate) + s * (1 - sigmoid(gate))
    return s, (s,)


def lstm(x, h, c, w: Weights):
    i, f, g, o = (x @ w["W"].T + h @ w["R"].T + w["b"]).chunk(4, -1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def mogrifier(x, h, c, w: Weights):
    of_x, of_h = (w[name].split(n) for name, n in (("Q", x.shape[-1]), ("P", h.shape[-1])))
    for index in range(len(of_x) + len(of_h)):
        if index % 2 == 0:
            x = 2 * sigmoid(h @ of_x[index // 2].T) * x
        else:
            h = 2 * sigmoid(x @ of_h[index // 2].T) * h
    h, c = lstm(x, h, c, w)
    return h, (h, c)


def onlstm(x, h, c, w: Weights):
    """Ordered-Neurons/ON_LSTM.py at 04531c4, but for the order of rows."""
    units = h.shape[-1]
    chunks = (len(w["b"]) - 4 * units) // 2
    pre = x @ w["W"].T + h @ w["R"].T + w["b"]
    i, f, g, o, *master = pre.split([units] * 4 + [chunks] * 2, -1)
    opens, closes = (gate.softmax(-1).cumsum(-1) for gate in master)
    width = units // chunks
    master_in = (1 - opens).repeat_interleave(width, -1)
    master_forget = closes.repeat_interleave(width, -1)
    overlap = master_forget * master_in
    f = sigmoid(f) * overlap + (master_forget - overlap)
    i = sigmoid(i) * overlap + (master_in - overlap)
    c = f * c + i * tanh(g)
    h = sigmoid(o) * tanh(c)
    return h, (h, c)


def gru_layernorm(x, h, w: Weights):
    """GRUCell of dreamerv2/common/nets.py at 6124db4, with Keras's eps of a norm."""
    one = torch.cat([w["W"], w["R"]], 1)  # Dreamer multiplies [x, h] by one matrix
    parts = torch.nn.functional.linear(torch.cat([x, h], -1), one, w["a"])
    parts = torch.nn.functional.layer_norm(parts, parts.shape[-1:], w["g"], w["b"], 1e-3)
    reset, cand, update = parts.chunk(3, -1)
    cand, update = tanh(sigmoid(reset) * cand), sigmoid(update - 1)
    h = update * cand + (1 - update) * h
    return h, (h,)


def antisymmetric(x, h, w: Weights):
    W = w["W"] - w["W"].T - 0.01 * torch.eye(h.shape[-1], dtype=h.dtype)
    h = h + 0.01 * tanh(h @ W.T + x @ w["V"].T + w["b"])
    return h, (h,)


def antisymmetric_gated(x, h, w: Weights):
    W = w["W"] - w["W"].T - 0.01 * torch.eye(h.shape[-1], dtype=h.dtype)
    gate, new = (x @ w["V"].T + w["b"]).chunk(2, -1)
    h = h + 0.01 * sigmoid(h @ W.T + gate) * tanh(h @ W.T + new)
    return h, (h,)


def cornn(x, y, z, w: Weights):
    inside = torch.cat((x, z, y), 1) @ torch.cat((w["V"], w["Wz"], w["Wy"]), 1).T + w["b"]
    z = z + 0.042 * (tanh(inside) - 2.7 * y - 4.7 * z)
    y = y + 0.042 * z
    return y, (y, z)


def unicornn(x, y, z, w: Weights):
    step = 0.1 * sigmoid(w["c"])
    z = z - step * (tanh(y * w["w"] + x @ w["V"].T + w["b"]) + 1.0 * y)
    y = y + step * z
    return y, (y, z)


def phased_lstm(x, t, h, c, w: Weights):
    phi = torch.remainder(t[:, None] - w["shift"], w["tau"]) / w["tau"]
    ratio = w["ratio"]
    k = torch.where(
        phi < ratio / 2,
        2 * phi / ratio,
        torch.where(phi < ratio, 2 - 2 * phi / ratio, 0.001 * phi),
    )
    new_h, new_c = lstm(x, h, c, w)
    h, c = k * new_h + (1 - k) * h, k * new_c + (1 - k) * c
    return h, (h, c)


def t_lstm(x, gap, h, c, w: Weights):
    short = tanh(c @ w["D"].T + w["d"])
    c = c - short + short / torch.log(math.e + gap[:, None])
    h, c = lstm(x, h, c, w)
    return h, (h, c)


def gru_d(x, mask, delta, h, last, w: Weights):
    keep = torch.exp(-torch.relu(delta * w["gx"] + w["bx"]))
    seen = mask > 0
    filled = keep * last + (1 - keep) * w["mean"]
    last = torch.where(seen, x, last)
    x = torch.where(seen, x, filled)
    h = torch.exp(-torch.relu(delta @ w["Gh"].T + w["bh"])) * h
    Wr, Wz, Wn = w["W"].chunk(3)
    Rr, Rz, Rn = w["R"].chunk(3)
    Vr, Vz, Vn = w["V"].chunk(3)
    br, bz, bn = w["b"].chunk(3)
    r = sigmoid(x @ Wr.T + h @ Rr.T + mask @ Vr.T + br)
    z = sigmoid(x @ Wz.T + h @ Rz.T + mask @ Vz.T + bz)
    h = (1 - z) * h + z * tanh(x @ Wn.T + (r * h) @ Rn.T + mask @ Vn.T + bn)
    return h, (h, last)


def backbone(x, h, w: Weights):
    v = 1.7159 * tanh(0.666 * (torch.cat((x, h), 1) @ w["A"].T + w["a"]))
    if "B" in w:
        count = len(w["a"])
        for B, d in zip(w["B"].split(count), w["d"].split(count)):
            v = 1.7159 * tanh(0.666 * (v @ B.T + d))
    return v


def cfc(x, t, h, w: Weights, mode="default"):
    heads = (backbone(x, h, w) @ w["F"].T + w["f"]).chunk(4, -1)
    one, two, a, b = tanh(heads[0]), tanh(heads[1]), *heads[2:]
    gate = sigmoid(a * t[:, None] + b)
    h = one + gate * two if mode == "no_gate" else one * (1.0 - gate) + gate * two
    return h, (h,)


def cfc_pure(x, t, h, w: Weights):
    one = backbone(x, h, w) @ w["F"].T + w["f"]
    h = -w["scale"] * torch.exp(-t[:, None] * (w["w"].abs() + one.abs())) * one + w["scale"]
    return h, (h,)


def slstm(x, h, c, n, m, w: Weights, least=0.0, forget=torch.nn.functional.logsigmoid):
    i, f, g, o = (x @ w["W"].T + h @ w["R"].T + w["b"]).chunk(4, -1)
    top = torch.maximum(m + forget(f), i)
    keep, take = torch.exp(m + forget(f) - top), torch.exp(i - top)
    c, n = keep * c + take * tanh(g), keep * n + take
    h = sigmoid(o) * c / n.clamp(min=least)
    return h, (h, c, n, top)


def with_option(loop: Any, **options: Any) -> Any:
    return lambda *arguments: loop(*arguments, **options)


SMALL, WIDE = Sizes(T=6, B=4, I=3, H=5), Sizes(T=6, B=4, I=3, H=5, more=(("U", 7),))
LOOPS: dict[str, tuple[Cell, Any, Sizes]] = {
    made.name: (made, globals()[made.name], WIDE if made.name.startswith("cfc") else SMALL)
    for made in cells.MORE
}
LOOPS["ligru"] = (cells.ligru, ligru, Sizes(T=6, B=4, I=10, H=5))
for own, loop in ((cells.lif, lif), (cells.rlif, rlif), (cells.synaptic, synaptic)):
    for reset in ("zero", "zero_before", "none"):
        variant = own.with_options(reset=reset)
        LOOPS[f"{own.name} {reset}"] = (variant, with_option(loop, reset=reset), SMALL)
LOOPS["cfc no_gate"] = (
    cells.cfc.with_options(mode="no_gate"),
    with_option(cfc, mode="no_gate"),
    WIDE,
)
LOOPS["slstm"] = (cells.slstm, slstm, SMALL)
LOOPS["slstm of max(n, 1)"] = (
    cells.slstm.with_options(least=1.0),
    with_option(slstm, least=1.0),
    SMALL,
)
LOOPS["slstm, forget gate exp"] = (
    cells.slstm.with_options(forget="exp"),
    with_option(slstm, forget=lambda f: f),
    SMALL,
)
LOOPS["cfc of three layers"] = (cells.cfc_of(3), cfc, WIDE)
LOOPS["cfc_pure of two layers"] = (cells.cfc_pure_of(2), cfc_pure, WIDE)
LOOPS["onlstm of chunks"] = (
    cells.onlstm_chunked,
    onlstm,
    Sizes(T=6, B=4, I=3, H=12, more=(("M", 4),)),
)
LOOPS["rhn of depth 1"] = (cells.rhn_of(1), rhn, SMALL)
LOOPS["mogrifier of two rounds"] = (cells.mogrifier_of(2), mogrifier, SMALL)


def case_of(name: str, dtype: torch.dtype = F64):
    """Random arguments, in the range that each is meant for."""
    made, _, sizes = LOOPS[name]
    case = random_case(made, sizes, 3, F64)
    for key in ("t", "gap", "delta"):
        if key in case.inputs:
            case.inputs[key].abs_().add_(0.1)
    if "mask" in case.inputs:
        case.inputs["mask"].gt_(0)
    if "tau" in case.weights:
        case.weights["tau"].abs_().add_(1.0)
        case.weights["ratio"].abs_().add_(0.3)
        case.weights["shift"].abs_()
    if "a" in case.states:
        case.states["a"].abs_()
    if made.name in ("lif", "rlif", "synaptic", "alif"):
        for weight in case.weights.values():
            weight.mul_(2)  # so that there are spikes
    return case.to(dtype)


def by_torch(name: str, case) -> dict[str, Tensor]:
    """Output, last states and every gradient of the loop, by torch.autograd."""
    _, loop, _ = LOOPS[name]
    groups = [
        {key: value.clone().requires_grad_() for key, value in given.items()}
        for given in (case.inputs, case.states, case.weights)
    ]
    inputs, states, weights = groups
    now = tuple(states.values())
    outputs = []
    for t in range(case.T):
        output, now = loop(*(x[t] for x in inputs.values()), *now, weights)
        outputs.append(output)
    out = torch.stack(outputs)
    found = {"out": out, **{f"last {key}": end for key, end in zip(states, now, strict=True)}}
    total = (out * case.d_output).sum()
    for end, d in zip(now, case.d_last.values(), strict=True):
        total = total + (end * d).sum()
    leaves = {f"d{key}": leaf for group in groups for key, leaf in group.items()}
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    for (key, leaf), grad in zip(leaves.items(), grads, strict=True):
        found[key] = torch.zeros_like(leaf) if grad is None else grad
    return {key: value.detach() for key, value in found.items()}


@pytest.mark.parametrize("name", LOOPS)
def test_cells_are_the_published_loops(name):
    """Outputs, last states and every gradient: the oracle's, and engine c's."""
    case = case_of(name)
    want = by_torch(name, case)
    got = run(case.cell, case, "reference")
    assert_all_same(got, want, F64, case.T)
    if case.cell.function in [made.function for made in cells.SPIKING]:
        assert 0 < want["out"].mean() < 1
        assert set(want["out"].unique().tolist()) == {0.0, 1.0}
    job = job_of(case)
    need("c", job)
    assert_all_same(call(kernel_of(job, "c"), case), got, F64, case.T)


@pytest.mark.parametrize("name", LOOPS)
def test_cells_in_float32(name):
    """Engine c against the oracle; spikes are the same ones, far from thresholds as these are."""
    case = case_of(name, torch.float32)
    job = job_of(case)
    need("c", job)
    want = run(case.cell, case.to(F64), "reference")
    assert_all_same(call(kernel_of(job, "c"), case), want, torch.float32, case.T)


DIAGONAL = ("lif", "synaptic", "indgru", "unicornn")


@pytest.mark.parametrize("name", DIAGONAL)
def test_cells_whose_units_do_not_mix_run_all_steps_at_once(name):
    """Engine deer: spikes too, whose Jacobian is the surrogate's."""
    case = case_of(name)
    assert structure(compiler.pair_of(case.cell).source).diagonal
    got = run(case.cell, case, "deer")
    assert_all_same(got, run(case.cell, case, "reference"), F64, case.T)


@pytest.mark.parametrize("made", cells.MORE, ids=lambda made: made.name)
def test_cells_are_drawn_and_explained(made):
    """With the paper they come from."""
    assert made.source
    text = str(elman.explain(made, hidden_size=6, measure=False, **sizes_of(made)))
    assert made.source in text
    assert "<svg" in elman.draw(made, hidden_size=6, **sizes_of(made)).svg


def sizes_of(made: Cell) -> dict[str, int]:
    """What else is needed to draw a cell."""
    given = {"input_size": 12} if made is cells.ligru else {}
    return {**given, "U": 9} if made.name.startswith("cfc") else given


def test_modules_of_several_inputs_and_constants():
    """As they are used: times, masks and a mean of the data; saved with all of it."""
    need_engine("c")
    T, B = 5, 3
    x, t = torch.randn(T, B, 4), torch.rand(T, B)
    for net in (
        elman.Recurrent(cells.phased_lstm, 4, 6),
        elman.Recurrent(cells.t_lstm, 4, 6, decay=fast),
        elman.Recurrent(cells.cfc, 4, 6, U=9, mode="no_gate"),
        elman.Recurrent(cells.cfc_of(2), 4, 6, U=9),
    ):
        want, _ = net((x, t + 0.5))
        assert want.shape == (T, B, 6)
        again = pickle.loads(pickle.dumps(net))
        assert torch.equal(again((x, t + 0.5))[0], want)
    mean = torch.randn(4)
    net = elman.Recurrent(cells.gru_d, 4, 6, mean=mean)
    known = (torch.rand(T, B, 4) > 0.5).float()
    holes = torch.where(known > 0, x, torch.nan)
    output = net((holes, known, torch.zeros(T, B, 4)))[0]
    output.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_initial_weights():
    """Periods between 1 and e^6 steps, coefficients of oscillators, as published."""
    net = elman.Recurrent(cells.phased_lstm, 4, 500)
    assert 1 <= net.tau_l0.min() < 3
    assert 100 < net.tau_l0.max() <= math.exp(6)
    assert set(net.ratio_l0.tolist()) == {float(torch.tensor(0.05))}
    net = elman.Recurrent(cells.unicornn, 4, 500)
    assert 0 <= net.w_l0.min() < 0.1 < 0.9 < net.w_l0.max() <= 1
    assert net.c_l0.abs().max() <= 0.1


@pytest.mark.parametrize(
    "made",
    [
        cells.rhn_of(10),
        cells.rhn_of(3),
        cells.mogrifier_of(4),
        cells.cfc_of(4),
        cells.cfc_pure_of(2),
    ],
    ids=lambda made: made.name,
)
def test_cells_of_any_depth_are_pickled_by_name(made):
    """A name that is found again in another process, where nothing was made yet."""
    code = f"import pickle; print(pickle.loads({pickle.dumps(made)!r}).fingerprint)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == made.fingerprint
    assert not hasattr(sys.modules[made.function.__module__], "nothing")


def test_modes_and_resets_that_are_not_there():
    with pytest.raises(TraceError, match="reset is one of subtract, zero, zero_before, none, not"):
        _ = cells.lif.with_options(reset="half").graph
    with pytest.raises(TraceError, match="mode is default or no_gate, not 'pure'"):
        _ = cells.cfc.with_options(mode="pure").graph
    with pytest.raises(TraceError, match="forget is sigmoid or exp, not 'relu'"):
        _ = cells.slstm.with_options(forget="relu").graph

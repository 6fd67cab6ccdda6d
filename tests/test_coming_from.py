"""What docs/coming_from.md says of other libraries' weights, beside their formulas as loops."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import elman
from helpers import need_engine

PAGE = Path(__file__).parents[1] / "docs" / "coming_from.md"
DEFINITION = re.compile(r"^(?:def|class) \w+\(.*?(?=^\S|\Z|^```)", re.MULTILINE | re.DOTALL)
T, B, I, H = 5, 3, 4, 6


@pytest.fixture(scope="module")
def page():
    """The functions and classes of the page."""
    names = {"torch": torch, "elman": elman, "MlpLstmPolicy": object}  # of sb3-contrib
    for text in DEFINITION.findall(PAGE.read_text("utf-8")):
        exec(text, names)
    return names


@pytest.fixture
def x():
    need_engine("c")
    torch.manual_seed(0)
    return torch.randn(T, B, I, dtype=torch.float64)


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def equal(net, x, state_dict, want, **more):
    """Whether a module with these weights computes that."""
    net.double().load_state_dict(state_dict)
    out = net(x, **more)[0]
    assert torch.allclose(out, want, atol=1e-10)


def test_haste_lstm(page, x):
    """Gates i, g, f, o; one bias."""
    theirs = {
        "kernel": double(I, 4 * H),
        "recurrent_kernel": double(H, 4 * H),
        "bias": double(4 * H),
    }
    h = c = x.new_zeros(B, H)
    made = []
    for row in x:
        v = row @ theirs["kernel"] + h @ theirs["recurrent_kernel"] + theirs["bias"]
        i, g, f, o = v.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        made.append(h)
    equal(elman.LSTM(I, H, engine="c"), x, page["from_haste"](theirs), torch.stack(made))


def test_haste_gru(page, x):
    """Gates z, r, n; the reset gate behind the product."""
    theirs = {"kernel": double(I, 3 * H), "recurrent_kernel": double(H, 3 * H)}
    theirs |= {"bias": double(3 * H), "recurrent_bias": double(3 * H)}
    h, made = x.new_zeros(B, H), []
    for row in x:
        xz, xr, xn = (row @ theirs["kernel"] + theirs["bias"]).chunk(3, 1)
        hz, hr, hn = (h @ theirs["recurrent_kernel"] + theirs["recurrent_bias"]).chunk(3, 1)
        z = (xz + hz).sigmoid()
        h = z * h + (1 - z) * (xn + (xr + hr).sigmoid() * hn).tanh()
        made.append(h)
    equal(elman.GRU(I, H, engine="c"), x, page["from_haste"](theirs, "zrn"), torch.stack(made))


def test_flashrnn_lstm(page, x):
    """Heads: R[g, n] [D, P] multiplies the units of head n."""
    N, D = 3, 2
    W, R, b = double(4 * H, I), double(4, N, D, D), double(4, N, D)
    h = c = x.new_zeros(B, N, D)
    made = []
    for row in x:
        v = (row @ W.T).view(B, 4, N, D) + torch.einsum("gndp,bnp->bgnd", R, h) + b
        i, f, g, o = v.unbind(1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        made.append(h.flatten(1))
    first = {"weight_ih_l0": W, "bias_ih_l0": x.new_zeros(4 * H)}
    net = elman.LSTM(I, H, heads=N, engine="c")
    equal(net, x, first | page["from_flashrnn"](R, b), torch.stack(made))


def test_neuralhydrology(page, x):
    """Gates f, o, g; matrices [inputs, gates]."""
    S = 2
    theirs = {"input_gate.weight": double(H, S), "input_gate.bias": double(H)}
    W, R, b = double(I, 3 * H), double(H, 3 * H), double(3 * H)
    for name, weight in {"weight_ih": W, "weight_hh": R, "bias": b}.items():
        theirs[f"dynamic_gates.{name}"] = weight
    s = double(B, S)
    i = (s @ theirs["input_gate.weight"].T + theirs["input_gate.bias"]).sigmoid()
    h = c = x.new_zeros(B, H)
    made = []
    for row in x:
        v = row @ W + h @ R + b
        f, o, g = v.chunk(3, 1)
        c = f.sigmoid() * c + i * g.tanh()
        h = o.sigmoid() * c.tanh()
        made.append(h)
    net = elman.Recurrent(elman.cells.ealstm, I, H, S=S, engine="c")
    equal(net, x, page["from_neuralhydrology"](theirs), torch.stack(made), static=s)


@pytest.mark.parametrize("explicit", [False, True])
def test_ncps(page, x, explicit):
    """A wiring's masks, maps of inputs and of the motor neurons, which come first."""
    names = ("mu", "sigma", "w", "erev")
    theirs = {name: double(H, H).abs() for name in names}
    theirs |= {f"sensory_{name}": double(I, H).abs() for name in names}
    theirs |= {name: double(H).abs() for name in ("cm", "gleak", "vleak")}
    theirs |= {"sparsity_mask": (double(H, H) > 0).double()}
    theirs |= {"sensory_sparsity_mask": (double(I, H) > 0).double()}
    theirs |= {f"input_{name}": double(I) for name in "wb"}
    theirs |= {f"output_{name}": double(2) for name in "wb"}
    positive = torch.nn.Identity() if explicit else torch.nn.functional.softplus
    w, w_x, cm, gleak = (positive(theirs[name]) for name in ("w", "sensory_w", "cm", "gleak"))
    v, dt, made = x.new_zeros(B, H), torch.rand(T, B, dtype=x.dtype) + 0.5, []
    for row, gap in zip(x * theirs["input_w"] + theirs["input_b"], dt[..., None], strict=True):
        sensed = theirs["sensory_sigma"] * (row[..., None] - theirs["sensory_mu"])
        sensed = w_x * sensed.sigmoid() * theirs["sensory_sparsity_mask"]
        for _ in range(6):
            active = theirs["sigma"] * (v[..., None] - theirs["mu"])
            active = w * active.sigmoid() * theirs["sparsity_mask"]
            above = (active * theirs["erev"]).sum(1) + (sensed * theirs["sensory_erev"]).sum(1)
            above = cm / (gap / 6) * v + gleak * theirs["vleak"] + above
            v = above / (cm / (gap / 6) + gleak + active.sum(1) + sensed.sum(1) + 1e-8)
        made.append(v[:, :2] * theirs["output_w"] + theirs["output_b"])
    net = page["NCP"](theirs, implicit=not explicit, engine="c", dtype=torch.float64)
    out, last = net(x, dt)
    torch.testing.assert_close(out, torch.stack(made))
    torch.testing.assert_close(last[0], v)


def test_sb3(page, x):
    """A flat batch, sequence by sequence, as the policy's loop over steps."""
    lstm = elman.LSTM(I, H, engine="c").double()
    starts = (torch.rand(T, B) < 0.4).double()
    state = h, c = double(1, B, H), double(1, B, H)
    made = []
    for row, start in zip(x, starts, strict=True):
        keep = (1.0 - start).view(1, -1, 1)
        out, (h, c) = lstm(row.unsqueeze(0), (keep * h, keep * c))
        made.append(out)
    flat = x.transpose(0, 1).flatten(0, 1), state, starts.T.flatten(), lstm
    out, last = page["process_sequence"](*flat)
    assert torch.allclose(out, torch.cat(made).transpose(0, 1).flatten(0, 1), atol=1e-10)
    assert torch.allclose(last[1], c, atol=1e-10)

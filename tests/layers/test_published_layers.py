"""Published layers against loops in plain torch, which read parameters by the authors' names."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit
from torch.utils._pytree import tree_leaves

import elman
from benchmarks.peers.matrix_steps import STEPS
from elman import layers, ops
from elman.errors import InputError, ShapeError
from helpers import GRADIENT, need_engine
from products import every

F64 = torch.float64
Weights = dict[str, Tensor]
T, B, SIZE = 11, 3, 24


def scan(name: str, inputs: list[Tensor], static: tuple[Tensor, ...], *shapes: int) -> Tensor:
    """A cell's loop for every head by itself: of inputs [B, T, H, ..] the outputs [B, T, H, ·]."""
    rows = []
    for head in range(inputs[0].shape[2]):
        states = tuple(inputs[0].new_zeros(len(inputs[0]), *shape) for shape in shapes)
        each = tuple(value[head].expand(len(inputs[0])) for value in static)
        steps = []
        for t in range(inputs[0].shape[1]):
            row = tuple(value[:, t, head] for value in inputs)
            y, states = STEPS[name](row, each, states)
            steps.append(y)
        rows.append(torch.stack(steps, 1))
    return torch.stack(rows, 2)


def heads(x: Tensor, count: int) -> Tensor:
    return x.reshape(*x.shape[:2], count, -1)


def conv(x: Tensor, w: Weights, name: str) -> Tensor:
    """A padded depthwise convolution of x [B, T, C], and silu."""
    weight, bias = w[f"{name}.weight"], w.get(f"{name}.bias")
    y = F.conv1d(x.mT, weight, bias, padding=weight.shape[-1] - 1, groups=len(weight))
    return F.silu(y[..., : x.shape[1]].mT)


def rms(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def l2(x: Tensor) -> Tensor:
    return x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()


def delta_net(x: Tensor, w: Weights, H: int, gated: bool = False) -> Tensor:
    q, k, v = (heads(conv(x @ w[f"{n}_proj.weight"].T, w, f"{n}_conv1d"), H) for n in "qkv")
    K, V = q.shape[-1], v.shape[-1]
    row = [l2(q) / K**0.5, l2(k), v, torch.sigmoid(x @ w["b_proj.weight"].T)]
    if gated:
        step = F.softplus(x @ w["a_proj.weight"].T + w["dt_bias"])
        row.insert(3, torch.exp(-torch.exp(w["A_log"]) * step))
    y = scan("gated_delta_net" if gated else "delta_net", row, (), (K, V))
    y = rms(y, w["o_norm.weight"])
    if gated:
        y = y * F.silu(heads(x @ w["g_proj.weight"].T, H))
    return y.flatten(2) @ w["o_proj.weight"].T


def gla(x: Tensor, w: Weights, H: int) -> Tensor:
    q, k, v, g = (heads(x @ w[f"{n}_proj.weight"].T, H) for n in "qkvg")
    gate = x @ w["gk_proj.0.weight"].T @ w["gk_proj.1.weight"].T + w["gk_proj.1.bias"]
    decay = heads(torch.sigmoid(gate) ** (1 / 16), H)
    K, V = q.shape[-1], v.shape[-1]
    y = scan("gla", [q / K**0.5, k, v, decay], (), (K, V))
    return (rms(y, w["g_norm_swish_gate.weight"]) * F.silu(g)).flatten(2) @ w["o_proj.weight"].T


def mlstm(x: Tensor, w: Weights, H: int) -> Tensor:
    q, k, v = (heads(x @ w[f"{n}.weight"].T, H) for n in "qkv")
    i, f = (
        15 * torch.tanh((x @ w[f"{n}gate_preact.weight"].T + w[f"{n}gate_preact.bias"]) / 15)
        for n in "if"
    )
    K, V = q.shape[-1], v.shape[-1]
    y = scan("mlstm", [q, k, v, i, f], (), (K, V), (K,), ())
    y = F.layer_norm(y, (V,), eps=1e-6).flatten(2) * w["multihead_norm.weight"]
    return (torch.sigmoid(x @ w["ogate_preact.weight"].T) * y) @ w["out_proj.weight"].T


def mamba2(x: Tensor, w: Weights, H: int) -> Tensor:
    inner, N = w["out_proj.weight"].shape[1], 5
    z, xBC, dt = (x @ w["in_proj.weight"].T).split([inner, inner + 2 * N, H], -1)
    u, B_, C = conv(xBC, w, "conv1d").split([inner, N, N], -1)
    u, dt = heads(u, H), F.softplus(dt + w["dt_bias"])
    B_, C = (each[:, :, None].repeat(1, 1, H, 1) for each in (B_, C))
    y = scan("mamba2", [u, dt, B_, C], (-torch.exp(w["A_log"]),), (inner // H, N))
    y = (y + w["D"][:, None] * u).flatten(2)
    return rms(y * F.silu(z), w["norm.weight"]) @ w["out_proj.weight"].T


def rwkv7(x: Tensor, w: Weights, H: int, values: Tensor | None = None) -> Tensor:
    before = F.pad(x, (0, 0, 1, 0))[:, :-1]
    r, w_, k, v, a, g = (torch.lerp(x, before, w[f"x_{name}"]) for name in "rwkvag")
    decay = w["w0"] + torch.tanh(w_ @ w["w1"]) @ w["w2"]
    decay = torch.exp(-torch.exp(-F.softplus(-decay) - 0.5))
    r, k = r @ w["receptance.weight"].T, k @ w["key.weight"].T
    new = v @ w["value.weight"].T
    if values is not None:
        new = new + (values - new) * torch.sigmoid(w["v0"] + v @ w["v1"] @ w["v2"])
    a = torch.sigmoid(w["a0"] + a @ w["a1"] @ w["a2"])
    kk = F.normalize(heads(k * w["k_k"], H), dim=-1)
    k = k * (1 + (a - 1) * w["k_a"])
    r, decay, k, v, a = (heads(each, H) for each in (r, decay, k, new, a))
    K = r.shape[-1]
    y = scan("rwkv7", [r, decay, k, v, kk, a], (), (K, K))
    y = F.group_norm(y.flatten(2).flatten(0, 1), H, w["ln_x.weight"], w["ln_x.bias"], 1e-5 * K)
    y = y.reshape(x.shape) + ((r * k * w["r_k"]).sum(-1, keepdim=True) * v).flatten(2)
    return (y * (torch.sigmoid(g @ w["g1"]) @ w["g2"])) @ w["output.weight"].T


def lru(x: Tensor, w: Weights) -> Tensor:
    """Of complex numbers; gamma is that of the eigenvalues' moduli."""
    B_, C = torch.complex(*w["cell.B_l0"].chunk(2)), torch.complex(w["cell.C_l0"], w["cell.S_l0"])
    lam = torch.exp(torch.complex(-torch.exp(w["cell.nu_l0"]), torch.exp(w["cell.theta_l0"])))
    gamma, h, rows = torch.sqrt(1 - lam.abs() ** 2), torch.zeros_like(x[:, 0]) + 0j, []
    for t in range(x.shape[1]):
        h = lam * h + gamma * ((x[:, t] + 0j) @ B_.T)
        rows.append((h @ C.T).real + x[:, t] @ w["cell.D_l0"].T)
    y = F.gelu(torch.stack(rows, 1))
    first, second = (y @ w[f"out{k}.weight"].T + w[f"out{k}.bias"] for k in (1, 2))
    return first * torch.sigmoid(second)


def s4d(x: Tensor, w: Weights) -> Tensor:
    """By the kernel of the convolution, as the authors compute it."""
    steps = torch.arange(x.shape[1], dtype=x.dtype)
    A = torch.complex(-torch.exp(w["cell.log_A_real_l0"]), w["cell.A_imag_l0"]).view(SIZE, -1)
    C = torch.complex(w["cell.C_real_l0"], w["cell.C_imag_l0"]).view(SIZE, -1)
    dt = torch.exp(w["cell.log_dt_l0"])[:, None]
    powers = torch.exp((dt * A)[..., None] * steps)
    kernel = 2 * torch.einsum("hn, hnl -> hl", C * (torch.exp(dt * A) - 1) / A, powers).real
    y = [(kernel[:, : t + 1].flip(1) * x[:, : t + 1].mT).sum(2) for t in range(len(steps))]
    y = F.gelu(torch.stack(y, 1) + w["D"] * x)
    a, b = (y @ w["output_linear.weight"].T + w["output_linear.bias"]).chunk(2, -1)
    return a * torch.sigmoid(b)


@elman.cell(input="x[I]", state="h[2H]", weights="W[H, I]", output="y[H]")
def half(x, h, W):
    """Its output has half as many units as its state."""
    y = W @ x
    return y, ops.concat(y, y)


@elman.cell(input="X[K, V]", state="S[K, V]")
def matrices(X, S):
    """It reads a matrix."""
    return X + 0.5 * S


@elman.cell(input="x[I]", state="h[H]", weights="W[H, I]", output="e, y[H]")
def number(x, h, W):
    """A number as the first output."""
    y = W @ x + h
    return ops.mean(y), y, y


CASES: dict[str, tuple[Callable[..., torch.nn.Module], Callable[..., Tensor]]] = {
    "DeltaNet": (lambda: layers.DeltaNet(SIZE, num_heads=2), lambda x, w: delta_net(x, w, 2)),
    "GatedDeltaNet": (
        lambda: layers.GatedDeltaNet(SIZE, num_heads=2, head_dim=5),
        lambda x, w: delta_net(x, w, 2, gated=True),
    ),
    "GatedLinearAttention": (
        lambda: layers.GatedLinearAttention(SIZE, num_heads=3),
        lambda x, w: gla(x, w, 3),
    ),
    "LRU": (lambda: layers.LRU(SIZE), lru),
    "S4D": (lambda: layers.S4D(SIZE, d_state=6), s4d),
    "MLSTM": (lambda: layers.MLSTM(SIZE, num_heads=2), lambda x, w: mlstm(x, w, 2)),
    "Mamba2": (lambda: layers.Mamba2(SIZE, d_state=5, headdim=16), lambda x, w: mamba2(x, w, 3)),
    "RWKV7": (lambda: layers.RWKV7(SIZE, head_size=8), lambda x, w: rwkv7(x, w, 3)),
}


def made(name: str) -> torch.nn.Module:
    """A layer in float64 whose parameters are all moved from where they begin."""
    torch.manual_seed(0)
    layer = CASES[name][0]().double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return layer


@pytest.mark.parametrize("name", CASES)
def test_layers_are_the_published_ones(name):
    """Outputs, and gradients of x and of every parameter by name."""
    need_engine("c")
    layer, x = made(name), torch.randn(T, B, SIZE, dtype=F64, requires_grad=True)
    weights = {n: p.detach().clone().requires_grad_() for n, p in layer.named_parameters()}
    other = x.detach().transpose(0, 1).requires_grad_()
    want = CASES[name][1](other, weights).transpose(0, 1)
    got = layer(x)[0]
    torch.testing.assert_close(got, want)
    d = torch.randn_like(got)
    grads = torch.autograd.grad(got, [x, *layer.parameters()], d)
    wanted = torch.autograd.grad(want, [other, *weights.values()], d)
    for key, value, grad in zip(
        ["x", *weights], grads, [wanted[0].transpose(0, 1), *wanted[1:]], strict=True
    ):
        error = (value - grad).norm() / grad.norm().clamp(min=1e-9)
        assert error < GRADIENT[F64], f"{key}: {error}"


@pytest.mark.parametrize("name", CASES)
def test_a_stream_gives_what_one_call_gives(name):
    """Steps one by one and in parts, with the state handed on; its batch is the second axis."""
    layer, x = made(name), torch.randn(T, B, SIZE, dtype=F64)
    with torch.no_grad(), elman.using(engine="reference"):
        want, last, *_ = layer(x)
        assert [list(part.shape) for part in last] == layer.state_shapes(B)
        state, rows = None, []
        for part in x.split([1, 1, 2, T - 4]):
            out, state, *_ = layer(part, state)
            rows.append(out)
    torch.testing.assert_close(torch.cat(rows), want)
    for one, two in zip(state, last, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("name", ["GatedDeltaNet", "GatedLinearAttention", "MLSTM"])
def test_norms_follow_the_cell_on_other_devices(name, monkeypatch):
    """Programs of a GPU divide the columns of a matrix."""
    layer, x = made(name), torch.randn(T, B, SIZE, dtype=F64)
    grads = []
    for inside in (True, False):
        module = importlib.import_module(type(layer).__module__)
        monkeypatch.setattr(module, "is_fused", lambda _, inside=inside: inside)
        out = layer(x)[0]
        grads.append([out, *torch.autograd.grad(out.square().sum(), [*layer.parameters()])])
    torch.testing.assert_close(*grads)
    assert layer.cell.cell.static
    assert not layer.plain.cell.static


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("bias", [False, True])
def test_short_convolutions(steps, bias, monkeypatch):
    """By a cell, and by torch, which other devices and single steps take."""
    torch.manual_seed(0)
    module = layers.parts.ShortConvolution(6, steps, bias).double()
    x = torch.randn(T, B, 6, dtype=F64, requires_grad=True)
    past = torch.randn(steps - 1, B, 6, dtype=F64, requires_grad=True)
    weights = {f"m.{name}": value for name, value in module.named_parameters()}
    whole = torch.cat((past, x)).transpose(0, 1)
    want = conv(whole, weights, "m").transpose(0, 1)[steps - 1 :]
    leaves = [x, past, *weights.values()][: None if steps > 1 else 1]
    wanted = torch.autograd.grad(want.square().sum(), leaves)
    for looped in (True, False):
        monkeypatch.setattr(layers.parts, "is_worth_a_loop", lambda _, looped=looped: looped)
        out, later = module(x, past)
        torch.testing.assert_close(out, want)
        torch.testing.assert_close(later, torch.cat((past, x))[T:])
        torch.testing.assert_close(torch.autograd.grad(out.square().sum(), leaves), wanted)


@pytest.mark.parametrize("shape", [(T, B, 6), (T, B, 2, 6)])
def test_norms(shape, monkeypatch):
    """By a cell, and by torch, which other devices and single steps take."""
    module = layers.parts.RMSNorm(6, 1e-2).double()
    with torch.no_grad():
        module.weight.uniform_(0.5, 2)
    x = torch.randn(shape, dtype=F64, requires_grad=True)
    want = rms(x, module.weight, 1e-2)
    leaves = [x, module.weight]
    wanted = torch.autograd.grad(want.square().sum(), leaves)
    for looped in (True, False):
        monkeypatch.setattr(layers.parts, "is_worth_a_loop", lambda _, looped=looped: looped)
        out = module(x)
        torch.testing.assert_close(out, want)
        torch.testing.assert_close(torch.autograd.grad(out.square().sum(), leaves), wanted)
    assert [*module.state_dict()] == ["weight"]


def test_mixes_with_the_input_before_are_the_same_by_torch(monkeypatch):
    """RWKV-7's, which other devices take."""
    layer, x = made("RWKV7"), torch.randn(T, B, SIZE, dtype=F64)
    want, last, _ = layer(x)
    later = layer(x, last)[0]
    monkeypatch.setattr(layers.rwkv7, "is_worth_a_loop", lambda _: False)
    torch.testing.assert_close(layer(x)[0], want)
    torch.testing.assert_close(layer(x, last)[0], later)


def test_values_of_the_first_layer_are_mixed_in():
    """RWKV-7's later layers."""
    torch.manual_seed(1)
    layer = layers.RWKV7(SIZE, head_size=8, layer=1, layers=3).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    x, values = torch.randn(2, T, B, SIZE, dtype=F64)
    out, _, same = layer(x, values=values)
    want = rwkv7(x.transpose(0, 1), layer.state_dict(), 3, values.transpose(0, 1))
    torch.testing.assert_close(out.detach(), want.transpose(0, 1).detach())
    assert same is values
    with pytest.raises(InputError, match="values of the first layer are missing"):
        layer(x)


def test_other_precisions_are_refused():
    """Weights of float64 are not rounded to a float32 input."""
    with pytest.raises(InputError, match=r"is torch\.float32, but its weights are torch\.float64"):
        layers.LRU(8).double()(torch.ones(3, 2, 8))


@pytest.mark.parametrize("cell", ["lstm", elman.cells.mgu])
def test_blocks_of_any_cell(cell):
    """x + cell(norm(x)), and a norm at the end; states of all blocks go in and out."""
    torch.manual_seed(2)
    net = layers.Stack(cell, 5, 8, num_layers=3, engine="reference").double()
    x = torch.randn(T, B, 5, dtype=F64)
    y = net.embed(x)
    for block in net.blocks:
        y = y + block.layer.cell(rms(y, block.norm.weight))[0]
    out, state = net(x)
    torch.testing.assert_close(out, rms(y, net.norm.weight))
    assert [list(part.shape) for part in state] == net.state_shapes(B)
    first, between = net(x[:4])
    rest, _ = net(x[4:], between)
    torch.testing.assert_close(torch.cat((first, rest)), out)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("cell", every(2, [*layers.stack.LAYERS]))
def test_states_are_of_float32_at_least(cell):
    """Under autocast, and where all parameters are of half precision."""
    torch.manual_seed(0)
    net, x = layers.Stack(cell, 8, 16, num_layers=2), torch.randn(7, 2, 8)
    want, last = net(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, state = net(x)
        later, _ = net(x, state)
    later.sum().backward()
    half = net.to(torch.bfloat16)
    for got, parts in ((out, state), half(x.bfloat16())):
        torch.testing.assert_close(got.float(), want, rtol=0.1, atol=0.15)
        shapes = zip(parts, last, strict=True)
        assert all(part.dtype == torch.float32 for part, like in shapes if like.dim() > 3)


@pytest.mark.parametrize("cell", layers.stack.LAYERS)
def test_stacks(cell):
    """Blocks of any layer: trained for a few steps, run as a stream, dropout in training alone."""
    torch.manual_seed(0)
    net = layers.Stack(cell, 6, 16, num_layers=3, dropout=0.5)
    x = torch.randn(9, 2, 6)
    assert not torch.equal(net(x)[0], net(x)[0]) or cell == "rwkv7"  # whose output begins at zero
    net.eval()
    want, last = net(x)
    begin, state = net(x[:4])
    rest, state = net(x[4:], state)
    torch.testing.assert_close(torch.cat((begin, rest)), want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-4, atol=1e-5)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = net(x)[0].sub(x.repeat(1, 1, 3)[..., :16]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: layers.DeltaNet(10, num_heads=3), ShapeError, "no multiple of 3 heads"),
        (lambda: layers.GatedDeltaNet(8, head_dim=3, expand_v=0.5, num_heads=1), ShapeError, "1.5"),
        (lambda: layers.RWKV7(10, head_size=4), ShapeError, "no multiple of 4 units of a head"),
        (lambda: layers.Mamba2(8, d_state=0), InputError, "d_state"),
        (lambda: layers.S4D(8, d_state=5), ShapeError, "no multiple of 2 conjugate modes"),
        (lambda: layers.LRU(0), InputError, "hidden_size"),
        (lambda: layers.Stack("grux", 4, 8), InputError, "no cell is called 'grux'"),
        (lambda: layers.Stack("gla_", 4, 8), InputError, "no cell is called"),
        (lambda: layers.Stack(elman.cells.gla, 4, 8), InputError, "not one input of any size"),
        (lambda: layers.Stack(half, 4, 8), InputError, "has 4 units, its input 8"),
        (lambda: layers.MLSTM(8, num_heads=2)(torch.ones(3, 7)), ShapeError, r"\[T, B, 8\]"),
        (lambda: layers.MLSTM(8, norm_eps=0.0), InputError, "norm_eps"),
        (lambda: layers.MLSTM("8"), InputError, "hidden_size"),
        (lambda: layers.DeltaNet(8, use_gate="no"), InputError, "use_gate must be True or False"),
        (lambda: layers.DeltaNet(8, allow_neg_eigval=2), InputError, "allow_neg_eigval"),
        (lambda: layers.LRU(8, r_min=0.9, r_max=0.5), InputError, "r_min"),
        (lambda: layers.LRU(8, r_max=1.5), InputError, "r_max"),
        (lambda: layers.RWKV7(8, head_size=4, layer=2, layers=2), InputError, "layer"),
        (lambda: layers.Stack("gru", 4, 8, num_layers=2, dropout=1.5), InputError, "dropout"),
        (lambda: layers.Stack("gru", 4, 8)(torch.ones(3, 2, 5)), ShapeError, r"\[T, B, 4\]"),
        (
            lambda: layers.Stack("lstm", 8, 8)(torch.ones(3, 2, 8), (torch.ones(1, 2, 1, 8),) * 3),
            ShapeError,
            "the state must be a tuple of",
        ),
        (lambda: layers.Stack(matrices, 4, 8), InputError, "not one input of any size"),
        (lambda: layers.Stack(number, 4, 8), InputError, "the first output of number is e, not a"),
        (lambda: layers.Stack(3, 4, 8), InputError, "cell must be a text"),
        (
            lambda: layers.MLSTM(8, num_heads=2)(torch.ones(3, 2, 8), (torch.ones(1),)),
            ShapeError,
            "the state must be a tuple of",
        ),
    ],
)
def test_mistakes(build, error, message):
    """They are told by name."""
    with pytest.raises(error, match=message):
        build()


def test_dropout_of_one_block():
    """It drops nothing, as in torch's layers, and is told."""
    for kind, more in ((layers.Stack, {}), (layers.Strided, {"strides": (1, 2)})):
        with pytest.warns(UserWarning, match="non-zero dropout expects num_layers greater than 1"):
            kind("gru", 4, 8, dropout=0.5, **more)


@pytest.mark.parametrize("name", [*CASES, "Stack", "Strided"])
def test_single_sequences(name):
    """[T, n] is a batch of one, and neither results nor states have a batch."""
    kinds = {
        "Stack": lambda: layers.Stack("rwkv7", SIZE, SIZE, 2),
        "Strided": lambda: layers.Strided("lstm", SIZE, SIZE, (1, 2), 2),
    }
    net = made(name) if name in CASES else kinds[name]().double()
    x = torch.randn(5, SIZE, dtype=F64)
    with torch.no_grad(), elman.using(engine="reference"):
        batch = net(x.unsqueeze(1))
        single = net(x)
        for result, want in zip(tree_leaves(single), tree_leaves(batch), strict=True):
            torch.testing.assert_close(result, want.squeeze(1))
        again, later = net(x, single[1])[0], net(x.unsqueeze(1), batch[1])[0]
        torch.testing.assert_close(again, later.squeeze(1))


@pytest.mark.parametrize("name", CASES)
def test_states_own_their_memory(name):
    """A buffer of inputs that is filled again leaves the state as it was."""
    net, x = made(name).eval(), torch.randn(2, 2, SIZE, dtype=torch.float64)
    with torch.no_grad():
        _, state, *_ = net(x)
        before = [value.clone() for value in state]
        x.zero_()
    torch.testing.assert_close(list(state), before)


@pytest.mark.parametrize("name", CASES)
def test_functional_call(name):
    """With other weights than its own."""
    net, x = made(name), torch.randn(3, 2, SIZE, dtype=torch.float64)
    weights = {key: 1.2 * value.detach() for key, value in net.named_parameters()}
    got = torch.func.functional_call(net, weights, (x,))[0]
    net.load_state_dict(weights, strict=False)
    torch.testing.assert_close(got, net(x)[0])


@pytest.mark.parametrize("kind", [layers.Stack, layers.Strided])
def test_compiled(kind):
    """As one graph for torch's compiler."""
    net, x = kind("gru", 6, 8, num_layers=2), torch.randn(5, 2, 6)
    torch.testing.assert_close(torch.compile(net, backend="eager", fullgraph=True)(x)[0], net(x)[0])


def test_layers_are_imported_when_asked_for():
    assert elman.layers is layers
    assert set(layers.__all__) >= set(CASES)

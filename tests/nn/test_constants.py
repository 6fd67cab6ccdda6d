"""Constants of a cell: buffers that formulas read as weights, and that nothing trains."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import functional_call

import elman
from elman import cell, cells, ops
from elman.errors import InputError, ShapeError, TraceError
from helpers import assert_close, need_engine

F64 = torch.float64


def band(mask: torch.Tensor) -> torch.Tensor:
    """Each unit sees itself and its neighbour."""
    return torch.ones_like(mask).tril(1).triu(-1)


@cell(
    input="x[I]",
    state="h[H], m[M]",
    weights="W[H, I], R[H, H], U[H, M], b[H]",
    constants="mask[H, H], A[M, M], e[M], gain",
    init={"gain": 0.5, "A": "orthogonal"},
)
def fixed(x, h, m, W, R, U, b, mask, A, e, gain):
    """A masked matrix, one that is fixed, a vector and a number."""
    m = A @ m + gain * ops.mean(x) * e
    return ops.tanh(W @ x + (R * mask) @ h + U @ m + b), m


def made(engine: str = "reference", **options: object) -> elman.Recurrent:
    """A module with all of its constants."""
    torch.manual_seed(0)
    given = {"M": 3, "mask": band, "e": np.arange(3.0), "dtype": F64, **options}
    return elman.Recurrent(fixed, 4, 5, engine=engine, **given)


def by_hand(net: elman.Recurrent, x: torch.Tensor) -> torch.Tensor:
    """The last output [B, H] of one layer, in torch's operations."""
    h, m = x.new_zeros(x.shape[1], 5), x.new_zeros(x.shape[1], 3)
    for row in x:
        m = m @ net.A_l0.T + net.gain_l0 * row.mean(-1, keepdim=True) * net.e_l0
        masked = net.R_l0 * net.mask_l0
        h = torch.tanh(row @ net.W_l0.T + h @ masked.T + m @ net.U_l0.T + net.b_l0)
    return h


def test_buffers():
    """In the state_dict, in declared order, one of each layer and direction; moved, never
    trained."""
    net = made(num_layers=2, bidirectional=True)
    names = [
        f"{name}_l{layer}{end}"
        for layer in (0, 1)
        for end in ("", "_reverse")
        for name in ("mask", "A", "e", "gain")
    ]
    assert [name for name, _ in net.named_buffers()] == names
    assert not {*names} & {name for name, _ in net.named_parameters()}
    assert not any(value.requires_grad for value in net.buffers())
    assert set(names) < {*net.state_dict()}
    assert net.float().A_l0.dtype == torch.float32
    assert net.gain_l0.shape == ()
    assert net.gain_l0 == 0.5
    assert torch.equal(net.e_l1, torch.arange(3.0))
    assert not torch.equal(net.A_l0, net.A_l1), "a scheme is drawn for each layer"


def test_reset_parameters():
    """What the module was given stays; what the cell draws is drawn anew."""
    net = made(gain=2.0)
    before = {name: value.clone() for name, value in net.named_buffers()}
    net.reset_parameters()
    same = [name for name, value in net.named_buffers() if torch.equal(value, before[name])]
    assert same == ["mask_l0", "e_l0", "gain_l0"]


def test_called_with_others():
    """functional_call with another constant, whose gradient can be asked for."""
    need_engine("c")
    net = made("c")
    x = torch.randn(5, 2, 4, dtype=F64)
    gain = torch.tensor(1.5, dtype=F64, requires_grad=True)
    out, _ = functional_call(net, {"gain_l0": gain}, (x,))
    net.gain_l0.fill_(1.5)
    want = by_hand(net, x)
    assert_close(out[-1], want)
    (slope,) = torch.autograd.grad(out[-1].sum(), gain)
    net.gain_l0.add_(1e-6)
    assert float(slope) == pytest.approx(
        float((by_hand(net, x) - want.detach()).detach().sum() / 1e-6), rel=1e-4
    )


def test_heads():
    """A constant that multiplies a state is divided as a weight is: its mask with it."""
    net = elman.Recurrent(fixed, 4, 6, heads=2, M=4, mask=1.0, e=1.0, engine="reference")
    assert net.R_l0.shape == net.mask_l0.shape == (6, 3)
    assert net.A_l0.shape == (4, 2)


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[H, I], R[H, H]",
    constants="A[H, H], mask[H, H]",
    init={"A": "orthogonal", "mask": 1},
)
def reservoir(x, h, W, R, A, mask):
    """Two matrices of the state are constants, one of them a mask."""
    return ops.tanh(W @ x + A @ h + (R * mask) @ h)


def test_dropout_of_weights():
    """Constants are no weights to be dropped: without trained ones, training is as evaluation."""
    torch.manual_seed(0)
    net = elman.Recurrent(reservoir, 4, 5, engine="reference", dtype=F64, weight_dropout=0.5)
    x = torch.randn(6, 2, 4, dtype=F64)
    assert not torch.equal(net(x)[0], net.eval()(x)[0])
    with torch.no_grad():
        net.R_l0.zero_()
    assert torch.equal(net.train()(x)[0], net.eval()(x)[0])


def test_mistakes():
    """Not given, of a wrong shape, nothing to begin with; names that a module could not tell."""
    with pytest.raises(InputError, match=r"fixed needs its constant mask\[H, H\]") as caught:
        elman.Recurrent(fixed, 4, 5, M=3, e=1.0)
    assert "Recurrent(fixed, …, mask=…)" in str(caught.value)
    with pytest.raises(ShapeError, match=r"constant mask\[H, H\] is \[4, 4\], not \[5, 5\]"):
        made(mask=torch.ones(4, 4))
    with pytest.raises(TraceError, match="init of mask: no scheme 'bands'"):
        made(mask="bands")
    with pytest.raises(InputError, match=r"no argument 'masks'.*constants: A, e, gain, mask"):
        made(masks=1.0)
    with pytest.raises(TraceError, match="'H' is both a constant and a dim"):

        @cell(input="x[I]", state="h[H]", weights="W[H, I]", constants="H[H, H]")
        def unclear(x, h, W, H):
            return ops.tanh(W @ x + H @ h)

    with pytest.raises(TraceError, match=r"signature declares \(x, h, W, R, A\)"):

        @cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]", constants="A[H, H]")
        def order(x, h, A, W, R):
            return ops.tanh(W @ x + (A * R) @ h)

    with pytest.raises(InputError, match="mask is an argument of each call"):
        elman.Recurrent(cells.gru, 4, 5, mask=1.0)


def test_explained_and_drawn():
    """Apart from the weights; without gradients."""
    told = elman.explain(fixed, input_size=4, hidden_size=5, M=3, measure=False)
    assert "b[H]; constant mask[H, H], A[M, M], e[M], gain" in told.stages["graph"]
    assert "gradients of R U W b x," in told.stages["program"]
    drawn = elman.draw(fixed, M=3).svg
    assert "∂U" in drawn
    assert "∂A" not in drawn
    assert "∂e" not in drawn


def test_legendre_memory():
    """As the authors' loop computes it, the system discretized in another way; its memory holds the
    window: a constant input has one Legendre polynomial."""
    theta, order = 30.0, 6
    given = {"A": cells.lmu_matrix(theta), "B": cells.lmu_vector(theta)}
    net = elman.Recurrent(cells.lmu, 2, 5, M=order, engine="reference", dtype=F64, **given)
    q = torch.arange(order, dtype=F64)
    scale, (i, j) = (2 * q + 1) / theta, torch.meshgrid(q, q, indexing="ij")
    A = torch.where(i < j, -1.0, (-1.0) ** (i - j + 1)) * scale[:, None]
    B = (-1.0) ** q * scale
    held = torch.linalg.matrix_exp(A)
    assert_close(net.A_l0, held)
    assert_close(net.B_l0, torch.linalg.solve(A, (held - torch.eye(order, dtype=F64)) @ B))

    with torch.no_grad():
        net.em_l0.uniform_(-0.1, 0.1)
    x = torch.randn(9, 3, 2, dtype=F64)
    h, m = x.new_zeros(3, 5), x.new_zeros(3, order)
    for row in x:
        u = row @ net.ex_l0 + h @ net.eh_l0 + m @ net.em_l0
        m = m @ net.A_l0.T + u[:, None] * net.B_l0
        h = torch.tanh(row @ net.W_l0.T + h @ net.R_l0.T + m @ net.U_l0.T)
    out, last = net(x)
    assert_close(out[-1], h)
    assert_close(last[1][0], m)
    memory = torch.zeros(order, dtype=F64)
    for _ in range(200):
        memory = net.A_l0 @ memory + net.B_l0
    assert memory[0] == pytest.approx(1.0, abs=1e-3)
    assert memory[1:].abs().max() < 1e-3

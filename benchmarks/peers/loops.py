"""Cells as a loop over torch ops: what one writes in torch for a cell that torch does not have.

``published`` has steps of papers and of their authors' code.
``PLAIN`` is the formula, step by step, with matrices joined and torch's fused layer_norm. ``TUNED``
is written as well as torch allows: the input projection of all steps is one product, everything
that needs no state is outside the loop, additions are fused into products where torch has the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from benchmarks.peers.published import STEPS as PUBLISHED
from benchmarks.peers.steps import STEPS, TORCH
from elman.frontend.cell import Cell
from elman.ir.types import shape_size

_TORCHS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # of a layer
Loop = Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, tuple[Tensor, ...]]]


def _zeros(x: Tensor, R: Tensor) -> Tensor:
    return x.new_zeros(x.shape[1], R.shape[1])


def tuned_lstm_layernorm(x: Tensor, w: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs [T, B, H] and last states of ``cells.lstm_layernorm``, from zero states."""
    R, gh, gc, bc = w["R"], w["gh"], w["gc"], w["bc"]
    h = c = _zeros(x, R)
    gates, units = (R.shape[0],), (R.shape[1],)
    projected = F.layer_norm(F.linear(x, w["W"]), gates, w["gx"], w["b"])
    outputs = []
    for row in projected.unbind(0):
        pre = row + F.layer_norm(F.linear(h, R), gates, gh)
        i, f, g, o = pre.chunk(4, -1)
        c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
        h = o.sigmoid() * F.layer_norm(c, units, gc, bc).tanh()
        outputs.append(h)
    return torch.stack(outputs), (h, c)


def tuned_lstm_peephole(x: Tensor, w: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs [T, B, H] and last states of ``cells.lstm_peephole``, from zero states."""
    R = w["R"]
    h = c = _zeros(x, R)
    recurrent = R.t()
    pi, pf, po = w["p"].chunk(3)
    outputs = []
    for row in F.linear(x, w["W"], w["b"]).unbind(0):
        i, f, g, o = torch.addmm(row, h, recurrent).chunk(4, -1)
        i = torch.addcmul(i, pi, c).sigmoid()
        f = torch.addcmul(f, pf, c).sigmoid()
        c = torch.addcmul(f * c, i, g.tanh())
        h = torch.addcmul(o, po, c).sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs), (h, c)


def _steps(
    x: Tensor, states: tuple[Tensor, ...], step: Callable[..., tuple[Tensor, ...]]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The plain loop: outputs are the first state."""
    outputs = []
    for row in x.unbind(0):
        states = step(row, *states)
        outputs.append(states[0])
    return torch.stack(outputs), states


def plain_lstm_layernorm(x: Tensor, w: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``cells.lstm_layernorm`` step by step."""
    W, R = w["W"], w["R"]
    gates, units = (R.shape[0],), (R.shape[1],)

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        left = F.layer_norm(F.linear(x, W), gates, w["gx"], w["b"])
        i, f, g, o = (left + F.layer_norm(F.linear(h, R), gates, w["gh"])).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(F.layer_norm(c, units, w["gc"], w["bc"])), c

    return _steps(x, (_zeros(x, R),) * 2, step)


def plain_lstm_peephole(x: Tensor, w: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``cells.lstm_peephole`` step by step."""
    W, R, b = w["W"], w["R"], w["b"]
    pi, pf, po = w["p"].chunk(3)

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        i, f, g, o = (F.linear(x, W, b) + F.linear(h, R)).chunk(4, -1)
        i = torch.sigmoid(i + pi * c)
        f = torch.sigmoid(f + pf * c)
        c = f * c + i * torch.tanh(g)
        return torch.sigmoid(o + po * c) * torch.tanh(c), c

    return _steps(x, (_zeros(x, R),) * 2, step)


def plain_lem(x: Tensor, w: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``cells.lem`` step by step."""
    W, R, Q, b = w["W"], w["R"], w["Q"], w["b"]

    def step(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        x1, x2, xz, xy = F.linear(x, W, b).chunk(4, -1)
        r1, r2, rz = F.linear(y, R).chunk(3, -1)
        step1, step2 = torch.sigmoid(x1 + r1), torch.sigmoid(x2 + r2)
        z = (1 - step1) * z + step1 * torch.tanh(xz + rz)
        return (1 - step2) * y + step2 * torch.tanh(xy + F.linear(z, Q)), z

    return _steps(x, (_zeros(x, R),) * 2, step)


def plain_leaky_memory(x: Tensor, w: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """``custom_cells.leaky_memory`` step by step."""
    W, R, b = w["W"], w["R"], w["b"]

    def step(x: Tensor, h: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        f, i, g = (F.linear(x, W, b) + F.linear(h, R)).chunk(3, -1)
        f, i = torch.sigmoid(f), torch.sigmoid(i)
        m = f * m + (1 - f) * torch.tanh(g)
        return i * torch.relu(m) + (1 - i) * h, m

    return _steps(x, (_zeros(x, R),) * 2, step)


def stepwise(cell: str, x: Tensor, w: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Layers of one of torch's cells, both products and every operation in each step.

    Returns:
        Outputs [T, B, H] of the last layer, and last states [layers, B, H].
    """
    step, states = STEPS[cell]
    last: list[tuple[Tensor, ...]] = []
    while f"weight_ih_l{len(last)}" in w:
        W, R, b, d = (w[f"{name}_l{len(last)}"] for name in _TORCHS)
        carry, outputs = (_zeros(x, R),) * states, []
        for row in x.unbind(0):
            carry = step(TORCH, F.linear(row, W, b), carry, R, d)
            outputs.append(carry[0])
        x = torch.stack(outputs)
        last.append(carry)
    return x, tuple(torch.stack(layers) for layers in zip(*last, strict=True))


def looped(
    cell: Cell, dims: Mapping[str, int], x: Tensor, weights: Mapping[str, Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A published step, all of it in each, from zero states.

    Args:
        cell: of one input, of ``published.STEPS``.
        dims: by name.
        x: [T, B, I].
        weights: by name.

    Returns:
        Outputs [T, B, n] and last states [B, n].
    """
    own = PUBLISHED[cell.name]
    states = tuple(x.new_zeros(x.shape[1], *shape_size(s.shape, dims)) for s in cell.states)
    outputs = []
    for row in x.unbind(0):
        output, states = own(row, *states, weights)
        outputs.append(output)
    return torch.stack(outputs), states


TUNED: dict[str, Loop] = {
    "lstm_layernorm": tuned_lstm_layernorm,
    "lstm_peephole": tuned_lstm_peephole,
}
PLAIN: dict[str, Loop] = {
    "lstm_layernorm": plain_lstm_layernorm,
    "lstm_peephole": plain_lstm_peephole,
    "lem": plain_lem,
    "leaky_memory": plain_leaky_memory,
}

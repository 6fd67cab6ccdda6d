"""Cells as a loop over torch ops: what one writes in torch for a cell that torch does not have.

``looped`` runs a step of ``published``. ``TUNED`` is written as well as torch allows: the input
projection of all steps is one product, everything that needs no state is outside the loop,
additions are fused into products where torch has the op.
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
    """A published step, all of it in each, from the cell's initial states: numbers, or zero.

    Args:
        cell: of one input, of ``published.STEPS``.
        dims: by name.
        x: [T, B, I].
        weights: by name.

    Returns:
        Outputs [T, B, n] and last states [B, n].
    """
    step = PUBLISHED[cell.name]
    states = tuple(
        x.new_full((x.shape[1], *shape_size(s.shape, dims)), cell.init.get(s.name, 0.0))
        for s in cell.states
    )
    outputs = []
    for row in x.unbind(0):
        output, states = step(row, *states, weights)
        outputs.append(output)
    return torch.stack(outputs), states


TUNED: dict[str, Loop] = {
    "lstm_layernorm": tuned_lstm_layernorm,
    "lstm_peephole": tuned_lstm_peephole,
}

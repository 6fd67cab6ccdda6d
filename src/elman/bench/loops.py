"""Cells as a loop over torch ops: what one writes in torch for a cell that torch does not have.

Written as well as torch allows: the input projection of all steps is one product, everything that
needs no state is outside the loop, additions are fused into products where torch has the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

Loop = Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, tuple[Tensor, ...]]]


def _zeros(x: Tensor, R: Tensor) -> Tensor:
    return x.new_zeros(x.shape[1], R.shape[1])


def lstm_layernorm(x: Tensor, w: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
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


def lstm_peephole(x: Tensor, w: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
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


LOOPS: dict[str, Loop] = {"lstm_layernorm": lstm_layernorm, "lstm_peephole": lstm_peephole}

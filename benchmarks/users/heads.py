"""Layers whose units are in heads that do not read each other's past.

- A GRU in heads, beside as many of torch's layers, each of which reads the whole input.
- An sLSTM with block-diagonal recurrent weights, as xLSTM (arXiv:2405.04517v2, section 2.2) and
  TiRex (arXiv:2505.23719) stack them: the formula step by step, with one batched product over all
  heads in each step and one input projection of all steps. TiRex reads patches of 32 samples: a
  context of 512 and a horizon of 128 are 20 steps. 512 units in 4 heads are chosen here, not read
  from its weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

import elman.nn
from benchmarks.cases import Case
from benchmarks.users.project import Project, Weights
from elman.cells import slstm

GRU_HEADS, SLSTM_HEADS = 16, 4
_GATES = 4  # of an sLSTM
_OF_GRU = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def heads_of(case: Case, most: int) -> int:
    """Heads of a case: the most that its units can be divided among."""
    return math.gcd(most, case.H)


class SeparateLayers(nn.Module):
    """One of torch's layers for each head, and their outputs side by side."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        heads = heads_of(case, GRU_HEADS)
        layers = (nn.GRU(case.input_size, case.H // heads) for _ in range(heads))
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [T, B, H] of x [T, B, I], and the last state [1, B, H]."""
        outputs, states = zip(*(layer(x) for layer in self.layers), strict=True)
        return torch.cat(outputs, -1), torch.cat(states, -1)


def join_heads(weights: Sequence[Tensor], gates: int) -> Tensor:
    """Weights [G · D, …] of each head as one [G · N · D, …]: gates first, heads within a gate."""
    return torch.stack([weight.unflatten(0, (gates, -1)) for weight in weights], 1).flatten(0, 2)


def _moved_gru(weights: Weights) -> dict[str, Tensor]:
    """Weights of :class:`SeparateLayers`, or their gradients, as elman's layer has them."""
    heads = len(weights) // len(_OF_GRU)
    return {
        name: join_heads([weights[f"layers.{n}.{name}"] for n in range(heads)], gates=3)
        for name in _OF_GRU
    }


def _gru(case: Case) -> nn.Module:
    return elman.nn.GRU(case.input_size, case.H, heads=heads_of(case, GRU_HEADS))


class SLSTMLoop(nn.Module):
    """An sLSTM in heads, step by step, from zero states."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.heads, units = heads_of(case, SLSTM_HEADS), case.H
        size = units // self.heads
        self.W_l0 = nn.Parameter(torch.randn(_GATES * units, case.input_size) / units**0.5)
        self.R_l0 = nn.Parameter(torch.randn(_GATES * units, size) / units**0.5)
        self.b_l0 = nn.Parameter(torch.randn(_GATES * units) / units**0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs [T, B, H] of x [T, B, I]; the last output, cell, normaliser and stabiliser
        [B, H]."""
        N, D = self.heads, self.R_l0.shape[1]
        # [N, D, G · D]: a head's state is multiplied by its part of all gates at once
        R = self.R_l0.view(_GATES, N, D, D).permute(1, 3, 0, 2).reshape(N, D, _GATES * D)
        h = c = n = m = x.new_zeros(N, x.shape[1], D)
        outputs: list[Tensor] = []
        for row in F.linear(x, self.W_l0, self.b_l0).unflatten(-1, (_GATES, N, D)):
            recurrent = torch.bmm(h, R).unflatten(-1, (_GATES, D))
            i, f, g, o = (row.permute(2, 0, 1, 3) + recurrent).unbind(2)
            decay = m + F.logsigmoid(f)
            m = torch.maximum(decay, i)
            i, f = torch.exp(i - m), torch.exp(decay - m)
            c = f * c + i * torch.tanh(g)
            n = f * n + i
            h = torch.sigmoid(o) * (c / n)
            outputs.append(h)
        joined = torch.stack(outputs).transpose(1, 2).flatten(2)
        return joined, tuple(state.transpose(0, 1).flatten(1) for state in (h, c, n, m))


def _slstm(case: Case) -> nn.Module:
    heads = heads_of(case, SLSTM_HEADS)
    return elman.nn.Recurrent(slstm, case.input_size, case.H, heads=heads)


HEADS = Project({"torch": SeparateLayers}, _gru, moved=_moved_gru)
SLSTM = Project({"loop": SLSTMLoop}, _slstm)

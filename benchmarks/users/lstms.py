"""Variants of the LSTM: one with a static input gate, one with layer norm and zoneout.

- NeuralHydrology 1.11 (``modelzoo/ealstm.py``): weights lie [inputs, gates], the gates are f, o, g;
  the input gate is computed once of a basin's attributes.
- haste 0.4 (``LayerNormLSTM``): weights lie [inputs, gates], the gates are i, g, f, o; layer norm
  over both products and over the cell state; zoneout of the output, masks of all steps drawn at
  once. haste has CUDA kernels alone; the loop is what one writes without a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from benchmarks.cases import Case
from benchmarks.users.project import Project, Weights, layer_of
from elman.cells import ealstm, zoneout_lstm_layernorm

ATTRIBUTES = 27  # of a basin in CAMELS, as Kratzert et al. 2019 take them
ZONEOUT = 0.1


class EALSTMLoop(nn.Module):
    """NeuralHydrology's loop over the days of a year."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.input_net = nn.Linear(ATTRIBUTES, case.H)
        self.weight_ih = nn.Parameter(torch.empty(case.input_size, 3 * case.H))
        self.weight_hh = nn.Parameter(torch.eye(case.H).repeat(1, 3))
        self.bias = nn.Parameter(torch.zeros(3 * case.H))
        nn.init.orthogonal_(self.weight_ih)

    def forward(self, x: Tensor, attributes: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Outputs [T, B, H] and the last states; attributes are [B, S]."""
        h = c = x.new_zeros(x.shape[1], self.weight_hh.shape[0])
        bias = self.bias.expand(x.shape[1], -1)
        i = torch.sigmoid(self.input_net(attributes))
        outputs = []
        for row in x:
            gates = torch.addmm(bias, h, self.weight_hh) + torch.mm(row, self.weight_ih)
            f, o, g = gates.chunk(3, 1)
            c = torch.sigmoid(f) * c + i * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs), (h, c)


class HasteLoop(nn.Module):
    """Layer-norm LSTM with zoneout, step by step."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(case.input_size, 4 * case.H))
        self.recurrent_kernel = nn.Parameter(torch.empty(case.H, 4 * case.H))
        self.bias = nn.Parameter(torch.zeros(4 * case.H))
        self.gamma = nn.Parameter(torch.ones(2, 4 * case.H))
        self.gamma_h = nn.Parameter(torch.ones(case.H))
        self.beta_h = nn.Parameter(torch.zeros(case.H))
        for part in self.kernel.data.chunk(4, 1):
            nn.init.xavier_uniform_(part)
        for part in self.recurrent_kernel.data.chunk(4, 1):
            nn.init.orthogonal_(part)
        nn.init.ones_(self.bias.data.chunk(4)[2])

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Outputs [T, B, H] and the last states."""
        gates, units = self.gamma.shape[1:], self.gamma_h.shape
        h = c = x.new_zeros(x.shape[1], *units)
        mask = x.new_full((len(x), *h.shape), 1.0 - ZONEOUT)
        if self.training:
            mask.bernoulli_(1.0 - ZONEOUT)
        outputs = []
        for left, keep in zip(layer_norm(x @ self.kernel, gates, self.gamma[0]), mask, strict=True):
            right = layer_norm(h @ self.recurrent_kernel, gates, self.gamma[1])
            i, g, f, o = (left + right + self.bias).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            new = torch.sigmoid(o) * torch.tanh(layer_norm(c, units, self.gamma_h, self.beta_h))
            h = (new - h) * keep + h
            outputs.append(h)
        return torch.stack(outputs), (h, c)


def _eas(weights: Weights) -> dict[str, Tensor]:
    return {
        "layer.V_l0": weights["input_net.weight"],
        "layer.d_l0": weights["input_net.bias"],
        "layer.W_l0": weights["weight_ih"].T,
        "layer.R_l0": weights["weight_hh"].T,
        "layer.b_l0": weights["bias"],
    }


def _hastes(weights: Weights) -> dict[str, Tensor]:
    def gates(weight: Tensor) -> Tensor:
        i, g, f, o = weight.chunk(4)
        return torch.cat((i, f, g, o))

    return {
        "layer.W_l0": gates(weights["kernel"].T),
        "layer.R_l0": gates(weights["recurrent_kernel"].T),
        "layer.b_l0": gates(weights["bias"]),
        "layer.gx_l0": gates(weights["gamma"][0]),
        "layer.gh_l0": gates(weights["gamma"][1]),
        "layer.gc_l0": weights["gamma_h"],
        "layer.bc_l0": weights["beta_h"],
    }


def _attributes(case: Case, source: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(case.B, ATTRIBUTES, generator=source),)


def _halved(name: str, weight: Tensor) -> Tensor:
    """Gains of 1, and the identity that an EA-LSTM begins with, become 1/2: with 1 rounding errors
    grow over the steps, and agreement would tell nothing."""
    return weight / 2 if name.startswith(("gamma", "weight_hh")) else weight


EALSTM_MODEL = Project(
    {"loop": EALSTMLoop},
    layer_of(ealstm, lambda layer, x, given: layer(x, static=given), S=ATTRIBUTES),
    _attributes,
    learned=1,
    moved=_eas,
    tamed=_halved,
    once=frozenset({"input_net.weight"}),
)
_HASTE = layer_of(zoneout_lstm_layernorm, hold_h=ZONEOUT)
HASTE_MODEL = Project({"loop": HasteLoop}, _HASTE, moved=_hastes, tamed=_halved, drawn=True)

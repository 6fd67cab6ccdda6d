"""Custom LSTM cells of PyTorch's own benchmarks/fastrnns, as plain Python."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from benchmarks.steps.case import Case, Step, zeros

FASTRNNS = "https://github.com/pytorch/pytorch/tree/main/benchmarks/fastrnns"
Pair = tuple[Tensor, Tensor]


class FastLSTM(nn.Module):
    """The LSTMCell of PyTorch's benchmarks, without the script: (x, (h, c)) -> (h, (h, c))."""

    def __init__(self, I: int, H: int) -> None:
        super().__init__()
        scale = 1 / math.sqrt(H)  # theirs is 1: their own numbers saturate
        self.weight_ih = nn.Parameter(scale * torch.randn(4 * H, I))
        self.weight_hh = nn.Parameter(scale * torch.randn(4 * H, H))
        self.bias_ih = nn.Parameter(scale * torch.randn(4 * H))
        self.bias_hh = nn.Parameter(scale * torch.randn(4 * H))

    def forward(self, input: Tensor, state: Pair) -> tuple[Tensor, Pair]:
        hx, cx = state
        gates = (
            torch.mm(input, self.weight_ih.t())
            + self.bias_ih
            + torch.mm(hx, self.weight_hh.t())
            + self.bias_hh
        )
        return lstm(gates, cx)


def lstm(gates: Tensor, cx: Tensor) -> tuple[Tensor, Pair]:
    """The rest of an LSTM of gates [B, 4H]."""
    ingate, forgetgate, cellgate, outgate = gates.chunk(4, 1)
    ingate = torch.sigmoid(ingate)
    forgetgate = torch.sigmoid(forgetgate)
    cellgate = torch.tanh(cellgate)
    outgate = torch.sigmoid(outgate)
    cy = (forgetgate * cx) + (ingate * cellgate)
    hy = outgate * torch.tanh(cy)
    return hy, (hy, cy)


class DecomposedLayerNorm(nn.Module):
    """Layer norm by mean and std, without an epsilon."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, input: Tensor) -> Tensor:
        mu = input.mean(-1, keepdim=True)
        sigma = input.std(-1, keepdim=True, unbiased=False)
        return (input - mu) / sigma * self.weight + self.bias


class FastLayerNormLSTM(nn.Module):
    """The LayerNormLSTMCell of PyTorch's benchmarks: (x, (h, c)) -> (h, (h, c))."""

    def __init__(self, I: int, H: int, decompose: bool = False) -> None:
        super().__init__()
        norm = DecomposedLayerNorm if decompose else nn.LayerNorm
        self.weight_ih = nn.Parameter(torch.randn(4 * H, I))
        self.weight_hh = nn.Parameter(torch.randn(4 * H, H))
        self.layernorm_i, self.layernorm_h = norm(4 * H), norm(4 * H)
        self.layernorm_c = norm(H)

    def forward(self, input: Tensor, state: Pair) -> tuple[Tensor, Pair]:
        hx, cx = state
        igates = self.layernorm_i(torch.mm(input, self.weight_ih.t()))
        hgates = self.layernorm_h(torch.mm(hx, self.weight_hh.t()))
        ingate, forgetgate, cellgate, outgate = (igates + hgates).chunk(4, 1)
        ingate = torch.sigmoid(ingate)
        forgetgate = torch.sigmoid(forgetgate)
        cellgate = torch.tanh(cellgate)
        outgate = torch.sigmoid(outgate)
        cy = self.layernorm_c((forgetgate * cx) + (ingate * cellgate))
        hy = outgate * torch.tanh(cy)
        return hy, (hy, cy)


def premultiplied(cell: FastLSTM) -> Step:
    """Their LSTM on premultiplied inputs [B, 4H], a function of the weights."""
    w_hh, b_ih, b_hh = cell.weight_hh, cell.bias_ih, cell.bias_hh

    def step(hidden: Pair, igates: Tensor) -> tuple[Pair, Tensor]:
        hx, cx = hidden
        gates = igates + torch.mm(hx, w_hh.t()) + b_ih + b_hh
        hy, hidden = lstm(gates, cx)
        return hidden, hy

    return step


class MultiplicativeLSTM(nn.Module):
    """Their multiplicative-integration LSTM (milstm_cell): (x, (h, c)) -> (h, (h, c))."""

    def __init__(self, I: int, H: int) -> None:
        super().__init__()
        scale = 1 / math.sqrt(H)
        self.w_ih = nn.Parameter(scale * torch.randn(4 * H, I))
        self.w_hh = nn.Parameter(scale * torch.randn(4 * H, H))
        self.bias = nn.Parameter(scale * torch.randn(4 * H))
        self.alpha, self.beta_i, self.beta_h = (
            nn.Parameter(1 + scale * torch.randn(4 * H)) for _ in range(3)
        )

    def forward(self, x: Tensor, state: Pair) -> tuple[Tensor, Pair]:
        hx, cx = state
        Wx = x.mm(self.w_ih.t())
        Uz = hx.mm(self.w_hh.t())
        return lstm(self.alpha * Wx * Uz + self.beta_i * Wx + self.beta_h * Uz + self.bias, cx)


OUT, SCAN = "x,s->out,s", "s,x->s,y"
CASES = [
    Case(
        "fastrnns_lstm",
        f"{FASTRNNS}/custom_lstms.py LSTMCell",
        lambda s: FastLSTM(s.I, s.H),
        OUT,
        zeros(2),
        (100, 64, 512, 512),
    ),
    Case(
        "fastrnns_layernorm_lstm",
        f"{FASTRNNS}/custom_lstms.py LayerNormLSTMCell",
        lambda s: FastLayerNormLSTM(s.I, s.H),
        OUT,
        zeros(2),
        (100, 64, 512, 512),
    ),
    Case(
        "fastrnns_layernorm_lstm_decomposed",
        f"{FASTRNNS}/custom_lstms.py LayerNormLSTMCell(decompose_layernorm=True)",
        lambda s: FastLayerNormLSTM(s.I, s.H, True),
        OUT,
        zeros(2),
        (100, 64, 512, 512),
        remark="std without an epsilon",
    ),
    Case(
        "fastrnns_premultiplied_lstm",
        f"{FASTRNNS}/cells.py premul_lstm_cell",
        lambda s: FastLSTM(s.I, s.H),
        SCAN,
        zeros(2),
        (100, 64, 512, 512),
        inputs=lambda T, B, s: torch.randn(T, B, 4 * s.H),
        adapt=premultiplied,
        remark="a function; weight_ih has no gradient",
    ),
    Case(
        "fastrnns_milstm",
        f"{FASTRNNS}/cells.py milstm_cell, arXiv 1606.06630",
        lambda s: MultiplicativeLSTM(s.I, s.H),
        OUT,
        zeros(2),
        (100, 64, 512, 512),
    ),
]

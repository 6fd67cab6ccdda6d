"""Gated recurrent cells from public code and papers: the same operations in the same order."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.steps.case import Case, Sizes, Step, Tree, stream, zeros

Pair = tuple[Tensor, Tensor]


def ligru_step(u: nn.Module, mask: Tensor) -> Step:
    """SpeechBrain's LiGRU on projected, normalised inputs [B, 2H]; mask [B, H] of dropout."""
    drop = mask if u.training else torch.ones(1, dtype=mask.dtype)

    def step(h: Tensor, w: Tensor) -> Pair:
        gates = w + u(h)
        a, z = gates.chunk(2, 1)
        z = torch.sigmoid(z)
        candidate = torch.relu(a) * drop
        h = z * h + (1 - z) * candidate
        return h, h

    return step


class DreamerGRU(nn.Module):
    """DreamerV3's GRU with layer norm: (x [B, I], [h [B, H]]) -> (h, [h])."""

    def __init__(self, I: int, H: int, update_bias: float = -1.0) -> None:
        super().__init__()
        self.size, self.update_bias = H, update_bias
        self.layers = nn.Sequential()
        self.layers.add_module("GRU_linear", nn.Linear(I + H, 3 * H, bias=False))
        self.layers.add_module("GRU_norm", nn.LayerNorm(3 * H, eps=1e-03))

    def forward(self, inputs: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        h = state[0]
        parts = self.layers(torch.cat([inputs, h], -1))
        reset, candidate, update = torch.split(parts, [self.size] * 3, -1)
        reset = torch.sigmoid(reset)
        candidate = torch.tanh(reset * candidate)
        update = torch.sigmoid(update + self.update_bias)
        output = update * candidate + (1 - update) * h
        return output, [output]


class HasteLayerNormLSTM(nn.Module):
    """haste's LSTM with layer norm and zoneout: ((x, mask [B, H]), (h, c)) -> (h, (h, c))."""

    def __init__(self, I: int, H: int, zoneout: float = 0.1) -> None:
        super().__init__()
        self.zoneout = zoneout
        self.kernel = nn.Parameter(torch.empty(I, 4 * H))
        self.recurrent_kernel = nn.Parameter(torch.empty(H, 4 * H))
        self.bias = nn.Parameter(torch.zeros(4 * H))
        self.gamma = nn.Parameter(torch.ones(2, 4 * H))
        self.gamma_h = nn.Parameter(torch.ones(H))
        self.beta_h = nn.Parameter(torch.zeros(H))
        nn.init.xavier_uniform_(self.kernel)
        nn.init.orthogonal_(self.recurrent_kernel)
        with torch.no_grad():
            self.bias[2 * H : 3 * H] = 1.0

    def forward(self, inputs: Pair, state: Pair) -> tuple[Tensor, Pair]:
        x, mask = inputs
        h, c = state
        W = functional.layer_norm(x @ self.kernel, self.gamma.shape[1:]) * self.gamma[0]
        R = functional.layer_norm(h @ self.recurrent_kernel, self.gamma.shape[1:]) * self.gamma[1]
        i, g, f, o = (W + R + self.bias).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        normed = functional.layer_norm(c, self.gamma_h.shape, self.gamma_h, self.beta_h)
        new = torch.sigmoid(o) * torch.tanh(normed)
        if self.training:
            new = (new - h) * mask + h
        else:
            new = self.zoneout * h + (1 - self.zoneout) * new
        return new, (new, c)


def zoned(T: int, B: int, sizes: Sizes) -> Pair:
    """Inputs [T, B, I] and zoneout's masks [T, B, H]."""
    return stream(T, B, sizes), torch.bernoulli(torch.full((T, B, sizes.H), 0.9))


class GRUD(nn.Module):
    """GRU-D: (h [B, H], last observed x [B, I]), (x, observed, time since) [B, I] each."""

    def __init__(self, I: int, H: int) -> None:
        super().__init__()
        self.w_dg_x, self.w_dg_h = nn.Linear(I, I), nn.Linear(I, H)
        self.w_xz, self.w_xr, self.w_xh = (nn.Linear(I, H, bias=False) for _ in range(3))
        self.w_hz, self.w_hr, self.w_hh = (nn.Linear(H, H, bias=False) for _ in range(3))
        self.w_mz, self.w_mh = nn.Linear(I, H), nn.Linear(I, H)
        self.w_mr = nn.Linear(I, H, bias=False)
        self.w_hy = nn.Linear(H, 1)
        self.x_mean: Tensor
        self.register_buffer("x_mean", 0.1 * torch.randn(I))
        for weight in self.parameters():
            nn.init.uniform_(weight, -1 / math.sqrt(H), 1 / math.sqrt(H))

    def forward(self, state: Pair, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Pair, Tensor]:
        h, last = state
        x, m, d = inputs
        gamma_x = torch.exp(-1 * functional.relu(self.w_dg_x(d)))
        gamma_h = torch.exp(-1 * functional.relu(self.w_dg_h(d)))
        last = torch.where(m > 0, x, last)
        x = m * x + (1 - m) * (gamma_x * x + (1 - gamma_x) * self.x_mean)
        x = m * x + (1 - m) * (gamma_x * last + (1 - gamma_x) * self.x_mean)
        h = gamma_h * h
        z = torch.sigmoid(self.w_xz(x) + self.w_hz(h) + self.w_mz(m))
        r = torch.sigmoid(self.w_xr(x) + self.w_hr(h) + self.w_mr(m))
        candidate = torch.tanh(self.w_xh(x) + self.w_hh(r * h) + self.w_mh(m))
        h = (1 - z) * h + z * candidate
        return (h, last), torch.sigmoid(self.w_hy(h))


def observed(T: int, B: int, sizes: Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """Values, whether observed (0 or 1), time since [T, B, I]."""
    x = stream(T, B, sizes)
    return x, (torch.rand_like(x) < 0.3).float(), torch.rand_like(x)


class MogrifierLSTM(nn.Module):
    """Mogrifier LSTM: (x, (h, c)) -> (h, c)."""

    def __init__(self, I: int, H: int, rounds: int = 5) -> None:
        super().__init__()
        self.x2h, self.h2h = nn.Linear(I, 4 * H), nn.Linear(H, 4 * H)
        self.mogrifiers = nn.ModuleList(
            nn.Linear(I, H) if i % 2 else nn.Linear(H, I) for i in range(rounds)
        )

    def mogrify(self, x: Tensor, h: Tensor) -> Pair:
        for i, layer in enumerate(self.mogrifiers):
            if i % 2:
                h = (2 * torch.sigmoid(layer(x))) * h
            else:
                x = (2 * torch.sigmoid(layer(h))) * x
        return x, h

    def forward(self, x: Tensor, states: Pair) -> Pair:
        ht, ct = states
        x, ht = self.mogrify(x, ht)
        gates = self.x2h(x) + self.h2h(ht)
        in_gate, forget_gate, new_memory, out_gate = gates.chunk(4, 1)
        in_gate = torch.sigmoid(in_gate)
        forget_gate = torch.sigmoid(forget_gate)
        out_gate = torch.sigmoid(out_gate)
        new_memory = torch.tanh(new_memory)
        c_new = (forget_gate * ct) + (in_gate * new_memory)
        h_new = out_gate * torch.tanh(c_new)
        return h_new, c_new


class IndRNN(nn.Module):
    """Independently recurrent network: (x, h) -> h."""

    def __init__(self, I: int, H: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(H, I) / math.sqrt(I))
        self.weight_hh = nn.Parameter(torch.rand(H))
        self.bias_ih = nn.Parameter(torch.zeros(H))

    def forward(self, input: Tensor, hx: Tensor) -> Tensor:
        return torch.relu(
            functional.linear(input, self.weight_ih, self.bias_ih) + torch.mul(self.weight_hh, hx)
        )


class NestedLSTM(nn.Module):
    """Nested LSTM of depth 2: (x, (h, c, inner c)) -> (h, c, inner c)."""

    def __init__(self, I: int, H: int) -> None:
        super().__init__()
        self.outer = nn.Linear(I + H, 4 * H)
        self.inner = nn.LSTMCell(H, H)

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c, inner_c = state
        i, f, g, o = self.outer(torch.cat([x, h], dim=-1)).chunk(4, dim=-1)
        inner_x = torch.sigmoid(i) * torch.tanh(g)
        inner_h = torch.sigmoid(f) * c
        c, inner_c = self.inner(inner_x, (inner_h, inner_c))
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, c, inner_c


class PhasedLSTM(nn.Module):
    """Phased LSTM: ((x [B, I], time [B]), (h, c)) -> (h, (h, c))."""

    def __init__(self, I: int, H: int, leak: float = 0.001, ratio_on: float = 0.2) -> None:
        super().__init__()
        self.hidden_size, self.leak = H, leak
        self.linear_ih = nn.Linear(I, 4 * H, bias=False)
        self.linear_hh = nn.Linear(H, 4 * H, bias=False)
        self.bias = nn.Parameter((2 * torch.rand(4 * H) - 1) / math.sqrt(4 * H))
        period = torch.exp(1 + 2 * torch.rand(H))
        self.period = nn.Parameter(period)
        self.phase = nn.Parameter(torch.rand(H) * period)
        self.ratio_on = nn.Parameter(torch.full((H,), ratio_on))

    def mod(self, x: Tensor, y: Tensor) -> Tensor:
        """The rest of a division, with x's gradient."""
        return x + (torch.fmod(x, y) - x).detach()

    def forward(self, inputs: Pair, state: Pair) -> tuple[Tensor, Pair]:
        h_prev, c_prev = state
        x, time = inputs
        chunks = self.linear_ih(x) + self.linear_hh(h_prev) + self.bias
        ifo, g = chunks.split([3 * self.hidden_size, self.hidden_size], dim=1)
        i, f, o = torch.sigmoid(ifo).split(self.hidden_size, dim=1)
        new_c = f * c_prev + i * torch.tanh(g)
        new_h = o * torch.tanh(new_c)
        times = time.view(-1, 1).repeat(1, self.hidden_size)
        cycle_ratio = self.mod(times - self.phase, self.period) / self.period
        k_up = 2 * cycle_ratio / self.ratio_on
        k_down = 2 - k_up
        k_closed = self.leak * cycle_ratio
        k = torch.where(cycle_ratio < self.ratio_on, k_down, k_closed)
        k = torch.where(cycle_ratio < 0.5 * self.ratio_on, k_up, k)
        new_c = k * new_c + (1 - k) * c_prev
        new_h = k * new_h + (1 - k) * h_prev
        return new_h, (new_h, new_c)


def clocked(T: int, B: int, sizes: Sizes) -> Pair:
    """Inputs [T, B, I] and growing times [T, B], later than every phase."""
    return stream(T, B, sizes), 21 + torch.cumsum(0.1 + torch.rand(T, B), 0)


class MinGRU(nn.Module):
    """minGRU's sequential mode: (x [B, 1, I], h [B, 1, H]) -> h; I = H."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.to_hidden_and_gate = nn.Linear(size, 2 * size, bias=False)

    def forward(self, x: Tensor, prev_hidden: Tensor) -> Tensor:
        hidden, gate = self.to_hidden_and_gate(x).chunk(2, dim=-1)
        hidden = torch.where(hidden >= 0, hidden + 0.5, hidden.sigmoid())
        return torch.lerp(prev_hidden, hidden, gate.sigmoid())


class NARX(nn.Module):
    """A network with tapped delay lines: (u's [B, D, I], y's [B, D, 1]), u [B, I] -> .., y."""

    def __init__(self, I: int, H: int, delays: int = 5) -> None:
        super().__init__()
        self.delays = delays
        self.hidden = nn.Linear(delays * (I + 1), H)
        self.out = nn.Linear(H, 1)

    def forward(self, lines: Pair, u: Tensor) -> tuple[Pair, Tensor]:
        us, ys = lines
        us = torch.cat([us[:, 1:], u.unsqueeze(1)], dim=1)
        taps = torch.cat([us.flatten(1), ys.flatten(1)], dim=1)
        y = self.out(torch.tanh(self.hidden(taps)))
        ys = torch.cat([ys[:, 1:], y.unsqueeze(1)], dim=1)
        return (us, ys), y


def lines(module: nn.Module, B: int, sizes: Sizes) -> Tree:
    """Empty delay lines."""
    return torch.zeros(B, 5, sizes.I), torch.zeros(B, 5, 1)


CELL, PAIR, OUT, SCAN = "x,h->h", "x,(h,c)->(h,c)", "x,s->out,s", "s,x->s,y"
CASES = [
    Case(
        "ligru",
        "SpeechBrain 1.0, https://github.com/speechbrain/speechbrain (nnet/RNN.py), "
        "arXiv 1803.10225",
        lambda s: nn.Linear(s.H, 2 * s.H, bias=False),
        SCAN,
        zeros(),
        (200, 8, 40, 512),
        inputs=lambda T, B, s: torch.randn(T, B, 2 * s.H),
        adapt=ligru_step,
        statics=lambda B, s: (torch.bernoulli(torch.full((B, s.H), 0.8)) / 0.8,),
        modes="one dropout mask for all steps",
        remark="relu: grows in long sequences; its input is projected before the loop",
    ),
    Case(
        "dreamer_gru",
        "DreamerV3 for torch, https://github.com/NM512/dreamerv3-torch (networks.py), "
        "arXiv 2301.04104",
        lambda s: DreamerGRU(s.I, s.H),
        OUT,
        lambda m, B, s: [torch.zeros(B, s.H)],
        (64, 16, 512, 512),
        remark="the state is a list of one",
    ),
    Case(
        "haste_layernorm_lstm",
        "haste, https://github.com/lmnt-com/haste (layer_norm_lstm.py), as torch's operators",
        lambda s: HasteLayerNormLSTM(s.I, s.H),
        OUT,
        zeros(2),
        (25, 5, 128, 256),
        inputs=zoned,
        modes="zoneout by a mask that is an input; in eval() its mean",
    ),
    Case(
        "gru_d",
        "GRU-D, https://github.com/fteufel/PyTorch-GRU-D (src/GRUD_layer.py), arXiv 1606.01865",
        lambda s: GRUD(s.I, s.H),
        SCAN,
        lambda m, B, s: (torch.zeros(B, s.H), torch.zeros(B, s.I)),
        (49, 64, 33, 49),
        inputs=observed,
    ),
    Case(
        "mogrifier_lstm",
        "https://github.com/fawazsammani/mogrifier-lstm-pytorch, arXiv 1909.01792",
        lambda s: MogrifierLSTM(s.I, s.H),
        PAIR,
        zeros(2),
        (30, 3, 512, 512),
    ),
    Case(
        "indrnn",
        "https://github.com/StefOe/indrnn-pytorch, arXiv 1803.04831",
        lambda s: IndRNN(s.I, s.H),
        CELL,
        zeros(),
        (784, 32, 1, 128),
    ),
    Case(
        "nested_lstm",
        "https://github.com/hannw/nlstm, arXiv 1801.10308",
        lambda s: NestedLSTM(s.I, s.H),
        PAIR,
        zeros(3),
        (100, 32, 50, 600),
    ),
    Case(
        "phased_lstm",
        "https://gist.github.com/AAnoosheh/c6877583ee5c46d6adf81b5bc355379d, arXiv 1610.09513",
        lambda s: PhasedLSTM(s.I, s.H),
        OUT,
        zeros(2),
        (100, 32, 2, 110),
        inputs=clocked,
        remark="fmod, detached, comparisons with learned bounds",
    ),
    Case(
        "min_gru",
        "https://github.com/lucidrains/minGRU-pytorch (minGRU.py, one step), arXiv 2410.01201",
        lambda s: MinGRU(s.H),
        CELL,
        lambda m, B, s: torch.zeros(B, 1, s.H),
        (512, 4, 512, 512),
        inputs=lambda T, B, s: torch.randn(T, B, 1, s.I),
        tied=True,
        remark="lerp; a time axis of one in every tensor",
    ),
    Case(
        "narx",
        "tapped delay lines, doi 10.1109/72.548162",
        lambda s: NARX(s.I, s.H),
        SCAN,
        lines,
        (500, 16, 1, 10),
        remark="the state is shifted by cat of slices",
    ),
]

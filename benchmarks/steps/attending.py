"""Steps that attend, remember matrices, decode tokens or convolve."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.steps.case import Case, Sizes, Step, zeros

SEQ2SEQ = "https://pytorch.org/tutorials/intermediate/seq2seq_translation_tutorial.html"
S, WORDS, MEMORY = 10, 64, 16  # encoder outputs, vocabulary, remembered steps
Pair = tuple[Tensor, Tensor]


class Bahdanau(nn.Module):
    """Additive attention: a query [B, 1, H], keys [B, S, H] -> context [B, 1, H], weights."""

    def __init__(self, H: int) -> None:
        super().__init__()
        self.Wa, self.Ua, self.Va = nn.Linear(H, H), nn.Linear(H, H), nn.Linear(H, 1)

    def forward(self, query: Tensor, keys: Tensor) -> Pair:
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        scores = scores.squeeze(2).unsqueeze(1)
        weights = functional.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights


class AttentionDecoder(nn.Module):
    """The attention, GRU and output of a decoder."""

    def __init__(self, I: int, H: int) -> None:
        super().__init__()
        self.attention = Bahdanau(H)
        self.gru = nn.GRUCell(I + H, H)
        self.out = nn.Linear(H, I)


def bahdanau_step(cell: AttentionDecoder, encoded: Tensor) -> Step:
    """A decoder's step over encoder outputs [B, S, H]: h [B, H], x [B, I] -> h, (y, weights)."""

    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Pair]:
        context, weights = cell.attention(h.unsqueeze(1), encoded)
        h = cell.gru(torch.cat((x, context.squeeze(1)), dim=1), h)
        return h, (cell.out(h), weights.squeeze(1))

    return step


class TutorialDecoder(nn.Module):
    """The tutorial's AttnDecoderRNN: an nn.GRU for steps of one, embedded tokens, dropout."""

    def __init__(self, H: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, H)
        self.attention = Bahdanau(H)
        self.gru = nn.GRU(2 * H, H, batch_first=True)
        self.out = nn.Linear(H, WORDS)
        self.dropout = nn.Dropout(0.1)


def tutorial_step(decoder: TutorialDecoder, encoded: Tensor) -> Step:
    """Its forward_step: hidden [1, B, H], tokens [B, 1] -> hidden, logits [B, 1, WORDS]."""

    def step(hidden: Tensor, token: Tensor) -> Pair:
        embedded = decoder.dropout(decoder.embedding(token))
        context, _ = decoder.attention(hidden.permute(1, 0, 2), encoded)
        output, hidden = decoder.gru(torch.cat((embedded, context), dim=2), hidden)
        return hidden, decoder.out(output)

    return step


def encoded(B: int, sizes: Sizes) -> tuple[Tensor]:
    """Encoder outputs [B, S, H]."""
    return (torch.randn(B, S, sizes.H),)


class Decoder(nn.Module):
    """A GRU decoder of tokens: (tokens [B], h [B, H]) -> (log-probabilities [B, WORDS], h)."""

    def __init__(self, H: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, H)
        self.gru, self.out = nn.GRUCell(H, H), nn.Linear(H, WORDS)

    def forward(self, token: Tensor, h: Tensor) -> Pair:
        h = self.gru(functional.relu(self.embedding(token)), h)
        return functional.log_softmax(self.out(h), dim=-1), h


def greedy(decoder: Decoder) -> Step:
    """A decoder fed with its own best tokens: (h [B, H], token [B]), covariates [B, I]."""

    def step(state: Pair, x: Tensor) -> tuple[Pair, Tensor]:
        h, token = state
        logits, h = decoder(token, h)
        return (h, logits.argmax(-1)), logits + 0 * x.sum()

    return step


def tokens(T: int, B: int, sizes: Sizes) -> Tensor:
    """Tokens [T, B]."""
    return torch.randint(0, WORDS, (T, B))


class Forecaster(nn.Module):
    """An autoregressive forecaster, fed with its own prediction and known covariates.

    (h, c, y [B, 1]), x [B, I] -> the same, y.
    """

    def __init__(self, I: int, H: int) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(1 + I, H), nn.Linear(H, 1)

    def forward(self, state: tuple[Tensor, ...], x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        h, c, y = state
        h, c = self.cell(torch.cat([y, x], 1), (h, c))
        y = self.head(h)
        return (h, c, y), y


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Rows of length one."""
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + eps)


def delta_rule(module: nn.Module) -> Step:
    """Qwen3-Next's recurrent step: state [B, N, K, V]; q, k [B, N, K], v [B, N, V], g, b [B, N]."""

    def step(state: Tensor, x: tuple[Tensor, ...]) -> Pair:
        q, k, v, g, beta = x
        q, k = l2norm(q), l2norm(k)
        q = q * (q.shape[-1] ** -0.5)
        g, beta = g.exp().unsqueeze(-1).unsqueeze(-1), beta.unsqueeze(-1)
        state = state * g
        remembered = (state * k.unsqueeze(-1)).sum(dim=-2)
        delta = (v - remembered) * beta
        state = state + k.unsqueeze(-1) * delta.unsqueeze(-2)
        return state, (state * q.unsqueeze(-1)).sum(dim=-2)

    return step


def delta_inputs(T: int, B: int, sizes: Sizes) -> tuple[Tensor, ...]:
    """q, k, v of heads, log decays, write strengths [T, B, N, ..]."""
    N, D = sizes.heads, sizes.H // sizes.heads
    q, k, v = torch.randn(3, T, B, N, D)
    return q, k, v, functional.logsigmoid(torch.randn(T, B, N)), torch.rand(T, B, N)


class RWKV4(nn.Module):
    """RWKV-4's time mixing: (x [B, H], (x before, a, b, p)) -> (out [B, H], state)."""

    def __init__(self, H: int) -> None:
        super().__init__()
        self.mix_k, self.mix_v, self.mix_r = (nn.Parameter(torch.rand(H)) for _ in range(3))
        self.time_decay, self.time_first = nn.Parameter(-torch.rand(H)), nn.Parameter(torch.rand(H))
        self.key, self.value, self.receptance, self.output = (
            nn.Linear(H, H, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        before, aa, bb, pp = state
        xk = x * self.mix_k + before * (1 - self.mix_k)
        xv = x * self.mix_v + before * (1 - self.mix_v)
        xr = x * self.mix_r + before * (1 - self.mix_r)
        r = torch.sigmoid(self.receptance(xr))
        k, v = self.key(xk), self.value(xv)
        ww = self.time_first + k
        qq = torch.maximum(pp, ww)
        e1, e2 = torch.exp(pp - qq), torch.exp(ww - qq)
        wkv = (e1 * aa + e2 * v) / (e1 * bb + e2)
        ww = pp + self.time_decay
        qq = torch.maximum(ww, k)
        e1, e2 = torch.exp(ww - qq), torch.exp(k - qq)
        aa, bb = e1 * aa + e2 * v, e1 * bb + e2
        return self.output(r * wkv), (x, aa, bb, qq)


def rwkv_state(module: nn.Module, B: int, sizes: Sizes) -> tuple[Tensor, ...]:
    """Nothing seen yet: the exponent is -1e30."""
    x, a, b = torch.zeros(3, B, sizes.H)
    return x, a, b, torch.full((B, sizes.H), -1e30)


class MemoryAttention(nn.Module):
    """Attention over the last steps, as in Transformer-XL: memory [B, M, H], x [B, H]."""

    def __init__(self, H: int) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(H, H, bias=False), nn.Linear(H, 2 * H, bias=False)
        self.o, self.norm = nn.Linear(H, H, bias=False), nn.LayerNorm(H)

    def forward(self, memory: Tensor, x: Tensor) -> Pair:
        seen = torch.cat([memory, x.unsqueeze(1)], dim=1)
        k, v = self.kv(seen).chunk(2, dim=-1)
        scores = torch.einsum("bh,bmh->bm", self.q(x), k) / x.shape[-1] ** 0.5
        context = torch.einsum("bm,bmh->bh", torch.softmax(scores, dim=1), v)
        return seen[:, 1:].detach(), self.norm(x + self.o(context))


class ConvLSTM(nn.Module):
    """ConvLSTM: (x [B, I, 8, 8], (h, c) [B, H, 8, 8]) -> (h, c)."""

    def __init__(self, I: int, H: int, kernel: int = 3) -> None:
        super().__init__()
        self.hidden_dim = H
        self.conv = nn.Conv2d(I + H, 4 * H, kernel, padding=kernel // 2)

    def forward(self, x: Tensor, state: Pair) -> Pair:
        h, c = state
        combined = self.conv(torch.cat([x, h], dim=1))
        i, f, o, g = torch.split(combined, self.hidden_dim, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


CASES = [
    Case(
        "bahdanau",
        f"{SEQ2SEQ} (BahdanauAttention), arXiv 1409.0473, with a GRUCell",
        lambda s: AttentionDecoder(s.I, s.H),
        "s,x->s,y",
        zeros(),
        (10, 32, 128, 128),
        adapt=bahdanau_step,
        statics=encoded,
        remark="reads encoder outputs, which are trained; bmm",
    ),
    Case(
        "bahdanau_tutorial",
        f"{SEQ2SEQ} (AttnDecoderRNN.forward_step)",
        lambda s: TutorialDecoder(s.H),
        "s,x->s,y",
        lambda m, B, s: torch.zeros(1, B, s.H),
        (10, 32, 128, 128),
        inputs=lambda T, B, s: tokens(T, B, s).unsqueeze(-1),
        adapt=tutorial_step,
        statics=encoded,
        modes="dropout of embeddings",
        random=True,
        remark="nn.GRU of one step within a step; tokens; the state is [1, B, H]",
    ),
    Case(
        "gru_teacher_forcing",
        f"{SEQ2SEQ} (DecoderRNN), with a GRUCell",
        lambda s: Decoder(s.H),
        "x,s->out,s",
        zeros(),
        (10, 32, 128, 128),
        inputs=tokens,
        remark="embeds tokens within the step",
    ),
    Case(
        "greedy_decoder",
        f"{SEQ2SEQ} (DecoderRNN without targets), with a GRUCell",
        lambda s: Decoder(s.H),
        "s,x->s,y",
        lambda m, B, s: (torch.zeros(B, s.H), torch.zeros(B, dtype=torch.long)),
        (10, 32, 128, 128),
        adapt=greedy,
        refused="argmax of a step's output, as the next token",
        remark="an integer state",
    ),
    Case(
        "forecaster",
        "DeepAR-like decoding, arXiv 1704.04110, with the mean",
        lambda s: Forecaster(s.I, s.H),
        "s,x->s,y",
        lambda m, B, s: (torch.zeros(B, s.H), torch.zeros(B, s.H), torch.zeros(B, 1)),
        (24, 64, 4, 40),
    ),
    Case(
        "gated_delta_rule",
        "transformers, modeling_qwen3_next.py (torch_recurrent_gated_delta_rule), arXiv 2412.06464",
        lambda s: nn.Identity(),
        "s,x->s,y",
        lambda m, B, s: torch.zeros(B, s.heads, s.H // s.heads, s.H // s.heads),
        (64, 1, 512, 512),
        inputs=delta_inputs,
        adapt=delta_rule,
        trained=False,
    ),
    Case(
        "rwkv4",
        "https://github.com/BlinkDL/ChatRWKV (time mixing), arXiv 2305.13048",
        lambda s: RWKV4(s.H),
        "x,s->out,s",
        rwkv_state,
        (256, 4, 256, 256),
        tied=True,
        perturb=False,
        remark="an initial state of -1e30",
    ),
    Case(
        "memory_attention",
        "Transformer-XL's memory as a state, arXiv 1901.02860",
        lambda s: MemoryAttention(s.H),
        "s,x->s,y",
        lambda m, B, s: torch.zeros(B, MEMORY, s.H),
        (64, 16, 64, 64),
        tied=True,
        remark="the memory is shifted and detached",
    ),
    Case(
        "conv_lstm",
        "https://github.com/ndrplz/ConvLSTM_pytorch, arXiv 1506.04214",
        lambda s: ConvLSTM(s.I, s.H),
        "x,(h,c)->(h,c)",
        lambda m, B, s: (torch.zeros(B, s.H, 8, 8), torch.zeros(B, s.H, 8, 8)),
        (10, 4, 16, 64),
        inputs=lambda T, B, s: torch.randn(T, B, s.I, 8, 8),
        refused="convolution",
    ),
]

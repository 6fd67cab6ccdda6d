"""Every function of elman.functional with all its options, drawn at random, against plain loops."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit
from torch.utils._pytree import tree_leaves

from elman import functional
from elman.errors import InputError, ShapeError
from elman.functional.running import WITHOUT_EFFECT
from helpers import assert_same, forced

F64 = torch.float64
DTYPES = (F64, F64, F64, torch.float32, torch.float32, torch.bfloat16, torch.float16)
RULES = ("delta_rule", "gated_delta_rule", "kda", "gla", "simple_gla")
INF = math.inf
Given = dict[str, Any]


class Draw(random.Random):
    """Draws arguments of calls; every tensor may have another dtype."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.source = torch.Generator().manual_seed(seed)
        self.dtypes = self.choice([DTYPES[:1], DTYPES[3:4], DTYPES])

    def size(self, *usual: int) -> int:
        """A size, which seldom is 0."""
        return 0 if self.random() < 0.06 else self.choice(usual)

    def tensor(self, *shape: int, positive: bool = False) -> Tensor:
        """A leaf of small numbers."""
        values = torch.randn(shape, generator=self.source, dtype=F64) / 2
        values = values.abs() if positive else values
        return values.to(self.choice(self.dtypes)).requires_grad_()

    def documents(self, *shape: int) -> Tensor | None:
        """Numbers of the documents that lie behind one another, or None."""
        starts = torch.rand(shape, generator=self.source) < 0.4
        return starts.cumsum(-1) if self.some() else None

    def some(self, chance: float = 0.5) -> bool:
        return self.random() < chance


def drawn_rule(draw: Draw, name: str) -> Given:
    """Arguments of a delta rule."""
    joined = draw.some(0.4)
    B, T, K, V = 1 if joined else draw.size(1, 3), draw.size(1, 4, 6), draw.size(1, 5), draw.size(7)
    groups = draw.size(1, 2)
    heads, steps = groups * draw.choice((1, 2)), (B, T)
    given: Given = {"q": draw.tensor(*steps, groups, K), "k": draw.tensor(*steps, groups, K)}
    given["v"] = draw.tensor(*steps, heads, V)
    if name != "delta_rule":
        inner = () if name in ("gated_delta_rule", "simple_gla") else (K,)
        decays = draw.tensor(*steps, draw.choice((groups, heads)), *inner, positive=True)
        given["g"] = (-decays.detach()).requires_grad_()
    if name not in ("gla", "simple_gla"):
        given["beta"] = draw.tensor(*steps, heads, positive=True)
        # of one value the norm leaves the sign, whose derivative is rounding
        given["use_qk_l2norm_in_kernel"] = draw.some() and K > 1
    ends = [0, *sorted(draw.randint(0, T) for _ in range(draw.randrange(4))), T]
    kinds = (list, tuple, np.array, torch.tensor, lambda e: torch.tensor(e, dtype=torch.int32))
    given["cu_seqlens"] = draw.choice(kinds)(ends) if joined else None
    given["scale"] = draw.choice((None, 0.7, 2, draw.tensor()))
    given["output_final_state"] = draw.some()
    count = len(ends) - 1 if joined else B
    given["initial_state"] = draw.tensor(count, heads, K, V) if draw.some() else None
    return given


def loop_rule(q, k, v, g=None, beta=None, **options) -> tuple[Tensor, Tensor]:
    """Outputs and last states of a delta rule, step by step."""
    heads, state, ends = v.shape[2], options["initial_state"], options["cu_seqlens"]
    q, k, g, beta = (
        x if x is None or x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2)
        for x in (q, k, g, beta)
    )
    if options.get("use_qk_l2norm_in_kernel"):
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    scale = max(q.shape[-1], 1) ** -0.5 if options["scale"] is None else options["scale"]
    if ends is None:
        pieces = [(slice(n, n + 1), slice(None)) for n in range(len(q))]
    else:
        pieces = [(slice(0, 1), slice(int(a), int(b))) for a, b in pairwise(ends)]
    out, lasts = torch.zeros_like(v), []
    for n, (row, steps) in enumerate(pieces):
        S = q.new_zeros(1, heads, q.shape[-1], v.shape[-1])
        S = S if state is None else state[n : n + 1]
        rows = []
        for t in range(*steps.indices(q.shape[1])):
            q_t, k_t, v_t = q[row, t], k[row, t], v[row, t]
            if g is not None:
                decay = g[row, t] if g.dim() == 4 else g[row, t, :, None]
                S = S * decay.exp()[..., None]
            if beta is not None:
                v_t = beta[row, t, :, None] * (v_t - torch.einsum("bhkv,bhk->bhv", S, k_t))
            S = S + k_t[..., None] * v_t[..., None, :]
            rows.append(torch.einsum("bhkv,bhk->bhv", S, scale * q_t))
        if rows:
            part = torch.zeros(out.shape, dtype=torch.bool)
            part[row, steps] = True
            out = out.masked_scatter(part, torch.stack(rows, 1))
        lasts.append(S)
    shape = (0, heads, q.shape[-1], v.shape[-1])
    return out, torch.cat(lasts) if lasts else q.new_zeros(shape)


def drawn_mamba2(draw: Draw, name: str) -> Given:
    """Arguments of ``mamba2_scan``."""
    B, T, P, N = draw.size(1, 3), draw.size(1, 4, 6), draw.size(1, 7), draw.size(5)
    groups = draw.size(1, 2)
    heads = groups * draw.choice((1, 2))
    given: Given = {"x": draw.tensor(B, T, heads, P), "dt": draw.tensor(B, T, heads)}
    given["A"] = (-draw.tensor(heads, positive=True).detach()).requires_grad_()
    given |= {key: draw.tensor(B, T, groups, N) for key in ("B", "C")}
    shapes = {"D": (heads,), "dt_bias": (heads,), "z": (B, T, heads, P)}
    shapes["initial_states"] = (B, heads, P, N)
    given |= {key: draw.tensor(*s) if draw.some() else None for key, s in shapes.items()}
    given |= {"dt_softplus": draw.some(), "return_final_states": draw.some()}
    given["dt_limit"] = draw.choice(((0.0, INF), (0.2, 0.9), [0, INF]))
    given |= {"chunk_size": draw.choice((None, 64)), "cu_seqlens": None}
    return given | {"seq_idx": draw.documents(B, T)}


def begins(documents: Tensor | None) -> Tensor | None:
    """Steps at which another document begins."""
    if documents is None or documents.shape[1] == 0:
        return None
    before = torch.cat((documents[:, :1], documents[:, :-1]), 1)
    return documents != before


def loop_mamba2(x, dt, A, B, C, **options) -> tuple[Tensor, Tensor]:
    """Outputs and last states of Mamba-2, step by step."""
    heads, state, z = x.shape[2], options["initial_states"], options["z"]
    dt = dt if options["dt_bias"] is None else dt + options["dt_bias"]
    dt = (F.softplus(dt) if options["dt_softplus"] else dt).clamp(*options["dt_limit"])
    if heads:
        B, C = (v.repeat_interleave(heads // v.shape[2], 2) for v in (B, C))
    S = x.new_zeros(len(x), heads, x.shape[-1], B.shape[-1]) if state is None else state
    rows, starts = [], begins(options["seq_idx"])
    for t in range(x.shape[1]):
        S = S if starts is None else S * ~starts[:, t, None, None, None]
        S = (dt[:, t] * A).exp()[..., None, None] * S
        S = S + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        rows.append((S * C[:, t, :, None]).sum(-1))
    out = torch.stack(rows, 1) if rows else x
    out = out if options["D"] is None else out + options["D"][:, None] * x
    return out if z is None else out * F.silu(z), S


def drawn_mamba(draw: Draw, name: str) -> Given:
    """Arguments of ``selective_scan``."""
    B, T, N, channels = draw.size(1, 3), draw.size(1, 4), draw.size(3), draw.size(1, 4, 67)
    given: Given = {"u": draw.tensor(B, channels, T), "delta": draw.tensor(B, channels, T)}
    given["A"] = (-draw.tensor(channels, N, positive=True).detach()).requires_grad_()
    given |= {key: draw.tensor(B, N, T) for key in ("B", "C")}
    shapes = {"D": (channels,), "delta_bias": (channels,), "z": (B, channels, T)}
    given |= {key: draw.tensor(*s) if draw.some() else None for key, s in shapes.items()}
    given |= {"delta_softplus": draw.some(), "return_last_state": draw.some()}
    for key in ("delta", "delta_bias"):  # of negative ones states grow, and so does rounding
        if given[key] is not None and not given["delta_softplus"]:
            given[key] = given[key].detach().abs().requires_grad_()
    return given


def loop_mamba(u, delta, A, B, C, **options) -> tuple[Tensor, Tensor]:
    """Outputs and last states of Mamba, step by step."""
    bias, z = options["delta_bias"], options["z"]
    delta = delta if bias is None else delta + bias[:, None]
    delta = F.softplus(delta) if options["delta_softplus"] else delta
    S, rows = u.new_zeros(*u.shape[:2], A.shape[-1]), []
    for t in range(u.shape[-1]):
        S = (delta[..., t, None] * A).exp() * S
        S = S + (delta[..., t] * u[..., t])[..., None] * B[:, None, :, t]
        rows.append((S * C[:, None, :, t]).sum(-1))
    out = torch.stack(rows, -1) if rows else u
    out = out if options["D"] is None else out + options["D"][:, None] * u
    return out if z is None else out * F.silu(z), S


def drawn_convolution(draw: Draw, name: str) -> Given:
    """Arguments of ``causal_conv1d``."""
    B, T, K, channels = (
        draw.size(1, 3),
        draw.size(1, 4, 6),
        draw.choice((1, 2, 4)),
        draw.size(1, 67),
    )
    given: Given = {"x": draw.tensor(B, channels, T), "weight": draw.tensor(channels, K)}
    given["bias"] = draw.tensor(channels) if draw.some() else None
    given["initial_states"] = draw.tensor(B, channels, K - 1) if draw.some() else None
    given |= {"seq_idx": draw.documents(B, T), "return_final_states": draw.some()}
    return given | {"activation": draw.choice((None, "silu", "swish"))}


def loop_convolution(x, weight, bias, **options) -> tuple[Tensor, Tensor]:
    """Outputs and last inputs, step by step."""
    (B, channels, T), K, rows = x.shape, weight.shape[1], []
    window, starts = options["initial_states"], begins(options["seq_idx"])
    window = x.new_zeros(B, channels, K - 1) if window is None else window
    for t in range(T):
        window = window if starts is None else window * ~starts[:, t, None, None]
        window = torch.cat((window, x[..., t : t + 1]), -1)
        rows.append((window * weight).sum(-1))
        window = window[..., 1:]
    out = torch.stack(rows, -1) if rows else x
    out = out if bias is None or not rows else out + bias[:, None]
    return F.silu(out) if options["activation"] and rows else out, window


def drawn_scan(draw: Draw, name: str) -> Given:
    """Arguments of ``rglru_scan``."""
    B, T, channels = draw.size(1, 3), draw.size(1, 4, 6), draw.choice((1, 7, 67, 128))
    given: Given = {"a": draw.tensor(B, T, channels), "x": draw.tensor(B, T, channels)}
    return given | {"initial_state": draw.tensor(B, channels) if draw.some() else None}


def loop_scan(a, x, initial_state) -> tuple[Tensor, Tensor]:
    """States, step by step."""
    h, rows = x.new_zeros(len(x), x.shape[-1]) if initial_state is None else initial_state, []
    for t in range(x.shape[1]):
        h = a[:, t] * h + x[:, t]
        rows.append(h)
    return torch.stack(rows, 1) if rows else x, h


def drawn_rwkv4(draw: Draw, name: str) -> Given:
    """Arguments of ``rwkv4``."""
    B, T, channels = draw.size(1, 3), draw.size(1, 4, 6), draw.choice((1, 7, 128))
    given: Given = {"w": -draw.tensor(channels, positive=True).detach(), "u": draw.tensor(channels)}
    given["w"].requires_grad_()
    given |= {key: draw.tensor(B, T, channels) for key in ("k", "v")}
    state = [draw.tensor(B, channels, positive=n == 1) for n in range(3)]
    given["state"] = [part.detach() for part in state] if draw.some() else None
    return given


def loop_rwkv4(w, u, k, v, state) -> tuple[Tensor, Tensor]:
    """Means of values, and the last sum of weights: exponents as they are."""
    zeros = k.new_zeros(len(k), k.shape[-1])
    num, den, top = (zeros, zeros, zeros) if state is None else (part.double() for part in state)
    num, den, rows = num * top.exp(), den * top.exp(), []
    for t in range(k.shape[1]):
        new = (u + k[:, t]).exp()
        rows.append((num + new * v[:, t]) / (den + new))
        num, den = (w.exp() * value for value in (num, den))
        num, den = num + k[:, t].exp() * v[:, t], den + k[:, t].exp()
    return torch.stack(rows, 1) if rows else k, torch.stack((num, den))


def drawn_mlstm(draw: Draw, name: str) -> Given:
    """Arguments of ``mlstm``."""
    B, T, K, V, heads = draw.size(1, 3), draw.size(1, 4), *map(draw.choice, ((1, 5), (7,), (1, 2)))
    given: Given = {key: draw.tensor(B, heads, T, K) for key in "qk"}
    given |= {"v": draw.tensor(B, heads, T, V)} | {key: draw.tensor(B, heads, T) for key in "if"}
    shapes = {"c_initial": (K, V), "n_initial": (K,), "m_initial": (1,)}
    is_set = draw.some()
    given |= {key: draw.tensor(B, heads, *s) if is_set else None for key, s in shapes.items()}
    return given | {"return_last_states": draw.some(), "eps": draw.choice((1e-6, 0.1))}


def loop_mlstm(q, k, v, i, f, **options) -> tuple[Tensor, Tensor]:
    """Outputs, and the last matrix with its exponent."""
    B, heads, T, K = q.shape
    C, n, m = (options[f"{key}_initial"] for key in "cnm")
    C = q.new_zeros(B, heads, K, v.shape[-1]) if C is None else C
    n, m = (q.new_zeros(B, heads, s) if x is None else x for x, s in ((n, K), (m, 1)))
    C, n, rows = C * m.exp()[..., None], n * m.exp(), []
    for t in range(T):
        keep, write = (g[:, :, t, None] for g in (F.logsigmoid(f).exp(), i.exp()))
        C = keep[..., None] * C + (write * k[:, :, t])[..., None] * v[:, :, t, None]
        n = keep * n + write * k[:, :, t]
        m = torch.maximum(F.logsigmoid(f[:, :, t, None]) + m, i[:, :, t, None])
        query = q[:, :, t] / K**0.5
        bottom = (query * n).sum(-1, keepdim=True).abs().maximum(torch.ones_like(m))
        rows.append((query[..., None] * C).sum(-2) / (bottom + options["eps"] * m.exp()))
    return torch.stack(rows, 2) if rows else v, C


def first_with_exponent(last: Any) -> Tensor:
    """A matrix without the exponent that it is divided by."""
    return last[0] * last[2][..., None].exp()


def sums_with_exponent(last: Any) -> Tensor:
    """Values and weights without the exponent that they are divided by."""
    return torch.stack([part * last[2].exp() for part in last[:2]])


LASTS = {"mlstm": first_with_exponent, "rwkv4": sums_with_exponent}  # what a loop returns
IN_PLACE = {"causal_conv1d_update", "selective_state_update"}  # see test_in_place.py
CALLS: dict[str, tuple[Callable[..., Given], Callable[..., tuple[Tensor, Tensor]], str, str]] = {
    **dict.fromkeys(RULES, (drawn_rule, loop_rule, "output_final_state", "v")),
    "mamba2_scan": (drawn_mamba2, loop_mamba2, "return_final_states", "x"),
    "selective_scan": (drawn_mamba, loop_mamba, "return_last_state", "u"),
    "causal_conv1d": (drawn_convolution, loop_convolution, "return_final_states", "x"),
    "rglru_scan": (drawn_scan, loop_scan, "", "x"),
    "rwkv4": (drawn_rwkv4, loop_rwkv4, "", "k"),
    "mlstm": (drawn_mlstm, loop_mlstm, "return_last_states", "q"),
}
TENSORS = (5, [1.0], torch.ones(2, dtype=torch.long), torch.ones(2, dtype=torch.complex64), "q")
NUMBERS = (torch.ones(1), torch.tensor(1), "1", True, [1.0], 1j, 10**400)
FLAGS = ("yes", None, 2, torch.ones(2))
ENDS = ([0.0, 5.0], [[0, 5]], torch.tensor([0.0, 5.0]), torch.tensor([[0, 5]]), 5, "05", [None])
ENDS += ([1, 5], [0, 3, 2, 5], [0, 9], [0, -1, 5], [0, 4], [0], [])
ENDS += ({0: 1, 5: 2}, torch.tensor([0, 5]).to_sparse())
PAIRS = ((0.0,), None, (1.0, 0.0), (math.nan, 1.0), "01", (torch.tensor(0.1), 1.0), 0.1)
ANY = (torch.ones(2, 2), [0, 2])
REFUSED = {"scale": NUMBERS, "eps": NUMBERS, "cu_seqlens": ENDS, "dt_limit": PAIRS, "seq_idx": ANY}


def test_every_function_and_option_is_drawn() -> None:
    """A new one has a place above."""
    assert {*CALLS} | IN_PLACE | {"fla", "install", "report", "uninstall"} == {*functional.__all__}
    for name, (drawn, *_) in CALLS.items():
        parameters = inspect.signature(getattr(functional, name)).parameters
        assert {*drawn(Draw(0), name)} == {*parameters} - {"options"}, name


def check(name: str, seed: int) -> None:
    """Results, their dtypes and every gradient are those of the loop in float64."""
    draw = Draw(seed)
    drawn, loop, ends, like = CALLS[name]
    given = drawn(draw, name)
    without = {draw.choice(WITHOUT_EFFECT): draw.choice((None, False, True, 64))}
    results = getattr(functional, name)(**given | (without if draw.some() else {}))
    results = results if isinstance(results, tuple) else (results, None)
    assert (results[1] is not None) == given.get(ends, True)
    if name in LASTS and results[1] is not None:
        results = results[0], LASTS[name](results[1])
    exact = {
        key: value.detach().double().requires_grad_() if isinstance(value, Tensor) and
        value.is_floating_point() else value for key, value in given.items()
    }  # fmt: skip
    wanted = loop(**exact)
    leaves = [key for key in given if isinstance(exact[key], Tensor) and exact[key].requires_grad]
    beside = {"z", "scale"}  # they multiply what has been computed
    used = [given[key].dtype for key in leaves if key not in beside]
    lists = [value for value in given.values() if isinstance(value, list)]  # of states
    used += [part.dtype for value in lists for part in value if isinstance(part, Tensor)]
    computed = torch.float32
    for dtype in used:
        computed = torch.promote_types(computed, dtype)
    T = max(1, given[like].shape[-1 if name == "selective_scan" else 1])
    if results[1] is not None:
        assert results[1].dtype == computed
    assert results[0].dtype == given[like].dtype
    kept = [(got, want) for got, want in zip(results, wanted, strict=True) if got is not None]
    for got, want in kept:
        assert_same("out", got, want, coarser(got.dtype, computed), T)
    totals = [sum(part[side].double().sin().sum() for part in kept) for side in (0, 1)]
    if not totals[1].requires_grad:  # no steps, from zeros
        return
    grads = [
        torch.autograd.grad(total, [of[key] for key in leaves], allow_unused=True)
        for total, of in zip(totals, (given, exact), strict=True)
    ]
    for key, got, want in zip(leaves, *grads, strict=True):
        zeros = torch.zeros_like(exact[key])
        got, want = (zeros if d is None else d for d in (got, want))
        dtype = coarser(given[key].dtype, coarser(computed, results[0].dtype))
        assert_same(f"d{key}", got, want, dtype, T)


def coarser(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """The dtype whose rounding errors are the larger."""
    return max(first, second, key=lambda dtype: torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", CALLS)
def test_random_options(name: str) -> None:
    """In any combination, dtypes and sizes, none of them too."""
    with forced("reference"):
        for seed in range(8):
            check(name, seed)


def whole(name: str) -> Given:
    """Arguments of float64 with every option set, none of them empty."""
    for seed in range(10_000):
        draw = Draw(seed)
        draw.dtypes = DTYPES[:1]
        given = CALLS[name][0](draw, name)
        options = [v for key, v in given.items() if key not in ("seq_idx", "cu_seqlens")]
        is_set = all(v.numel() if isinstance(v, Tensor) else v is not None for v in options)
        if is_set and (name not in RULES or given["cu_seqlens"] is not None):
            return given
    raise AssertionError(name)


@pytest.mark.parametrize("name", CALLS)
def test_whatever_else_an_option_is_given_is_refused(name: str) -> None:
    """By its name, before anything is computed."""
    given, function = whole(name), getattr(functional, name)
    for option, parameter in inspect.signature(function).parameters.items():
        kind = str(parameter.annotation)
        values = REFUSED.get(option) or (FLAGS if kind == "bool" else TENSORS)
        if name == "mamba2_scan" and option == "cu_seqlens":
            values = ANY
        if option in (*WITHOUT_EFFECT, "options"):
            continue
        for value in values:
            with pytest.raises((InputError, ShapeError), match=rf"{option}|not available"):
                function(**given | {option: value})
    with pytest.raises(InputError, match="there is no option scales=1"):
        function(**given, scales=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_inside_torch_compile(name: str) -> None:
    """One graph forward and backward, with every option, and the same numbers."""
    given, function = whole(name), getattr(functional, name)
    if name in RULES:
        given["cu_seqlens"] = [int(end) for end in given["cu_seqlens"]]
    leaves = [v for v in given.values() if isinstance(v, Tensor) and v.requires_grad]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with forced("reference"):
        results = [call(**given) for call in (compiled, function)]
        results = [[x for x in tree_leaves(r) if x is not None] for r in results]
        grads = [torch.autograd.grad(sum(x.sin().sum() for x in r), leaves) for r in results]
    for got, want in zip((*results[0], *grads[0]), (*results[1], *grads[1]), strict=True):
        assert torch.equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 2])
def test_several_inside_torch_compile(heads: int) -> None:
    """A convolution, then a rule with gates of a projection, as in a layer of Qwen3.5."""
    source = torch.Generator().manual_seed(0)
    x, a = (torch.randn(2, 9, n, generator=source) for n in (3 * heads * 4, 3))
    weight, projection = (torch.randn(*s, generator=source) for s in ((12 * heads, 4), (heads, 3)))
    leaves = [x.requires_grad_(), a.requires_grad_(), weight.requires_grad_()]

    def layer(x: Tensor, a: Tensor, weight: Tensor) -> Tensor:
        joined = functional.causal_conv1d(x.mT, weight, activation="silu").mT
        q, k, v = joined.unflatten(-1, (3 * heads, 4)).split(heads, 2)
        gate = F.linear(a, projection)
        g, beta = -F.softplus(gate), gate.sigmoid()
        out, _ = functional.gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)
        return out.sin().sum()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with forced("reference"):
        got, want = (torch.autograd.grad(run(*leaves), leaves) for run in (compiled, layer))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, want, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_many_random_options(name: str, engine: str) -> None:
    """On kernels too."""
    seeds = 400 if engine == "reference" else 40  # a kernel for most
    with forced("reference") if engine == "reference" else nullcontext():
        for seed in range(1000, 1000 + seeds):
            check(name, seed)

"""Random steps ``step(carry, x) -> (carry, y)`` in torch's own operations.

A generator asks ``choose`` for one of some things: hypothesis, which makes failures small, or a
seeded generator of random numbers, whose steps have less in common. A line is written, run on a few
samples, and kept if it gives numbers of each sample; whatever is large is squashed, and thresholds
are odd numbers, so that rounding decides little. See :mod:`step_runs` for what runs them.
"""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar
from zlib import crc32

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from step_runs import STEPS_CLOSE, Step, found_by, plain_scan

T = TypeVar("T")
SAMPLES = 17  # on which lines are tried: the size of no other axis
MOST = 128  # numbers of a value, each sample
F64 = torch.float64
ATTEMPTS = 20


class Choose(Protocol):
    """Choice of one of some things."""

    def __call__(self, among: Sequence[T], /) -> T: ...


class Spike(torch.autograd.Function):
    """1 above 0, with the derivative of a fast sigmoid."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *d: Any) -> Any:
        (x,) = ctx.saved_tensors
        return d[0] / (1 + 2 * x.abs()) ** 2


class Halved(torch.autograd.Function):
    """The number itself, with half of its gradient; forward and context apart."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *d: Any) -> Any:
        return 0.5 * d[0]


class Boxcar(Spike):
    """1 above 0, with a derivative that is set to 0 outside of a window by its places."""

    @staticmethod
    def backward(ctx: Any, *d: Any) -> Any:
        (x,) = ctx.saved_tensors
        inside = d[0].clone()
        inside[x.abs() > 0.5] = 0
        return inside


class Window(torch.autograd.Function):
    """1 above a threshold, with a rectangle of some width as derivative; both are numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: float, width: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.threshold, ctx.width = threshold, width
        return torch.where(x > threshold, torch.ones_like(x), torch.zeros_like(x))

    @staticmethod
    def backward(ctx: Any, *d: Any) -> Any:
        (x,) = ctx.saved_tensors
        near = (x - ctx.threshold).abs() < ctx.width
        return d[0] * near.to(x.dtype) * 0.5, None, None


def _table(text: str) -> list[str]:
    """Formulas, between | and ends of lines."""
    return [each.strip() for row in text.strip().split("\n") for each in row.split(" | ")]


# {a}: a value; {b}: another of its shape; {c}: one that broadcasts to it; {m}: truth values of its
# shape; {s}: a number of each sample, as [B, 1, ...]; {d}: an axis of it, of size {n};
# {k}: a number; {w}, {p}: a weight of its last axis; of any or no axis; {J}: constants
# of its last axis, no two the same; {X}: an index into its last axis; {l}: the size of that one.
POINTWISE = _table("""
torch.tanh({a}) | torch.sigmoid({a}) | torch.relu({a} + 0.1234) | torch.exp(-{a}.abs())
torch.log1p({a} * {a}) | F.softplus({a}) | torch.sin({a}) | torch.cos({a}) | {a}.square()
torch.sqrt({a} * {a} + 0.3) | ({a}.pow(2) + 0.5).sqrt() | F.gelu({a}) | {a}.sigmoid()
F.gelu({a}, approximate="tanh") | F.silu({a}) | F.elu({a}) | F.leaky_relu({a}, 0.2) | {a}.tanh()
F.hardtanh({a}, -0.75, 1.25) | F.hardsigmoid({a}) | torch.clamp({a}, -0.75, 1.25) | -{a}
{a}.clamp(min=-0.4321) | {a}.clamp(max=0.8765) | torch.abs({a} + 0.1234) | torch.sign({a} + 0.1234)
torch.floor(2 * {a} + 0.1234) | torch.round({a} + 0.1234) | {a} ** 3 | torch.pow({a}, 2)
(0.5 + {a} * {a}) ** -1.5 | (1.5 + torch.tanh({a})).pow({k}) | torch.reciprocal(2 + {a} * {a})
(0.5 + {a}.square()).rsqrt() | torch.rsqrt(1 + {a} * {a}) | torch.erf({a}) | torch.expm1(0.3 * {a})
F.logsigmoid({a}) | {k} - {a} | {k} * {a} + {k} | {a} / 1.5 | 1 / (1.5 + {a}.abs())
torch.remainder({a} + 0.1234, 0.7) | ({a} + 0.1234) % 0.9 | {a} - torch.floor({a} + 0.1234)
F.relu6({a} + 0.1234) | F.softsign({a}) | torch.exp2({a}.clamp(-2, 2)) | F.hardswish({a})
torch.log({a}.square() + 0.5) | torch.atan({a}) | torch.sinh(0.5 * {a}) | F.selu({a}) | F.mish({a})
torch.ones_like({a}) - {a} | {a}.new_zeros({a}.shape) + {a} | torch.full_like({a}, 0.3) * {a}
F.threshold({a}, 0.1234, -0.2) | F.celu({a}, 1.25) | F.tanhshrink({a})
torch.trunc(1.5 * {a} + 0.1234) | 2 ** -{a}.abs() | torch.nan_to_num({a}) | torch.neg({a})
{a}.mul(0.5).add(0.25) | torch.frac({a} + 0.1234) | torch.rsub({a}, 1) | torch.true_divide({a}, 3)
{a}.sub({k}, alpha=0.5) | {a} * math.pi / 4 | {a}.detach() | {a} - 0.5 * {a}.detach() | {a} * lam
{a} * (1 - lam) | torch.tensor(0.5).to({a}) * {a}
((({a} > 0.1234).to({a}.dtype) - torch.sigmoid({a})).detach() + torch.sigmoid({a}))
{a} + (torch.round(3 * {a} + 0.1234) / 3 - {a}).detach() | Spike.apply({a} - 0.1234)
Halved.apply({a}) | Window.apply({a}, 0.2345, 0.8) | Spike.apply({a} - 0.1234) * {a} | squash({a})
squash({a}, 0.5) | bent({a})
""")
PAIRS = _table("""
{a} + {b} | {a} - {b} | {a} * {b} | {a} / (2 + torch.tanh({b})) | torch.lerp({a}, {b}, 0.3)
torch.lerp({a}, {b}, torch.sigmoid({b})) | torch.addcmul({a}, {b}, {c}, value=0.5)
torch.addcdiv({a}, {b}, 1.5 + {b}.abs(), value=-0.7) | torch.where({m}, {a}, {b})
torch.where({m}, {a}, 0.25) | torch.where({m}, {c}, {a}) | torch.minimum({a}, {b} + 0.0123)
torch.maximum({a}, {b} + 0.0123) | {a}.clamp(min=-0.5) + {c} | {c} * {a} | {c} - {a} | {a} * {s}
{a} + {c} * {b} | torch.add({a}, {b}, alpha=0.5) | torch.sub({a}, {c}, alpha=2)
(0.5 + {a}.abs()).pow(torch.tanh({b})) | torch.remainder({a} + 0.1234, 0.7 + {b}.abs())
torch.sigmoid({a}) * {b} + (1 - torch.sigmoid({a})) * {c}
torch.sigmoid({a} + {w}) * torch.tanh({b}) | {a} * {m} | {a} + {m} | {m} * {k} + {a}
{m}.float() * {a} | {a} * {m}.to({a}.dtype) | {a} - {m}.type_as({a}) | {a}.masked_fill({m}, 0.3)
{a}.index_put(({a} > 0.3456,), torch.tensor(0.25).to({a})) | Boxcar.apply({a} - {b})
{a} * ~{m} | torch.where({m} & ({b} < 0.4567), {a}, {c}) | torch.where({m}|({b} > 0.3456), {a}, {b})
torch.where(torch.logical_and({m}, {b} > -0.1), {a}, -{a})
torch.where(torch.logical_or({m}, {b} > 0.5432), {b}, {a}) | torch.logical_not({m}) * {a}
torch.logical_xor({m}, {a} > 0.1234) * {b} | ({m} == ({b} > 0.2222)) * {a}
({m}.long() * 2 - 1) * {a} | ({m}.int() + 1) * {a} | {a} / ({m}.int() + 2)
(({m}.int() - 3) // 2) * {a} | {m}.long() % 2 + {a} | {a} * {w} | {a} + {w} | {p} * {a} | {p} + {a}
{a} * torch.sigmoid({p}) | {a} + {p} * {b} | {w} - {a} | {a} * F.softplus({w})
torch.exp(-torch.exp({w})) * {a} | torch.where({m}, {w}, {a}) | Spike.apply({a} - {w})
{a} * torch.tanh({w}) + {b} | torch.hypot({a}, 1 + {b}.abs()) | torch.atan2({a}, 1.5 + {b}.abs())
torch.fmax({a}, {b} + 0.0123) | {a}.lt({b} + 0.0123) * {a} | {a} * torch.ge({b}, 0.1234)
torch.heaviside({a}.detach() - 0.1234, torch.zeros_like({a})) * {b} | torch.logaddexp({a}, {b})
F.prelu({a} + 0.1234, SLOPE) | {a} * torch.sign({b} + 0.1234) + {c}
torch.stack([{a}, {b}]).mean(0) | torch.stack([{a}, {b}], -1).sum(-1) | sum([{a}, {b}, {c}])
torch.clamp({a}, -1.1 - {b}.abs(), 1.1 + {b}.abs()) | torch.xlogy(0.5 + {a}.abs(), 1.5 + {b}.abs())
{a} * {a}.sigmoid() * {b}
""")
ALONG = _table("""
F.layer_norm({a}, ({l},), eps=0.1) | F.layer_norm({a}, ({l},), {w}, {w}, eps=0.1)
F.layer_norm({a}, {a}.shape[-1:], {w}, eps=0.1) | norm_{l}({a}) | F.rms_norm({a}, ({l},), eps=0.1)
F.rms_norm({a}, ({l},), {w}, eps=0.1) | F.normalize({a} + 0.1234, dim={d}, eps=0.1)
F.softmax({a}, dim={d}) | torch.softmax({a}, {d}) | F.log_softmax({a}, dim={d})
{a}.softmax(dim=-1) | torch.cumsum(0.5 * {a}, dim={d}) | {a}.cumsum({d}) / {n}
{a} - {a}.mean({d}, keepdim=True) | {a} / (1 + {a}.abs().sum({d}, keepdim=True))
{a} * {a}.amax(dim={d}, keepdim=True) | {a} * torch.rsqrt({a}.pow(2).mean(-1, keepdim=True) + 0.1)
{a} - torch.logsumexp({a}, {d}, keepdim=True)
{a} / ({a}.var({d}, unbiased=False, keepdim=True) + 0.5).sqrt() | torch.flip({a}, [{d}])
{a}.flip({d}) | torch.roll({a}, 1, {d}) | torch.roll({a}, shifts=-2, dims={d})
{a}.roll(1, -1) + {a} | {a} * F.one_hot(({a} + {J}).argmax(-1), {l})
F.one_hot(({a} + {J}).argmax(dim=-1), num_classes={l}) + {a}
F.one_hot(({a} + {J}).argmax(-1), {l}).to({a}.dtype)
F.one_hot(({a} + {J}).argmin(-1), {l}).float() * {b} | {a}[..., {X}] | {a}.index_select(-1, {X})
{a} * F.softmax({w}, dim=-1) | {a} - {w}.mean() | {a} * {w}.sum(-1) | {a}[..., :1] * {a}
{a}[..., -1:] + {a} | {a}[..., ::2] | {a}[..., 1:] | {a}[..., :-1] | {a}[..., 1::2]
torch.cat([{a}, {b}], dim={d}) | torch.cat([{a}[..., 1:], {a}[..., :1]], -1)
torch.cat(({a}, -{a}), dim=-1) | torch.cat([{a}, torch.ones_like({a}[..., :1])], dim=-1)
torch.chunk({a}, 2, dim=-1)[0] | {a}.chunk(2, -1)[1] | F.pad({a}, (1, 0))
F.pad({a}[..., 1:], (0, 1)) | F.glu(torch.cat([{a}, {b}], -1), dim=-1) | {a}.narrow(-1, 0, 1) * {a}
{a} * {a}.gather(-1, ({a} + {J}).argmax(-1, keepdim=True))
torch.gather({a}, -1, {X}.expand_as({a}[..., {X}]))
torch.take_along_dim({a}, ({a} + {J}).argsort(-1), -1) | ({a} + {J}).sort(-1).values
({a} + {J}).topk(1, -1).values * {a} | ({a} + {J}).max(-1, keepdim=True).values - {a}
torch.cumprod(torch.sigmoid({a}), -1) | {a}.diff(dim=-1) | F.softmin({a}, -1)
{a} * torch.arange({l}) / {l} | {a} * torch.linspace(-1, 1, {l}).to({a}) | ({a} * TABLE_{l}).tanh()
{a}.unfold(-1, 1, 1).squeeze(-1) | {a} + torch.tensor({c_list}).to({a})
torch.cummax({a} + {J}, -1).values | torch.repeat_interleave({a}, 2, dim=-1)
torch.cat([{a}] * 2, -1) | {a}.masked_fill(EVEN_{l}, 0.2) | torch.where(EVEN_{l}, {a}, {b})
{a}.scatter(-1, {X}.expand_as({a})[..., :1], 0.3) | {a}.index_fill(-1, {X}[:1], 0.3)
{a}.index_add(-1, {X}, {b}) | {a}.index_copy(-1, {X}, {b}) | {a}.masked_fill({m}, -0.1).cumsum(-1)
""")
REDUCE = _table("""
{a}.sum({d}) | {a}.mean(dim={d}) | {a}.var({d}, unbiased=False)
torch.var({a}, dim={d}, correction=0, keepdim=True) | {a}.amax({d})
torch.amin({a}, dim={d}, keepdim=True) | torch.logsumexp({a}, dim={d}) | {a}.sum({d}, keepdim=True)
{a}.mean({d}, keepdim=True) | ({a} * {b}).sum(-1) | ({a} * {b}).sum(dim=-1, keepdim=True)
{a}.square().sum({d}).add(0.2).sqrt() | {a}.flatten(1).sum(1) | {a}.flatten(1).mean(-1)
{m}.sum({d}) * 0.25 | {m}.float().sum({d}) * 0.5 | {m}.any({d}) * 1.0 | {m}.all({d}).float()
({a} + {J}).max(dim=-1).values | ({a} + {J}).max(-1)[0] | torch.linalg.norm({a} + 0.1234, dim={d})
({a} + 0.1234).norm(dim={d}) | {a}.select({d}, 0) | {a}[..., 0] | {a}[..., -1] | {a}.prod({d})
({a} + {J}).argmax(-1) * 0.25 | (0.1 + {a}.square()).mean({d}).log() | {a}.unbind({d})[0]
F.cosine_similarity({a} + 0.3, {b} + 1.7, dim=-1) | torch.std({a} * {w} + {J}, -1, correction=0)
({a} > 0.1234).sum(-1, keepdim=True) * {a} | ({a} + {J}).min({d}).values | ({a} @ {w})
torch.einsum("...i,i->...", {a}, {w}) | torch.count_nonzero({m}, -1) / 4 | {a}.mean() * 0 + {a}
""")
RESHAPE = _table("""
{a}.unsqueeze({d}) | {a}.unsqueeze(1) | {a}[:, None] | {a}.unsqueeze(-1) | {a}[..., None]
{a}.flatten(1) | {a}.reshape(B, -1) | {a}.view(B, -1) | {a}.reshape({a}.shape[0], -1)
{a}.view({a}.size(0), -1) | torch.flatten({a}, start_dim=1) | {a}.contiguous().view(B, -1)
{a}.squeeze(1) | {a}[:, None].squeeze(1) | {a}.unsqueeze(-1).expand(*{a}.shape, 2)
{a}.unsqueeze(1).expand(-1, 3, *{a}.shape[1:])
{a}.unsqueeze(1).repeat(1, 2, *[1] * ({a}.dim() - 1))
""")
OF_ROWS = _table("""
{a}.view(B, 2, -1) | {a}.reshape(-1, {l} // 2, 2) | {a}.unflatten(-1, (2, -1))
{a}.unflatten(1, ({l}, 1)) | {a}.view(B, 3, {l} // 3) | {a}.unsqueeze(-1) * {a}.unsqueeze(1)
torch.einsum("bi,bj->bij", {a}, {r}) | torch.bmm({a}.unsqueeze(2), {r}.unsqueeze(1))
{a}[:, :, None] @ {r}[:, None, :] | F.group_norm({a}, 1, eps=0.1)
F.group_norm({a}, 2, {w}, {w}, eps=0.1) | (W({l}, 3) @ {a}.T).T
({a}.unsqueeze(1) @ {a}.unsqueeze(2)).flatten(1) | torch.split({a}, [1, {l} - 1], dim=-1)[1]
{a}.split(1, dim=1)[0] * {a} | {a}[:, 1:] - {a}[:, :-1] | torch.addmm({w3}, {a}, W({l}, 3).t())
torch.outer({w3}, {a}[:, 0]).T | torch.matmul({a}, W({l}, 4).T) | torch.mm({a}, W({l}, 2).t())
F.bilinear({a}, {a}, W3({l})) | torch.einsum("bi,oi->bo", {a}, W({l}, 4))
torch.cdist({a}, 2 + W({l}, 3)) * 0.3
torch.bmm({a}.unsqueeze(1), W({l}, 3).T.expand(B, -1, -1)).squeeze(1)
torch.baddbmm({a}.unsqueeze(2), {a}.unsqueeze(2), {s}.unsqueeze(2)).squeeze(2)
""")
OF_MATRICES = _table("""
{a}.transpose(1, 2) | {a}.mT | {a}.permute(0, 2, 1) | {a} @ {a}.transpose(1, 2)
torch.bmm({a}.mT, {b}) | torch.einsum("bij,bkj->bik", {a}, {b}) | torch.matmul({a}, W({l}, 3).T)
W(rows, 2) @ {a} | {a} @ W({l}, 2).T | torch.einsum("bij,oj->bio", {a}, W({l}, 3))
torch.einsum("bij,oi->bjo", {a}, W(rows, 2)) | torch.bmm({a}, {b}[:, :1].mT).squeeze(-1)
({a} @ {b}[:, 0].unsqueeze(-1)).squeeze(-1) | torch.einsum("bij,bj->bi", {a}, {b}[:, -1])
{a}.diagonal(dim1=1, dim2=2) | torch.einsum("bij,bi->bj", {a}, {b}[..., 0]) | {a}.softmax(1) * {a}
F.group_norm({a}, 1, eps=0.1) | F.layer_norm({a}, {a}.shape[1:], eps=0.1) | {a}[:, 0] | {a}[:, -1]
{a}[:, :, 0] | {a}[:, ::2] | {a}[:, :1, 1:] | {a}.sum((1, 2)) | {a}.mean(dim=(1, 2), keepdim=True)
{a}.amax((1, 2)) | {a}.view(B, -1) | {a}.reshape(B, -1, 2) | torch.roll({a}, (1, 1), (1, 2))
torch.softmax({a} @ {b}.mT / 2, -1) @ {b} | F.scaled_dot_product_attention({a}, {b}, {b})
{a}.tril() | torch.triu({a}, 1) + {a} | torch.stack([{a}[:, i].tanh() for i in range(rows)], 1)
torch.stack([row * (i + 0.5) for i, row in enumerate({a}.unbind(1))], dim=1)
torch.cat([{a}[:, i] for i in range(rows)], -1) | {a} * torch.eye(rows, {l}).to({a})
{a}.unsqueeze(1) * {s}.unsqueeze(-1) | torch.baddbmm({a}, {a} @ {b}.mT, {b}, beta=0.5, alpha=0.1)
{a}.flatten(1).view(B, {l}, -1) | {a}.unflatten(2, (1, {l})) | {a}.movedim(2, 1)
{a}.swapaxes(1, -1)
""")
OF_HEADS = _table("""
{a}.transpose(1, 2) | {a}.permute(0, 1, 3, 2) | {a}.permute(0, 3, 1, 2) | {a}.flatten(2)
{a}.flatten(1, 2) | {a} @ {b}.transpose(-1, -2) | torch.einsum("bnkv,bnkw->bnvw", {a}, {b})
torch.einsum("bnkv,bnv->bnk", {a}, {b}[:, :, 0]) | ({a} * {b}[..., :1]).sum(2) | {a}.sum((2, 3))
{a}.mean((1, 3)) | {a}[:, 0] | {a}[:, :, -1] | {a}[:, 1:, :, ::2]
{a} * {a}.amax((1, 2), keepdim=True) | torch.matmul({a}, W({l}, 2).T) | {a}.view(B, -1)
{a}.reshape(B, -1, {l}) | torch.einsum("bnkv,wv->bnkw", {a}, W({l}, 2))
""")
BLOCKS = """
{v} = {a}.clone()
{v}.add_({b})

{v} = {a} * 1.0
{v}.mul_({c})

{v} = {a} + 0.0
{v} += {c}
{v} *= 0.5

{v} = torch.empty_like({a})
{v}.copy_({b})
{v}.sub_({a}, alpha=0.5)

{v} = {a}.clone()
{v}.masked_fill_({m}, 0.2)

{v} = {a}.clone()
{v}[{m}] = 0.25

{v} = {a}.clone()
{v}[..., :1] = {b}[..., :1]

{v} = {a}.clone()
{v}[..., ::2] = 0.5 * {b}[..., ::2]

{v} = {a}.clone()
{v}[..., -1] += 0.3

{v} = torch.zeros_like({a})
{v}[..., 1:] = {a}[..., :-1]

{v} = {a}.clone()
view = {v}[..., 0]
view.mul_(0.5)

{v} = {a}.clone()
left, right = {v}[..., :1], {v}[..., 1:]
right.add_(left)

{v} = {a} - 0.1
{v}.clamp_(-0.7654, 0.8765)

{v} = ({a} * 0.5).tanh_()

{v} = {a}.clone().zero_().add_({c})

{v} = {a}.new_empty({a}.shape)
{v}[:] = {b}
{v}[..., 0] = {a}[..., 0]

with torch.no_grad():
    {v} = torch.sigmoid({a} * {w})

with torch.no_grad():
    scale = {a}.abs().amax(-1, keepdim=True) + 0.5
{v} = {a} / scale

with torch.no_grad():
    top = F.one_hot(({a} + {J}).argmax(-1), {l}).to({a}.dtype)
{v} = top + {a}.softmax(-1) - {a}.softmax(-1).detach()

hard = ({a} > 0.1234).to({a}.dtype)
soft = torch.sigmoid({a})
{v} = hard.detach() - soft.detach() + soft

{v} = {a}
for _ in range(3):
    {v} = {v} + 0.2 * torch.tanh({b} - {v})

{v} = {a}
for scale in (0.5, 0.25):
    {v} = {v} + scale * torch.sin({v} * {w} + {c})

{v} = {a}
for k in range(2):
    {v} = torch.tanh(F.linear({v}, W({l}, {l}), {w})) * (k + 1) / 2 + 0.5 * {a}

parts = list(torch.chunk({a}, 2, dim=-1))
parts[0] = torch.tanh(parts[0])
{v} = torch.cat(parts, dim=-1)

left, right = {a}.split([1, {l} - 1], dim=-1)
{v} = torch.sigmoid(left) * right

i, f = torch.cat([{a}, {b}], -1).chunk(2, -1)
{v} = torch.sigmoid(i) * torch.tanh(f)

*rest, last = {a}.unbind(-1)
{v} = torch.stack([last, *rest], dim=-1)

total = 0
for i in range({l}):
    total = total + {a}[..., i] * (0.5 ** i)
{v} = total

rows_ = []
for i in range({l}):
    rows_.append({a}[..., i] - (rows_[-1] if rows_ else 0))
{v} = torch.stack(rows_, -1)

gate = lambda u: torch.sigmoid(u + {w})
{v} = gate({a}) * {b} + (1 - gate({a})) * {c}

def twice(u, times=2):
    for _ in range(times):
        u = torch.tanh(u) + 0.1 * {c}
    return u
{v} = twice({a})

near = ({a} - {b}).abs() < 0.4567
far = ~near
{v} = near * {a} + far * {b}

count = ({a} > 0.1234).long() + ({b} > -0.2345).long()
{v} = torch.where(count == 1, {a}, {b} * count)

k1 = torch.tanh({a})
k2 = torch.tanh({a} + 0.5 * k1)
{v} = {a} + 0.25 * (k1 + k2)

if {a}.shape[-1] > 3 and flag:
    {v} = torch.tanh({a})
else:
    {v} = torch.sigmoid({a})

{v} = F.dropout({a}, 0.5, training=False) * ({k} if flag else {k})

{v} = {a}.clone()
{v}[:, 0] = {v}[:, 0] * 0.5

{v} = {a}.clone()
{v}[:, :2] = 0.25

{v} = {a} * 0.5
{v}[..., 1:].copy_({b}[..., :-1])

{v} = {a}.clone()
{v}[..., [0, -1]] = 0.1

{v} = {a}.clone()
{v}[{a} > 0.1234] -= 0.5

{v} = {a} + 0
over = {a} > 0.2345
{v}[over] = torch.tanh(1.5 * {a}[over]) - 0.5 * torch.sqrt({a}[over])

{v} = {a}.clone()
{v}[..., 0], {v}[..., -1] = {b}[..., -1], {b}[..., 0]

{v} = torch.zeros(B, *{a}.shape[1:]).to({a})
for i in range({l}):
    {v}[..., i] = {a}[..., i] + (0.5 * {v}[..., i - 1].clone() if i else 0)

out = [torch.zeros_like({a}[..., 0])]
for part in {a}.unbind(-1):
    out.append(torch.tanh(0.5 * out[-1] + part))
{v} = torch.stack(out[1:], dim=-1)

norm = {a}.pow(2).sum(-1, keepdim=True).sqrt() + 0.5
unit = {a} / norm
{v} = unit * torch.tanh(norm)
""".strip().split("\n\n")  # lines for a value {v}
PRODUCTS = _table("""
F.linear({a}, W({l}, {o})) | F.linear({a}, W({l}, {o}), b({o})) | lin({l}, {o})({a})
lin({l}, {o})({a}) | lin({l}, {o}, False)({a}) | {a} @ W({o}, {l}) | {a} @ W({l}, {o}).T + b({o})
torch.matmul({a}, W({o}, {l})) | torch.einsum("...i,oi->...o", {a}, W({l}, {o}))
F.linear({a}, W({l}, {o}).tanh()) | F.linear({a}, 0.5 * W({l}, {o}))
torch.tensordot({a}, W({o}, {l}), dims=1) | F.linear({a}, F.normalize(W({l}, {o}), dim=0))
F.linear(F.linear({a}, W({l}, 2)), W(2, {o})) | {a} @ W({l}, {o}).t()
F.linear({a}, W({l}, {o}).softmax(-1)) | F.linear({a}, W({l}, {o}) * {w})
lin({l}, {o})({a}) * torch.sigmoid(lin({l}, {o})({a})) | seq({l}, {o})({a})
F.linear({a}, torch.cat([W({l}, 1), W({l}, {o} - 1)]))
F.linear({a}, W({l}, {o}) / (1 + W({l}, {o}).norm())) | F.linear({a}, W({l}, {o}).tril())
""")
MASKS = _table("""
({b} > 0.1234) | ({b} + 0.0123 < {c}) | ({b} >= -0.2345) | ({b}.abs() <= 0.5678)
(({b} > 0.1234) & ({b} < 0.8765)) | torch.gt({b}, 0.1234) | ~({b} > 0.2345)
(({b} > 0.5432)|({b} < -0.3456)) | torch.isfinite({b}) | (torch.round({b} + 0.1234) == 1)
(torch.round({b} + 0.1234) != 0) | ({b} - {b}.mean() * 0 > 0.0123)
""")
# {h}: the state before; {u}: a value of its shape; the state after is O(1) for all time.
UPDATES = _table("""
0.5 * {h} + 0.5 * torch.tanh({u}) | torch.tanh(0.7 * {h} + {u})
torch.lerp({h}, torch.tanh({u}), 0.3) | {h} + 0.25 * (torch.sin({u}) - {h})
torch.sigmoid({u}) * {h} + (1 - torch.sigmoid({u})) * torch.tanh({u2})
0.9 * {h} + 0.2 * torch.tanh({u}) | torch.where({u2} > 0.1234, {h}, torch.tanh({u}))
torch.tanh({u}) | torch.sigmoid({g}) * {h} + (1 - torch.sigmoid({g})) * torch.tanh({u})
{h} * torch.exp(-F.softplus({g} - 1)) + torch.sin({u}) * 0.5
0.5 * {h} + torch.tanh({u}) - 0.4 * ({h} > 0.6543)
""")
FAST = _table("""
0.9 * {h} + 0.1 * torch.einsum("bk,bv->bkv", {k}, {v})
{h} + 0.4 * {k}.unsqueeze(-1) * ({v} - torch.einsum("bkv,bk->bv", {h}, {k})).unsqueeze(1)
{h} * 0.8 + 0.3 * torch.bmm({k}.unsqueeze(2), {v}.unsqueeze(1))
{h} - 0.4 * {k}[:, :, None] * (({h} * {k}[:, :, None]).sum(1, keepdim=True) - {v}[:, None])
{h} * torch.sigmoid({k}).unsqueeze(-1) + 0.3 * {k}[:, :, None] @ {v}[:, None, :]
torch.baddbmm({h}, {k}.unsqueeze(2), {v}.unsqueeze(1), beta=0.8, alpha=0.2)
""")
FAST_HEADS = _table("""
0.9 * {h} + 0.1 * torch.einsum("bnk,bnv->bnkv", {k}, {v})
{h} + 0.4 * {k}.unsqueeze(-1) * ({v} - ({h} * {k}.unsqueeze(-1)).sum(-2)).unsqueeze(-2)
0.7 * {h} + 0.3 * torch.matmul({k}.unsqueeze(-1), {v}.unsqueeze(-2))
{h} * torch.sigmoid({k}).unsqueeze(-1) + 0.2 * {k}[..., None] * {v}[..., None, :]
""")
NUMBERS = ("0.5", "-0.5", "0.25", "1", "2", "-1", "1.5")
SHAPES = ("", "1", "K", "K", "K", "KV", "NKV", "NK")  # of states
HELPERS = """
def squash(u, scale=1.0):
    return torch.tanh(u * scale)
def bent(u):
    return F.leaky_relu(u + 0.1234, 0.1) - 0.1
"""


class Weight(NamedTuple):
    """What a step closes over, by the name of its attribute.

    Attributes:
        kind: parameter, frozen, buffer, linear, linear-without-bias, norm, sequence, index, mask,
            jitter, closed (a tensor of no module), or the name of an attribute that it is tied to.
        shape: of a tensor, or sizes.
        alias: whether the step closes over it by a name of its own.
    """

    kind: str
    shape: tuple[int, ...]
    alias: bool


def made(weights: dict[str, Weight], dtype: torch.dtype) -> nn.Module:
    """A module with all that a step closes over."""
    source = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.5
        return (torch.randn(shape, generator=source, dtype=F64) * scale).to(dtype)

    def one(name: str, weight: Weight) -> Any:
        kind, shape, _ = weight
        if kind == "index":
            return torch.randperm(shape[0], generator=source)
        if kind == "mask":
            return torch.arange(shape[0]) % 2 == 0
        if kind == "jitter":
            return (torch.arange(1, 1 + shape[0]) * 0.0137).square().mul(7).to(dtype)
        if kind in ("buffer", "closed"):
            return normal(*shape)
        if kind in ("parameter", "frozen"):
            return nn.Parameter(normal(*shape), requires_grad=kind == "parameter")
        if kind == "norm":
            part: nn.Module = nn.LayerNorm(shape[0], eps=0.1, dtype=dtype)
        elif kind == "sequence":
            first, last = (nn.Linear(n, shape[1], dtype=dtype) for n in shape)
            part = nn.Sequential(first, nn.Tanh(), last)
        else:
            part = nn.Linear(shape[0], shape[1], bias=kind == "linear", dtype=dtype)
        for value in part.parameters():
            value.data.copy_(normal(*value.shape))
        return part

    m = nn.Module()
    for name, weight in weights.items():
        if weight.kind in weights:
            value = getattr(m, weight.kind)
        else:
            value = one(name, weight)
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            if weight.kind == "closed":  # by no module
                object.__setattr__(m, name, value)
            else:
                m.register_buffer(name, value)
        else:
            setattr(m, name, value)
    return m


class Built(NamedTuple):
    """A step that can be run.

    Attributes:
        step: ``step(carry, x) -> (carry, y)``.
        init: a number of samples -> the initial carry.
        xs: numbers of steps and of samples -> inputs.
        parameters: all that it closes over, tied ones once, frozen ones too.
        module: holds them.
    """

    step: Step
    init: Callable[[int], Any]
    xs: Callable[[int, int], Any]
    parameters: list[nn.Parameter]
    module: nn.Module


class AsModule(nn.Module):
    """A step as a module ``module(carry, x) -> (carry, y)``, for loops over modules."""

    def __init__(self, built: Built) -> None:
        super().__init__()
        self.weights = built.module
        self.step = built.step

    def forward(self, carry: Any, x: Any) -> Any:
        return self.step(carry, x)


@dataclass(frozen=True)
class DrawnStep:
    """A step as text, and all that it closes over.

    Attributes:
        text: of a function ``make(m)`` that returns the step.
        states, inputs: name -> shape of a sample; an input named ``token`` has whole numbers.
        carry, x: how they are packed, as expressions of those names.
    """

    text: str
    states: dict[str, tuple[int, ...]]
    inputs: dict[str, tuple[int, ...]]
    carry: str
    x: str
    weights: dict[str, Weight]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{n} {[*s]}" for n, s in (self.states | self.inputs).items())
        weights = ", ".join(f"{n}: {w.kind} {[*w.shape]}" for n, w in self.weights.items())
        return f"# {shapes}\n# {weights}\n{self.text}"

    def close(self, dtype: torch.dtype) -> float:
        """How near outputs and gradients are to the loop's; of what torch has rounded to float32
        in its own gradient (1/6 of hardsigmoid), no nearer than that."""
        return max(STEPS_CLOSE[dtype][0], 1e-6 if "hardsigmoid" in self.text else 0.0)

    def build(self, dtype: torch.dtype = F64) -> Built:
        """The step with weights, carries and inputs of a dtype: the same numbers in each."""
        m = made(self.weights, dtype)
        names = _globals()
        file = f"<random step {crc32(self.text.encode()):x}>"
        linecache.cache[file] = (len(self.text), None, self.text.splitlines(True), file)
        exec(compile(self.text, file, "exec"), names)

        def packed(text: str, shapes: dict[str, tuple[int, ...]], lead: tuple[int, ...]) -> Any:
            source = torch.Generator().manual_seed(2)
            values: dict[str, Any] = {}
            for name, shape in shapes.items():
                value = torch.randn(*lead, *shape, generator=source, dtype=F64)
                whole = name == "token"
                values[name] = (3 * value).long() % 4 if whole else (0.7 * value).to(dtype)
            return eval(text, {}, values)

        return Built(
            names["make"](m),
            lambda B: packed(self.carry, self.states, (B,)),
            lambda T, B: packed(self.x, self.inputs, (T, B)),
            [*m.parameters()],
            m,
        )


def _globals() -> dict[str, Any]:
    """What the text of a step can name."""
    names = {"torch": torch, "F": F, "nn": nn, "math": math}
    names |= {"Spike": Spike, "Halved": Halved, "Window": Window, "Boxcar": Boxcar}
    exec(HELPERS, names)
    return names


@dataclass
class _Writer:
    """A step that is being written: its lines, and what each gave on a few samples."""

    choose: Choose
    lines: list[str] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)  # of floats, by name
    weights: dict[str, Weight] = field(default_factory=dict)
    live: dict[str, Any] = field(default_factory=_globals)
    refused: list[str] = field(default_factory=list)  # templates that gave nothing of use
    all: str | None = None  # a vector of whatever nothing depended on

    def one_in(self, n: int) -> bool:
        return self.choose([False] * (n - 1) + [True])

    # Weights.

    def weight(self, kind: str, shape: tuple[int, ...]) -> str:
        """A name for a weight of a kind and a shape: one that is there, or a new one."""
        old = [n for n, w in self.weights.items() if w.kind == kind and w.shape == shape]
        single = kind in ("index", "mask", "jitter", "norm")
        if old and (single or self.one_in(3)):
            return self.named(self.choose(old))
        if kind == "parameter":
            kind = self.choose(["parameter"] * 8 + ["frozen", "buffer", "closed"] + old[:1])
        name = f"{kind[0] if kind not in self.weights else 'tied'}{len(self.weights)}"
        self.weights[name] = Weight(kind, shape, kind == "closed" or self.choose([True, False]))
        m = made(self.weights, F64)
        self.live["m"] = m
        self.live |= {n: getattr(m, n) for n, w in self.weights.items() if w.alias}
        return self.named(name)

    def named(self, name: str) -> str:
        return name if self.weights[name].alias else f"m.{name}"

    # Holes of templates.

    def pick(self, fits: Callable[[tuple[int, ...]], bool]) -> str | None:
        """A value whose shape of a sample fits; late ones, and ones that nothing depends on, more
        often."""
        names = [n for n, v in self.values.items() if fits(tuple(v.shape[1:]))][::-1]
        idle = [n for n in self.idle() if n in names]
        return self.choose(names[:3] + idle + idle + names) if names else None

    def idle(self) -> list[str]:
        """Values that no line depends on, late ones first."""
        used = set(re.findall(r"\w+", " ".join(re.sub(r"^(\w+) = ", "", x) for x in self.lines)))
        return [n for n in self.values if n not in used][::-1]

    def filled(self, template: str, a: str, **more: str) -> str:
        """A template with its holes filled, for a main value."""
        shape = tuple(self.values[a].shape[1:])
        rank, last = len(shape), shape[-1] if shape else 1
        axis = self.choose([*range(1, rank + 1)]) if shape and "{d}" in template else 1
        signed = axis if self.choose([True, False]) else axis - rank - 1
        fixed = {"a": a, "v": "{v}", "d": str(signed), "l": str(last), **more}
        fixed["o"] = str(self.choose([3, 2, 4, 6])) if "{o}" in template else ""
        fixed["n"] = str(shape[axis - 1]) if shape else "1"

        def same() -> str:
            return self.pick(lambda s: s == shape) or a

        def broadcast() -> str:
            def fits(s: tuple[int, ...]) -> bool:
                pairs = zip(s[::-1], shape[::-1], strict=False)
                return len(s) == rank and all(x in (1, y) for x, y in pairs)

            return (self.one_in(3) and self.scalar(rank)) or self.pick(fits) or a

        def fill(hole: re.Match[str]) -> str:
            name = hole[1]
            if name in fixed:
                return fixed[name]
            if name in "bc":
                return same() if name == "b" else broadcast()
            if name == "m":
                return re.sub(r"\{([bc])\}", fill, self.choose(MASKS))
            if name == "s":
                return self.scalar(rank) or f"{a}.flatten(1).mean(1).view(B, *[1] * {rank})"
            if name == "r":
                return self.pick(lambda s: len(s) == 1) or a
            if name == "k":
                return self.choose(NUMBERS)
            if name == "w":
                return self.weight("parameter", (last,) if shape else ())
            if name == "w3":
                return self.weight("parameter", (3,))
            if name == "p":
                sizes = self.choose(
                    [(), shape, tuple(s * (i > 0) or 1 for i, s in enumerate(shape))]
                )
                return self.weight("parameter", sizes)
            if name == "J":
                return self.weight("jitter", (last,))
            if name == "X":
                return self.weight("index", (last,))
            assert name == "c_list", name
            return str([round(0.3 * math.sin(i + 1), 3) for i in range(last)])

        text = re.sub(r"\{(\w+)\}", fill, template)
        return self.with_weights(re.sub(r"\brows\b", str(shape[0]), text) if rank == 2 else text)

    def scalar(self, rank: int) -> str | None:
        """A number of each sample, with as many axes as a value."""
        name = self.pick(lambda s: s == ())
        return name and (f"{name}[{', '.join([':', *['None'] * rank])}]" if rank else name)

    def with_weights(self, text: str) -> str:
        """A text with W(n, o), b(o), lin(n, o), ... replaced by weights of those sizes."""

        def size(text: str) -> int:
            return int(eval(text))

        def fill(hole: re.Match[str]) -> str:
            sizes = [size(s) for s in hole[2].split(",") if s.strip() not in ("False",)]
            if min(sizes) < 1:
                sizes = [max(1, s) for s in sizes]
            if hole[1] == "W":
                return self.weight("parameter", (sizes[1], sizes[0]))
            if hole[1] == "W3":
                return self.weight("parameter", (2, sizes[0], sizes[0]))
            if hole[1] == "b":
                return self.weight("parameter", (sizes[0],))
            if hole[1] == "seq":
                return self.weight("sequence", (sizes[0], sizes[1]))
            bias = "" if "False" not in hole[2] else "-without-bias"
            return self.weight(f"linear{bias}", (sizes[0], sizes[1]))

        text = re.sub(r"\b(W|W3|b|seq|lin)\(([\d\s,\-]+(?:, False)?)\)", fill, text)
        special = {"norm": "norm", "TABLE": "closed", "EVEN": "mask"}
        text = re.sub(
            r"\b(norm|TABLE|EVEN)_(\d+)", lambda h: self.weight(special[h[1]], (int(h[2]),)), text
        )
        return re.sub(r"\bSLOPE\b", lambda _: self.weight("parameter", (1,)), text)

    # Lines.

    def let(self, text: str, template: str = "") -> str | None:
        """Write lines ``{v} = ...``, or one for an expression; None if they gave nothing of use."""
        name = f"v{len(self.values)}"
        text = text.replace("{v}", name) if "{v}" in text else f"{name} = {text}"
        before = dict(self.live)
        try:
            exec(text, self.live)
            value = self.live[name]
            good = (
                isinstance(value, Tensor)
                and value.is_floating_point()
                and value.dim() in (1, 2, 3, 4)
                and len(value) == SAMPLES
                and 0 < value[0].numel() <= MOST
                and bool(value.isfinite().all())
            )
        except (RuntimeError, ValueError, IndexError, TypeError, KeyError):
            good = False
        if not good:
            self.live = before | {n: v for n, v in self.live.items() if n in ("m", *self.weights)}
            self.refused.append(template or text)
            return None
        self.lines += text.split("\n")
        if (
            value.dtype != F64
        ):  # of truth values and whole numbers, which torch's default dtype is for
            self.lines.append(f"{name} = {name}.to({next(iter(self.values))}.dtype)")
            exec(self.lines[-1], self.live)
        if float(value.detach().abs().max()) > 3:
            squash = self.choose(["torch.tanh({})", "torch.sin({})", "{0} / (1 + {0}.abs())"])
            self.lines.append(f"{name} = {squash.format(name)}")
            exec(self.lines[-1], self.live)
        self.values[name] = self.live[name]
        return name

    def make(self) -> None:
        """Write a line, or some."""
        name = self.pick(lambda s: True)
        assert name is not None
        rank = self.values[name].dim() - 1
        kinds = [POINTWISE, PAIRS, POINTWISE, PAIRS, RESHAPE]
        if rank:
            kinds += [ALONG, ALONG, PRODUCTS, PRODUCTS, BLOCKS, BLOCKS, REDUCE]
        kinds += [[], [OF_ROWS] * 3, [OF_MATRICES] * 4, [OF_HEADS] * 4][rank]
        template = self.choose(self.choose(kinds))
        self.let(self.filled(template, name), template)

    def gather(self) -> None:
        """Write a vector of some values that nothing depends on: states are to depend on them."""
        parts: list[str] = []
        size = 0
        for name in self.idle():
            value = self.values[name]
            if len(parts) < 5 and size + value[0].numel() <= MOST:
                size += value[0].numel()
                flat = {1: ".unsqueeze(-1)", 2: ""}.get(value.dim(), ".flatten(1)")
                parts.append(f"{name}{flat}")
        if len(parts) > 1:
            self.all = self.let(f"torch.cat([{', '.join(parts)}], dim=-1)")

    def of_shape(self, shape: tuple[int, ...], kept: Sequence[str] = ()) -> str:
        """A value of a shape, made of another if there is none; one that nothing depends on, if
        there is such a value besides ``kept``."""
        own = [n for n in self.values if n.startswith("v")]
        idle = [n for n in self.idle() if n not in kept]
        fits = [n for n in own if tuple(self.values[n].shape[1:]) == shape][::-1]
        first = [n for n in fits if n in idle]
        if fits and (not self.all or self.one_in(3)) and not self.one_in(4):
            return self.choose(first or fits)
        source = self.choose(idle[:5] or (own or [*self.values])[::-1][:5])
        if self.all and self.choose([True, True, False]):
            source = self.all
        rank = self.values[source].dim() - 1
        flat = (
            source if rank == 1 else f"{source}.flatten(1)" if rank else f"{source}.unsqueeze(-1)"
        )
        size, into = math.prod(self.values[source].shape[1:]), math.prod(shape)
        product = self.choose([f"lin({size}, {into})", f"F.linear({flat}, W({size}, {into}))"])
        text = product if "F." in product else f"{product}({flat})"
        if shape == ():
            text = self.choose([f"{text}.squeeze(-1)", f"{flat}.mean(-1)", f"{text}[:, 0]"])
        elif len(shape) > 1:
            sizes = ", ".join(map(str, shape))
            text = f"{text}{self.choose([f'.view(B, {sizes})', f'.unflatten(-1, ({sizes}))'])}"
        made = self.let(self.with_weights(text))
        assert made is not None, text
        return made

    def after(self, name: str, kept: Sequence[str]) -> str:
        """A line for the state after the step: O(1) for all time; its name. ``kept``: states after
        the step that are there already."""
        shape = tuple(self.values[name].shape[1:])
        holes = {"h": name}
        if len(shape) > 1 and self.choose([True, True, False]):
            key = self.let(
                f"F.normalize({self.of_shape(shape[:-1], kept)} + 0.1234, dim=-1, eps=0.1)"
            )
            value = self.let(f"torch.tanh({self.of_shape((*shape[:-2], shape[-1]), kept)})")
            assert key is not None
            assert value is not None
            holes |= {"k": key, "v": value}
            template = self.choose(FAST if len(shape) == 2 else FAST_HEADS)
            template = template.replace("{v}", value)
        else:
            template = self.choose(UPDATES)
            holes["u"] = self.of_shape(shape, kept)
            if "{u2}" in template:
                holes["u2"] = self.of_shape(shape, kept)
            if "{g}" in template:
                holes["g"] = self.weight("parameter", self.choose([(), shape[-1:], shape]))
        text = re.sub(r"\{(\w+)\}", lambda hole: holes[hole[1]], template)
        made = self.let(text, template)
        assert made is not None, text
        return made


PACKS = {  # how some values are packed
    1: ["{0}", "{0}", "({0},)", "[{0}]", "dict({n0}={0})"],
    2: [
        "({0}, {1})",
        "({0}, {1})",
        "[{0}, {1}]",
        "dict({n0}={0}, {n1}={1})",
        "({0}, dict({n1}={1}))",
    ],
    3: [
        "({0}, {1}, {2})",
        "({0}, ({1}, {2}))",
        "dict({n0}={0}, {n1}=({1}, {2}))",
        "(dict({n0}={0}, {n1}={1}), [{2}])",
    ],
}


OUTPUTS = ("out", "more", "rest")


def _packed(template: str, names: Sequence[str], values: Sequence[str]) -> str:
    return template.format(*values, **{f"n{i}": n for i, n in enumerate(names)})


def _unpacked(template: str, names: Sequence[str], of: str) -> list[str]:
    """Lines that take apart what a template has packed."""
    if "dict" not in template:
        return [f"{_packed(template, names, names)} = {of}"]
    paths: dict[str, str] = {}

    def walk(tree: Any, path: str) -> None:
        if isinstance(tree, str):
            paths[tree] = path
        elif isinstance(tree, dict):
            for key, value in tree.items():
                walk(value, f'{path}["{key}"]')
        else:
            for i, value in enumerate(tree):
                walk(value, f"{path}[{i}]")

    walk(eval(_packed(template, names, [repr(n) for n in names])), of)
    return [f"{name} = {paths[name]}" for name in names]


def _begin(choose: Choose) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """States and inputs with their shapes."""
    K, V, N = choose([4, 3, 2, 5, 6, 8]), choose([3, 4, 2, 5]), choose([2, 3])
    sizes = {"1": 1, "K": K, "V": V, "N": N}

    def shape(text: str) -> tuple[int, ...]:
        return tuple(sizes[axis] for axis in text)

    count = choose([1, 2, 1, 2, 3])
    states = {name: shape(choose(SHAPES)) for name in ("h", "s", "e")[:count]}
    kinds = ["K", "K", "", "V", "1", "NK"]
    inputs = {name: shape(choose(kinds)) for name in ("p", "q", "r")[: choose([1, 2, 1, 3])]}
    if choose([False] * 9 + [True]):
        inputs["token"] = ()
    return states, inputs


def written(choose: Choose) -> tuple[DrawnStep, list[str]]:
    """A step, and the templates that gave nothing of use."""
    states, inputs = _begin(choose)
    writer = _Writer(choose)
    source = torch.Generator().manual_seed(5)
    writer.live |= {"B": SAMPLES, "lam": 0.7, "flag": True}
    for name, shape in (states | inputs).items():
        value = torch.randn(SAMPLES, *shape, generator=source, dtype=F64)
        if name == "token":
            writer.live[name] = value.long() % 4
        else:
            writer.live[name] = writer.values[name] = value.requires_grad_()
    if "token" in inputs:
        embedded = choose(
            ["F.embedding(token, W(3, 4))", "F.one_hot(token, 4).to({0}.dtype)", "W(3, 4)[token]"]
        )
        writer.let(writer.with_weights(embedded.format(next(iter(states)))))
    for _ in range(choose([6, 4, 3, 5, 8, 10, 14])):
        writer.make()
    if choose([True, True, True, False]):
        writer.gather()
    after: list[str] = []
    for name in states:
        after.append(writer.after(name, after))
    late = [n for n in writer.values if n not in states and n not in inputs][::-1]
    idle = [n for n in writer.idle() if n in late and n not in after]
    outputs = idle[: choose([1, 2, 3, 3])] if choose([True, True, False]) else []
    if not outputs or (len(outputs) < 3 and choose([True, False])):
        outputs.append(choose([*after, *late[:6]]))
    if choose([False] * 11 + [True]):
        outputs[-1] = f"{outputs[-1]} > 0.1234"
    names, given = [*states], [n for n in inputs if n != "token"]
    if "token" in inputs:
        given = [*given, "token"][-3:]
    inputs = {n: inputs[n] for n in given} | {n: s for n, s in inputs.items() if n not in given}
    all_inputs = [*inputs]
    packs = [
        choose(PACKS[len(names)]),
        choose(PACKS.get(len(all_inputs), ["({0}, {1}, {2}, {3})"])),
        choose(PACKS[len(outputs)]),
    ]
    any_state = names[0]
    body = [
        *_unpacked(packs[0], names, "carry"),
        *_unpacked(packs[1], all_inputs, "x"),
        f"B = {any_state}.{choose(['shape[0]', 'size(0)'])}",
        *writer.lines,
        f"return {_packed(packs[0], names, after)}, {_packed(packs[2], OUTPUTS, outputs)}",
    ]
    closed = [f"{n} = m.{n}" for n, w in writer.weights.items() if w.alias]
    head = [
        "lam, flag = 0.7, True",
        *closed,
        "def step(carry, x):",
        *(f"    {line}" for line in body),
        "return step",
    ]
    text = "\n".join(["def make(m):", *(f"    {line}" for line in head), ""])
    used = {n: w for n, w in writer.weights.items() if re.search(rf"\b{n}\b", "\n".join(body))}
    used |= {w.kind: writer.weights[w.kind] for w in used.values() if w.kind in writer.weights}
    used = {n: w for n, w in writer.weights.items() if n in used}  # in order
    dropped = [f"    {n} = m.{n}" for n in writer.weights if n not in used]
    text = "\n".join(line for line in text.split("\n") if line not in dropped)
    carry, x = (_packed(p, n, n) for p, n in ((packs[0], names), (packs[1], all_inputs)))
    return DrawnStep(text, states, inputs, carry, x, used), writer.refused


def is_tame(drawn: DrawnStep) -> bool:
    """Whether a plain loop over the step has finite values and gradients of O(1)."""
    built = drawn.build()
    try:
        found = found_by(plain_scan, built.step, built.init(3), built.xs(5, 3), built.parameters)
    except RuntimeError:  # what torch's autograd refuses, such as writes over what it has saved
        return False
    sizes = [v.double().abs().max() for v in found.values() if v is not None and v.numel()]
    return bool(torch.stack(sizes).isfinite().all()) and max(map(float, sizes)) < 1e3


def random_step(choose: Choose) -> DrawnStep:
    """A step whose plain loop can be trained."""
    for _ in range(ATTEMPTS):
        drawn, _ = written(choose)
        if is_tame(drawn):
            return drawn
    raise AssertionError("no tame step in many attempts")


@st.composite
def random_steps(draw: st.DrawFn) -> DrawnStep:
    """:func:`random_step` by hypothesis."""
    return random_step(lambda among: draw(st.sampled_from(among)))

"""The time mixing of RWKV-7."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman import cells
from elman.checks import check_size
from elman.errors import InputError
from elman.frontend.cell import cell
from elman.layers.arguments import check_sizes, for_layers, part_size
from elman.layers.parts import (
    Layer,
    State,
    head_norm,
    is_worth_a_loop,
    run_in_single,
    split_heads,
    standardise,
)
from elman.nn import Recurrent
from elman.ops import concat, exp, maximum, sigmoid, sqrt, sum

_SHIFTED = {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}  # powers at the start
_UNITS = "units of a head (head_size)"
_SLOWEST = math.exp(-0.5)  # the largest exponent of a decay


@cell(input="x[C]", static="r[C], w[C], k[C], v[C], a[C], g[C]", state="last[C]", output="y[6C]")
def token_shift(x: Any, r: Any, w: Any, k: Any, v: Any, a: Any, g: Any, last: Any) -> Any:
    """An input mixed with the one before, in six ways."""
    change = last - x
    return concat(*(x + change * share for share in (r, w, k, v, a, g))), x


@cell(
    input="r[K], w[K], k[K], v[V], a[K], g[V]",
    static="removed[K], k_a[K], r_k[K], gain[V], bias[V]",
    state="S[K, V]",
    output="y[V]",
)
def rwkv7_layer(
    r: Any, w: Any, k: Any, v: Any, a: Any, g: Any,
    removed: Any, k_a: Any, r_k: Any, gain: Any, bias: Any, S: Any,
    *, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """The cell behind what its decays, rates and keys are made of, and before norm, the present
    value's bonus and gate."""
    a, kk = sigmoid(a), k * removed
    kk = kk / maximum(sqrt(sum(kk * kk)), 1e-12)
    k = k * (1 + (a - 1) * k_a)
    y, S = cells.rwkv7(r, exp(-_SLOWEST * sigmoid(w)), k, v, kk, a, S)
    return (standardise(y, eps) * gain + bias + sum(r * k * r_k) * v) * g, S


class RWKV7(Layer):
    """The time mixing of RWKV-7 (Peng et al. 2025, arXiv:2503.14456v2, section 4), around
    ``cells.rwkv7``.

    Each input is mixed with the one of the step before. Values are mixed with those of the first
    layer, which is why a call takes and gives them. Parameters are called as in the authors'
    ``RWKV_Tmix_x070``, and begin as there.

    Args:
        hidden_size: C, of input and output.
        head_size: of keys and values of a head.
        layer: which of the layers it is, 0 for the first.
        layers: how many there are; both are for the weights' beginning, but that the first has no
            values to mix with.
        engine: as of ``elman.Recurrent``.

    Raises:
        ShapeError: ``head_size`` does not divide ``hidden_size``.
        InputError: a size is no positive integer, or ``layer`` is none of ``layers``.

    Example:
        >>> first = elman.layers.RWKV7(32, head_size=16, layers=2)
        >>> second = elman.layers.RWKV7(32, head_size=16, layer=1, layers=2)
        >>> out, state, values = first(torch.randn(10, 3, 32))
        >>> out, state, _ = second(out, values=values)
        >>> out.shape, state[-1].shape
        (torch.Size([10, 3, 32]), torch.Size([1, 3, 2, 16, 16]))
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        head_size: int = 64,
        layer: int = 0,
        layers: int = 1,
        engine: str = "auto",
    ) -> None:
        check_sizes(hidden_size=hidden_size, head_size=head_size, layers=layers)
        check_size("layer", layer, 0, layers - 1)
        C, heads = hidden_size, part_size("hidden_size", hidden_size, head_size, _UNITS)
        cell = rwkv7_layer.with_options(eps=1e-5 * head_size)
        super().__init__(C, heads, cell, head_size, head_size, [(1, C)], engine)
        self.shift = Recurrent(token_shift, C, C, engine=engine)
        self.first = layer == 0
        for name in _SHIFTED:
            self.register_parameter(f"x_{name}", nn.Parameter(torch.empty(1, 1, C)))
        wide = head_size / 64
        ranks = {"w": 2.5 * wide, "a": 2.5 * wide, "v": 1.7 * wide, "g": 5.0}
        for name, factor in ranks.items():
            if name == "v" and self.first:
                continue
            rank = max(32, round(factor * C**0.5 / 32) * 32)
            self.register_parameter(f"{name}1", nn.Parameter(torch.zeros(C, rank)))
            self.register_parameter(f"{name}2", nn.Parameter(torch.empty(rank, C)))
            if name != "g":
                self.register_parameter(f"{name}0", nn.Parameter(torch.empty(1, 1, C)))
        self.k_k, self.k_a = (nn.Parameter(torch.empty(1, 1, C)) for _ in range(2))
        self.r_k = nn.Parameter(torch.empty(heads, head_size))
        self.receptance = nn.Linear(C, C, bias=False)
        self.key = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(C, C, bias=False)
        self.output = nn.Linear(C, C, bias=False)
        self.ln_x = head_norm(heads, C, 1e-5 * head_size, bias=True)
        self._begin(layer, layers)

    def _weight(self, name: str) -> Tensor:
        """A weight as it is now: under ``functional_call`` it is no parameter."""
        weight: Tensor = getattr(self, name)
        return weight

    def _low_rank(
        self, name: str, x: Tensor, inside: Callable[[Tensor], Tensor] = torch.Tensor.contiguous
    ) -> Tensor:
        """A projection by two matrices, and its bias if it has one."""
        y = inside(x @ self._weight(f"{name}1")) @ self._weight(f"{name}2")
        return y if name == "g" else y + self._weight(f"{name}0")

    @torch.no_grad()
    def _begin(self, layer: int, layers: int) -> None:
        """Fill the parameters as the authors do."""
        C, size = self.hidden_size, self.hidden_size // self.heads
        deep, shallow = layer / max(1, layers - 1), 1 - layer / layers
        place = torch.arange(C) / C
        line = torch.arange(C) / max(1, C - 1)
        zigzag = 2 * (torch.arange(C) % size) / max(1, size - 1) - 1
        zigzag = zigzag * zigzag.abs()
        for name, power in _SHIFTED.items():
            self.get_parameter(f"x_{name}").copy_(1 - place ** (power * shallow))
        centred = line - 0.5
        biases = {
            "w": -5.5 + 6 * line ** (1 + deep**0.3) + 2.5 * zigzag,
            "a": -0.19 + 0.3 * zigzag + 0.4 * centred,
            "v": 0.73 - 0.4 * centred,
        }
        for name, parameter in self.named_parameters(recurse=False):
            if name[0] in biases and name[1:] == "0":
                parameter.copy_(biases[name[0]])
            elif name[1:] == "2":
                gain = 0.1 * max(1.0, len(parameter) / C) ** 0.5
                nn.init.orthogonal_(parameter, gain=gain)
        self.k_k.copy_(0.71 - 0.1 * centred)
        nn.init.constant_(self.k_a, 1.02)
        nn.init.constant_(self.r_k, -0.04)
        nn.init.orthogonal_(self.receptance.weight)
        nn.init.orthogonal_(self.key.weight, gain=0.1)
        nn.init.orthogonal_(self.value.weight)
        nn.init.zeros_(self.output.weight)
        nn.init.constant_(self.ln_x.weight, ((layer + 1) / layers) ** 0.7)

    @for_layers
    def forward(
        self, x: Tensor, state: State | None = None, values: Tensor | None = None
    ) -> tuple[Tensor, State, Tensor]:
        """Run all steps of x [T, B, hidden_size] from a state, zeros if None.

        Args:
            values [T, B, hidden_size]: those of the first layer, which is not given any.

        Returns:
            out [T, B, hidden_size].
            state: the last input [1, B, hidden_size], and S [1, B, heads, K, V].
            values: of the first layer, for the layers behind it.

        Raises:
            ShapeError, InputError: x or the state has another form; values are missing.
        """
        (last,), inside = self._split_state(x, state)
        mixed = self._shift(x, last)
        xr, xw, xk, xv, xa, xg = mixed.chunk(6, -1)
        r, k, v = self.receptance(xr), self.key(xk), F.linear(xv, self.value.weight)
        if values is None or self.first:
            if not self.first:
                raise InputError("values of the first layer are missing", "layer(x, values=values)")
            values = v
        else:
            v = v + (values - v) * torch.sigmoid(self._low_rank("v", xv))
        w, a = self._low_rank("w", xw, torch.tanh), self._low_rank("a", xa)
        g = self._low_rank("g", xg, torch.sigmoid)
        inputs = [split_heads(part, self.heads) for part in (r, w, k, v, a, g)]
        norm = self.ln_x
        shared = (self.k_k, self.k_a, self.r_k, norm.weight, norm.bias)
        y, S = self._run_cell(inputs, inside, [each.reshape(self.heads, -1) for each in shared])
        return self.output(y.flatten(2)), (x[-1:].clone(), *S), values

    def _shift(self, x: Tensor, last: Tensor | None) -> Tensor:
        """Each input mixed with the one before in six ways, [T, B, 6 hidden_size]."""
        shares = [self._weight(f"x_{name}")[0, 0] for name in _SHIFTED]
        if not is_worth_a_loop(x):
            first = torch.zeros_like(x[:1]) if last is None else last
            change = torch.cat((first, x[:-1])) - x
            return torch.cat([x + change * share for share in shares], -1)
        static = [share.expand(x.shape[1], -1) for share in shares]
        return run_in_single(self.shift, (x,), None if last is None else (last,), static)[0]

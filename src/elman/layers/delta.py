"""Layers of the delta rule: DeltaNet and Gated DeltaNet.

Their cells are those of :mod:`elman.functional.delta_rules`, alone or before norm and gate.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.checks import check_flag
from elman.frontend.cell import Cell, cell
from elman.functional.delta_rules import scaled_delta_net, scaled_gated_delta_net
from elman.layers.arguments import check_positive, check_sizes, for_layers, part_size
from elman.layers.parts import (
    Layer,
    RMSNorm,
    ShortConvolution,
    State,
    divide_by_rms,
    draw_time_steps,
    is_fused,
    split_heads,
)
from elman.ops import silu


@cell(input="q[K], k[K], v[V], b, z[V]", static="gain[V]", state="S[K, V]", output="y[V]")
def delta_net_layer(
    q: Any, k: Any, v: Any, b: Any, z: Any, gain: Any, S: Any,
    *, scale: float = 1.0, eps: float = 1e-5,
) -> Any:  # fmt: skip
    y, S = scaled_delta_net(q, k, v, b, S, scale=scale, norm=True)
    return divide_by_rms(y, gain, eps) * silu(z), S


@cell(input="q[K], k[K], v[V], g, b, z[V]", static="gain[V]", state="S[K, V]", output="y[V]")
def gated_delta_net_layer(
    q: Any, k: Any, v: Any, g: Any, b: Any, z: Any, gain: Any, S: Any,
    *, scale: float = 1.0, eps: float = 1e-5,
) -> Any:  # fmt: skip
    y, S = scaled_gated_delta_net(q, k, v, g, b, S, scale=scale, norm=True)
    return divide_by_rms(y, gain, eps) * silu(z), S


class _DeltaLayer(Layer):
    """Queries, keys and values by projections and short convolutions; a norm behind the cell."""

    _cells: tuple[Cell, Cell]  # without a gate, and with norm and gate

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: float | None,
        expand_k: float,
        expand_v: float,
        use_gate: bool,
        *,
        conv_size: int = 4,
        allow_neg_eigval: bool = False,
        norm_eps: float = 1e-5,
        engine: str = "auto",
    ) -> None:
        check_sizes(hidden_size=hidden_size, num_heads=num_heads, conv_size=conv_size)
        check_positive(expand_k=expand_k, expand_v=expand_v, norm_eps=norm_eps)
        units, of = hidden_size, "hidden_size"
        if head_dim is not None:
            check_sizes(head_dim=head_dim)
            units, of = num_heads * head_dim, "num_heads · head_dim"
        K = part_size(f"expand_k · {of}", expand_k * units, num_heads)
        V = part_size(f"expand_v · {of}", expand_v * units, num_heads)
        pasts = [(conv_size - 1, num_heads * size) for size in (K, K, V)]
        plain, gated = self._cells
        plain = plain.with_options(scale=K**-0.5, norm=True)
        gated = gated.with_options(scale=K**-0.5, eps=norm_eps)
        use_gate = check_flag("use_gate", use_gate)
        cell = gated if use_gate else plain
        super().__init__(
            hidden_size, num_heads, cell, K, V, pasts, engine, plain if use_gate else None
        )
        self.allow_neg_eigval = check_flag("allow_neg_eigval", allow_neg_eigval)
        for name, size in (("q", K), ("k", K), ("v", V)):
            channels = num_heads * size
            self.add_module(f"{name}_proj", nn.Linear(hidden_size, channels, bias=False))
            convolution = ShortConvolution(channels, conv_size, engine=engine)
            self.add_module(f"{name}_conv1d", convolution)
        self.b_proj = nn.Linear(hidden_size, num_heads, bias=False)
        self.g_proj = nn.Linear(hidden_size, num_heads * V, bias=False) if use_gate else None
        self.o_norm = RMSNorm(V, norm_eps, engine)
        self.o_proj = nn.Linear(num_heads * V, hidden_size, bias=False)

    def _gates(self, x: Tensor) -> list[Tensor]:
        """The cell's gates behind q, k and v, each [T, B, heads]."""
        strength = torch.sigmoid(self.b_proj(x))
        return [2 * strength if self.allow_neg_eigval else strength]

    @for_layers
    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run all steps of x [T, B, hidden_size] from a state, zeros if None.

        Returns:
            out [T, B, hidden_size].
            state: the last ``conv_size - 1`` projections of q, k and v [·, B, ·], and S
                [1, B, heads, K, V].

        Raises:
            ShapeError: x or the state has another form.
        """
        before, inside = self._split_state(x, state)
        inputs, past = [], []
        for name, earlier in zip("qkv", before, strict=True):
            projected = self.get_submodule(f"{name}_proj")(x)
            value, later = self.get_submodule(f"{name}_conv1d")(projected, earlier)
            inputs.append(split_heads(value, self.heads))
            past.append(later)
        inputs += self._gates(x)
        gate = None if self.g_proj is None else split_heads(self.g_proj(x), self.heads)
        if gate is not None and is_fused(x):
            gain = self.o_norm.weight.expand(self.heads, -1)
            y, S = self._run_cell([*inputs, gate], inside, [gain])
        else:
            y, S = self._run_cell(inputs, inside, cell=self.plain)
            y = self.o_norm(y) if gate is None else self.o_norm(y) * F.silu(gate)
        return self.o_proj(y.flatten(2)), (*past, *S)


class DeltaNet(_DeltaLayer):
    """The layer of DeltaNet (Yang et al. 2024, arXiv:2406.06484v6), around ``cells.delta_net``.

    Queries and keys are projected, convolved over few steps and scaled to a norm of 1; heads are
    normalised behind the cell. Parameters are called as in flash-linear-attention's layer.

    Args:
        hidden_size: of input and output.
        num_heads: independent states.
        expand_k, expand_v: size of all keys, and of all values, relative to ``hidden_size``.
        use_gate: whether the output is multiplied by a gate of the input.
        options: ``conv_size=4``, steps that a short convolution sees; ``allow_neg_eigval=False``,
            whether the writing strength goes up to 2 instead of 1; ``norm_eps=1e-5``; and
            ``engine="auto"`` as of ``elman.Recurrent``.

    Raises:
        ShapeError: heads do not divide the sizes.
        InputError: a size is no positive integer, a number not positive, or a flag none.

    Example:
        >>> layer = elman.layers.DeltaNet(32, num_heads=2)
        >>> out, state = layer(torch.randn(10, 3, 32))
        >>> out.shape, state[-1].shape
        (torch.Size([10, 3, 32]), torch.Size([1, 3, 2, 16, 16]))
        >>> later, state = layer(torch.randn(1, 3, 32), state)
    """

    _cells = (scaled_delta_net, delta_net_layer)

    def __init__(
        self,
        hidden_size: int,
        *,
        num_heads: int = 4,
        expand_k: float = 1.0,
        expand_v: float = 1.0,
        use_gate: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(hidden_size, num_heads, None, expand_k, expand_v, use_gate, **options)


class GatedDeltaNet(_DeltaLayer):
    """The layer of Gated DeltaNet (Yang, Kautz & Hatamizadeh 2024, arXiv:2412.06464v3), around
    ``cells.gated_delta_net``.

    As :class:`DeltaNet`, with a decay exp(-exp(A_log) softplus(·)) for each head and step.

    Args:
        hidden_size: of input and output.
        num_heads: independent states.
        head_dim: size of a head's keys; the authors take 0.75 · hidden_size / num_heads.
        expand_v: size of a head's values relative to its keys.
        use_gate, options: see :class:`DeltaNet`.

    Raises:
        ShapeError: ``head_dim · expand_v`` is no whole number.
        InputError: a size is no positive integer, a number not positive, or a flag none.

    Example:
        >>> layer = elman.layers.GatedDeltaNet(32, num_heads=2, head_dim=12)
        >>> out, state = layer(torch.randn(10, 3, 32))
        >>> out.shape, state[-1].shape
        (torch.Size([10, 3, 32]), torch.Size([1, 3, 2, 12, 24]))
    """

    _cells = (scaled_gated_delta_net, gated_delta_net_layer)

    def __init__(
        self,
        hidden_size: int,
        *,
        num_heads: int = 6,
        head_dim: int = 256,
        expand_v: float = 2.0,
        use_gate: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(hidden_size, num_heads, head_dim, 1.0, expand_v, use_gate, **options)
        self.a_proj = nn.Linear(hidden_size, num_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(num_heads).uniform_(1e-3, 16).log())
        self.dt_bias = nn.Parameter(draw_time_steps(num_heads))

    def _gates(self, x: Tensor) -> list[Tensor]:
        step = F.softplus(self.a_proj(x) + self.dt_bias)
        return [-self.A_log.exp() * step, *super()._gates(x)]

"""The mLSTM layer of xLSTM."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman import cells
from elman.frontend.cell import cell
from elman.layers.arguments import check_positive, check_sizes, for_layers, part_size
from elman.layers.parts import Layer, State, head_norm, is_fused, split_heads, standardise
from elman.ops import sigmoid, tanh


@cell(input="q[K], k[K], v[V], i, f", state="C[K, V], n[K], m", output="y[V]")
def capped_mlstm(
    q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any, *, cap: float = 15.0
) -> Any:
    """Gates are capped before."""
    i, f = (cap * tanh(gate / cap) for gate in (i, f))
    return cells.mlstm(q, k, v, i, f, C, n, m)


@cell(
    input="q[K], k[K], v[V], i, f, o[V]",
    static="gain[V]",
    state="C[K, V], n[K], m",
    output="y[V]",
)
def mlstm_layer(
    q: Any, k: Any, v: Any, i: Any, f: Any, o: Any, gain: Any, C: Any, n: Any, m: Any,
    *, cap: float = 15.0, eps: float = 1e-6,
) -> Any:  # fmt: skip
    """Norm and output gate follow."""
    y, C, n, m = capped_mlstm(q, k, v, i, f, C, n, m, cap=cap)
    return standardise(y, eps) * gain * sigmoid(o), C, n, m


class MLSTM(Layer):
    """The mLSTM layer of xLSTM 7B (Beck et al. 2025, arXiv:2503.13427), around ``cells.mlstm``.

    Gates before their exponentials are capped smoothly, heads are normalised behind the cell, and
    an output gate follows. Parameters are called as in the authors' ``xlstm_large``; gates begin as
    in their ``xlstm``: independent of the input, the forget gates from 3 to 6.

    Args:
        hidden_size: of input and output.
        num_heads: independent states.
        qk_dim_factor, v_dim_factor: size of all keys, and of all values, relative to
            ``hidden_size``.
        gate_soft_cap: bound of what gates are before their exponentials.
        norm_eps: of the norm.
        engine: as of ``elman.Recurrent``.

    Raises:
        ShapeError: heads do not divide the sizes.
        InputError: a size is no positive integer, or a number not positive.

    Example:
        >>> layer = elman.layers.MLSTM(32, num_heads=2)
        >>> out, state = layer(torch.randn(10, 3, 32))
        >>> out.shape, [part.shape[3:] for part in state]
        (torch.Size([10, 3, 32]), [torch.Size([8, 16]), torch.Size([8]), torch.Size([])])
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        num_heads: int = 4,
        qk_dim_factor: float = 0.5,
        v_dim_factor: float = 1.0,
        gate_soft_cap: float = 15.0,
        norm_eps: float = 1e-6,
        engine: str = "auto",
    ) -> None:
        check_sizes(hidden_size=hidden_size, num_heads=num_heads)
        check_positive(qk_dim_factor=qk_dim_factor, v_dim_factor=v_dim_factor)
        check_positive(gate_soft_cap=gate_soft_cap, norm_eps=norm_eps)
        K = part_size("qk_dim_factor · hidden_size", hidden_size * qk_dim_factor, num_heads)
        V = part_size("v_dim_factor · hidden_size", hidden_size * v_dim_factor, num_heads)
        cell = mlstm_layer.with_options(cap=gate_soft_cap, eps=norm_eps)
        plain = capped_mlstm.with_options(cap=gate_soft_cap)
        super().__init__(hidden_size, num_heads, cell, K, V, (), engine, plain)
        self.q = nn.Linear(hidden_size, num_heads * K, bias=False)
        self.k = nn.Linear(hidden_size, num_heads * K, bias=False)
        self.v = nn.Linear(hidden_size, num_heads * V, bias=False)
        self.ogate_preact = nn.Linear(hidden_size, num_heads * V, bias=False)
        self.igate_preact = nn.Linear(hidden_size, num_heads)
        self.fgate_preact = nn.Linear(hidden_size, num_heads)
        self.multihead_norm = head_norm(num_heads, num_heads * V, norm_eps, bias=False)
        self.out_proj = nn.Linear(num_heads * V, hidden_size, bias=False)
        nn.init.zeros_(self.igate_preact.weight)
        nn.init.normal_(self.igate_preact.bias, std=0.1)
        nn.init.zeros_(self.fgate_preact.weight)
        with torch.no_grad():
            self.fgate_preact.bias.copy_(torch.linspace(3, 6, num_heads))

    @for_layers
    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run all steps of x [T, B, hidden_size] from a state, zeros if None.

        Returns:
            out [T, B, hidden_size], and the state: C [1, B, heads, K, V], n [1, B, heads, K] and
            m [1, B, heads].

        Raises:
            ShapeError: x or the state has another form.
        """
        _, inside = self._split_state(x, state)
        q, k, v, o = (
            split_heads(project(x), self.heads)
            for project in (self.q, self.k, self.v, self.ogate_preact)
        )
        gates = self.igate_preact(x), self.fgate_preact(x)
        gain = self.multihead_norm.weight.view(self.heads, -1)
        if is_fused(x):
            y, last = self._run_cell((q, k, v, *gates, o), inside, [gain])
        else:
            y, last = self._run_cell((q, k, v, *gates), inside, cell=self.plain)
            y = F.layer_norm(y, y.shape[-1:], eps=self.multihead_norm.eps)
            y = (y * gain * torch.sigmoid(o)).to(o.dtype)
        return self.out_proj(y.flatten(2)), last

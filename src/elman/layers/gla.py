"""The layer of gated linear attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman import cells
from elman.frontend.cell import cell
from elman.layers.arguments import check_positive, check_sizes, for_layers, part_size
from elman.layers.parts import Layer, RMSNorm, State, divide_by_rms, is_fused, split_heads
from elman.ops import exp, silu, softplus


@cell(input="q[K], k[K], v[V], a[K]", state="S[K, V]", output="y[V]")
def scaled_gla(
    q: Any, k: Any, v: Any, a: Any, S: Any, *, scale: float = 1.0, normalizer: float = 16.0
) -> Any:
    """Decays are sigmoids of ``a`` to the power 1 / ``normalizer``."""
    return cells.gla(scale * q, k, v, exp(softplus(-a) / -normalizer), S)


@cell(input="q[K], k[K], v[V], a[K], z[V]", static="gain[V]", state="S[K, V]", output="y[V]")
def gla_layer(
    q: Any, k: Any, v: Any, a: Any, z: Any, gain: Any, S: Any,
    *, scale: float = 1.0, normalizer: float = 16.0, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Norm and gate follow."""
    y, S = scaled_gla(q, k, v, a, S, scale=scale, normalizer=normalizer)
    return divide_by_rms(y, gain, eps) * silu(z), S


class GatedLinearAttention(Layer):
    """The layer of GLA (Yang et al. 2024, arXiv:2312.06635v6, section 4.4), around ``cells.gla``.

    The decay of each key unit is a sigmoid of a projection of low rank, to the power
    1 / ``gate_logit_normalizer``. Parameters are called as in flash-linear-attention's layer.

    Args:
        hidden_size: of input and output.
        num_heads: independent states.
        expand_k, expand_v: size of all keys, and of all values, relative to ``hidden_size``.
        gate_low_rank_dim: rank of the decay's projection.
        gate_logit_normalizer: the larger, the slower states decay.
        norm_eps: of the norm behind the cell.
        engine: as of ``elman.Recurrent``.

    Raises:
        ShapeError: heads do not divide the sizes.
        InputError: a size is no positive integer, or a number not positive.

    Example:
        >>> layer = elman.layers.GatedLinearAttention(32, num_heads=2)
        >>> out, state = layer(torch.randn(10, 3, 32))
        >>> out.shape, state[-1].shape
        (torch.Size([10, 3, 32]), torch.Size([1, 3, 2, 8, 16]))
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        num_heads: int = 4,
        expand_k: float = 0.5,
        expand_v: float = 1.0,
        gate_low_rank_dim: int = 16,
        gate_logit_normalizer: float = 16.0,
        norm_eps: float = 1e-5,
        engine: str = "auto",
    ) -> None:
        check_sizes(
            hidden_size=hidden_size, num_heads=num_heads, gate_low_rank_dim=gate_low_rank_dim
        )
        check_positive(expand_k=expand_k, expand_v=expand_v, norm_eps=norm_eps)
        check_positive(gate_logit_normalizer=gate_logit_normalizer)
        K = part_size("expand_k · hidden_size", hidden_size * expand_k, num_heads)
        V = part_size("expand_v · hidden_size", hidden_size * expand_v, num_heads)
        options = {"scale": K**-0.5, "normalizer": gate_logit_normalizer}
        cell = gla_layer.with_options(**options, eps=norm_eps)
        plain = scaled_gla.with_options(**options)
        super().__init__(hidden_size, num_heads, cell, K, V, (), engine, plain)
        keys, values = num_heads * K, num_heads * V
        self.q_proj = nn.Linear(hidden_size, keys, bias=False)
        self.k_proj = nn.Linear(hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(hidden_size, values, bias=False)
        self.g_proj = nn.Linear(hidden_size, values, bias=False)
        self.gk_proj = nn.Sequential(
            nn.Linear(hidden_size, gate_low_rank_dim, bias=False),
            nn.Linear(gate_low_rank_dim, keys),
        )
        self.g_norm_swish_gate = RMSNorm(V, norm_eps, engine)
        self.o_proj = nn.Linear(values, hidden_size, bias=False)

    @for_layers
    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run all steps of x [T, B, hidden_size] from a state, zeros if None.

        Returns:
            out [T, B, hidden_size], and the state: S [1, B, heads, K, V] alone.

        Raises:
            ShapeError: x or the state has another form.
        """
        _, inside = self._split_state(x, state)
        projections = (self.q_proj, self.k_proj, self.v_proj, self.gk_proj, self.g_proj)
        inputs = [split_heads(project(x), self.heads) for project in projections]
        norm = self.g_norm_swish_gate
        if is_fused(x):
            y, last = self._run_cell(inputs, inside, [norm.weight.expand(self.heads, -1)])
        else:
            *inputs, gate = inputs
            y, last = self._run_cell(inputs, inside, cell=self.plain)
            y = norm(y) * F.silu(gate)
        return self.o_proj(y.flatten(2)), last

"""The layer of Mamba-2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elman.frontend.cell import cell
from elman.functional.state_spaces import biased_mamba2
from elman.layers.arguments import check_positive, check_sizes, for_layers, part_size
from elman.layers.parts import Layer, RMSNorm, ShortConvolution, State, draw_time_steps, split_heads
from elman.ops import silu


@cell(input="x[P], dt, B[N], C[N], z[P]", static="A, D, bias", state="S[P, N]", output="y[P]")
def mamba2_layer(x: Any, dt: Any, B: Any, C: Any, z: Any, A: Any, D: Any, bias: Any, S: Any) -> Any:
    """Step sizes behind a bias and softplus, the skip D x, and a gate."""
    y, S = biased_mamba2(x, dt, B, C, A, D, bias, S, positive=True)
    return y * silu(z), S


class Mamba2(Layer):
    """The layer of Mamba-2 (Dao & Gu 2024, arXiv:2405.21060v1, section 7), around
    ``cells.mamba2``.

    One projection gives the gate, the input, B, C and the time steps; B and C are the same for all
    heads. Parameters are called as in the authors' ``Mamba2``.

    Args:
        hidden_size: of input and output, the authors' ``d_model``.
        d_state: N, states of each channel.
        d_conv: steps that the short convolution sees.
        expand: size of the inner input relative to ``hidden_size``.
        headdim: P, channels of a head.
        norm_eps: of the norm behind the cell.
        engine: as of ``elman.Recurrent``.

    Raises:
        ShapeError: ``headdim`` does not divide ``expand · hidden_size``.
        InputError: a size is no positive integer, or ``norm_eps`` not positive.

    Example:
        >>> layer = elman.layers.Mamba2(32, d_state=8, headdim=16)
        >>> out, state = layer(torch.randn(10, 3, 32))
        >>> out.shape, state[-1].shape
        (torch.Size([10, 3, 32]), torch.Size([1, 3, 4, 16, 8]))
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        d_state: int = 128,
        d_conv: int = 4,
        expand: int = 2,
        headdim: int = 64,
        norm_eps: float = 1e-5,
        engine: str = "auto",
    ) -> None:
        check_sizes(hidden_size=hidden_size, headdim=headdim, expand=expand)
        check_sizes(d_state=d_state, d_conv=d_conv)
        check_positive(norm_eps=norm_eps)
        inner = expand * hidden_size
        heads = part_size("expand · hidden_size", inner, headdim, "units of a head (headdim)")
        pasts = [(d_conv - 1, inner + 2 * d_state)]
        super().__init__(hidden_size, heads, mamba2_layer, headdim, d_state, pasts, engine)
        self.inner, self.d_state = inner, d_state
        self.in_proj = nn.Linear(hidden_size, 2 * inner + 2 * d_state + heads, bias=False)
        self.conv1d = ShortConvolution(inner + 2 * d_state, d_conv, True, engine)
        self.dt_bias = nn.Parameter(draw_time_steps(heads))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = RMSNorm(inner, norm_eps, engine)
        self.out_proj = nn.Linear(inner, hidden_size, bias=False)

    @for_layers
    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run all steps of x [T, B, hidden_size] from a state, zeros if None.

        Returns:
            out [T, B, hidden_size].
            state: the last ``d_conv - 1`` inputs of the convolution [·, B, ·], and S
                [1, B, heads, P, N].

        Raises:
            ShapeError: x or the state has another form.
        """
        (past,), inside = self._split_state(x, state)
        mixed = self.inner + 2 * self.d_state
        z, inputs, dt = self.in_proj(x).split([self.inner, mixed, self.heads], -1)
        inputs, past = self.conv1d(inputs, past)
        u, B, C = inputs.split([self.inner, self.d_state, self.d_state], -1)
        u, z = (split_heads(part, self.heads) for part in (u, z))
        B, C = (part.unsqueeze(2).expand(*u.shape[:3], self.d_state) for part in (B, C))
        static = (-self.A_log.exp(), self.D, self.dt_bias)
        y, last = self._run_cell((u, dt, B, C, z), inside, static)
        return self.out_proj(self.norm(y.flatten(2))), (past, *last)

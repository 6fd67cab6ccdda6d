"""The layers of state spaces that are diagonal: LRU and S4D."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.cells import lru, s4d, s4d_frequencies
from elman.checks import check_number
from elman.layers.arguments import check_positive, check_sizes, part_size
from elman.layers.parts import CellLayer, State


class LRU(CellLayer):
    """The layer of the linear recurrent unit (Orvieto et al. 2023, arXiv:2303.06349v1):
    ``cells.lru``, GELU and a gated linear unit. As many modes as channels.

    Args:
        hidden_size: of input and output.
        r_min, r_max: the ring from which the eigenvalues are drawn evenly.
        max_phase: their largest angle (radians).
        engine: as of ``elman.Recurrent``.

    Raises:
        InputError: ``hidden_size`` is no positive integer, or the ring is not in the unit disk.

    Example:
        >>> layer = elman.layers.LRU(32)
        >>> out, state = layer(torch.randn(10, 3, 32))
        >>> out.shape, len(state)
        (torch.Size([10, 3, 32]), 2)
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        r_min: float = 0.9,
        r_max: float = 0.999,
        max_phase: float = 2 * math.pi,
        engine: str = "auto",
    ) -> None:
        check_number("r_max", r_max, 0.0, 1.0)
        check_number("r_min", r_min, 0.0, r_max)
        check_positive(max_phase=max_phase)
        super().__init__(hidden_size, lru, hidden_size, engine)
        squares = torch.empty(hidden_size).uniform_(r_min**2, r_max**2)
        with torch.no_grad():
            self.cell.get_parameter("nu_l0").copy_((-0.5 * squares.log()).log())
            phases = max_phase * (1 - torch.rand(hidden_size))
            self.cell.get_parameter("theta_l0").copy_(phases.log())
        self.out1 = nn.Linear(hidden_size, hidden_size)
        self.out2 = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run all steps of x [T, B, hidden_size] from a state, zeros if None.

        Returns:
            out [T, B, hidden_size].
            state: real and imaginary parts, [1, B, 1, hidden_size] each.

        Raises:
            ShapeError: x or the state has another form.
        """
        y, last = super().forward(x, state)
        y = F.gelu(y)
        return self.out1(y) * torch.sigmoid(self.out2(y)), last


class S4D(CellLayer):
    """The layer of S4D (Gu, Gupta, Goel & Ré 2022, arXiv:2206.11893) as in the authors' ``S4D``:
    ``cells.s4d`` with a skip, GELU and a gated linear unit.

    Args:
        hidden_size: of input and output, the authors' ``d_model``.
        d_state: N, of each channel; modes come in conjugate pairs, of which one is computed.
        engine: as of ``elman.Recurrent``.

    Raises:
        ShapeError: ``d_state`` is odd.
        InputError: a size is no positive integer.

    Example:
        >>> layer = elman.layers.S4D(32, d_state=16)
        >>> out, state = layer(torch.randn(10, 3, 32))
        >>> out.shape, state[0].shape
        (torch.Size([10, 3, 32]), torch.Size([1, 3, 1, 256]))
    """

    def __init__(self, hidden_size: int, *, d_state: int = 64, engine: str = "auto") -> None:
        check_sizes(d_state=d_state, hidden_size=hidden_size)
        modes = part_size("d_state", d_state, 2, "conjugate modes")
        super().__init__(hidden_size, s4d, modes * hidden_size, engine)
        with torch.no_grad():
            s4d_frequencies(modes)(self.cell.get_parameter("A_imag_l0"))
        self.D = nn.Parameter(torch.randn(hidden_size))
        self.output_linear = nn.Linear(hidden_size, 2 * hidden_size)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run all steps of x [T, B, hidden_size] from a state, zeros if None.

        Returns:
            out [T, B, hidden_size].
            state: real and imaginary parts, [1, B, 1, hidden_size · d_state / 2] each.

        Raises:
            ShapeError: x or the state has another form.
        """
        y, last = super().forward(x, state)
        y = F.gelu(y + self.D * x)
        return F.glu(self.output_linear(y)), last

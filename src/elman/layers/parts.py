"""What published layers have in common: heads as samples, short convolutions, norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.checks import check_size
from elman.errors import InputError, ShapeError
from elman.frontend.cell import Cell
from elman.nn import Recurrent

State = tuple[Tensor, ...]


class Layer(nn.Module):
    """A layer around a cell with several heads, which are samples of the cell.

    Args:
        hidden_size: of input and output.
        heads: states of each sample.
        cell: of matrix states.
        rows, columns: sizes of the cell's first input, and of the last axis of its first state.
        pasts: numbers of steps and channels of what is kept of earlier inputs.
        engine: as of ``Recurrent``.

    Raises:
        InputError: ``hidden_size`` is no positive integer.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        cell: Cell,
        rows: int,
        columns: int,
        pasts: Sequence[tuple[int, int]],
        engine: str,
    ) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size)
        self.hidden_size, self.heads, self._pasts = hidden_size, heads, (*pasts,)
        self.cell = Recurrent(cell, rows, columns, engine=engine)

    def state_shapes(self, batch: int) -> list[list[int]]:
        """Shapes of the tensors of a state: pasts, then what the cell's states are."""
        inside = [[1, batch, self.heads, *size] for size in self.cell.runtime.state_sizes]
        return [*([steps, batch, channels] for steps, channels in self._pasts), *inside]

    def _split_state(self, x: Tensor, state: State | None) -> tuple[list[Any], State | None]:
        """The pasts of a state, and the cell's states. Raises ShapeError: x is not
        [T, B, hidden_size], or the state is that of something else."""
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[-1] != self.hidden_size:
            shape = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(f"x must be [T, B, {self.hidden_size}], got {shape}")
        count = len(self._pasts)
        if state is None:
            return [None] * count, None
        shapes, expected = [list(part.shape) for part in state], self.state_shapes(x.shape[1])
        if shapes != expected:
            raise ShapeError(f"the state must be a tuple of {expected}, got {shapes}")
        return list(state[:count]), state[count:]

    def _run_cell(
        self, inputs: Sequence[Tensor], state: State | None, static: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run all steps, in float32 at least: states of half precision lose what is small.

        Args:
            inputs [T, B, heads, ·], or [T, B, heads] of scalars: the cell's.
            state [1, B, heads, ..]: those of the cell; zeros if None.
            static [heads]: the cell's static input, the same for every sample.

        Returns:
            out [T, B, heads, ·], and the states after the last step.
        """
        B, heads = inputs[0].shape[1:3]
        dtype = torch.promote_types(inputs[0].dtype, torch.float32)
        folded = tuple(x.flatten(1, 2).to(dtype) for x in inputs)
        begin = None if state is None else tuple(part.flatten(1, 2).to(dtype) for part in state)
        more = {} if static is None else {"static": static.repeat(B).to(dtype)}
        alone = begin[0] if begin is not None and len(begin) == 1 else begin
        half = {
            name: weight.to(dtype)
            for name, weight in self.cell.named_parameters()
            if weight.dtype.itemsize < dtype.itemsize <= torch.float32.itemsize
        }
        with torch.autocast(inputs[0].device.type, enabled=False):
            if half:
                out, last = functional_call(self.cell, half, (folded, alone), more)
            else:
                out, last = self.cell(folded, alone, **more)
        ends = last if isinstance(last, tuple) else (last,)
        return out.unflatten(1, (B, heads)), tuple(end.unflatten(1, (B, heads)) for end in ends)


class CellLayer(Layer):
    """A cell of one input, without heads.

    Args:
        hidden_size: of input and output.
        cell: reads one vector and returns one.
        units: of its first state.
        engine: as of ``Recurrent``.

    Raises:
        InputError: the cell's output has another size than its input.
    """

    def __init__(self, hidden_size: int, cell: Cell, units: int, engine: str) -> None:
        super().__init__(hidden_size, 1, cell, hidden_size, units, (), engine)
        if self.cell.output_size != hidden_size:
            raise InputError(
                f"the output of {cell.name} has {self.cell.output_size} units, its input "
                f"{hidden_size}: a residual block cannot add them"
            )

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run all steps of x [T, B, hidden_size] from a state, zeros if None.

        Returns:
            out [T, B, hidden_size], and the cell's states, [1, B, 1, n] each.

        Raises:
            ShapeError: x or the state has another form.
        """
        _, inside = self._split_state(x, state)
        y, last = self._run_cell((x.unsqueeze(2),), inside)
        return y.squeeze(2).to(x.dtype), last


class RMSNorm(nn.RMSNorm):
    """Normalisation by the root mean square, in the dtype of the gains."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return super().forward(x.to(self.weight.dtype))


class ShortConvolution(nn.Conv1d):
    """A causal convolution over few steps, each channel by itself, and silu.

    Args:
        channels: C.
        steps: how many it sees, the present one included.
        bias: whether it has one.
    """

    def __init__(self, channels: int, steps: int, bias: bool = False) -> None:
        super().__init__(channels, channels, steps, groups=channels, bias=bias)

    def forward(self, x: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Convolve x [T, B, C] after the steps before, past [steps - 1, B, C], zeros if None.

        Returns:
            out [T, B, C], and the past of the next step.
        """
        T, steps = x.shape[0], self.kernel_size[0]  # len() would fix T in an export
        if past is None:
            past = x.new_zeros(steps - 1, *x.shape[1:])
        window = torch.cat((past, x))
        out = sum(window[k : k + T] * self.weight[:, 0, k] for k in range(steps))
        assert isinstance(out, Tensor)
        return F.silu(out if self.bias is None else out + self.bias), window[T:]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Cut the last axis, [.., heads · n], into [.., heads, n]."""
    return x.unflatten(-1, (heads, -1))


def unit(x: Tensor) -> Tensor:
    """Vectors of norm 1 along the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def head_norm(heads: int, channels: int, eps: float, bias: bool) -> nn.GroupNorm:
    """Layer normalisation of each head, with gains, and perhaps biases, of each channel."""
    norm = nn.GroupNorm(heads, channels, eps=eps)
    if not bias:
        norm.register_parameter("bias", None)
    return norm


def normalise_heads(norm: nn.GroupNorm, x: Tensor) -> Tensor:
    """Apply a :func:`head_norm` to x [T, B, heads, n]: [T, B, heads · n]."""
    rows = x.flatten(0, 1).flatten(1).to(norm.weight.dtype)
    return norm(rows).unflatten(0, x.shape[:2])


def inverse_softplus(value: Tensor) -> Tensor:
    """What softplus maps to a value."""
    return value + torch.log(-torch.expm1(-value))


def draw_time_steps(count: int) -> Tensor:
    """The inverse softplus of time steps drawn from 0.001 to 0.1, evenly in their logarithm."""
    low, high = math.log(1e-3), math.log(1e-1)
    return inverse_softplus(torch.exp(torch.rand(count) * (high - low) + low))


def part_size(name: str, size: float, parts: int, kind: str = "heads") -> int:
    """The size of each of equal parts. Raises ShapeError: there are none of a whole size."""
    whole = round(size)
    if abs(size - whole) > 1e-6 or whole < 1 or whole % parts:
        raise ShapeError(f"{name} of {size:g} cannot be divided: no multiple of {parts} {kind}")
    return whole // parts


def check_sizes(**sizes: Any) -> None:
    """Raise InputError where one is no positive integer."""
    for name, size in sizes.items():
        check_size(name, size, 1)

"""Parts of published layers: heads as samples, short convolutions, norms.

A layer is projections by torch and cells around them: what lies between the projections is written
in the formula of the layer's cell, so that one kernel computes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812  # torch's own habit
from torch.nn.utils.rnn import PackedSequence

from elman.errors import InputError
from elman.frontend.cell import Cell, cell
from elman.functional.convolutions import short_convolution
from elman.layers.arguments import check_sizes, check_state, check_steps, for_layers
from elman.nn import Recurrent
from elman.ops import mean, sqrt

State = tuple[Tensor, ...]


def divide_by_rms(y: Any, gain: Any, eps: float) -> Any:
    """A vector of a formula divided by its root mean square, times gains."""
    return y / sqrt(mean(y * y) + eps) * gain


@cell(input="x[H]", static="gain[H]", output="y[H]")
def rms_norm(x: Any, gain: Any, *, eps: float = 1e-5) -> Any:
    return divide_by_rms(x, gain, eps)


def standardise(y: Any, eps: float) -> Any:
    """A vector of a formula, with a mean of 0 and a variance of 1."""
    y = y - mean(y)
    return y / sqrt(mean(y * y) + eps)


class Layer(nn.Module):
    """A layer around a cell with several heads, which are samples of the cell.

    Args:
        hidden_size: of input and output.
        heads: states of each sample.
        cell: of matrix states, without weights: what a layer trains are static inputs of it.
        rows, columns: sizes of the cell's first input, and of the last axis of its first state.
        pasts: numbers of steps and channels of what is kept of earlier inputs.
        engine: as of ``Recurrent``.
        plain: the cell without the norm and gate behind it, for devices other than a CPU: programs
            of a GPU divide a matrix's columns, which a norm over them would not allow.

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
        plain: Cell | None = None,
    ) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size)
        self.hidden_size, self.heads, self._pasts = hidden_size, heads, (*pasts,)
        self.cell = Recurrent(cell, rows, columns, engine=engine)
        self.plain = plain and Recurrent(plain, rows, columns, engine=engine)

    def state_shapes(self, batch: int) -> list[list[int]]:
        """Shapes of the tensors of a state: pasts, then what the cell's states are."""
        inside = [[1, batch, self.heads, *size] for size in self.cell.runtime.state_sizes]
        return [*([steps, batch, channels] for steps, channels in self._pasts), *inside]

    def _split_state(self, x: Tensor, state: State | None) -> tuple[list[Any], State | None]:
        """The pasts of a state, and the cell's states. Raises ShapeError: x is not
        [T, B, hidden_size], or the state is that of something else."""
        check_steps(x, self.hidden_size)
        count = len(self._pasts)
        if state is None:
            return [None] * count, None
        check_state(state, self.state_shapes(x.shape[1]))
        return list(state[:count]), state[count:]

    def _run_cell(
        self,
        inputs: Sequence[Tensor],
        state: State | None,
        static: Sequence[Tensor] = (),
        cell: Recurrent | None = None,
    ) -> tuple[Tensor, State]:
        """Run all steps, in float32 at least: states of half precision lose what is small.

        Args:
            inputs [T, B, heads, ·], or [T, B, heads] of scalars: the cell's.
            state [1, B, heads, ..]: those of the cell; zeros if None.
            static [heads, ..]: the cell's static inputs, the same for every sample.
            cell: what runs; None: the layer's cell.

        Returns:
            out [T, B, heads, ·], of the dtype of the inputs and static inputs, and the states after
            the last step.
        """
        B, heads = inputs[0].shape[1:3]
        folded = tuple(x.flatten(1, 2) for x in inputs)
        begin = None if state is None else tuple(part.flatten(1, 2) for part in state)
        fixed = tuple(value.expand(B, *value.shape).flatten(0, 1) for value in static)
        out, last = run_in_single(cell or self.cell, folded, begin, fixed)
        return out.unflatten(1, (B, heads)), tuple(end.unflatten(1, (B, heads)) for end in last)


def is_fused(x: Tensor) -> bool:
    """Whether a layer runs the cell whose formula has the norm and gate: on a CPU."""
    return x.device.type == "cpu"


def is_worth_a_loop(x: Tensor) -> bool:
    """Whether work on [T, B, ·] that needs no recurrence is faster by a cell than by torch: on a
    CPU, which computes all in one pass over several steps."""
    return x.device.type == "cpu" and x.shape[0] > 1


def check_adds(cell: str, input_size: int, output_size: int) -> None:
    """Raise InputError where a residual block cannot add a layer's input to its output."""
    if output_size != input_size:
        raise InputError(
            f"the output of {cell} has {output_size} units, its input {input_size}: a residual "
            "block cannot add them"
        )


def first_output(out: Any) -> Any:
    """The first of several outputs of a layer, which the layer above reads; a single output, packed
    or not, as it is."""
    return out[0] if isinstance(out, tuple) and not isinstance(out, PackedSequence) else out


def run_in_single(
    layer: Recurrent, inputs: Sequence[Tensor], state: State | None, static: Sequence[Tensor]
) -> tuple[Tensor, State]:
    """Run a cell in float32 at least, whatever the dtype of its inputs and weights is.

    Returns:
        out: the (first) output, in the common dtype of inputs and static inputs.
        state: after the last step, in float32 at least.
    """
    given = inputs[0].dtype
    for value in (*inputs, *static):
        given = torch.promote_types(given, value.dtype)
    dtype = torch.promote_types(given, torch.float32)
    begin = state and tuple(part.to(dtype) for part in state)
    more = {"static": tuple(value.to(dtype) for value in static)} if static else {}
    half = {
        name: weight.to(dtype)
        for name, weight in layer.named_parameters()
        if weight.dtype.itemsize < dtype.itemsize <= torch.float32.itemsize
    }
    arguments = (
        tuple(x.to(dtype) for x in inputs),
        begin[0] if begin is not None and len(begin) == 1 else begin,
    )
    with torch.autocast(inputs[0].device.type, enabled=False):
        if half:
            out, last = functional_call(layer, half, arguments, more)
        else:
            out, last = layer(*arguments, **more)
    return first_output(out).to(given), last if isinstance(last, tuple) else (last,)


class CellLayer(Layer):
    """A cell of one input, without heads.

    Args:
        hidden_size: of input and output.
        cell: reads one vector and returns one.
        units: of its first state.
        engine: as of ``Recurrent``.

    Raises:
        InputError: the cell's output is not one vector, or has another size than its input.
    """

    def __init__(self, hidden_size: int, cell: Cell, units: int, engine: str) -> None:
        super().__init__(hidden_size, 1, cell, hidden_size, units, (), engine)
        check_adds(cell.name, hidden_size, self.cell.output_size)

    @for_layers
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
    """Normalisation by the root mean square, in the dtype of the gains.

    Args:
        size: of the last axis.
        eps: added to the mean square.
        engine: as of ``Recurrent``.
    """

    def __init__(self, size: int, eps: float, engine: str = "auto") -> None:
        super().__init__(size, eps=eps)
        self.cell = Recurrent(rms_norm.with_options(eps=eps), size, size, engine=engine)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of x [T, B, .., size]."""
        gain = self.weight
        if not is_worth_a_loop(x):
            return super().forward(x.to(gain.dtype))
        rows = x.flatten(1, -2)
        out, _ = run_in_single(self.cell, (rows,), None, (gain.expand(rows.shape[1], -1),))
        return out.view(x.shape).to(gain.dtype)


class ShortConvolution(nn.Conv1d):
    """A causal convolution over few steps, each channel by itself, and silu.

    Args:
        channels: C.
        steps: how many it sees, the present one included.
        bias: whether it has one.
        engine: as of ``Recurrent``.
    """

    def __init__(self, channels: int, steps: int, bias: bool = False, engine: str = "auto") -> None:
        super().__init__(channels, channels, steps, groups=channels, bias=bias)
        self.cell = None
        if steps > 1:
            sizes: dict[str, Any] = {"M": steps - 1, "engine": engine}
            self.cell = Recurrent(short_convolution, channels, channels, **sizes)

    def forward(self, x: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Convolve x [T, B, C] after the steps before, past [steps - 1, B, C], zeros if None.

        Returns:
            out [T, B, C], and the past of the next step.
        """
        T, B, C = x.shape  # len() would fix T in an export
        steps = self.kernel_size[0]
        if past is None:
            past = x.new_zeros(steps - 1, B, C)
        weights = self.weight[:, 0].mT  # [steps, C]
        if self.cell is None or not is_worth_a_loop(x):
            window = torch.cat((past, x))
            out = torch.stack([window[k : k + T] * weights[k] for k in range(steps)]).sum(0)
            return F.silu(out if self.bias is None else out + self.bias), window[T:]
        bias = weights.new_zeros(C) if self.bias is None else self.bias
        static = [value.expand(B, *value.shape) for value in (weights[-1], weights[:-1], bias)]
        out, last = run_in_single(self.cell, (x,), (past.transpose(0, 1)[None],), static)
        return out, last[0][0].transpose(0, 1).to(x.dtype).contiguous()


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Cut the last axis, [.., heads · n], into [.., heads, n]."""
    return x.unflatten(-1, (heads, -1))


def head_norm(heads: int, channels: int, eps: float, bias: bool) -> nn.GroupNorm:
    """Layer normalisation of each head, with gains, and perhaps biases, of each channel."""
    norm = nn.GroupNorm(heads, channels, eps=eps)
    if not bias:
        norm.register_parameter("bias", None)
    return norm


def inverse_softplus(value: Tensor) -> Tensor:
    """What softplus maps to a value."""
    return value + torch.log(-torch.expm1(-value))


def draw_time_steps(count: int) -> Tensor:
    """The inverse softplus of time steps drawn from 0.001 to 0.1, evenly in their logarithm."""
    low, high = math.log(1e-3), math.log(1e-1)
    return inverse_softplus(torch.exp(torch.rand(count) * (high - low) + low))

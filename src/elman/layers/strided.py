"""Layers of groups of units, each of which reads its own state of some steps before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.cell_files import find_sequence_cell
from elman.checks import check_dropout, check_flag, check_list, shown
from elman.errors import EngineError, InputError, ShapeError
from elman.frontend.cell import Cell
from elman.layers.arguments import check_sizes, check_steps, each, for_layers, part_size
from elman.layers.parts import check_adds, first_output
from elman.nn import Recurrent
from elman.nn.engine_choice import shards_time

States = tuple[Any, ...]  # of each group: a tensor, or a tuple of them


class Strided(nn.Module):
    """Recurrent layers of groups of units: that of stride s reads its state of s steps before.
    A long stride makes a long memory of few steps, and s times as many samples for each of them.

    Source: strides of the multi-head GRU of Lim et al. 2024 (arXiv:2309.12252v3, section 4.4);
    as dilations, Chang et al. 2017 (arXiv:1710.02224).

    Args:
        cell: a cell of one input, or its name.
        input_size: of x.
        hidden_size: units of a layer, divided among the groups; of a cell whose (first) output has
            as many units as its first state, the size of the output.
        strides: of each group, in steps.
        num_layers: number of layers; each reads the outputs of all groups of the one before.
        dropout: share of values dropped after each layer but the last, in training.
        heads: of each layer, divided among the groups.
        engine: as of ``elman.Recurrent``.
        options: others of ``elman.Recurrent``, without ``bidirectional``: a step of the reversed
            sequence would read the state of s steps after it.

    Raises:
        InputError: there is no such cell or option, the cell's first output is no vector,
            ``residual`` adds layers of unlike size, or a size or stride is no positive integer.
        ShapeError: ``hidden_size`` or ``heads`` cannot be divided among the groups.

    Example:
        >>> net = elman.layers.Strided("gru", 4, 32, strides=(1, 2, 4, 8))
        >>> out, states = net(torch.randn(50, 3, 4))
        >>> later, states = net(torch.randn(1, 3, 4), states)
        >>> out.shape, [tuple(state.shape) for state in states]
        (torch.Size([50, 3, 32]), [(1, 3, 8), (2, 3, 8), (4, 3, 8), (8, 3, 8)])
    """

    def __init__(
        self,
        cell: str | Cell,
        input_size: int,
        hidden_size: int,
        strides: Sequence[int] = (1, 2, 4, 8),
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        heads: int = 1,
        batch_first: bool = False,
        residual: bool = False,
        bidirectional: bool = False,
        engine: str = "auto",
        **options: Any,
    ) -> None:
        super().__init__()
        check_sizes(input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        check_sizes(heads=heads)
        check_list("strides", strides, "strides=(1, 2, 4)")
        if check_flag("bidirectional", bidirectional):
            raise InputError("bidirectional=True: strided layers run in one direction only")
        self.input_size = input_size
        self.batch_first = check_flag("batch_first", batch_first)
        self.residual = check_flag("residual", residual)
        self.strides = tuple(strides)
        if not self.strides:
            raise InputError("strides are none: give one for each group, as (1, 2, 4)")
        for stride in self.strides:
            check_sizes(stride=stride)
        groups = len(self.strides)
        units = part_size("hidden_size", hidden_size, groups, "groups (strides)")
        if heads > 1:
            options["heads"] = part_size("heads", heads, groups, "groups (strides)")
        made, size = find_sequence_cell(cell), input_size
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            layer = [Recurrent(made, size, units, engine=engine, **options) for _ in self.strides]
            self.layers.append(nn.ModuleList(layer))
            below, size = size, sum(group.output_size for group in layer)
            if self.residual and len(self.layers) > 1:
                check_adds(made.name, below, size)
        self.output_size = size
        self.dropout = nn.Dropout(check_dropout(dropout, num_layers))

    @for_layers
    def forward(self, x: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        """Run all steps of x [T, B, input_size]; [B, T, input_size] with ``batch_first``;
        [T, input_size] unbatched.

        Args:
            states: of each layer and group those of its last s steps, [s, B, n], the oldest first
                (a tuple of them for a cell of several states); no B if unbatched. Zeros if None.

        Returns:
            out [T, B, hidden_size] (of several outputs the first), laid out as x, and the states
            of the last steps.

        Raises:
            ShapeError: x is not [T, B, input_size], or states are not of so many groups.
            EngineError: inside :func:`elman.shard_time` T is no multiple of a stride.
        """
        check_steps(x, self.input_size)
        if shards_time() and any(x.shape[0] % stride for stride in self.strides):
            problem = f"inside shard_time T is a multiple of each stride, got {x.shape[0]}"
            raise EngineError(problem, strides=self.strides)
        groups = [group for layer in self.layers for group in cast(nn.ModuleList, layer)]
        if states is None:
            states = (None,) * len(groups)
        if not isinstance(states, (tuple, list)) or len(states) != len(groups):
            count = len(states) if isinstance(states, (tuple, list)) else shown(states)
            raise ShapeError(f"states must be of {len(groups)} groups, got {count}")
        before = iter(states)
        ends: list[Any] = []
        for k, layer in enumerate(self.layers):
            outputs: list[Tensor] = []
            for group, stride in zip(cast(nn.ModuleList, layer), self.strides, strict=True):
                output, end = _run(group, x, next(before), stride)
                outputs.append(output)
                ends.append(end)
            joined = torch.cat(outputs, -1)
            if k + 1 < len(self.layers):
                joined = self.dropout(joined)
            x = x + joined if self.residual and k else joined
        return x, tuple(ends)


def _run(group: nn.Module, x: Tensor, states: Any, stride: int) -> tuple[Tensor, Any]:
    """Run a group: every stride-th step is a sequence of its own, which is a sample.

    Args:
        x [T, B, I]: all steps.
        states [stride, B, n]: those of the steps before, or None.
        stride: s.

    Returns:
        out [T, B, H], and the states of the last s steps.
    """
    T, B = x.shape[:2]
    several = states if isinstance(states, (tuple, list)) else (states,)
    for part in several if states is not None else ():
        if not isinstance(part, Tensor) or part.shape[:2] != (stride, B):
            found = list(part.shape) if isinstance(part, Tensor) else shown(part)
            raise ShapeError(f"states of stride {stride} must be [{stride}, {B}, n], got {found}")
    if stride == 1:
        out, end = group(x, states)
        return first_output(out), end
    missing = -T % stride
    more: dict[str, Tensor] = {}  # dict[str, Tensor]() is what torch's compiler cannot trace
    rows = (T + missing) // stride
    if missing:
        x = F.pad(x, (0, 0, 0, 0, 0, missing))
        mask = torch.arange(rows * stride, device=x.device).lt(T).view(rows, stride, 1)
        more["mask"] = mask.expand(rows, stride, B).flatten(1)
    folded = x.unflatten(0, (rows, stride)).flatten(1, 2)
    begin = None
    if states is not None:
        begin = each(states, lambda state: state.flatten(0, 1).unsqueeze(0))
    out, end = group(folded, begin, **more)
    out = first_output(out).unflatten(1, (stride, B)).flatten(0, 1)[:T]
    oldest = T % stride  # which of the sequences has the next step
    return out, each(end, lambda last: last[0].unflatten(0, (stride, B)).roll(-oldest, 0))

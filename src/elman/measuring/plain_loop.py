"""A layer beside the plain loop of its cell: its formula, step by step, in torch's operators."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor

from elman.ir.types import shape_size
from elman.nn.modules.recurrent import Recurrent
from elman.nn.records import choices

Named = dict[str, Tensor]


class Pairing:
    """A module of one layer and its plain loop, on the same random inputs and cotangents.

    Args:
        net: in evaluation mode.
        plain: the same on engine reference, which runs the loop under autograd.
        steps, batch: T and B.
        training: whether gradients are computed too.
    """

    def __init__(
        self, net: Recurrent, plain: Recurrent, steps: int, batch: int, training: bool
    ) -> None:
        self.net, self.plain, self.cell, self.training = net, plain, net.cell, training
        self.name = net.cell.name
        (runner,) = net.runners.values()
        self.dims = dict(runner.dims)
        dtype = next(iter(net.state_dict().values()), torch.empty(0)).dtype

        def draw(sizes: Iterable[tuple[int, ...]], *lead: int) -> list[Tensor]:
            return [torch.randn(*lead, *size).to(dtype) for size in sizes]

        runtime = net.runtime
        outputs = [shape_size(value.shape, self.dims) for value in runner.cell.graph.outputs]
        self.inputs = draw(runtime.input_sizes, steps, batch)
        self.static = draw(runtime.static_sizes, batch)
        self.dy = draw(outputs, steps, batch, *runtime.head_axis)

    def fused(self) -> Named:
        """Run elman's kernel, forward and backward; all results by name."""
        return self._run(self.net)

    def loop(self) -> Named:
        """Run the loop, forward and backward; all results by name."""
        return self._run(self.plain)

    def double(self) -> Named:
        """Results of the loop in float64 for the same numbers."""
        wide = copy(self)
        wide.plain = deepcopy(self.plain).double()
        wide.inputs, wide.static, wide.dy = (
            [value.double() for value in values] for values in (self.inputs, self.static, self.dy)
        )
        return wide.loop()

    def first(self, steps: int) -> Pairing:
        """A copy over the first steps only."""
        short = copy(self)
        short.inputs = [value[:steps] for value in self.inputs]
        short.dy = [value[:steps] for value in self.dy]
        return short

    def ran(self) -> dict[str, Any]:
        """Engine and schedule of the kernel."""
        return next(iter(next(iter(choices(self.net).values())).values()))

    def _run(self, net: Recurrent) -> Named:
        cell = self.cell
        names = [entry.name for entry in (*cell.inputs, *cell.static, *cell.weights)]
        weights = [getattr(net, f"{entry.name}_l0") for entry in self.cell.weights]
        inputs, static = (
            [value.detach().requires_grad_(self.training) for value in values]
            for values in (self.inputs, self.static)
        )
        with torch.set_grad_enabled(self.training):
            out, state = net(_plain(inputs), static=_plain(static))
        outputs = [*out] if isinstance(out, tuple) else [out]
        ends = state if isinstance(state, tuple) else () if state is None else (state,)
        results = {"output": _side_by_side(outputs)}
        for entry, end in zip(self.cell.states, ends, strict=True):
            results[f"last {entry.name}"] = end[0].detach()
        if not self.training:
            return results
        leaves = zip(names, [*inputs, *static, *weights], strict=True)
        wanted = {f"gradient of {name}": leaf for name, leaf in leaves if leaf.requires_grad}
        pairs = zip(self.dy, outputs, strict=True)  # outputs may be matrices
        dy = [d.to(output.dtype).view_as(output) for d, output in pairs]
        options: Any = {"allow_unused": True, "materialize_grads": True}
        gradients = torch.autograd.grad(outputs, [*wanted.values()], dy, **options)
        return results | dict(zip(wanted, gradients, strict=True))


def _plain(values: list[Tensor]) -> Any:
    """Arguments as a module takes them: a tuple of several, one as it is, None for none."""
    return tuple(values) if len(values) > 1 else next(iter(values), None)


def _side_by_side(outputs: list[Tensor]) -> Tensor:
    """Several outputs [T, B, n] or [T, B] as one; one as it is."""
    if len(outputs) == 1:
        return outputs[0].detach()
    return torch.cat([v.reshape(*v.shape[:2], -1) for v in outputs], -1).detach()

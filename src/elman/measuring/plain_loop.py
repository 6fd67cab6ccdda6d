"""The plain loop of any cell: its formula, step by step, in torch's operations, under autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from elman.engines.call import Call
from elman.engines.reference.engine import steps as loop_over
from elman.ir.types import shape_size
from elman.nn.modules.recurrent import Recurrent
from elman.passes.draws import expected

Named = dict[str, Tensor]
Outcome = tuple[list[Tensor], list[Tensor]]  # outputs, last states


class Pairing:
    """A module of one layer and its plain loop, on the same random inputs and cotangents.

    Args:
        net: in evaluation mode.
        steps, batch: T and B.
        training: whether gradients are computed too.
    """

    def __init__(self, net: Recurrent, steps: int, batch: int, training: bool) -> None:
        self.net, self.cell, self.training = net, net.cell, training
        self.graph = expected(self.cell.graph)
        (runner,) = net.runners.values()
        self.dims = dict(runner.dims)
        weight = next(iter(net.state_dict().values()), torch.empty(0))
        self.dtype, rate = weight.dtype, (steps, batch)

        def draw(lead: tuple[int, ...], shape: Any) -> Tensor:
            return torch.randn(*lead, *shape_size(shape, self.dims)).to(self.dtype)

        self.inputs = {entry.name: draw(rate, entry.shape) for entry in self.cell.inputs}
        self.static = {entry.name: draw((batch,), entry.shape) for entry in self.cell.static}
        self.initial = {
            entry.name: torch.zeros(batch, *shape_size(entry.shape, self.dims), dtype=self.dtype)
            + getattr(net, f"initial_{entry.name}", torch.zeros(1))[0].to(self.dtype)
            for entry in self.cell.states
        }
        self.dy = [draw(rate, entry.shape) for entry in self.graph.outputs]

    @property
    def weights(self) -> Named:
        """Weights of the layer by name."""
        return {entry.name: getattr(self.net, f"{entry.name}_l0") for entry in self.cell.weights}

    def fused(self) -> Any:
        """Run elman's kernel, forward and backward."""
        return self._run(self._by_elman, self.inputs, self.static, self.weights)

    def loop(self) -> Any:
        """Run the loop, forward and backward."""
        return self._run(self._by_loop, self.inputs, self.static, self.weights)

    def results(self, run: Callable[[], Any]) -> Named:
        """Run, and name the results."""
        outputs, last, gradients = run()
        output = _side_by_side(outputs)
        ends = {f"last {entry.name}": v for entry, v in zip(self.cell.states, last, strict=True)}
        return {"output": output.detach(), **{k: v.detach() for k, v in ends.items()}, **gradients}

    def double(self) -> Named:
        """Results of the loop in float64 for the same numbers."""
        values = [
            {name: value.detach().double() for name, value in tensors.items()}
            for tensors in (self.inputs, self.static, self.weights)
        ]
        for name, weight in values[2].items():
            weight.requires_grad_(name not in self.cell.constants)
        return self.results(lambda: self._run(self._by_loop, *values))

    def first(self, steps: int) -> Pairing:
        """A copy over the first steps only."""
        short = object.__new__(Pairing)
        vars(short).update(vars(self))
        short.inputs = {name: value[:steps] for name, value in self.inputs.items()}
        short.dy = [value[:steps] for value in self.dy]
        return short

    def _run(
        self, run: Callable[..., Outcome], inputs: Named, static: Named, weights: Named
    ) -> tuple[list[Tensor], list[Tensor], Named]:
        if not self.training:
            with torch.no_grad():
                return (*run(inputs, static, weights), {})
        arguments = {name: value.detach().requires_grad_() for name, value in inputs.items()}
        leaves = arguments | {name: w for name, w in weights.items() if w.requires_grad}
        outputs, last = run(arguments, static, weights)
        dy = [value.to(output.dtype) for value, output in zip(self.dy, outputs, strict=True)]
        grads = torch.autograd.grad(
            outputs, [*leaves.values()], dy, allow_unused=True, materialize_grads=True
        )
        gradients = {f"gradient of {name}": g for name, g in zip(leaves, grads, strict=True)}
        return outputs, last, gradients

    def _by_elman(self, inputs: Named, static: Named, weights: Named) -> Outcome:
        x: Any = tuple(inputs.values())
        x = x if len(x) > 1 else x[0]
        fixed: Any = tuple(static.values())
        fixed = (fixed if len(fixed) > 1 else fixed[0]) if fixed else None
        out, state = self.net(x, static=fixed)
        ends = state if isinstance(state, tuple) else () if state is None else (state,)
        return [*out] if isinstance(out, tuple) else [out], [end[0] for end in ends]

    def _by_loop(self, inputs: Named, static: Named, weights: Named) -> Outcome:
        first = next(iter(inputs.values()))
        steps, dtype = len(first), first.dtype
        fixed = [value.expand(steps, *value.shape) for value in static.values()]
        states = tuple(value.to(dtype) for value in self.initial.values())
        call = Call((*inputs.values(), *fixed), states, tuple(weights.values()))
        rows = [(row, after) for _, after, row in loop_over(self.graph, self.dims, call)]
        outputs = torch.stack([row for row, _ in rows])
        widths = [value[0, 0].numel() for value in self.dy]
        parts = [outputs] if len(widths) == 1 else outputs.split(widths, -1)
        shaped = [part.reshape(dy[:steps].shape) for part, dy in zip(parts, self.dy, strict=True)]
        return shaped, [*rows[-1][1]]


def _side_by_side(outputs: list[Tensor]) -> Tensor:
    """Several outputs [T, B, n] or [T, B] as one; one as it is."""
    if len(outputs) == 1:
        return outputs[0]
    return torch.cat([v if v.dim() > 2 else v.unsqueeze(-1) for v in outputs], -1)

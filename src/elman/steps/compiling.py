"""``torch.compile(f, backend="elman")``: what calls torch's own scan runs it fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from elman.nn.engine_choice import requested_engine
from elman.steps.binding import Binder
from elman.steps.call import Call


class _Scan(nn.Module):
    """One call of torch's scan in a compiled program.

    Args:
        step: of leaves of the carry, of x, and further values; it returns those of the carry and y.
    """

    def __init__(self, step: fx.GraphModule) -> None:
        super().__init__()
        self._step, self._binder = step, Binder()

    def forward(
        self, init: Sequence[Tensor], xs: Sequence[Tensor], further: Sequence[Any] = ()
    ) -> list[Tensor]:
        """Leaves of the last carry, then of the outputs [T, ..]."""
        count, given = len(init), [*further]

        def step(carry: Sequence[Tensor], x: Sequence[Tensor]) -> tuple[Any, Any]:
            results = self._step(*carry, *x, *given)
            return [*results[:count]], [*results[count:]]

        steps = xs[0].shape[0]
        root = self._step, given
        engine = requested_engine("auto")
        call = Call(root, lambda _: step, [*init], [*xs], {}, engine, steps)
        carry, ys = self._binder.run(call)
        return [*carry, *ys]


def backend(program: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """Run a captured program with torch's operations, and each of torch's scans fused.

    Args:
        program: that torch's compiler captured.
    """
    target = getattr(torch.ops.higher_order, "scan", None)
    for number, node in enumerate([*program.graph.nodes]):
        if node.op == "call_function" and node.target is target:
            name, (step, *arguments) = f"elman_scan_{number}", node.args
            program.add_submodule(name, _Scan(getattr(program, step.target)))
            with program.graph.inserting_before(node):
                fused = program.graph.call_module(name, tuple(arguments))
            node.replace_all_uses_with(fused)
            program.graph.erase_node(node)
    program.recompile()
    return program.forward

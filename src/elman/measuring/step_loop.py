"""A step module in torch's operations, run by :class:`elman.Loop`, beside its plain loop."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from elman.errors import InputError
from elman.measuring.plain_loop import Named
from elman.nn.records import choices
from elman.steps.loop import Loop
from elman.torch_internals import pytree


class StepPairing:
    """A step module by :class:`elman.Loop` and by its plain loop, on the same random inputs.

    Args:
        module: of one step, or a class of such, made of the sizes.
        engine: a name, or ``auto``.
        sizes: I and H, which are those of an instance that says so.
        steps, batch: T and B.
        training: whether gradients are computed too.

    Raises:
        InputError: the module takes neither a state [B, H] nor a pair of such, or has other sizes.
    """

    def __init__(
        self,
        module: nn.Module | type[nn.Module],
        engine: str,
        sizes: tuple[int, int],
        steps: int,
        batch: int,
        dtype: torch.dtype,
        training: bool,
    ) -> None:
        made: Any = module(*sizes) if isinstance(module, type) else module
        self.cell: nn.Module = deepcopy(made).to(dtype).eval()
        self.name, self.training = type(made).__name__, training
        options = {"input_size": "--inputs", "hidden_size": "--hidden"}
        for (name, option), size in zip(options.items(), sizes, strict=True):
            own = getattr(made, name, size)
            if own != size:
                hint = f"{name}={own}, or {option} {own}"
                raise InputError(f"{self.name} has {name}={own}, not {size}", hint)
        inputs, hidden = sizes
        self.dims = {"I": inputs, "H": hidden}
        self.net = Loop(self.cell, engine=engine)
        self.x = torch.randn(steps, batch, inputs).to(dtype)
        self.state = self._first_state(torch.zeros(batch, hidden, dtype=dtype))
        out = plain_loop(self.net, self.x[:1], self.state)[0]
        leaves = [v for v in pytree.tree_leaves(out) if isinstance(v, Tensor)]
        self.dy = [torch.randn(steps, *v.shape[1:]).to(v.dtype) for v in leaves]

    def _first_state(self, zeros: Tensor) -> Any:
        reasons: list[str] = []
        for state in (zeros, (zeros, zeros), (zeros, zeros, zeros)):
            try:
                plain_loop(self.net, self.x[:1], state)
            except Exception as error:  # whatever a module makes of a state that it does not take
                reasons.append(str(error).partition("\n")[0])
            else:
                return state
        text = f"{self.name} takes neither a state {[*zeros.shape]} nor several: {reasons[0]}"
        raise InputError(text, "a module cell(x, h) -> h with states [B, H]; --inputs, --hidden")

    def fused(self) -> Named:
        """Run elman's kernel, forward and backward; all results by name."""
        return self._run(self.net)

    def loop(self) -> Named:
        """Run the loop, forward and backward; all results by name."""
        return self._run(lambda x, state: plain_loop(self.net, x, state))

    def double(self) -> Named:
        """Results of the loop in float64 for the same numbers."""
        wide = copy(self)
        wide.cell = deepcopy(self.cell).double()
        wide.net = Loop(wide.cell)
        wide.x, wide.dy = self.x.double(), [d.double() for d in self.dy]
        wide.state = pytree.tree_map(lambda s: s.double(), self.state)
        return wide.loop()

    def first(self, steps: int) -> StepPairing:
        """A copy over the first steps only."""
        short = copy(self)
        short.x, short.dy = self.x[:steps], [d[:steps] for d in self.dy]
        return short

    def ran(self) -> dict[str, Any]:
        """Engine and schedule of the kernel.

        Raises:
            StepError: the step runs as a plain loop; the text says why.
        """
        with torch.set_grad_enabled(self.training):
            layer = self.net.layer_call(self.x, self.state)[0]
        return next(iter(next(iter(choices(layer).values())).values()))

    def _run(self, run: Callable[[Tensor, Any], tuple[Any, Any]]) -> Named:
        x = self.x.detach().requires_grad_(self.training)
        with torch.set_grad_enabled(self.training):
            out, last = run(x, self.state)
        outs = [v for v in pytree.tree_leaves(out) if isinstance(v, Tensor)]
        results = {f"output {k}" if k else "output": v.detach() for k, v in enumerate(outs)}
        ends = pytree.tree_leaves(last)
        results |= {f"last state {k}": end.detach() for k, end in enumerate(ends)}
        if not self.training:
            return results
        wanted = {"gradient of x": x}
        parameters = self.cell.named_parameters()
        wanted |= {f"gradient of {name}": p for name, p in parameters if p.requires_grad}
        options: Any = {"allow_unused": True, "materialize_grads": True}
        pairs = [(v, d) for v, d in zip(outs, self.dy, strict=True) if v.requires_grad]
        values, dy = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(values, [*wanted.values()], dy, **options)
        return results | dict(zip(wanted, gradients, strict=True))


def plain_loop(net: Loop, x: Tensor, state: Any) -> tuple[Any, Any]:
    """Outputs [T, B, ..] and the last state of the module's own loop."""
    step, rows = net.step_of(state), list[Any]()
    for row in x:
        state, y = step(state, row)
        rows.append(y)
    return pytree.tree_map(lambda *ys: torch.stack(ys), *rows), state

"""``elman.Loop``: a module around a step module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from elman.checks import check_callable, check_flag
from elman.errors import InputError, ShapeError, StepError
from elman.nn.engine_choice import check_engine, requested_engine
from elman.nn.options.registry import CallOptions
from elman.steps.binding import Binder
from elman.steps.call import Call, flat
from elman.steps.layer import StepLayer
from elman.steps.order import options_of_steps, reversed_call, reversed_steps
from elman.torch_internals import pytree

_FORMS = (
    "cell(x, h) -> h, cell(x, (h, c)) -> (h, c), cell(x, h) -> (out, state), "
    "cell(x, s, m) -> (out, s, m); carry_first=True: cell(carry, x) -> (carry, y)"
)


class Loop(nn.Module):
    """A module that makes one step, run over sequences.

    The parameters stay those of the step module, ``cell``: state_dict, train(), to(), deepcopy,
    optimizers and DDP see it as any module.

    Args:
        cell: a module, or a function, of one step. Its form is found out in the first call:
            ``cell(x, h) -> h`` and ``cell(x, (h, c)) -> (h, c)``, as torch's cells; ``-> (out,
            state)``; several states side by side, ``cell(x, s, m) -> (out, s, m)``.
        carry_first: ``cell(carry, x) -> (carry, y)``.
        batch_first: x and out are [B, T, ..].
        reverse: begin with the last step; out has the order of x.
        engine: a name, or ``auto``.

    What the step reads of itself may change at any time: weights, numbers, flags, ``train()``. What
    it writes to its own attributes is not kept.

    Raises:
        InputError: an argument is not what it should be.

    Example:
        >>> loop = elman.Loop(torch.nn.LSTMCell(8, 16))
        >>> state = torch.zeros(2, 16), torch.zeros(2, 16)
        >>> out, (h, c) = loop(torch.randn(5, 2, 8), state)
        >>> out.shape
        torch.Size([5, 2, 16])
    """

    def __init__(
        self,
        cell: Callable[..., Any],
        *,
        carry_first: bool = False,
        batch_first: bool = False,
        reverse: bool = False,
        engine: str = "auto",
    ) -> None:
        super().__init__()
        if not isinstance(cell, nn.Module):
            check_callable("cell", cell, ("x", "h"), "elman.Loop(torch.nn.GRUCell(8, 16))")
        self.cell = cell
        self.carry_first = check_flag("carry_first", carry_first)
        self.batch_first = check_flag("batch_first", batch_first)
        self.reverse = check_flag("reverse", reverse)
        self.engine = check_engine(engine)
        self._binder = Binder()

    def forward(self, x: Any, state: Any = None, **options: Unpack[CallOptions]) -> Any:
        """Run the step over a batch of sequences.

        Args:
            x [T, B, ..]: inputs, a tensor or a tree of such; a tuple is given to the step as one
                argument.
            state: as the step takes it, [B, ..].
            options: ``lengths``, ``reset``, ``reset_to``, ``mask``, ``masked_output``.

        Returns:
            out [T, B, ..], and the state after the last step of each sequence.
        """
        x, chosen, steps = self._time_major(x, options)
        first: list[Any] = []
        if state is None:
            x, state, first, steps = self._begin(x, chosen, steps)
        if steps:
            state, out = self._binder.run(self._call(x, state, chosen, steps))
            if first:
                out = pytree.tree_map(lambda a, b: torch.cat([a.unsqueeze(0), b]), first[0], out)
        else:
            out = pytree.tree_map(lambda a: a.unsqueeze(0), first[0])
        if self.reverse:
            out = reversed_steps(out, chosen)
        if self.batch_first:
            out = pytree.tree_map_only(Tensor, lambda y: y.transpose(0, 1), out)
        return out, state

    def _time_major(self, x: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any], int]:
        """Inputs [T, B, ..] and options in the order of steps, and T."""
        if isinstance(x, Tensor) and not (options or self.batch_first or self.reverse):
            if x.dim() and x.shape[0]:  # nothing to do, told apart for short calls
                return x, {}, x.shape[0]
        axis = 1 if self.batch_first else 0
        leaves, _ = flat(x)
        if not leaves or not all(isinstance(v, Tensor) and v.dim() > axis for v in leaves):
            raise InputError("Loop: x [T, B, ..] is a tensor, or a tree of tensors")
        counts = {leaf.shape[axis] for leaf in leaves}
        if len(counts) != 1 or counts == {0}:
            raise ShapeError(f"Loop: inputs have {sorted(counts)} steps")
        chosen = options_of_steps(options, axis) if options else {}
        if self.batch_first:
            x = pytree.tree_map(lambda leaf: leaf.transpose(0, 1), x)
        if self.reverse:
            x, chosen = reversed_call(x, chosen)
        return x, chosen, counts.pop()

    def _call(self, x: Any, state: Any, options: dict[str, Any], steps: int) -> Call:
        engine = requested_engine(self.engine)
        return Call(self.cell, self.step_of, state, x, options, engine, steps)

    def layer_call(self, x: Any, state: Any = None, **options: Any) -> tuple[Any, ...]:
        """The layer that runs a call, and its arguments, for ``explain`` and ``tune``.

        Raises:
            StepError: the step runs as a plain loop; the text says why.
        """
        x, chosen, steps = self._time_major(x, options)
        if state is None:
            x, state, _, steps = self._begin(x, chosen, steps)
        return self._binder.layer_call(self._call(x, state, chosen, steps))

    def layer(self, x: Any, state: Any = None) -> StepLayer:
        """The formula of the step as a layer with copies of its weights, for ``elman.export``.

        Args:
            x, state: of a call; of another size, the formula may be another one.

        Raises:
            StepError: the step runs as a plain loop, or torch computes a part of it.

        Example:
            >>> layer = elman.Loop(torch.nn.GRUCell(8, 16)).layer(torch.randn(1, 1, 8))
            >>> written = elman.export.to_c(layer, "step_c")
        """
        layer, *_ = self.layer_call(x, state)
        if not layer.whole:
            raise StepError("torch computes a part of the step, which is no formula")
        return layer.copied()

    def _begin(
        self, x: Any, options: Mapping[str, Any], steps: int
    ) -> tuple[Any, Any, list[Any], int]:
        """The first step of a cell that makes its first state itself."""
        row = pytree.tree_map_only(Tensor, lambda leaf: leaf[0], x)
        out, state = self._first(row)
        if not options:
            rest = pytree.tree_map_only(Tensor, lambda leaf: leaf[1:], x)
            return rest, state, [out], steps - 1
        zeros = pytree.tree_map_only(Tensor, torch.zeros_like, state)
        after, _ = self.step_of(zeros)(zeros, row)
        leaves = zip(pytree.tree_leaves(after), pytree.tree_leaves(state))
        if not all(torch.equal(a, b) for a, b in leaves):
            raise InputError(f"Loop: {', '.join(options)} need a first state", "loop(x, state, …)")
        return x, zeros, [], steps

    def _first(self, row: Any) -> tuple[Any, Any]:
        """Output and state of a cell that is given no state."""
        if self.carry_first:
            state, out = self.cell(None, row)
            return out, state
        result = self.cell(row)
        if isinstance(result, Tensor):
            return result, result
        if isinstance(self.cell, nn.LSTMCell):
            return result[0], result
        out, *rest = result
        return out, rest[0] if len(rest) == 1 else tuple(rest)

    def step_of(self, state: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
        """The cell as a function of a carry and an input."""
        return self.cell if self.carry_first else _adapter(self.cell, state)

    def extra_repr(self) -> str:
        """Options that are not the defaults."""
        usual = {"carry_first": False, "batch_first": False, "reverse": False, "engine": "auto"}
        now = {name: getattr(self, name) for name in usual}
        return ", ".join(f"{name}={v!r}" for name, v in now.items() if v != usual[name])


def _adapter(cell: Any, state: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Adapt a cell's form to ``(carry, x) -> (carry, y)``."""
    spec = pytree.tree_structure(state)
    several = isinstance(state, (tuple, list)) and not hasattr(state, "_fields")
    function = cell.forward if isinstance(cell, nn.Module) else cell
    try:
        parameters = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        parameters = []
    required = [p for p in parameters if p.default is p.empty]
    apart = several and len(parameters) > len(state)
    names = _reads_apart(parameters, len(state)) if apart else False
    if apart and len(state) == 1:
        apart = isinstance(state, tuple) and parameters[1].name not in _TREES
    else:
        apart = apart and (len(required) > 2 or names)

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        result = cell(x, *carry) if apart else cell(x, carry)
        if pytree.tree_structure(result) == spec:
            leaves = pytree.tree_leaves(result)
            return result, leaves[0]
        if isinstance(result, (tuple, list)) and len(result) > 1:
            out, *rest = result
            after = rest[0] if len(rest) == 1 else tuple(rest)
            if pytree.tree_structure(after) == spec:
                return after, out
            if spec.num_leaves == len(pytree.tree_leaves(after)):
                return spec.unflatten(pytree.tree_leaves(after)), out
        raise InputError(
            f"Loop cannot read what the step returns, {pytree.tree_structure(result)}, given a "
            f"state {spec}",
            _FORMS,
        )

    return step


_TREES = ("state", "states", "hx", "hidden", "carry")  # what one argument of several is called


def _reads_apart(parameters: list[Any], count: int) -> bool:
    """Whether the parameters after the input are states side by side, by their names."""
    names = [p.name for p in parameters[1 : 1 + count]]
    words = ("mem", "syn", "spk", "h", "c", "s", "m", "v", "state", "hidden", "cell")
    return all(name.rstrip("_0123456789") in words or name.startswith(words[:3]) for name in names)

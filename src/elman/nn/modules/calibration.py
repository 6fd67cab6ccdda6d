"""Modules whose values are integers of few bits: how far values reach, and the rounded formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from elman.engines.call import Call
from elman.engines.reference.engine import steps
from elman.errors import InputError
from elman.frontend.cell import Cell
from elman.frontend.changes import Integers
from elman.integers.rewrite import Bits, Range, matrices, rewrite, values_of
from elman.nn.call.plan import Arguments, CallPlan
from elman.nn.call.runtime import CalledModule, Runtime
from elman.nn.call.weights import Grid
from elman.nn.execute.layer import Formula, Runner
from elman.nn.layout.layout import device_type
from elman.nn.modules.layer_options import ModuleOptions

_ANY: Range = (0.5, 1.0)  # in which every function is defined
_MOST_TERMS = 1040  # of a product: sums of 127 · 127 stay below 2^24


def check_formula(runner: Runner, bits: Bits, residual: bool) -> None:
    """Raise InputError for a formula that has no form in integers, and for products whose sums have
    more terms than are exact."""
    cell = runner.cell
    if cell.heads > 1:
        raise InputError(
            f"quantize=: {cell.name} has {cell.heads} heads, and is rounded without any"
        )
    if residual:
        raise InputError("quantize= has no residual connections: their sums are not rounded")
    if any(value.op == "draw" for value in cell.graph.walk()):
        raise InputError(f"quantize=: {cell.name} draws random numbers, which are no integers")
    rewrite(cell.graph, [_ANY] * count_values(cell), bits, dict(runner.dims))
    by_row = matrices(cell.graph)
    for weight, shape in zip(cell.weights, runner.weight_shapes, strict=True):
        terms = max(shape[0 if not by_row[weight.name] else 1 :]) if weight.name in by_row else 0
        if terms > _MOST_TERMS:
            raise InputError(
                f"quantize=: products with {weight} of {cell.name} are sums of {terms} terms, and "
                f"those of more than {_MOST_TERMS} are not exact in float32"
            )


def count_values(cell: Cell) -> int:
    """The number of values whose ranges the rounded formula of a cell needs."""
    return len(values_of(cell.graph))


def rounded(runner: Runner, bits: Bits, ranges: Sequence[Range]) -> Cell:
    """The cell of a layer with integers."""
    change = Integers(bits.weights, bits.operands, bits.states, tuple(ranges), runner.dims)
    return runner.cell.with_changes(change)


def grids(cell: Cell, bits: Bits) -> list[Grid | None]:
    """How each weight of a cell is rounded."""
    by_row = matrices(cell.graph)
    return [
        Grid(bits.weights, by_row[entry.name]) if entry.name in by_row else None
        for entry in cell.weights
    ]


@torch.no_grad()
def observe(module: CalledModule, x: Any, formulas: Sequence[Formula]) -> list[list[Range]]:
    """Run a module step by step, and see how far each value of each layer reaches.

    Args:
        module: with the runtime of its formulas as written.
        x: its input.
        formulas: of the layers.

    Returns:
        The range of each of :func:`elman.integers.rewrite.values_of`, of each layer.

    Raises:
        InputError: a value is not finite, or x is packed.
    """
    weights = module._weights()
    arguments = Arguments(x, None, {}, weights)
    plan = CallPlan(module, arguments, "reference", device_type(weights[0] or x))
    if plan.layout.packed:
        raise InputError(
            "calibrate takes padded sequences", "torch.nn.utils.rnn.pad_packed_sequence(x)"
        )
    call = plan.enter(module, arguments)
    if 0 in call.inputs[0].shape[:2]:
        raise InputError("calibrate needs a step of a sample", "typical inputs, x [T, B, I]")
    stack, directions = module.runtime.stack, plan.directions
    states = stack.form.rows(call.states)
    out, found = call.inputs[0], list[list[Range]]()
    for layer, (cell, *_) in enumerate(formulas):
        seen: dict[int, Range] = {}
        inputs, outputs = (out, *call.inputs[1:]), list[Tensor]()
        for k in range(layer * directions, (layer + 1) * directions):
            read = [inputs[at] for at in stack.takes[k]]
            backwards = k % directions > 0
            outputs.append(_run(stack.runners[k], read, states[k], weights[k], backwards, seen))
        out = torch.cat(outputs, -1)
        if not all(map(math.isfinite, [end for pair in seen.values() for end in pair])):
            raise InputError(f"calibrate: {cell.name} has values that are not finite")
        found.append([*seen.values()])
    return found


def _run(
    runner: Runner,
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    backwards: bool,
    seen: dict[int, Range],
) -> Tensor:
    """One layer in one direction; ``seen`` grows by what values reach."""
    graph, count = runner.cell.graph, len(runner.cell.inputs)
    T = inputs[0].shape[0]
    rows = [x.flip(0) if backwards else x for x in inputs[:count]]
    rows += [x.expand(T, *x.shape) for x in inputs[count:]]
    values = values_of(graph)
    outputs: list[Tensor] = []
    call = Call(tuple(rows), tuple(states), tuple(weights))
    for step, *_ in steps(graph, dict(runner.dims), call):
        outputs.append(step[graph.output])
        for number, value in enumerate(values):
            is_endless = value.op == "const" and not math.isfinite(value.number)
            _widen(seen, number, torch.zeros(1) if is_endless else step[value])
    out = torch.stack(outputs)
    return out.flip(0) if backwards else out


def _widen(seen: dict[int, Range], number: int, value: Tensor) -> None:
    if value.numel():
        low, high = float(value.min()), float(value.max())
        before = seen.get(number, (low, high))
        seen[number] = min(low, before[0]), max(high, before[1])
    else:
        seen.setdefault(number, (0.0, 0.0))


class CalibratedModule(ModuleOptions):
    """A module whose values are integers once it is calibrated."""

    batch_first: bool
    bidirectional: bool
    dropout: float
    _runtime: Runtime | None = None

    def _formulas(self) -> list[Formula]:
        """The cell, the size of its first state and the sizes of its other dims, of each layer,
        lowest first."""
        raise NotImplementedError

    def _make_runtime(self, formulas: list[Formula] | None = None) -> Runtime:
        """Build the state of formulas; default: those of the module, rounded if calibrated."""
        raise NotImplementedError

    def _weights(self) -> list[list[Tensor]]:
        """The current weights of each layer and direction."""
        raise NotImplementedError

    def _initial(self) -> list[Tensor]:
        """Default initial states; empty for zeros."""
        raise NotImplementedError

    def follow_plan(self) -> None:
        """Follow a ``plan`` that was changed."""
        raise NotImplementedError

    @property
    def runtime(self) -> Runtime:
        """State derived from the cell, the sizes and the options."""
        raise NotImplementedError

    def register_ranges(self) -> None:
        """Register the ranges of values that ``quantize`` needs, unknown as yet.

        Raises:
            InputError: a formula has no form in integers.
        """
        if self.quantize is None:
            return
        runners = [*self.runtime.runners.values()]
        for layer, runner in enumerate(runners[:: 2 if self.bidirectional else 1]):
            check_formula(runner, self.quantize, bool(self.residual))
            count = count_values(runner.cell)
            self.register_buffer(f"ranges_l{layer}", torch.full((count, 2), torch.nan))

    @property
    def _is_calibrated(self) -> bool:
        """Whether values are rounded: the ranges of all layers are known."""
        ranges = None if self.quantize is None else self._buffers.get("ranges_l0")
        return ranges is not None and bool(ranges.isfinite().all())

    def _rounded(self, formulas: list[Formula], runners: Mapping[str, Runner]) -> list[Formula]:
        """The formulas with integers, whose ranges are known."""
        of_layers = [*runners.values()][:: 2 if self.bidirectional else 1]
        assert self.quantize is not None, "checked"
        return [
            (rounded(runner, self.quantize, self.ranges(layer)), size, dims)
            for layer, (runner, (_, size, dims)) in enumerate(zip(of_layers, formulas, strict=True))
        ]

    def ranges(self, layer: int) -> list[Range]:
        """Return the least and the largest number that each value of a layer reaches."""
        return [(low, high) for low, high in self.get_buffer(f"ranges_l{layer}").double().tolist()]

    def check_calibrated(self) -> None:
        """Raise InputError if ``quantize`` needs ranges that are not known, or more bits than the
        parameters have."""
        if self.quantize is None:
            return
        if any(weight.dtype.itemsize < torch.float32.itemsize for weight in self._weights()[0]):
            raise InputError("quantize= computes in float32 or float64", "net.float()")
        if self.runtime.grids is None:
            raise InputError(
                "quantize=: how far values reach is not known yet",
                "net.calibrate(x), with typical inputs, then train",
            )

    def calibrate(self, *inputs: Any) -> Self:
        """Run some inputs in float32, and see how far each value reaches that ``quantize`` rounds.

        Values may then reach twice as far; beyond that they are clipped. Operands of matrices are
        clipped where they reached. The ranges are buffers, ``ranges_l0`` … [values, 2].

        Args:
            inputs: typical ones, each as x of :meth:`forward`, with static inputs behind it in a
                tuple.

        Returns:
            The module.

        Raises:
            InputError: the module has no ``quantize=``, or a value is not finite.

        Example:
            >>> net = elman.GRU(8, 16, quantize=8)
            >>> x = torch.randn(50, 4, 8)
            >>> out, h = net.calibrate(x)(x)
            >>> bool((out * 2**15).frac().eq(0).all())  # whole numbers, times a power of two
            True
        """
        if self.quantize is None or not inputs:
            raise InputError(
                "calibrate takes inputs of a module with quantize=",
                "elman.GRU(8, 16, quantize=8).calibrate(x)",
            )
        if "ranges_l0" not in self._buffers:
            self.register_ranges()
        before, formulas = self._runtime, self._formulas()
        self._runtime = self._make_runtime(formulas)
        try:
            seen = [observe(self, x, formulas) for x in inputs]
        finally:
            self._runtime = before
        for layer, of_inputs in enumerate(zip(*seen, strict=True)):
            ranges = torch.tensor(of_inputs, dtype=torch.float64)  # [inputs, values, 2]
            widest = torch.stack([ranges[..., 0].amin(0), ranges[..., 1].amax(0)], -1)
            self.get_buffer(f"ranges_l{layer}").copy_(widest)
        self._runtime = self._make_runtime()
        return self

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        kept = {name: v for name, v in self._buffers.items() if name.startswith("ranges_l")}
        super()._apply(*arguments, **options)
        for name, ranges in kept.items():  # a cast would change the formula
            assert ranges is not None, "made with the module"
            self._buffers[name] = ranges.to(self.get_buffer(name).device)
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        if self.quantize is not None and self._runtime is not None:
            self._runtime = self._make_runtime()

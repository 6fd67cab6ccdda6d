"""The judge of every step that was read: the step itself, in a float64 loop with torch's autograd.

Values and the gradients of all inputs, states and closed-over tensors are compared with those of
the formula, which the engine ``reference`` computes, before it is used. Kernels of engines are then
compared with ``reference`` (:mod:`elman.tuning.verification`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from elman.errors import ElmanError, StepError
from elman.steps import plain
from elman.steps.call import Call
from elman.steps.operations.creation import DRAWS, fixed_draws
from elman.steps.operations.table import find
from elman.steps.reading.reading import Reading
from elman.steps.recording.memory import plain_value
from elman.steps.recording.tape import Place, is_random
from elman.steps.running import Given, Program
from elman.torch_internals import TorchDispatchMode, name_of, own_backwards, pytree

_STEPS, _BATCH = 3, 3
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3}  # in the order in which they are tried
_DRAWS = (0.3, 0.8)


class Case:
    """What a step is compared on.

    Args:
        call: of the step; a few steps and samples of its leaves are taken.
        read: makes the reading again, for fixed random numbers.
        program: of the step.
        captured: tensors that the step closes over.
    """

    def __init__(
        self,
        call: Call,
        read: Callable[[], Reading],
        program: Program,
        captured: Sequence[Tensor],
    ) -> None:
        self.step, self.read, self.program, self.captured = call.step, read, program, [*captured]
        tape = program.reading.tape
        few = 1 if call.batch == 1 else _BATCH  # where squeeze() takes the axis of samples away
        xs = zip(call.xs, map(tape.place, tape.inputs), strict=True)
        self.xs = [_few(x, place, 1, few)[:_STEPS] for x, place in xs]
        places = [*map(tape.place, tape.carries)]
        self.carry = [_few(c, place, 0, few) for c, place in zip(call.carry, places, strict=True)]
        self.few = [
            _few(c, Place((1, *c.shape[1:]), 0 if number in tape.per_sample else None), 0, few)
            for number, c in zip(tape.captured, captured, strict=True)
        ]
        self.flows = [c.requires_grad or type(c) is not Tensor for c in captured]
        self.batch = few if any(p.batch is not None for p in places) else 1
        floats = (v.dtype for v in (*self.carry, *self.xs, *captured) if v.is_floating_point())
        self.dtype = next(floats, torch.float32)


def _few(value: Tensor, place: Place, lead: int, count: int) -> Tensor:
    """Some samples of a tensor, not all alike."""
    value = plain_value(value)
    if place.batch is None:
        return value
    rows = place.apart(value, lead)
    at = torch.arange(count, device=value.device) % max(1, rows.shape[lead])
    return place.join(rows.index_select(lead, at), lead)


def check(case: Case) -> None:
    """Compare a step with its formula.

    Raises:
        StepError: they differ; the text says in what.
    """
    random = any(is_random(entry.op) for entry in case.program.reading.tape.entries)
    for seed, fixed in enumerate(_DRAWS if random else (None,)):
        for dtype in _TOLERANCE:
            try:
                _compare(case, fixed, dtype, seed)
                break
            except (RuntimeError, TypeError) as error:  # numbers of one type alone
                reason = str(error).partition("\n")[0]
                if dtype is torch.float32:
                    raise StepError(f"it cannot be compared with its formula: {reason}") from error


def _compare(case: Case, fixed: float | None, dtype: torch.dtype, seed: int) -> None:
    reading, mode = case.program.reading, nullcontext()
    if fixed is not None:
        mode = _Fixed(fixed)
        with fixed_draws(fixed):
            reading = case.read()
    twin = Program(reading, "reference", dtype)
    device = case.carry[0].device if case.carry else None
    generator = torch.Generator(device or "cpu").manual_seed(seed)
    xs = [_varied(x, dtype, generator) for x in case.xs]
    carry = [_varied(c, dtype, generator) for c in case.carry]
    steps = len(xs[0]) if xs else _STEPS

    def leaves() -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        pairs = zip(case.few, case.flows, strict=True)
        weights = [_leaf(c.to(dtype) if _flows(c) else c, flows) for c, flows in pairs]
        return [*map(_leaf, xs)], [*map(_leaf, carry)], weights

    mine, own = leaves(), leaves()
    with torch.random.fork_rng(devices=[]):
        instead = _Instead(case.captured, own[2], case.dtype)
        with parametrize.cached(), own_backwards(instead.apply), instead, mode:
            torch.manual_seed(seed)
            ends, ys = plain.run(case.step, _used(own[1]), _used(own[0]), steps, {})
        expected = [*ends, *ys]
        with mode:
            torch.manual_seed(seed)
            try:
                given = Given(_used(mine[0]), _used(mine[1]), mine[2], steps, case.batch, {})
                ends, ys = twin.run(given)
            except ElmanError as error:
                raise StepError(f"its formula cannot run: {error}") from error
    actual = [*ends, *ys]
    for a, b in zip(actual, expected, strict=True):
        _compare_values("a result", a, b, dtype)
    if not torch.is_grad_enabled():
        return
    cotangents = [
        torch.randn(v.shape, generator=generator, dtype=torch.float64, device=v.device).to(v.dtype)
        if _flows(v)
        else None
        for v in expected
    ]
    got, wanted = (
        _gradients(v, cotangents, [*chain(*w)]) for v, w in ((actual, mine), (expected, own))
    )
    labels = [f"x{k}" for k in range(len(xs))] + [f"state {k}" for k in range(len(carry))]
    labels += [f"a closed-over tensor {[*c.shape]}" for c in reading.tape.captured.values()]
    scale = _scale_of(wanted)
    for label, a, b in zip(labels, got, wanted, strict=True):
        _compare_values(f"the gradient of {label}", a, b, dtype, scale)


def _varied(value: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """A tensor with some noise, of its sign; whole numbers as they are."""
    if not value.is_floating_point():
        return value
    value = value.to(dtype)
    noise = [
        torch.rand(value.shape, generator=generator, dtype=dtype, device=value.device)
        for _ in range(2)
    ]
    return value * (0.8 + 0.4 * noise[0]) + 0.2 * noise[1]


def _leaf(value: Tensor, flows: bool = True) -> Tensor:
    flows = flows and value.is_floating_point() and torch.is_grad_enabled()
    return value.clone().requires_grad_(flows)


def _used(values: Sequence[Tensor]) -> list[Tensor]:
    """The values of leaves, which the step may write to."""
    return [value.clone() if _flows(value) else value for value in values]


def _flows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _gradients(
    values: Sequence[Any], cotangents: Sequence[Any], leaves: Sequence[Tensor]
) -> list[Tensor | None]:
    pairs = [
        (v, c) for v, c in zip(values, cotangents, strict=True) if _flows(v) and v.requires_grad
    ]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not pairs or not wanted:
        return [None] * len(leaves)
    total = torch.stack([(v * c).sum().double() for v, c in pairs]).sum()
    grads = iter(torch.autograd.grad(total, wanted, allow_unused=True))
    return [next(grads) if leaf.requires_grad else None for leaf in leaves]


def _scale_of(values: Sequence[Tensor | None]) -> float:
    sizes = [float(v.abs().max()) for v in values if v is not None and v.numel()]
    finite = [size for size in sizes if size < float("inf")]
    return max(finite, default=0.0)


def _compare_values(label: str, a: Any, b: Any, dtype: torch.dtype, of: float = 0.0) -> None:
    """Compare a value of the formula with that of the step; None is a gradient of zeros.

    Args:
        of: the largest of all values of this kind.
    """
    if not isinstance(b, Tensor) and not isinstance(a, Tensor):
        return
    b = torch.zeros_like(a) if b is None else b
    a = torch.zeros_like(b) if a is None else a
    if a.shape != b.shape:
        raise StepError(f"{label} of its formula is {[*a.shape]}, of the step {[*b.shape]}")
    a, b = a.detach().double(), b.detach().double()
    if not a.numel():
        return
    known, zeros = b.isfinite(), torch.zeros_like(b)
    off = torch.where(known, a - b, zeros).abs().nan_to_num(float("inf"))
    scale = max(float(torch.where(known, b, zeros).abs().max()), 1e-3 * of, 1e-6)
    error = float(off.max()) / scale
    if error > _TOLERANCE[dtype]:
        raise StepError(f"{label} of its formula differs from that of the step by {error:.1e}")


class _Instead(TorchFunctionMode):
    """Mode in which tensors that a step closes over are others. A norm without an eps has that of
    the step's own dtype, not of the one that it is compared in."""

    def __init__(
        self, captured: Sequence[Tensor], others: Sequence[Tensor], dtype: torch.dtype
    ) -> None:
        super().__init__()
        self._dtype = dtype
        self._others = {id(c): o for c, o in zip(captured, others, strict=True)}

    def _replace(self, tree: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda t: self._others.get(id(t), t), tree)

    def apply(self, function: Any, args: tuple[Any, ...], original: Callable[..., Any]) -> Any:
        """A call of a torch.autograd.Function."""
        return original(*self._replace(args))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self._replace((args, kwargs or {}))
        if (
            func in (nn.functional.rms_norm, torch.rms_norm)
            and [*args[3:], kwargs.get("eps")][0] is None
        ):
            args, kwargs["eps"] = args[:3], torch.finfo(self._dtype).eps
        return func(*args, **kwargs)


class _Fixed(TorchDispatchMode):
    """Mode in which one number stands in place of all random ones."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, number: float) -> None:
        super().__init__()
        self._number = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        row = find(name_of(func), DRAWS)
        if row is None:
            return results
        value = row.value(self._number, *args[row.first :])
        return results.copy_(torch.as_tensor(value, dtype=results.dtype).expand_as(results))

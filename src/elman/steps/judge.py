"""The judge of every step that was read: the step itself, in a float64 loop with torch's autograd.

Values and the gradients of all inputs, states and closed-over tensors are compared with those of
the formula, which the engine ``reference`` computes, before it is used. Kernels of engines are then
compared with ``reference`` (:mod:`elman.tuning.verification`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from elman.errors import ElmanError, StepError
from elman.steps import plain
from elman.steps.call import Call
from elman.steps.operations import fixed_draws
from elman.steps.reading import Place, Reading
from elman.steps.running import Program
from elman.steps.tape import is_random, plain_value
from elman.torch_internals import TorchDispatchMode, name_of, own_backwards, pytree

_STEPS, _BATCH = 3, 3
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3}
_DRAWS = (0.3, 0.8)


class Case:
    """What a step is compared on.

    Args:
        call: of the step; a few steps and samples of its leaves are taken.
        read: makes the reading anew, for fixed random numbers.
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
        self.step, self.read, self.program = call.step, read, program
        tape = program.reading.tape
        places = [Place.of(tape.tensors[r.number].shape, tape.batch) for r in program.inputs]
        few = 1 if call.batch == 1 else _BATCH  # where squeeze() takes the axis of samples away
        self.xs = [
            _few(x, place, 1, few)[:_STEPS] for x, place in zip(call.xs, places, strict=True)
        ]
        places = [Place.of(tape.tensors[r.number].shape, tape.batch) for r in program.carries]
        self.carry = [_few(c, place, 0, few) for c, place in zip(call.carry, places, strict=True)]
        rows = tape.per_sample
        self.captured = [*captured]
        self.few = [
            _few(c, Place((1, *c.shape[1:]), 0), 0, few) if number in rows else plain_value(c)
            for number, c in zip(tape.captured, captured, strict=True)
        ]
        self.flows = [c.requires_grad or type(c) is not Tensor for c in captured]
        batched = any(p.batch is not None for p in places)
        self.batch = few if batched else 1


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
        try:
            _compare(case, fixed, torch.float64, seed)
        except StepError:
            raise
        except (RuntimeError, TypeError):  # numbers of one type alone
            try:
                _compare(case, fixed, torch.float32, seed)
            except (RuntimeError, TypeError) as error:
                reason = str(error).partition("\n")[0]
                raise StepError(f"it cannot be compared with its formula: {reason}") from error


def _compare(case: Case, fixed: float | None, dtype: torch.dtype, seed: int) -> None:
    program = case.program
    if fixed is not None:
        with fixed_draws(fixed):
            reading = case.read()
    else:
        reading = program.reading
    twin = Program(reading, program.inputs, program.carries, "reference", dtype)
    device = case.carry[0].device if case.carry else None
    generator = torch.Generator(device or "cpu").manual_seed(seed)
    xs = [_varied(x, dtype, generator) for x in case.xs]
    carry = [_varied(c, dtype, generator) for c in case.carry]
    sizes = len(xs[0]) if xs else _STEPS, case.batch
    weights = [_twin(c, dtype, flows) for c, flows in zip(case.few, case.flows, strict=True)]
    own = [_twin(c, dtype, flows) for c, flows in zip(case.few, case.flows, strict=True)]
    mode = _Fixed(fixed) if fixed is not None else nullcontext()
    with torch.random.fork_rng(devices=[]):
        with parametrize.cached(), _Instead(case.captured, own), mode:
            torch.manual_seed(seed)
            expected, leaves = _run_own(case, xs, carry, sizes[0])
        names = program.reading.tape
        with mode:
            torch.manual_seed(seed)
            given = [_leaf(x) for x in xs], [_leaf(c) for c in carry]
            try:
                ends, ys = twin.run(
                    [_used(x) for x in given[0]], [_used(c) for c in given[1]], weights, sizes, {}
                )
            except ElmanError as error:
                raise StepError(f"its formula cannot run: {error}") from error
    actual = [*ends, *ys]
    _compare_values("a result", actual, expected, dtype)
    if not torch.is_grad_enabled():
        return
    cotangents = [
        torch.randn(v.shape, generator=generator, dtype=torch.float64, device=v.device).to(v.dtype)
        if _flows(v)
        else None
        for v in expected
    ]
    mine = _gradients(actual, cotangents, [*given[0], *given[1], *weights])
    theirs = _gradients(expected, cotangents, [*leaves, *own])
    labels = [f"the gradient of x{k}" for k in range(len(xs))]
    labels += [f"the gradient of state {k}" for k in range(len(carry))]
    labels += [
        f"the gradient of a closed-over tensor {[*c.shape]}" for c in names.captured.values()
    ]
    scale = _scale_of(theirs)
    for label, a, b in zip(labels, mine, theirs, strict=True):
        _compare_values(label, [a], [b], dtype, scale)


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


def _leaf(value: Tensor) -> Tensor:
    return value.clone().requires_grad_(value.is_floating_point() and torch.is_grad_enabled())


def _used(value: Tensor) -> Tensor:
    """The leaf's value, which the step may write to."""
    return value.clone() if value.is_floating_point() else value


def _twin(value: Tensor, dtype: torch.dtype, flows: bool) -> Tensor:
    if not value.is_floating_point():
        return value.clone()
    return value.to(dtype).clone().requires_grad_(flows and torch.is_grad_enabled())


def _run_own(
    case: Case, xs: Sequence[Tensor], carry: Sequence[Tensor], steps: int
) -> tuple[list[Any], list[Tensor]]:
    given = [_leaf(x) for x in xs], [_leaf(c) for c in carry]
    ends, ys = plain.run(
        case.step, [_used(c) for c in given[1]], [_used(x) for x in given[0]], steps, {}
    )
    return [*ends, *ys], [*given[0], *given[1]]


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


def _compare_values(
    label: str, actual: Sequence[Any], expected: Sequence[Any], dtype: torch.dtype, of: float = 0.0
) -> None:
    for a, b in zip(actual, expected, strict=True):
        if not isinstance(b, Tensor) and not isinstance(a, Tensor):
            continue
        if b is None:
            b = torch.zeros_like(a)
        if a is None:
            a = torch.zeros_like(b)
        if a.shape != b.shape:
            raise StepError(f"{label} of its formula is {[*a.shape]}, of the step {[*b.shape]}")
        a, b = a.detach().double(), b.detach().double()
        if not a.numel():
            continue
        known = b.isfinite()
        off = torch.where(known, a - b, torch.zeros_like(b)).abs().nan_to_num(float("inf"))
        scale = max(float(torch.where(known, b, torch.zeros_like(b)).abs().max()), 1e-3 * of, 1e-6)
        error = float(off.max()) / scale
        if error > _TOLERANCE[dtype]:
            raise StepError(f"{label} of its formula differs from that of the step by {error:.1e}")


class _Instead(TorchFunctionMode):
    """Mode in which tensors that a step closes over are others."""

    def __init__(self, captured: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        super().__init__()
        self._others = {id(c): o for c, o in zip(captured, others, strict=True)}
        self._own = own_backwards(self._apply)

    def __enter__(self) -> Any:
        self._own.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._own.__exit__(None, None, None)

    def _replace(self, tree: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda t: self._others.get(id(t), t), tree)

    def _apply(self, function: Any, args: tuple[Any, ...], original: Callable[..., Any]) -> Any:
        return original(*self._replace(args))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self._replace((args, kwargs or {}))
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
        name, u = name_of(func).partition(".")[0].strip("_"), self._number
        kwargs = kwargs or {}
        if name in ("rand", "rand_like", "randn", "randn_like"):
            return results.fill_(u)
        if name == "uniform":
            low, high = [*args[1:3], *(0.0, 1.0)[len(args) - 1 :]][:2]
            return results.fill_(low + (high - low) * u)
        if name == "normal":
            return _normal(results, args, kwargs, u)
        if name == "exponential":
            rate = args[1] if len(args) > 1 else 1.0
            return results.copy_(-torch.log(1.0 - torch.full_like(results, u)) / rate)
        if name == "bernoulli":
            usual = 0.5 if name_of(func) == "bernoulli.float" else args[0]
            share = args[1] if len(args) > 1 else kwargs.get("p", usual)
            return (
                results.copy_((u < share).to(results.dtype))
                if isinstance(share, Tensor)
                else results.fill_(float(u < share))
            )
        return results


def _normal(results: Tensor, args: Any, kwargs: Any, u: float) -> Tensor:
    given = [*args]
    if isinstance(given[0], Tensor) and given[0] is results:  # in place: mean, std follow
        given = given[1:]
    mean = given[0] if given else kwargs.get("mean", 0.0)
    std = given[1] if len(given) > 1 else kwargs.get("std", 1.0)
    return results.copy_(torch.as_tensor(mean + std * u, dtype=results.dtype).expand_as(results))

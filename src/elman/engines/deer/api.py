"""Any recurrence in torch, all steps at once: ``elman.deer`` and ``elman.linear_scan``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from elman.checks import check_callable, check_size, shown
from elman.engines.deer.convergence import TOLERANCES, finite
from elman.engines.deer.equations import Equations, Rows, before, windows
from elman.engines.deer.iterations import Trajectory
from elman.engines.deer.scans import Algebra, Dense, Units, linear, scan
from elman.engines.deer.sequential import run_sequentially
from elman.engines.deer.solvers import BUDGET, CHAIN, METHODS, Solution, solve
from elman.engines.time_shards import current, shards_time
from elman.errors import EngineError, InputError, ShapeError

Step = Callable[[Tensor, Any], Tensor]
_COPIES = 6  # arrays of a window's Jacobian that count against a budget


class _Function(Equations):
    """Equations whose right sides are a torch function of rows."""

    def __init__(self, step: Step, y0: Tensor, x: tuple[Tensor, ...], packed: bool) -> None:
        self._step, self._x, self._packed = step, x, packed
        self._lead = y0.shape[:-1]
        self._n = y0.shape[-1]
        self.steps, self.device = x[0].shape[0], x[0].device
        self.start: Trajectory = (y0.reshape(-1, self._n),)
        self.algebras: tuple[Algebra, ...] = (Dense(self._n),)
        self.row_bytes = _COPIES * y0.numel() * self._n * y0.element_size()

    def _rows(self, rows: Rows) -> Any:
        """Inputs of some steps, steps and samples on one axis."""
        lead = len(self._lead)
        inputs = tuple(part[rows].flatten(0, lead) for part in self._x)
        return inputs if self._packed else inputs[0]

    def call(self, y: Tensor, rows: Rows) -> Tensor:
        """f of some steps [T, B, n], through autograd if that is on."""
        values = self._step(y.flatten(0, 1), self._rows(rows))
        if not isinstance(values, Tensor) or values.shape != (y.shape[0] * y.shape[1], self._n):
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(
                f"deer: step(y, x) must return [N, {self._n}] for y [N, {self._n}], got {got}"
            )
        return values.unflatten(0, y.shape[:2])

    def values(self, before: Trajectory, rows: Rows) -> Trajectory:
        return (self.call(before[0], rows),)

    def linearised(self, before: Trajectory, rows: Rows) -> tuple[Trajectory, Trajectory]:
        y = before[0]

        def value_twice(row: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
            inputs = tuple(part.unsqueeze(0) for part in inputs)
            value = self._step(row.unsqueeze(0), inputs if self._packed else inputs[0]).squeeze(0)
            return value, value

        x = self._rows(rows)
        jacobian, values = vmap(jacrev(value_twice, has_aux=True))(
            y.flatten(0, 1), *(x if self._packed else (x,))
        )
        return (values.unflatten(0, y.shape[:2]),), (jacobian.unflatten(0, y.shape[:2]),)


@dataclass(frozen=True)
class Solved:
    """How ``deer`` computed its result.

    Attributes:
        solver: the solver whose result passed both convergence checks; ``sequential`` if none did.
        iterations: of that solver, the most of any window of steps.
        tried: solver -> why its result was not accepted.
    """

    solver: str
    iterations: int
    tried: dict[str, str]


def deer(
    step: Step,
    y0: Tensor,
    x: Tensor | tuple[Tensor, ...],
    *,
    solver: str | tuple[str, ...] = CHAIN,
    guess: str | Tensor = "first",
    budget: int = BUDGET,
    report: Callable[[Solved], None] | None = None,
) -> Tensor:
    """Solve y[t] = step(y[t-1], x[t]) for all t at once, differentiably.

    The solver is Newton's iteration; each iteration computes the Jacobians of all steps and one
    associative scan. A result is accepted only if every step satisfies the recurrence and sampled
    windows agree with a sequential run. Otherwise the next solver is tried, and finally the steps
    run sequentially, with a warning. Gradients of y0, x and everything that ``step`` uses are
    exact: they are computed at the solution, not through the iterations. There are no second ones.

    Args:
        step: a function or module that maps y [N, n] and x [N, …] to the next y [N, n], row by
            row, for any N. It must be traceable by ``torch.func``.
        y0 [B, n] (or [n]): the state before the first step; float32 or float64.
        x [T, B, …] (or [T, …]): the input, or a tuple of inputs.
        solver: one or several solvers, tried in order: ``newton`` (DEER), ``quasi`` (the Jacobian's
            diagonal only), ``damped`` (Jacobians scaled down while the residual grows),
            ``windowed`` (a few steps at a time), ``picard``;
            inside :func:`shard_time` always ``newton``.
        guess: the initial guess: ``"first"`` for step(0, x), ``"zeros"``, or y of an earlier call.
        budget: memory for Jacobians (bytes); longer sequences are solved in windows.
        report: a function called with a report on the solution.

    Returns:
        y [T, B, n]: the states after each step.

    Raises:
        InputError, ShapeError: arguments do not fit.

    Source: Lim, Zhu, Selfridge & Kasim 2024, arXiv:2309.12252v3, eq. 3 to 6.

    Example:
        >>> x, y0 = torch.randn(100, 2, 4), torch.zeros(2, 4)
        >>> y = elman.deer(lambda y, x: torch.tanh(0.5 * y + x), y0, x)
        >>> y.shape
        torch.Size([100, 2, 4])
    """
    inputs, solvers, packed = _checked(y0, x, solver, guess)
    check_callable("step", step, ("y", "x"), "elman.deer(lambda y, x: torch.tanh(y + x), y0, x)")
    if report is not None:
        check_callable("report", report, ("solved",), "report=print")
    check_size("budget", budget, 0, 2**63)
    if not inputs[0].shape[0]:
        raise ShapeError("deer: x has no steps")
    equations = _Function(step, y0, inputs, packed)
    equations.shards, first = current(), equations.start
    with torch.no_grad():
        initial = guess if isinstance(guess, str) else (_flat(guess, y0),)
        solution = solve(equations, solvers, initial, budget)
        if solution.y is None:
            if equations.largest_of_all(not finite([y0, *inputs])) == [0]:
                _warn(solution)
            y = _run_one_by_one(equations)
        else:
            y = solution.y
    if report is not None:
        report(Solved(solution.solver or "sequential", solution.iterations, solution.tried))
    result = _attached(equations, first[0], y[0], budget) if torch.is_grad_enabled() else y[0]
    if result.requires_grad:
        result.register_hook(_refuse_second_derivatives)
    return result.reshape(result.shape[0], *y0.shape)


def _check_tensor(function: str, name: str, value: Any) -> None:
    """Raise InputError unless a value is a dense tensor of numbers."""
    if not isinstance(value, Tensor):
        many = isinstance(value, tuple | list) or hasattr(value, "__array__")
        message = f"{function}: {name} must be a tensor, got {shown(value)}"
        raise InputError(message, f"torch.as_tensor({name})" if many else "")
    if value.is_nested or value.layout is not torch.strided:
        raise InputError(f"{function}: {name} is not dense", f"{name}.to_dense()")
    if value.is_quantized:
        raise InputError(f"{function}: {name} is quantized", f"{name}.dequantize()")


def _checked(
    y0: Tensor, x: Any, solver: str | tuple[str, ...], guess: str | Tensor
) -> tuple[tuple[Tensor, ...], tuple[str, ...], bool]:
    packed = isinstance(x, (tuple, list))
    inputs = tuple(x) if packed else (x,)
    if not inputs:
        raise InputError("deer: x must be a tensor or a tuple of tensors, got an empty one")
    for name, value in (("y0", y0), *(("x", part) for part in inputs)):
        _check_tensor("deer", name, value)
    if y0.dtype not in TOLERANCES:
        raise InputError(f"deer: y0 is {y0.dtype}; it must be float32 or float64")
    if y0.dim() not in (1, 2):
        raise ShapeError(f"deer: y0 must be [B, n] or [n], got {list(y0.shape)}")
    lead = y0.shape[:-1]
    for part in inputs:
        if part.is_complex():
            message = f"deer: x is {part.dtype}; it must be real"
            raise InputError(message, "torch.view_as_real(x).flatten(-2)")
        if not part.dim() or part.shape[: 1 + len(lead)] != (*inputs[0].shape[:1], *lead):
            raise ShapeError(
                f"deer: x is [T, {', '.join(map(str, lead))}{', ' if lead else ''}…] beside y0 "
                f"{list(y0.shape)}, got {list(part.shape)}"
            )
    solvers = tuple(solver) if isinstance(solver, tuple | list) else (solver,)
    for name in solvers:
        if not isinstance(name, str) or name not in METHODS:
            raise InputError(f"deer: no solver {shown(name)}; there are {', '.join(METHODS)}")
    if isinstance(guess, Tensor):
        _check_tensor("deer", "guess", guess)
        if guess.shape != (inputs[0].shape[0], *y0.shape):
            raise ShapeError(f"deer: guess must be [T, *y0.shape], got {list(guess.shape)}")
    elif not isinstance(guess, str) or guess not in ("first", "zeros"):
        raise InputError(f'deer: guess must be "first", "zeros" or a tensor, got {shown(guess)}')
    return inputs, solvers, packed


def _flat(guess: Tensor, y0: Tensor) -> Tensor:
    return guess.detach().to(y0.dtype).reshape(guess.shape[0], -1, y0.shape[-1])


def _refuse_second_derivatives(grad: Tensor) -> None:
    """Raise if a gradient records a graph: Jacobians are constants in it."""
    if torch.is_grad_enabled():
        raise EngineError(
            "elman.deer has first derivatives alone",
            "a loop over step, or a cell in elman.Recurrent, whose second derivatives are exact",
        )


def _run_one_by_one(equations: Equations) -> Trajectory:
    """All states, one step after another, and one process after another."""
    if equations.shards is None:
        return run_sequentially(equations)

    def run(start: Trajectory) -> Trajectory:
        equations.start = start
        return run_sequentially(equations)

    equations.start, y = equations.shards.one_after_another(equations.start, run)
    return y


def _attached(equations: _Function, start: Tensor, y: Tensor, budget: int) -> Tensor:
    """The trajectory as a function of everything: one more Newton step, Jacobians held fixed.

    y = scan(J, step(y*, x) - J y*, y0): its value is y*, its gradient that of the recurrence.

    Args:
        equations: solved, so that ``start`` is the state before their steps.
        start: the caller's state before all steps.
        y: the solution.
        budget: see :func:`deer`.
    """
    pieces: list[Tensor] = []
    with torch.no_grad():
        previous = before(equations.start, (y,))[0]
    every = [slice(0, y.shape[0])]  # with time shards: one scan over all processes' steps
    for rows in windows(equations, budget) if equations.shards is None else every:
        with torch.no_grad():
            _, (J,) = equations.linearised((previous[rows],), rows)
        value = equations.call(previous[rows], rows)
        rest = value - Dense(y.shape[-1]).of_vector(J, previous[rows])
        states = _linear(Dense(y.shape[-1]), J, rest, start)
        pieces.append(states)
        start = states[-1]
    return torch.cat(pieces)


def _warn(solution: Solution) -> None:
    warnings.warn(
        f"elman.deer ran the steps sequentially, because no solver's result was accepted "
        f"({solution.attempts}). The result is correct, only slower to compute.",
        stacklevel=3,
    )


def _linear(algebra: Algebra, A: Tensor, b: Tensor, y0: Tensor) -> Tensor:
    """All y[t] = A[t] y[t-1] + b[t], differentiable; inside ``shard_time`` over all processes."""
    shards = current()
    if shards is None:
        return linear(algebra, A, b, y0)
    return shards.linear(scan, algebra, A, b, y0)


def linear_scan(a: Tensor, b: Tensor, y0: Tensor | None = None) -> Tensor:
    """Compute y[t] = a[t] y[t-1] + b[t] for all t at once, twice differentiable.

    Args:
        a: factors [T, …] of the shape of b; or matrices [T, …, n, n] that multiply the last axis
            of y [T, …, n].
        b [T, …]: summands.
        y0 […]: y before the first step; zeros by default.

    Returns:
        y [T, …].

    Raises:
        ShapeError: shapes do not fit.
        InputError: dtypes or devices differ.

    Source: Blelloch 1990, "Prefix sums and their applications".

    Example:
        >>> elman.linear_scan(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 1.0]))
        tensor([1.0000, 1.5000])
    """
    for name, value in (("a", a), ("b", b), ("y0", b if y0 is None else y0)):
        _check_tensor("linear_scan", name, value)
    if y0 is None:
        y0 = torch.zeros_like(b[0]) if b.dim() and b.shape[0] else b.new_zeros(b.shape[1:])
    for operand in (a, y0):
        if operand.dtype != b.dtype or operand.device != b.device:
            raise InputError("linear_scan: a, b and y0 must have the same dtype and device")
    matrices = a.dim() == b.dim() + 1 and b.dim() > 1
    expected = (*b.shape, b.shape[-1]) if matrices else tuple(b.shape)
    if not b.dim() or tuple(a.shape) != expected or y0.shape != b.shape[1:]:
        raise ShapeError(
            f"linear_scan: b [T, …], a as b (or [T, …, n, n]), y0 as b[0]; got a {list(a.shape)}, "
            f"b {list(b.shape)}, y0 {list(y0.shape)}"
        )
    T = b.shape[0]
    if not b.numel() and not shards_time():
        return b + 0 * a.sum()
    if matrices:
        n = b.shape[-1]
        states = _linear(Dense(n), a.reshape(T, -1, n, n), b.reshape(T, -1, n), y0.reshape(-1, n))
    else:
        states = _linear(Units(1), a.reshape(T, 1, 1, -1), b.reshape(T, 1, -1), y0.reshape(1, -1))
    return states.reshape(b.shape)

"""Interface of contestants: the problem that all share, and what each provides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cases import Case

Results = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Problem:
    """Random numbers for a case.

    Attributes:
        x [T, B, I]: input.
        dy [T, B, H]: cotangent of the output, dense.
        weights: by name.
        rows: steps of all samples; 0 if products are not counted.
        once: names of weights that do not multiply in every step: not counted.
        wants_x: whether the gradient of x is wanted, where there is any.
        moved: bytes that are read and written at least, where these are counted instead.
    """

    case: Case
    x: Tensor
    dy: Tensor
    weights: Mapping[str, Tensor]
    rows: int = 0
    once: frozenset[str] = frozenset()
    wants_x: bool = True
    moved: int = 0

    def double(self) -> Problem:
        """The problem in float64."""
        weights = {name: value.double() for name, value in self.weights.items()}
        return replace(self, x=self.x.double(), dy=self.dy.double(), weights=weights)

    def first(self, steps: int) -> Problem:
        """The problem cut to its first steps."""
        case = replace(self.case, T=steps)
        rows = steps * self.rows // self.case.T
        return replace(self, case=case, x=self.x[:steps], dy=self.dy[:steps], rows=rows)

    @property
    def flop(self) -> int:
        """Of the products, two per multiplication; a backward step has two for each forward one,
        but for x where its gradient is not wanted."""
        matrices = [w for k, w in self.weights.items() if w.dim() == 2 and k not in self.once]
        elements = [w.numel() for w in matrices]
        flop_per_weight = 6 if self.case.measure.backward else 2
        return (
            flop_per_weight * sum(elements) - (0 if self.wants_x else 2 * elements[0])
        ) * self.rows


@dataclass(frozen=True, eq=False)
class Contestant:
    """Ready to run.

    Attributes:
        run: one training step, or one forward; what is timed.
        results: run once, and name what came out: ``output``, ``last 0``, ``gradient of x`` …
        wants: what gradients are asked for.
        facts: what ran, after it has run; JSON-able.
        sample: seconds per call over so many calls, where it is timed elsewhere.
        close: to be called at the end.
    """

    run: Callable[[], Any]
    results: Callable[[], Results]
    wants: tuple[str, ...]
    facts: Callable[[], dict[str, Any]]
    sample: Callable[[int], float] | None = None
    close: Callable[[], None] = lambda: None


def gradients(wants: Iterable[str], grads: Iterable[Tensor]) -> Results:
    """Gradients by name."""
    return {f"gradient of {name}": grad for name, grad in zip(wants, grads, strict=True)}


def trained(
    forward: Callable[[], tuple[tuple[Any, ...], Tensor, Tensor | None]],
    leaves: Mapping[str, Tensor],
    facts: Callable[[], dict[str, Any]] = dict,
    name: Callable[..., Results] | None = None,
) -> Contestant:
    """A training step that autograd differentiates.

    Args:
        forward: gives what came out, what of it is differentiated, and its cotangent.
        leaves: by name, whose gradients are asked for.
        name: gives what came out its names; None: an output and last states (:func:`named`).
    """
    inputs, name = tuple(leaves.values()), name or named

    def run() -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
        values, root, d = forward()
        return values, torch.autograd.grad(root, inputs, d)

    def results() -> Results:
        values, grads = run()
        return name(*values) | gradients(leaves, grads)

    return Contestant(run, results, tuple(leaves), facts)


def draw(
    make: Callable[[], nn.Module], case: Case, seed: int, *shapes: tuple[int, ...]
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Weights as a module draws them, then tensors from N(0, 1), all in the case's dtype; the
    global generator stays as it is."""
    dtype = getattr(torch, case.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = make().state_dict()
        tensors = [torch.randn(shape, dtype=dtype) for shape in shapes]
    return {name: weight.detach().to(dtype) for name, weight in state.items()}, tensors


def draw_problem(case: Case) -> Problem:
    """The random numbers of a case, the same whenever they are drawn."""
    assert case.measure.draw is not None, "contestants of the case share them"
    return case.measure.draw(case)


def named(output: Tensor, last: Any) -> Results:
    """Output and last states by name; torch's leading axis of layers is not an axis of its own."""
    states = last if isinstance(last, tuple) else (last,)
    named = {f"last {k}": state.detach() for k, state in enumerate(states)}
    flat = {name: state.reshape(-1, state.shape[-1]) for name, state in named.items()}
    return {"output": output.detach(), **flat}

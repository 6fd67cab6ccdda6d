"""Plain loops over steps ``step(carry, x) -> (carry, y)``, and what is compared of any way to run
them: outputs, last carries, and every gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

Step = Callable[[Any, Any], tuple[Any, Any]]
Scan = Callable[..., tuple[Any, Any]]  # (step, init, xs, reverse=) -> last carry, outputs
Found = dict[str, Tensor | None]  # what of a run -> its value; None: a gradient that is not there

# Outputs and gradients of O(1), side by side: (relative, absolute).
STEPS_CLOSE = {torch.float64: (1e-8, 1e-9), torch.float32: (1e-3, 1e-4)}


def plain_scan(step: Step, init: Any, xs: Any, *, reverse: bool = False) -> tuple[Any, Any]:
    """The loop that a scan stands for: last carry, outputs [T, B, ...] in the order of inputs."""
    steps = len(tree_leaves(xs)[0])
    order = range(steps)[::-1] if reverse else range(steps)
    carry, rows, spec = init, list[list[Tensor]](), None
    for t in order:
        carry, y = step(carry, tree_map(lambda x: x[t], xs))  # noqa: B023
        leaves, spec = tree_flatten(y)
        rows.append(leaves)
    stacked = [torch.stack(row) for row in zip(*rows[:: -1 if reverse else 1], strict=True)]
    assert spec is not None
    return carry, tree_unflatten(stacked, spec)


def leaves_that_learn(tree: Any) -> Any:
    """The same tree of numbers, each of its float tensors a leaf with a gradient."""

    def fresh(x: Tensor) -> Tensor:
        return x.detach().clone().requires_grad_(x.is_floating_point())

    return tree_map(fresh, tree)


def weighed(values: Sequence[Tensor]) -> Tensor:
    """A loss in which every number of the values that have a gradient has a weight of its own."""
    source = torch.Generator().manual_seed(3)
    total = torch.zeros((), dtype=torch.float64)
    for value in values:
        weight = torch.randn(value.shape, generator=source, dtype=torch.float64)
        if value.requires_grad:
            total = total + (value.double() * weight).sum()
    return total


def found_by(
    scan: Scan,
    step: Step,
    init: Any,
    xs: Any,
    parameters: Sequence[Tensor] = (),
    **options: Any,
) -> Found:
    """Outputs, last carry and gradients of inputs, initial carry and parameters, by name."""
    init, xs = leaves_that_learn(init), leaves_that_learn(xs)
    carry, ys = scan(step, init, xs, **options)
    groups = {"ys": tree_leaves(ys), "carry": tree_leaves(carry)}
    found: Found = {f"{name}[{i}]": v for name, vs in groups.items() for i, v in enumerate(vs)}
    loss = weighed([*groups["ys"], *groups["carry"]])
    wanted = {"d_init": tree_leaves(init), "d_xs": tree_leaves(xs), "d_parameter": [*parameters]}
    named = {f"{name}[{i}]": v for name, vs in wanted.items() for i, v in enumerate(vs)}
    asked = {name: v for name, v in named.items() if v.requires_grad}
    found |= dict.fromkeys(named)
    if loss.requires_grad and asked:
        found |= zip(asked, torch.autograd.grad(loss, [*asked.values()], allow_unused=True))
    return {name: None if v is None else v.detach() for name, v in found.items()}


def distance(got: Tensor | None, want: Tensor | None) -> float:
    """The largest difference of two values, relative to the larger of 1 and their own size; a
    gradient that is not there is 0."""
    if got is None and want is None:
        return 0.0
    got = torch.zeros_like(want) if got is None else got  # type: ignore[arg-type]
    want = torch.zeros_like(got) if want is None else want
    if got.shape != want.shape or got.is_floating_point() != want.is_floating_point():
        return float("inf")
    if not got.numel():
        return 0.0
    scale = max(1.0, float(want.double().abs().max()))
    off = float((got.double() - want.double()).abs().max()) / scale
    return off if off == off else float("inf")


def differences(got: Found, want: Found, most: float, spread: Found | None = None) -> list[str]:
    """Texts of what is further apart than ``most``; where ``spread`` is given (the loop itself in
    fewer digits), than twenty times what that is off, too: there, numbers jump."""
    texts = []
    for name, expected in want.items():
        own = 0.0 if spread is None else 20 * distance(spread[name], expected)
        off = distance(got[name], expected)
        if off > max(most, own):
            texts.append(f"{name} is {off:.2g} off")
    return texts

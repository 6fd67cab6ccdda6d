"""One call of a loop over a step, as leaves of its trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from elman.errors import InputError, StepError
from elman.nn.engine_choice import autocast_type
from elman.torch_internals import autocast_enabled, pytree

Step = Callable[[Any, Any], tuple[Any, Any]]
_LEAF = pytree.tree_structure(torch.zeros(()))


class Call:
    """One call of a loop.

    Args:
        root: what the user gave: it is walked.
        step_of: makes the step of a carry: of the trees of a carry and an input, it returns those
            of the next carry and an output.
        carry, xs: trees; those of xs [T, ..].
        options: of the layer.
        engine: a name, or ``auto``.
        steps: T.

    Attributes:
        carry, xs: leaves. carry_spec, x_spec: the forms of the trees.
        y_spec: of the outputs, once the step has run.

    Raises:
        InputError: a leaf of the carry is no tensor.
    """

    def __init__(
        self,
        root: Any,
        step_of: Callable[[Any], Step],
        carry: Any,
        xs: Any,
        options: Mapping[str, Any],
        engine: str,
        steps: int,
    ) -> None:
        self.root, self.options, self.engine, self.steps = root, options, engine, steps
        self._step_of = step_of
        self.carry, self.carry_spec = flat(carry)
        self.xs, self.x_spec = flat(xs)
        self.y_spec: Any = None
        if not all(isinstance(c, Tensor) for c in self.carry):
            raise InputError("a leaf of the carry is no tensor", "torch.tensor(0.0)")

    @property
    def leaves(self) -> list[Tensor]:
        """Of the carry, then of xs."""
        return [*self.carry, *self.xs]

    @property
    def half(self) -> torch.dtype | None:
        """The type of autocast."""
        enabled = autocast_enabled() and self.carry
        return autocast_type(self.carry[0].device.type) if enabled else None

    @cached_property
    def batch(self) -> int:
        """B: the first axis of an input that some state has, too; or that of a state."""
        of_xs = [x.shape[1] for x in self.xs if x.dim() > 1]
        of_carry = [c.shape for c in self.carry if c.dim()]
        for size in of_xs:
            if any(size in shape[:2] for shape in of_carry):
                return size
        return of_carry[0][0] if of_carry else 1

    def key(self) -> tuple[Any, ...]:
        """What calls have in common that a formula may serve, as far as it is seen without B."""
        leaves = [(v.shape, v.dtype, v.device) for v in (*self.carry, *self.xs)]
        half = self.half if autocast_enabled() else None
        return half, self.carry_spec, self.x_spec, self.engine, *leaves

    def key_of_all_batches(self) -> tuple[Any, ...]:
        """:meth:`key`, of calls of any T, and any B but 1."""
        lead = [0] * len(self.carry) + [1] * len(self.xs)
        leaves = [
            (sized(v.shape[at:], self.batch, "B"), v.dtype, v.device.type)
            for v, at in zip(self.leaves, lead, strict=True)
        ]
        form = self.carry_spec, self.x_spec, self.engine
        return self.half, *form, self.batch == 1, *leaves

    @cached_property
    def _step(self) -> Step:
        return self._step_of(self.carry_spec.unflatten(self.carry))

    def step(self, carry: Sequence[Any], x: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The step as a function of leaves.

        Raises:
            StepError: it returns a carry of another form.
        """
        after, y = self._step(self.carry_spec.unflatten([*carry]), self.x_spec.unflatten([*x]))
        leaves, after_spec = pytree.tree_flatten(after)
        if after_spec != self.carry_spec and len(leaves) != self.carry_spec.num_leaves:
            raise StepError(
                f"the step returns a carry of the form {after_spec}, given {self.carry_spec}",
                "step(carry, x) returns (carry, y), the carry in the form it has",
            )
        ys, self.y_spec = flat(y)
        return leaves, ys


def flat(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and form of a tree."""
    return ([tree], _LEAF) if isinstance(tree, Tensor) else pytree.tree_flatten(tree)


def whole(leaves: list[Any], spec: Any) -> Any:
    """The tree of leaves."""
    return leaves[0] if spec is _LEAF else spec.unflatten(leaves)


def sized(shape: Sequence[int], batch: int, size: Any, second: bool = False) -> tuple[Any, ...]:
    """A shape in which the axis of samples has another size: the first axis that has B, or the
    second where both have it, as in [layers, B, n]."""
    at = next((axis for axis, n in enumerate(shape) if n == batch), None)
    at = 1 if second and is_twice(shape, batch) else at
    return tuple(shape) if at is None else (*shape[:at], size, *shape[at + 1 :])


def is_twice(shape: Sequence[int], batch: int) -> bool:
    """Whether samples may lie along the second axis as well as along the first."""
    return len(shape) > 2 and shape[0] == shape[1] == batch

"""Kernels called directly: the one place in the tests that spells ``forward`` and ``backward``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from elman.engines.base import Kernel
from elman.engines.call import Call, Cotangents, Result
from elman.engines.packed import for_layout
from elman.engines.packed_rows import Packed
from elman.plan.spec import Spec
from helpers import Case

Values = Sequence[torch.Tensor]
Given = tuple[Values, Values, Values]  # inputs, states, weights
Results = dict[str, torch.Tensor]


def given_of(case: Case) -> Given:
    """A case's inputs [T, B, n], states [B, n] and weights, in declared order."""
    return tuple(case.inputs.values()), tuple(case.states.values()), tuple(case.weights.values())


def call_of(given: Given, packed: Packed | None = None) -> Call:
    """The call of such arguments, dense or of packed rows."""
    inputs, states, weights = map(tuple, given)
    return Call(inputs, states, weights, packed)


def forward(kernel: Kernel, given: Given, packed: Packed | None = None) -> Result:
    """Output [T, B, n], last states [B, n], and what the backward of this call wants to have."""
    return for_layout(kernel, packed).forward(call_of(given, packed))


def backward(
    kernel: Kernel,
    given: Given,
    saved: Any,
    d_output: Any,
    d_last: Any,
    *,
    keep: bool = False,
    packed: Packed | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of all inputs, states and weights in one row; None where not wanted."""
    cotangents = Cotangents(d_output, tuple(d_last))
    of = for_layout(kernel, packed)
    return of.backward(call_of(given, packed), saved, cotangents, keep).tensors


def grouped(values: Values, like: Given) -> Given:
    """Values in one row as inputs, states, weights."""
    first, second = len(like[0]), len(like[0]) + len(like[1])
    return values[:first], values[first:second], values[second:]


def spec_of(kernel: Any) -> Spec:
    """What a compiled kernel was asked for."""
    return kernel.spec if kernel.engine == "c" else kernel.job.spec


def call(kernel: Any, case: Case, *, backwards: int = 1, **changes: Any) -> Results:
    """Output, last states and every gradient of one call of a kernel, by name, on the CPU.

    What it is given, on the kernel's own device, stays as it was.

    Args:
        kernel: with a backward of its own.
        case: what it is given.
        backwards: how often the backward runs on the same tape; the last results are returned.
        changes: ``d_output`` or ``d_last`` instead of the case's (None: zero).
    """
    spec = spec_of(kernel)
    case = case.to(spec.device)
    given = given_of(case)
    copies = [value.clone() for group in given for value in group]
    output, last, saved = forward(kernel, given)
    found: Results = {"out": output.clone()}
    found |= {f"last {name}": value.clone() for name, value in zip(case.states, last)}
    if spec.training:
        d_output = changes.get("d_output", case.d_output)
        d_last = changes.get("d_last", tuple(case.d_last.values()))
        for left in reversed(range(backwards)):
            grads = backward(kernel, given, saved, d_output, d_last, keep=left > 0)
        names = (*case.inputs, *case.states, *case.weights)
        found |= {f"d{name}": grad for name, grad in zip(names, grads) if grad is not None}
    now = [value for group in given for value in group]
    torch.testing.assert_close(now, copies, rtol=0, atol=0, equal_nan=True)
    return {name: value.cpu() for name, value in found.items()}

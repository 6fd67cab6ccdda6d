"""Linear recurrences y[t] = A[t] y[t-1] + b[t] over all t at once, by an associative scan.

Source: Blelloch 1990, "Prefix sums and their applications": pairs (A, b) compose associatively,
(A2, b2) after (A1, b1) = (A2 A1, A2 b1 + b2). Here neighbours are joined, the sequence of half the
length is solved, and the other steps follow from it: T - 1 products of matrices, 2 log2 T rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from elman.engines import registry

_ALONE = 8  # steps; so few are faster one after another


@dataclass(frozen=True)
class Units:
    """Small systems side by side, channels last: A is [T, n, n, N], y and b are [T, n, N]."""

    n: int

    def of_vector(self, A: Tensor, y: Tensor) -> Tensor:
        """A y for every step and channel."""
        if self.n == 1:
            return A[..., 0, :, :] * y
        return (A * y.unsqueeze(-3)).sum(-2)

    def of_matrix(self, A: Tensor, B: Tensor) -> Tensor:
        """A B for every step and channel."""
        if self.n == 1:
            return A * B
        return (A.unsqueeze(-2) * B.unsqueeze(-4)).sum(-3)

    def transposed(self, A: Tensor) -> Tensor:
        """The transposes."""
        return A.transpose(-3, -2)

    def outer(self, a: Tensor, b: Tensor) -> Tensor:
        """a bᵀ for every step and channel."""
        return a.unsqueeze(-2) * b.unsqueeze(-3)


@dataclass(frozen=True)
class Dense:
    """Matrices: A is [T, N, n, n], y and b are [T, N, n]."""

    n: int

    def of_vector(self, A: Tensor, y: Tensor) -> Tensor:
        """A y for every step and sample."""
        return (A @ y.unsqueeze(-1)).squeeze(-1)

    def of_matrix(self, A: Tensor, B: Tensor) -> Tensor:
        """A B for every step and sample."""
        return A @ B

    def transposed(self, A: Tensor) -> Tensor:
        """The transposes."""
        return A.transpose(-2, -1)

    def diagonal(self, A: Tensor) -> Tensor:
        """The diagonals, in the layout of y."""
        return A.diagonal(dim1=-2, dim2=-1)

    def outer(self, a: Tensor, b: Tensor) -> Tensor:
        """a bᵀ for every step and sample."""
        return a.unsqueeze(-1) * b.unsqueeze(-2)


Algebra = Units | Dense


def _sequential_scan(algebra: Algebra, A: Tensor, b: Tensor, y0: Tensor) -> Tensor:
    states: list[Tensor] = []
    for matrix, rest in zip(A, b, strict=True):
        y0 = algebra.of_vector(matrix, y0) + rest
        states.append(y0)
    return torch.stack(states)


def associative(algebra: Algebra, A: Tensor, b: Tensor, y0: Tensor) -> Tensor:
    """All y[t] by torch ops alone, on any device; shapes of the algebra, y0 without T."""
    T = b.shape[0]
    if T <= _ALONE:
        return _sequential_scan(algebra, A, b, y0)
    even = T // 2 * 2
    A1, A2, b1, b2 = A[0:even:2], A[1:even:2], b[0:even:2], b[1:even:2]
    second = associative(algebra, algebra.of_matrix(A2, A1), algebra.of_vector(A2, b1) + b2, y0)
    before = torch.cat((y0.unsqueeze(0), second[:-1]))
    first = algebra.of_vector(A1, before) + b1
    y = torch.stack((first, second), 1).flatten(0, 1)
    if even == T:
        return y
    return torch.cat((y, algebra.of_vector(A[-1:], y[-1:]) + b[-1:]))


def scan(algebra: Algebra, A: Tensor, b: Tensor, y0: Tensor) -> Tensor:
    """All y[t], not differentiable: by the device's own scan if there is one, else by torch ops."""
    native = registry.scans(b.device.type)
    if native is not None:
        states = native.forward(A, b, y0, isinstance(algebra, Units))
        if states is not None:
            return states
    return associative(algebra, A, b, y0)


class _Scan(Function):
    """The recurrence with its backward: a scan in reverse with the transposed matrices."""

    @staticmethod
    def forward(ctx: Any, algebra: Algebra, A: Tensor, b: Tensor, y0: Tensor) -> Tensor:
        y = scan(algebra, A, b, y0)
        ctx.algebra = algebra
        ctx.save_for_backward(A, b, y0, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        algebra = ctx.algebra
        A, b, y0, y = ctx.saved_tensors
        again = torch.is_grad_enabled()  # a second derivative may follow
        native = registry.scans(b.device.type)
        if native is not None and not again:
            gradients = native.backward(A, y0, y, dy, isinstance(algebra, Units))
            if gradients is not None:
                return (None, *gradients)
        if again:
            y = linear(algebra, A, b, y0)
        before = torch.cat((y0.unsqueeze(0), y[:-1]))
        d = reverse(algebra, A, dy)
        start = algebra.of_vector(algebra.transposed(A[:1]), d[:1])[0]
        return None, algebra.outer(d, before), d, start


def reverse(algebra: Algebra, A: Tensor, dy: Tensor) -> Tensor:
    """Cotangents of all b: d[t] = dy[t] + A[t+1]ᵀ d[t+1]."""
    back = algebra.transposed(A[1:]).flip(0)
    first = dy[-1]
    if dy.shape[0] == 1:
        return dy
    rest = linear(algebra, back, dy[:-1].flip(0), first)
    return torch.cat((first.unsqueeze(0), rest)).flip(0)


def linear(algebra: Algebra, A: Tensor, b: Tensor, y0: Tensor) -> Tensor:
    """All y[t] = A[t] y[t-1] + b[t], differentiable, twice too; y0 is y[-1]."""
    if not (torch.is_grad_enabled() and (A.requires_grad or b.requires_grad or y0.requires_grad)):
        return scan(algebra, A, b, y0)
    return _Scan.apply(algebra, A, b, y0)  # type: ignore[no-any-return]

"""Random numbers in formulas: drawn in training, expected values otherwise."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, Literal

from elman.frontend.heads import traced_dim
from elman.frontend.lines import describe, mismatch, refuse, where_called
from elman.frontend.trace import Tracer, lift, pointwise
from elman.ir.graph import Node, node
from elman.ir.types import SCALAR, Shape, parse_dim

Per = Literal["step", "sequence"]
_numbers: ContextVar[Iterator[int] | None] = ContextVar("elman_draws", default=None)


@contextmanager
def counting() -> Generator[None]:
    """Context that numbers the draws of the formula traced inside."""
    token = _numbers.set(count())
    try:
        yield
    finally:
        _numbers.reset(token)


def uniform(like: Any, per: Per = "step") -> Tracer:
    """Uniform random numbers in [0, 1), one for each unit; 1/2 in evaluation.

    Args:
        like: a value of the formula with the wanted shape, [H] or a scalar; or dims, as ``"H"``.
        per: ``"step"`` draws in every step, ``"sequence"`` once for all steps of a sequence.

    The numbers are multiples of 2^-24, equal on all engines, and have no gradient.

    Example:
        >>> h = where(uniform(h) < 0.1, h, tanh(W @ x))
    """
    shape = _shape(like, "uniform")
    return _training(_sample(shape, per), repeat_number(0.5, shape))


def noise(like: Any, per: Per = "step") -> Tracer:
    """Standard normal random numbers, one for each unit; 0 in evaluation.

    Args:
        like, per: as for :func:`uniform`.

    Each is computed from two uniform numbers (Box & Muller 1958).

    Example:
        >>> h = tanh(W @ x + R @ h) + 0.1 * noise(h)
    """
    shape = _shape(like, "noise")
    radius = pointwise("sqrt", -2.0 * pointwise("log", 1.0 - _sample(shape, per)))
    normal = radius * pointwise("cos", 2.0 * math.pi * _sample(shape, per))
    return _training(normal, repeat_number(0.0, shape))


def dropout(v: Any, p: float, per: Per = "step") -> Tracer:
    """v / (1 - p) with probability 1 - p per unit, else 0; v itself in evaluation.

    Args:
        v: a vector or a scalar of the formula.
        p: probability that a unit is dropped, a number in [0, 1].
        per: ``"step"`` draws new units in every step; ``"sequence"`` drops the same units in all
            steps of a sequence (Gal & Ghahramani 2016, arXiv:1512.05287v5, sec. 4).

    Example:
        >>> h = tanh(W @ x + R @ dropout(h, 0.2, per="sequence"))
    """
    share = _share(p, "dropout")
    shape = _shape(v, "dropout")
    if not share:
        return pointwise("add", v, 0.0)
    keep = pointwise("ge", _sample(shape, per), share)
    scaled = pointwise("mul", v, 1.0 / (1.0 - share)) if share < 1.0 else v
    return _training(pointwise("where", keep, scaled, 0.0), Tracer(lift(v)))


def zoneout(new: Any, old: Any, p: float, per: Per = "step") -> Tracer:
    """old with probability p per unit, else new; ``p old + (1 - p) new`` in evaluation.

    Args:
        new, old: vectors or scalars of the formula, of one shape.
        p: probability that a unit keeps its old value, a number in [0, 1].
        per: as for :func:`dropout`.

    Source: Krueger et al. 2017, arXiv:1606.01305v4, eqs. 2-3, and sec. 3.1 for the expected value.

    Example:
        >>> h = zoneout(tanh(W @ x + R @ h), h, 0.1)
    """
    share = _share(p, "zoneout")
    shape = _shape(new, "zoneout")
    after, before = lift(new), lift(old)
    if before.shape != after.shape:
        raise mismatch("zone out", after, before, "zoneout(h_next, h, 0.1)")
    if not share:
        return pointwise("add", new, 0.0)
    hold = pointwise("lt", _sample(shape, per), share)
    mean = pointwise("add", share * Tracer(before), (1.0 - share) * Tracer(after))
    return _training(pointwise("where", hold, old, new), mean)


def _share(p: Any, name: str) -> float:
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0.0 <= p <= 1.0:
        refuse(f"p of {name} must be a number in [0, 1], not {p!r}", f"{name}(v, 0.1)")
    return float(p)


def _shape(like: Any, name: str) -> Shape:
    """Shape of random numbers: that of a value, or dims."""
    if isinstance(like, str):
        try:
            return (traced_dim(parse_dim(like)),)
        except ValueError as reason:
            refuse(f"{name}: {reason}", f'{name}(v), or the dims of a vector: {name}("H")')
    value = lift(like)
    if len(value.shape) > 1:
        refuse(f"{name} takes a vector or a scalar, not {describe(value)}", f"{name}(W @ x)")
    return value.shape


def _sample(shape: Shape, per: Any) -> Tracer:
    if per not in ("step", "sequence"):
        scaled = isinstance(per, int | float)
        hint = f"{per} * noise(v)" if scaled else 'noise(v, per="sequence")'
        refuse(f"per must be 'step' or 'sequence', not {per!r}", hint)
    numbers = _numbers.get()
    if numbers is None:
        refuse("random numbers are drawn inside a cell's formula", "@elman.cell(…) def …")
    number = next(numbers)
    return Tracer(node("draw", (), (f"draw{number}", number, per), shape, where_called()))


def repeat_number(number: float, shape: Shape) -> Tracer:
    """A constant broadcast to a shape."""
    const = lift(number)
    if shape == SCALAR:
        return Tracer(const)
    return Tracer(node("lin", (const,), ((1.0,), 0.0), shape, where_called()))


def _training(sampled: Tracer, expected: Tracer) -> Tracer:
    values: tuple[Node, ...] = (sampled.node, expected.node)
    return Tracer(node("training", values, (), sampled.node.shape, where_called()))


def draw_uniform(like: Tracer) -> Tracer:
    """Uniform random numbers in [0, 1) in training and evaluation alike, one for each unit."""
    return _sample(like.node.shape, "step")


def draw_normal(like: Tracer) -> Tracer:
    """Standard normal random numbers in training and evaluation alike, one for each unit."""
    shape = like.node.shape
    radius = pointwise("sqrt", -2.0 * pointwise("log", 1.0 - _sample(shape, "step")))
    return radius * pointwise("cos", 2.0 * math.pi * _sample(shape, "step"))

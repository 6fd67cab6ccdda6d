"""``elman.scan``: the loop over a step in torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from elman.errors import InputError, ShapeError
from elman.nn.engine_choice import check_engine, requested_engine
from elman.nn.records import ON_RELEASE
from elman.steps.binding import Binder
from elman.steps.call import Call, flat
from elman.steps.order import options_of_steps, reversed_call, reversed_steps
from elman.torch_internals import pytree

_binders: dict[Any, Binder] = {}
ON_RELEASE.append(_binders.clear)
_MOST = 256


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    *,
    dim: int = 0,
    reverse: bool = False,
    engine: str = "auto",
    **options: Any,
) -> tuple[Any, Any]:
    """Run ``carry, y = step(carry, x)`` over the steps of a sequence, fused.

    Args:
        step: in torch's operations.
        init: the first carry: a tensor [B, ..], or a tree of such.
        xs [T, B, ..]: inputs, a tree of tensors.
        dim: the axis of steps.
        reverse: begin with the last step; ys have the order of xs.
        engine: a name, or ``auto``.
        options: ``lengths``, ``reset``, ``reset_to``, ``mask``, ``masked_output`` as of a layer.

    The step is traced once, read as a formula, and compared with itself in a float64 loop, values
    and gradients. A formula that changes with what the step closes over is traced again.

    Returns:
        carry: the last one, in the form of init.
        ys [T, B, ..]: a tree of the outputs.

    Raises:
        StepError: the step cannot be read, and an engine is asked for by name. Otherwise it runs as
            a plain loop, with one warning.
        InputError, ShapeError: an argument is not what it should be.

    Example:
        >>> cell = torch.nn.GRUCell(8, 16)
        >>> def step(h, x):
        ...     h = cell(x, h)
        ...     return h, torch.relu(h)
        ...
        >>> h, ys = elman.scan(step, torch.zeros(2, 16), torch.randn(5, 2, 8))
        >>> ys.shape
        torch.Size([5, 2, 16])
    """
    xs = pytree.tree_map_only(Tensor, lambda x: x.movedim(dim, 0), xs) if dim else xs
    leaves, _ = flat(xs)
    if not leaves or not all(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves):
        raise InputError("scan: xs [T, ..] is a tensor, or a tree of tensors")
    steps = {leaf.shape[0] for leaf in leaves}
    if len(steps) != 1 or steps == {0}:
        raise ShapeError(f"scan: xs have {sorted(steps)} steps")
    (count,) = steps
    chosen = options_of_steps(options, dim) if options else {}
    if reverse:
        xs, chosen = reversed_call(xs, chosen)
    binder = _binder_of(step)
    engine = requested_engine(check_engine(engine))
    call = Call(step, lambda _: step, init, xs, chosen, engine, count)
    carry, ys = binder.run(call)
    if reverse:
        ys = reversed_steps(ys, chosen)
    if dim:
        ys = pytree.tree_map_only(Tensor, lambda y: y.movedim(0, dim), ys)
    return carry, ys


def _binder_of(step: Any) -> Binder:
    key = getattr(step, "__code__", None) or type(step)
    if key not in _binders:
        if len(_binders) >= _MOST:
            _binders.pop(next(iter(_binders)))
        _binders[key] = Binder()
    return _binders[key]

"""Functions that generated kernels call."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUntypedFunctionDecorator=false
# (Triton's own language has no types)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(v):
    """1 / (1 + exp(-v)); exact limits for large arguments of either sign."""
    return 1.0 / (1.0 + tl.exp(-v))


@triton.jit
def tanh(v):
    """Odd, and accurate near zero: a series there, exponentials elsewhere."""
    e = tl.exp(-2.0 * tl.abs(v))
    far = (1.0 - e) / (1.0 + e)
    square = v * v
    near = v * (1.0 - square * (0.33333333 - square * (0.13333333 - square * 0.053968254)))
    return tl.where(tl.abs(v) < 0.2, near, tl.where(v < 0.0, -far, far))


@triton.jit
def softplus(v):
    """log(1 + exp(v)); v itself beyond 20, as in torch."""
    soft = tl.maximum(v, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(v)))
    return tl.where(v > 20.0, v, soft)


@triton.jit
def amax(v):
    """The largest unit of each sample [samples]; NaN where there is one."""
    odd = tl.sum((v != v).to(tl.float32), 0) > 0.0
    return tl.where(odd, float("nan"), tl.max(v, 0))


@triton.jit
def number(v):
    """Zero in the place of NaN."""
    return tl.where(v != v, 0.0, v)


@triton.jit
def bounded(v):
    """Zero in the place of NaN, and at most a large number."""
    return tl.where(v != v, 0.0, tl.minimum(tl.maximum(v, -1e8), 1e8))


@triton.jit
def size(v, inside):
    """The largest absolute value inside [1, 1]; NaN counts as infinity."""
    v = tl.where(inside, tl.where(v != v, float("inf"), tl.abs(v)), 0.0)
    return tl.max(tl.max(v, 1), 0) + tl.zeros([1, 1], tl.float32)


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr):
    """``acc + a @ b`` in float32; the interpreter multiplies bits of bfloat16, so not there."""
    if INTERPRETED:
        return acc + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def dot_split(a, b, acc, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr):
    """As :func:`dot`, of blocks [splits, ., .] whose sum is the product."""
    if INTERPRETED:
        return acc + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def arrive(counter):
    """Tell the other programs of a group that what this one stored can be seen."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def wait(counter, target):
    """Wait until all programs of a group have arrived as often; what they stored is seen."""
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
        pass
    tl.debug_barrier()


@triton.jit
def put(at, value, mask):
    """Store a block in the type of the memory."""
    tl.store(at, value.to(at.dtype.element_ty), mask=mask)

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
def atan(v):
    """Odd: a polynomial after the argument is brought into ±tan(pi / 8) (Cephes, atanf.c)."""
    a = tl.abs(v)
    far = a > 2.414213562373095
    mid = a > 0.4142135623730950
    x = tl.where(far, -1.0 / tl.where(far, a, 1.0), tl.where(mid, (a - 1.0) / (a + 1.0), a))
    start = tl.where(far, 1.5707963267948966, tl.where(mid, 0.7853981633974483, 0.0))
    z = x * x
    p = ((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1
    angle = start + (p * z * x + x)
    return tl.where(v < 0.0, -angle, tl.where(v == 0.0, v, angle))


@triton.jit
def asinh(v):
    """Odd: log(1 + u) of u = |v| + v² / (1 + sqrt(1 + v²)), accurate near zero."""
    a = tl.abs(v)
    u = a + a * a / (1.0 + tl.sqrt(a * a + 1.0))
    w = 1.0 + u
    size = tl.where(w == 1.0, u, tl.log(w) * (u / tl.where(w == 1.0, 1.0, w - 1.0)))
    size = tl.where(a > 1e9, tl.log(a) + 0.6931471805599453, size)
    return tl.where(v < 0.0, -size, tl.where(v == 0.0, v, size))


@triton.jit
def expm1(v):
    """exp(v) - 1, accurate near zero: tanh(v / 2) (exp(v) + 1)."""
    return tanh(0.5 * v) * (tl.exp(v) + 1.0)


@triton.jit
def nearest(v):
    """The nearest whole number, half to even; beyond 2^23 all numbers are whole."""
    a = tl.abs(v)
    rounded = tl.where(a < 8388608.0, (a + 8388608.0) - 8388608.0, a)
    return tl.where(v < 0.0, -rounded, rounded)


@triton.jit
def power(v, w):
    """v to the power w, as C's pow: in float64, where w log|v| has digits to spare."""
    e, a = w.to(tl.float64), tl.abs(v).to(tl.float64)
    result = tl.exp(e * tl.log(a)).to(tl.float32)
    odd = (tl.floor(w) == w) & (tl.floor(0.5 * w) != 0.5 * w) & (tl.abs(w) < 16777216.0)
    below = (v < 0.0) | ((v == 0.0) & (1.0 / v < 0.0))
    result = tl.where(below & odd, -result, result)
    finite = (tl.abs(v) < float("inf")) & (tl.abs(w) < float("inf"))
    result = tl.where((v < 0.0) & (tl.floor(w) != w) & finite, float("nan"), result)
    return tl.where(
        (w == 0.0) | (v == 1.0) | ((v == -1.0) & (tl.abs(w) == float("inf"))), 1.0, result
    )


@triton.jit
def remainder(v, w):
    """v less a whole number of w, of w's sign, as torch's, for quotients below 2^28, which float64
    tells from whole numbers."""
    a, b = v.to(tl.float64), w.to(tl.float64)
    rest = (a - tl.floor(a / b) * b).to(tl.float32)
    opposite = (v != 0.0) & ((v < 0.0) != (w < 0.0))
    endless = (tl.abs(w) == float("inf")) & (tl.abs(v) < float("inf"))
    return tl.where(endless, tl.where(opposite, w, v), rest)


@triton.jit
def amax(v, AXIS: tl.constexpr):
    """The largest along an axis; NaN where there is one."""
    odd = tl.sum((v != v).to(tl.float32), AXIS) > 0.0
    return tl.where(odd, float("nan"), tl.max(v, AXIS))


@triton.jit
def units(v, at):
    """Some units of a block [units, samples], by their numbers [own units, 1]; the last one's for
    numbers that are too large."""
    at = tl.minimum(at, v.shape[0] - 1).to(tl.int32)
    return tl.gather(v, tl.broadcast_to(at, [at.shape[0], v.shape[1]]), 0)


@triton.jit
def by_group(v, GROUPS: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """A block [units, samples] of groups of WIDTH as [groups, UNITS of a group, samples]; what is
    more than a group, or than all groups, is any number."""
    if v.shape[0] == GROUPS * UNITS and (GROUPS == 1 or UNITS == WIDTH):
        wide = v
    else:
        k = tl.arange(0, GROUPS * UNITS)[:, None]
        wide = units(v, k // UNITS * WIDTH + tl.minimum(k % UNITS, WIDTH - 1))
    return tl.reshape(wide, [GROUPS, UNITS, v.shape[1]])


@triton.jit
def group_sum(v, GROUPS: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """The sum of each group [groups, samples]."""
    inside = tl.arange(0, UNITS)[None, :, None] < WIDTH
    return tl.sum(tl.where(inside, by_group(v, GROUPS, UNITS, WIDTH), 0.0), 1)


@triton.jit
def group_mean(v, GROUPS: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """The mean of each group [groups, samples]."""
    return group_sum(v, GROUPS, UNITS, WIDTH) * (1.0 / WIDTH)


@triton.jit
def group_var(v, GROUPS: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """The variance of each group, divided by WIDTH [groups, samples]."""
    inside = tl.arange(0, UNITS)[None, :, None] < WIDTH
    wide = by_group(v, GROUPS, UNITS, WIDTH)
    middle = tl.sum(tl.where(inside, wide, 0.0), 1) * (1.0 / WIDTH)
    off = tl.where(inside, wide - middle[:, None, :], 0.0)
    return tl.sum(off * off, 1) * (1.0 / WIDTH)


@triton.jit
def group_amax(v, GROUPS: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """The largest unit of each group [groups, samples]; NaN where there is one."""
    inside = tl.arange(0, UNITS)[None, :, None] < WIDTH
    return amax(tl.where(inside, by_group(v, GROUPS, UNITS, WIDTH), -float("inf")), 1)


@triton.jit
def group_argmax(v, GROUPS: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """The number of the first largest unit of each group [groups, samples]; NaN is the largest."""
    k = tl.arange(0, UNITS)[None, :, None]
    wide = by_group(v, GROUPS, UNITS, WIDTH)
    best = group_amax(v, GROUPS, UNITS, WIDTH)[:, None, :]
    hit = (k < WIDTH) & ((wide == best) | (wide != wide))
    return tl.min(tl.where(hit, k, UNITS), 1).to(tl.float32)


@triton.jit
def spread(v, UNITS: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr):
    """A number per group [groups, samples] at each of its WIDTH units [UNITS, samples]."""
    v = tl.broadcast_to(v, [v.shape[0], N])
    if v.shape[0] == 1:
        return tl.broadcast_to(v, [UNITS, N])
    elif v.shape[0] * WIDTH == UNITS:
        wide = tl.broadcast_to(v[:, None, :], [v.shape[0], WIDTH, N])
        return tl.reshape(wide, [UNITS, N])
    else:
        return units(v, tl.arange(0, UNITS)[:, None] // WIDTH)


@triton.jit
def one_hot(number, WIDTH: tl.constexpr, BEFORE: tl.constexpr):
    """1 at the unit of each group of WIDTH that has a number, counted from BEFORE, else 0."""
    k = tl.arange(0, number.shape[0])[:, None] % WIDTH + BEFORE
    return (number == k.to(tl.float32)).to(tl.float32)


@triton.jit
def place(v, UNITS: tl.constexpr, COUNT: tl.constexpr, FIRST: tl.constexpr):
    """The first COUNT units of a block [units, samples] at those from FIRST on of UNITS, -0
    elsewhere."""
    k = tl.arange(0, UNITS)[:, None] - FIRST
    return tl.where((k >= 0) & (k < COUNT), units(v, tl.maximum(k, 0)), -0.0)


@triton.jit
def cut(v, UNITS: tl.constexpr, FIRST: tl.constexpr):
    """UNITS units of a block [units, samples] from FIRST on."""
    return units(v, tl.arange(0, UNITS)[:, None] + FIRST)


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
    """``acc + a @ b`` in float32, or the same of each of several products [splits, ., .]; the
    interpreter multiplies bits of bfloat16, so not there."""
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
def mixed(x):
    """See :func:`elman.ir.draws.mixed`; of unsigned numbers of 32 bits."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def uniform(high, low, unit, OF: tl.constexpr):
    """See :func:`elman.ir.draws.drawn`: a number in [0, 1) for each unit and sample."""
    high, low = high.to(tl.int32).to(tl.uint32), low.to(tl.int32).to(tl.uint32)
    first, second = low ^ (high << 24), (high >> 8) ^ OF
    bits = mixed(mixed(unit.to(tl.uint32) ^ first) ^ second) >> 8
    return bits.to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def put(at, value, mask):
    """Store a block in the type of the memory."""
    tl.store(at, value.to(at.dtype.element_ty), mask=mask)

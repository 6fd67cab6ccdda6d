"""Linear recurrences of five to eight states on a GPU: chunks of steps that threads walk through.

The product of two steps does not fit into registers, a row of it does. So threads compute a chunk's
product row by row, each from the last step to the first: a row times a step's matrix is the next
row. The maps of chunks give the states before each chunk, and a thread for each chunk and channel
computes all states from these. As in ``scans``, the maps are a recurrence of their own.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from elman.engines.triton.device import limits
from elman.engines.triton.device.launch import processors
from elman.engines.triton.device.source import function, indented, kernel


def _sums(n: int, vector: str, target: str, *, plus: str = "") -> list[str]:
    """Lines of a vector times the matrix ``a``: from the left if ``plus`` is empty, else from the
    right, added to that vector."""
    lines: list[str] = []
    for j in range(n):
        names = [f"a{j}{k}" if plus else f"a{k}{j}" for k in range(n)]
        terms = [f"{name} * {vector}{k}" for k, name in enumerate(names)]
        lines.append(f"{target}{j} = {' + '.join([*([plus + str(j)] if plus else []), *terms])}")
    return lines


def _loads(n: int) -> list[str]:
    """Lines that load a step; one beyond the last changes nothing."""
    lines = ["ok = t < T"]
    for i in range(n):
        for j in range(n):
            at = f"A + (t * {n * n} + {i * n + j}) * N + c"
            lines.append(f"a{i}{j} = tl.load({at}, mask=ok, other={float(i == j)})")
        lines.append(f"b{i} = tl.load(b + (t * {n} + {i}) * N + c, mask=ok, other=0.0)")
    return lines


def _kernel(name: str, arrays: str, before: list[str], loop: list[str], after: list[str]) -> str:
    sizes = ("T", "N", "STEPS: tl.constexpr", "THREADS: tl.constexpr")
    thread = "thread = tl.program_id(0) * THREADS + tl.arange(0, THREADS)"  # 2³¹ would be of 250 GB
    lines = [thread, *before, "for s in range(STEPS):", *indented(loop), *after]
    return kernel(name, (arrays, *sizes), lines, ("T", "y0_n", "y0_c"))


@cache
def totals_text(n: int) -> str:
    """The kernel of the map of each chunk: ``At`` [C, n, n, N], ``bt`` [C, n, N]."""
    before = [
        f"i = thread % {n}",
        f"c = thread // {n} % N",
        f"k = (thread // {n} // N).to(tl.int64)",
    ]
    before += [f"u{j} = (i == {j}).to(b.dtype.element_ty)" for j in range(n)]
    before.append("total = u0 - u0")
    added = " + ".join(f"u{j} * b{j}" for j in range(n))
    loop = ["t = k * STEPS + (STEPS - 1 - s)", *_loads(n), f"total = total + ({added})"]
    loop += [*_sums(n, "u", "v"), *(f"u{j} = v{j}" for j in range(n))]
    after = ["ok = k * STEPS < T"]
    after += [
        f"tl.store(At + ((k * {n} + i) * {n} + {j}) * N + c, u{j}, mask=ok)" for j in range(n)
    ]
    after.append(f"tl.store(bt + (k * {n} + i) * N + c, total, mask=ok)")
    return _kernel("totals", "A, b, At, bt", before, loop, after)


@cache
def steps_text(n: int) -> str:
    """The kernel of all y [T, n, N] from the state before all of them, and from the states ``ends``
    [C, n, N] after each chunk."""
    before = ["c = thread % N", "k = (thread // N).to(tl.int64)", "here = k * STEPS < T"]
    for i in range(n):
        at = f"ends + ((k - 1) * {n} + {i}) * N + c"
        first = f"y0 + {i} * y0_n + c * y0_c"
        before += [
            f"u{i} = tl.load({at}, mask=here & (k > 0), other=0.0)",
            f"u{i} += tl.load({first}, mask=k == 0, other=0.0)",
        ]
    loop = ["t = k * STEPS + s", *_loads(n), *_sums(n, "u", "v", plus="b")]
    for i in range(n):
        loop += [f"u{i} = v{i}", f"tl.store(y + (t * {n} + {i}) * N + c, u{i}, mask=ok)"]
    return _kernel("steps", "A, b, y0, y0_n, y0_c, ends, y", before, loop, [])


def chunk_steps(T: int, threads: int) -> int:
    """Steps of a chunk: as few as keep every processor busy, at ``threads`` threads a step."""
    least, most = limits.WALK_STEPS
    steps = least
    while steps < most and T * threads > 2 * steps * limits.WALK_BUSY * processors():
        steps *= 2
    return steps


def solved(A: Tensor, b: Tensor, y0: Tensor) -> Tensor:
    """All y[t] = A[t] y[t-1] + b[t].

    Args:
        A, b: [T, n, n, N] and [T, n, N], contiguous.
        y0: [n, N], of any strides.

    Returns:
        y [T, n, N].
    """
    T, n, N = b.shape
    steps = chunk_steps(T, n * N)
    chunks = -(-T // steps)
    ends = y0
    if chunks > 1:
        At, bt = A.new_empty(chunks, n, n, N), b.new_empty(chunks, n, N)
        programs = -(-chunks * N * n // limits.WALK_THREADS)
        totals = function("totals", totals_text(n))
        totals[(programs,)](A, b, At, bt, T, N, STEPS=steps, THREADS=limits.WALK_THREADS)
        ends = solved(At, bt, y0)
    y = torch.empty_like(b)
    kernel = function("steps", steps_text(n))
    kernel[(-(-chunks * N // limits.WALK_THREADS),)](
        A, b, y0, *y0.stride(), ends, y, T, N, STEPS=steps, THREADS=limits.WALK_THREADS
    )
    return y

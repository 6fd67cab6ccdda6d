"""Linear recurrences on a GPU: systems of up to four states side by side, channels last.

A chunk of steps is one program's associative scan; the maps of chunks are a recurrence of their
own, so a long sequence takes a few rounds: maps of chunks, their recurrence, then all steps. Larger
systems run by ``walks``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.engines.triton.all_steps import walks
from elman.engines.triton.device import limits
from elman.engines.triton.device.launch import launching
from elman.engines.triton.device.source import function, indented, kernel
from elman.engines.triton.text.layout import power_of_2

_DTYPES = (torch.float32, torch.float64)


def _names(n: int, letter: str) -> tuple[list[list[str]], list[str]]:
    """Names of a matrix's and a vector's entries."""
    matrix = [[f"{letter}a{i}{j}" for j in range(n)] for i in range(n)]
    return matrix, [f"{letter}b{i}" for i in range(n)]


def _flat(matrix: list[list[str]], vector: list[str]) -> list[str]:
    return [*(name for row in matrix for name in row), *vector]


def _joined(n: int) -> list[str]:
    """The function that composes two steps: (A2, b2) after (A1, b1) = (A2 A1, A2 b1 + b2)."""
    first, second = _names(n, "x"), _names(n, "y")
    (xa, xb), (ya, yb) = first, second
    units = range(n)
    entries = [" + ".join(f"{ya[i][k]} * {xa[k][j]}" for k in units) for i in units for j in units]
    entries += [f"{yb[i]} + " + " + ".join(f"{ya[i][k]} * {xb[k]}" for k in units) for i in units]
    return [
        "@triton.jit",
        f"def after({', '.join([*_flat(*first), *_flat(*second)])}):",
        f"    return {', '.join(entries)}",
    ]


PLACE = [  # indices of a block of steps and channels
    "t = (tl.program_id(0) * STEPS + tl.arange(0, STEPS)).to(tl.int64)[:, None]",
    "c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]",
    "inside = (t < T) & (c < N)",
]


def _total_stores(n: int, total: str) -> list[str]:
    """Lines that store the map of a block of steps: ``At`` [C, n, n, N], ``bt`` [C, n, N];
    ``total`` formats the name of an entry to its text."""
    a, b = _names(n, "")
    lines = ["chunk = tl.program_id(0)"]
    lines += ["channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)", "ok = channel < N"]
    places = [
        (a[i][j], f"At + (chunk * {n * n} + {i * n + j})") for i in range(n) for j in range(n)
    ]
    places += [(b[i], f"bt + (chunk * {n} + {i})") for i in range(n)]
    for name, place in places:
        lines.append(f"tl.store({place} * N + channel, {total.format(name)}, mask=ok)")
    return lines


def _from_starts(n: int, first: list[str]) -> tuple[list[str], list[str]]:
    """Lines that load the state before each block of steps, from ``first`` for the first block,
    else from ``ends`` [C, n, N] of the preceding block; and texts of all states of the block."""
    a, b = _names(n, "")
    lines = ["chunk = tl.program_id(0)"]
    for i in range(n):
        at = f"ends + ((chunk - 1) * {n} + {i}) * N + c"
        lines += [
            f"z{i} = tl.load({at}, mask=(c < N) & (chunk > 0), other=0.0)",
            f"z{i} += tl.load({first[i]}, mask=(c < N) & (chunk == 0), other=0.0)",
        ]
    sums = [" + ".join(f"{a[i][k]} * z{k}" for k in range(n)) for i in range(n)]
    return lines, [f"{b[i]} + {sums[i]}" for i in range(n)]


def _loaded(n: int) -> list[str]:
    """Loads of a block of steps; steps beyond the last change nothing."""
    a, b = _names(n, "")
    lines = list(PLACE)
    for i in range(n):
        for j in range(n):
            at = f"A + (t * {n * n} + {i * n + j}) * N + c"
            lines.append(f"{a[i][j]} = tl.load({at}, mask=inside, other={float(i == j)})")
        lines.append(f"{b[i]} = tl.load(b + (t * {n} + {i}) * N + c, mask=inside, other=0.0)")
    return lines


UNSPECIALISED = ("T", "k", "y0_n", "y0_c")
SIZES = ("T", "N", "STEPS: tl.constexpr", "CHANNELS: tl.constexpr")


class Near(NamedTuple):
    """Early exit of scan kernels.

    Attributes:
        lines: lines that define ``near``, the condition of the exit.
        steps: lines that then replace the steps.
    """

    lines: list[str]
    steps: list[str]


class BlockScan:
    """Kernels of a recurrence that scan blocks of steps: one for the map of each block, one for all
    states from those before each block.

    Args:
        n: number of states.
        operands: names of the arrays that are read.
        lines: lines that define the entries ``a00`` … ``b0`` … of a block's steps.
        results: names of the arrays that are stored.
        stores: makes the lines that store them, from texts of all states.
        first: pointers to the states before all steps.
        near: the early exit; None: there is none.
    """

    def __init__(
        self,
        n: int,
        operands: str,
        lines: list[str],
        results: str,
        stores: Callable[[list[str]], list[str]],
        *,
        first: list[str],
        near: Near | None = None,
    ) -> None:
        self.n = n
        names = ", ".join(_flat(*_names(n, "")))
        scanned = [*lines, f"{names} = tl.associative_scan(({names},), 0, after)"]
        starts, states = _from_starts(n, first)
        last = "last = tl.arange(0, STEPS)[:, None] == STEPS - 1"
        sums = _total_stores(n, "tl.sum(tl.where(last, {}, 0.0), 0)")
        totals, steps = [*scanned, last, *sums], [*scanned, *starts, *stores(states)]
        if near is not None:
            totals = unless(near.lines, _total_stores(n, "0.0"), totals)
            steps = unless(near.lines, near.steps, steps)
        self.totals_text = self._text("totals", f"{operands}, At, bt", totals)
        self.steps_text = self._text("steps", f"{operands}, ends, {results}", steps)

    def _text(self, name: str, arrays: str, lines: list[str]) -> str:
        text = kernel(name, (arrays, *SIZES), lines, UNSPECIALISED)
        return "\n".join([*_joined(self.n), "", "", text])

    def grid(self, T: int, N: int) -> tuple[int, int]:
        """Blocks of steps, and of channels."""
        steps, channels = block(self.n, N)
        return -(-T // steps), -(-N // channels)

    def run(self, operands: Sequence[Any], results: Sequence[Tensor], y0: Tensor, T: int) -> None:
        """Compute all states of T steps.

        Args:
            operands, results: arguments that the kernels read and store.
            y0: the states before all steps [n, N], of any strides.
            T: steps.
        """
        n, N = y0.shape
        chunks, _ = grid = self.grid(T, N)
        steps, channels = block(n, N)
        sizes: dict[str, Any] = {"STEPS": steps, "CHANNELS": channels}
        ends = y0
        if chunks > 1:
            At, bt = y0.new_empty(chunks, n, n, N), y0.new_empty(chunks, n, N)
            function("totals", self.totals_text)[grid](*operands, At, bt, T, N, **sizes)
            ends = _solved(At, bt, y0)
        function("steps", self.steps_text)[grid](*operands, ends, *results, T, N, **sizes)


def unless(condition: list[str], then: list[str], otherwise: list[str]) -> list[str]:
    """Lines that run if ``near`` is false (``otherwise``), and lines that run if it is true."""
    return [*condition, "if near:", *indented(then), "else:", *indented(otherwise)]


@cache
def linear(n: int) -> BlockScan:
    """The kernels of y[t] = A[t] y[t-1] + b[t]."""

    def stores(states: list[str]) -> list[str]:
        at = [f"y + (t * {n} + {i}) * N + c" for i in range(n)]
        return [f"tl.store({y}, {state}, mask=inside)" for y, state in zip(at, states, strict=True)]

    first = [f"y0 + {i} * y0_n + c * y0_c" for i in range(n)]
    return BlockScan(n, "A, b, y0, y0_n, y0_c", _loaded(n), "y", stores, first=first)


def block(n: int, N: int) -> tuple[int, int]:
    """Steps and channels of a block that is scanned."""
    return shape(limits.SCAN_ELEMENTS[n], N)


def shape(elements: int, N: int) -> tuple[int, int]:
    """Steps and channels of a block of ``elements`` elements."""
    channels = min(limits.SCAN_CHANNELS, power_of_2(N))
    return max(2, elements // channels), channels


def forward(A: Tensor, b: Tensor, y0: Tensor, units: bool) -> Tensor | None:
    """All y[t] = A[t] y[t-1] + b[t].

    Args:
        A: [T, n, n, N] if ``units``, else [T, N, n, n].
        b: [T, n, N], or [T, N, n].
        y0: [n, N], or [N, n].
        units: whether channels come last.

    Returns:
        y, shaped as b; None for dtypes and sizes without a kernel.
    """
    if b.dtype not in _DTYPES or not b.numel() or A.shape[1 if units else 2] > limits.WALKED:
        return None
    if not units:
        A, b, y0 = A.permute(0, 2, 3, 1), b.mT, y0.mT
    with launching(b):
        states = _solved(A.contiguous(), b.contiguous(), y0)
    return states if units else states.mT


def _solved(A: Tensor, b: Tensor, y0: Tensor) -> Tensor:
    T, n, _ = b.shape
    if n > limits.SCANNED:
        return walks.solved(A, b, y0)
    y = torch.empty_like(b)
    linear(n).run((A, b, y0, *y0.stride()), (y,), y0, T)
    return y


def backward(
    A: Tensor, y0: Tensor, y: Tensor, dy: Tensor, units: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """None: the caller's own, a scan in reverse by :func:`forward`."""
    return None

"""The argument block of a kernel: one table for the C struct and for its packing in Python.

Every field is eight bytes wide. The caller's fields come first, so that a call packs one row of
numbers; the kernel's own fields follow.
"""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from elman.engines.c.calls.noted import NOTED

ARRAYS = frozenset(
    ("ring", "in", "in_t", "in_l", "st", "h0", "last", "w", "din", "dlast", "dst", "dw", "prev")
)
DONE, AWAITS = 7, 8  # indices of these two fields


@dataclass(frozen=True)
class Arity:
    """Numbers of inputs, states and weights of a cell."""

    inputs: int
    states: int
    weights: int

    def caller_fields(self) -> list[tuple[str, str, int]]:
        """Fields set by the caller, (C type, name, count), in the order of :meth:`Frame.call`.

        The first nine are the ``Head`` of runtime.h.
        """
        inputs, states, weights = self.inputs, self.states, self.weights
        return [
            ("long", "T", 1),
            ("long", "B", 1),
            ("long", "chunk", 1),
            ("long", "workers", 1),
            ("long", "split", 1),
            ("long", "shares", 1),
            ("Flag *", "flags", 1),
            ("long", "done", 1),  # finished steps, for which the next kernel waits
            ("const long *", "awaits", 1),  # that count of the kernel before; 0: none
            ("char *", "arena", 1),  # workspace; 0: return its size, compute nothing
            ("T *", "tape", 1),
            ("const long *", "rows", 1),  # first row of each step of a packed call; 0: dense
            ("long", "ring", states),  # see Results.rings
            ("const T *", "in", inputs),
            ("long", "in_t", inputs),  # distance between steps of an input (elements)
            ("long", "in_l", inputs),  # … and between its rows
            ("const T *", "w", weights),
            ("T *", "st", states),
            ("const T *", "h0", states),
            ("T *", "last", states),
            ("T *", "out", 1),
            ("const T *", "dy", 1),
            ("long", "dy_t", 1),
            ("long", "dy_l", 1),
            ("const T *", "dlast", states),
            ("T *", "din", inputs),
            ("T *", "dst", states),
            ("T *", "dw", weights),
        ]

    def places(self) -> dict[str, int]:
        """First index of each field of :meth:`caller_fields` among the numbers of a call."""
        counts = [max(1, count) for _, _, count in self.caller_fields()]
        names = [name for _, name, _ in self.caller_fields()]
        return dict(zip(names, accumulate(counts, initial=0)))

    def kernel_fields(self) -> list[tuple[str, str, int]]:
        """Fields set by the kernel, (C type, name, count)."""
        return [
            ("long", "bytes", 1),
            ("T *", "vec", 1),
            ("T *", "mat", 1),
            ("T *", "pack", 1),
            ("T *", "scratch", 1),
            ("T *", "lists", 1),
            ("T *", "panel", 1),
            ("T *", "chunk_rows", 1),
            ("T *", "prev", max(1, self.states)),
            ("T *", "carry", 1),
            ("T *", "scalars", 1),
            ("long", "scalars_size", 1),
            ("T *", "right", 1),
        ]

    def text(self) -> str:
        """The C struct."""
        lines = ["typedef struct {"]
        for ctype, name, count in (*self.caller_fields(), *self.kernel_fields()):
            array = f"[{max(1, count)}]" if name in ARRAYS else ""
            lines.append(f"    {ctype} {name}{array};")
        return "\n".join([*lines, "} C;"])


class Frame:
    """Argument blocks of one kernel; each call borrows one, so that calls may run concurrently."""

    def __init__(self, shape: Arity) -> None:
        size = sum(max(1, count) for _, _, count in shape.caller_fields())
        self.number_count = size  # numbers of a call
        self.places = shape.places()
        self._pack = struct.Struct(f"{size}q").pack_into
        size += sum(count for _, _, count in shape.kernel_fields())
        self._block = ctypes.c_int64 * size
        self._spare: deque[Any] = deque(maxlen=4)

    def call(self, function: Any, *numbers: int) -> int:
        """Call a kernel's function with the numbers of :meth:`Arity.caller_fields`, arrays
        unpacked, and return its result."""
        if (launches := NOTED.get()) is not None:
            launches.complete = False  # the next call overwrites this block: no replay can use it
        block = self.filled(*numbers)
        stolen: int = function(block)
        self._spare.append(block)
        return stolen

    def filled(self, *numbers: int) -> Any:
        """An argument block with these numbers."""
        try:
            block = self._spare.pop()
        except IndexError:
            block = self._block()
        self._pack(block, 0, *numbers)
        return block

"""Backpropagation through time of ``custom_cells.tanh_readout`` in Halide, as the report wrote it.

Each product is one pipeline, compiled once, with the pointwise code that follows it in its tiles:
rows are parallel, tiles of rows and columns are unrolled over vectors, and the right operand's
panel is copied where a tile's rows find it in cache. Buffers are NumPy's memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers.libraries import facts_of, library
from benchmarks.peers.numpy_bptt import Array, Arrays, contestant, flat
from benchmarks.problem import Contestant, Problem

_ROWS = 6  # of a tile; with four vectors it fills the registers of AVX-512
_VECTORS = 4
_BLOCK = 240  # rows whose left operand stays in a core's cache
_SHARES = 8  # blocks of rows at least, for threads to take

Expr = Any
Finish = Callable[[Expr, Expr, Expr], Expr]  # the product and its place to what is stored


@dataclass(frozen=True, eq=False)
class Product:
    """A compiled pipeline: out[y, x] = finish(sum over k of left · right).

    Attributes:
        inputs: parameters by name, set before each run.
        run: fills the arrays that it is given.
    """

    hl: Any
    pipeline: Any
    inputs: dict[str, Any]

    def __call__(self, *out: Array, **arrays: Array) -> None:
        """Run on these arrays [rows, columns]."""
        for name, array in arrays.items():
            self.inputs[name].set(self.hl.Buffer(array))
        buffers = [self.hl.Buffer(array) for array in out]
        self.pipeline.realize(buffers if len(buffers) > 1 else buffers[0])


class Writer:
    """Writes the pipelines for one size of rows and columns."""

    def __init__(self, hl: Any, columns: int) -> None:
        self.hl = hl
        lanes = hl.get_host_target().natural_vector_size(hl.Float(32))
        while lanes > columns:
            lanes //= 2
        self.lanes, self.width = lanes, min(_VECTORS, columns // lanes) * lanes

    def product(
        self,
        rows: int,
        inner: int,
        extra: tuple[str, ...],
        finish: Callable[..., Any],
        *,
        left_down: bool = False,
        right_down: bool = True,
    ) -> Product:
        """A product and what follows it.

        Args:
            rows: of the output.
            inner: length of k.
            extra: names of further parameters [rows, columns] that ``finish`` reads.
            finish: the value of the product, then those of the others, to what is stored.
            left_down: whether the left operand lies as [k, rows], else [rows, k].
            right_down: whether the right operand lies as [k, columns], else [columns, k].
        """
        hl = self.hl
        names = ("left", "right", *extra)
        inputs = {name: hl.ImageParam(hl.Float(32), 2, name) for name in names}
        x, y, k = hl.Var("x"), hl.Var("y"), hl.Var("k")
        r = hl.RDom([(0, inner)])
        panel, total, out = hl.Func("panel"), hl.Func("total"), hl.Func("out")
        panel[x, k] = inputs["right"][x, k] if right_down else inputs["right"][k, x]
        left = inputs["left"][y, r.x] if left_down else inputs["left"][r.x, y]
        total[x, y] = hl.f32(0)
        total[x, y] += left * panel[x, r.x]
        out[x, y] = finish(total[x, y], *(inputs[name][x, y] for name in extra))
        self._scheduled(panel, total, out, (x, y, r.x), rows)
        out.compile_jit()
        return Product(hl, out, inputs)

    def _scheduled(
        self, panel: Any, total: Any, out: Any, names: tuple[Any, ...], rows: int
    ) -> None:
        hl = self.hl
        x, y, r = names
        xo, xi, yo, yi, yb = (hl.Var(name) for name in ("xo", "xi", "yo", "yi", "yb"))
        tile = min(_ROWS, rows)
        block = max(tile, min(_BLOCK, rows // _SHARES) // tile * tile)
        out.split(y, yb, y, block).tile(x, y, xo, yo, xi, yi, self.width, tile)
        out.reorder(xi, yi, yo, xo, yb).parallel(yb).vectorize(xi, self.lanes).unroll(yi)
        panel.compute_at(out, xo).vectorize(x, self.lanes)
        total.compute_at(out, yo).vectorize(x, self.lanes).unroll(x).unroll(y)
        update = total.update()
        update.reorder(x, y, r).vectorize(x, self.lanes).unroll(x).unroll(y).unroll(r, 2)


def halide_bptt(problem: Problem) -> Contestant | str:
    """Halide, compiled once, all sizes known."""
    os.environ["HL_NUM_THREADS"] = str(problem.case.threads)  # read when its threads are made
    modules = library("halide")
    if isinstance(modules, str):
        return modules
    return contestant(problem, Pipelines(modules[0], problem).step, facts_of("halide"))


class Pipelines:
    """The products of a training step, and the arrays between them."""

    def __init__(self, hl: Any, problem: Problem) -> None:
        data, case = Arrays.of(problem), problem.case
        T, B, n, H = case.T, case.B, case.input_size, case.H
        self.data, write = data, Writer(hl, H)
        narrow = Writer(hl, n)

        def loss(value: Expr, target: Expr) -> Expr:
            y = hl.tanh(value)
            return hl.Tuple([y, hl.f32(2) * (y - target) * (hl.f32(1) - y * y)])

        def back(value: Expr, outer: Expr, h: Expr) -> Expr:
            return (value + outer) * (hl.f32(1) - h * h)

        self.project = write.product(T * B, n, (), lambda value: value, right_down=False)
        self.step_on = write.product(
            B, H, ("p",), lambda value, p: hl.tanh(value + p), right_down=False
        )
        self.read = write.product(T * B, H, ("target",), loss, right_down=False)
        self.unread = write.product(T * B, H, (), lambda value: value)
        self.step_back = write.product(B, H, ("outer", "h"), back)
        gather = partial(
            Writer.product, rows=H, inner=B, extra=("sum",), finish=lambda value, s: value + s
        )
        self.gather, self.gather_input = (
            gather(write, left_down=True),
            gather(narrow, left_down=True),
        )
        f32 = np.float32
        self.p, self.y, self.d, self.dh = (np.empty((T, B, H), f32) for _ in range(4))
        self.h, self.zeros = np.zeros((T + 1, B, H), f32), np.zeros((B, H), f32)

    def step(self) -> tuple[Array, ...]:
        """One training step."""
        data, h, d, dh = self.data, self.h, self.d, self.dh
        T = len(d)
        self.project(flat(self.p), left=flat(data.x), right=data.W)
        for t in range(T):
            self.step_on(h[t + 1], left=h[t], right=data.R, p=self.p[t])
        targets = flat(data.target)
        self.read(flat(self.y), flat(d), left=flat(h[1:]), right=data.V, target=targets)
        self.unread(flat(dh), left=flat(d), right=data.V)
        after = self.zeros
        for t in reversed(range(T)):
            back = np.empty_like(self.zeros)
            self.step_back(back, left=after, right=data.R, outer=dh[t], h=h[t + 1])
            dh[t] = back
            after = dh[t]
        dW = self._gathered(self.gather_input, dh, data.x)
        dR = self._gathered(self.gather, dh, h[:-1])
        return self.y, h[-1], dW, dR, self._gathered(self.gather, d, h[1:])

    @staticmethod
    def _gathered(gather: Product, left: Array, right: Array) -> Array:
        """The sum over time of leftᵀ · right by steps: a panel of all rows fits no cache."""
        total, updated = (np.zeros((left.shape[2], right.shape[2]), np.float32) for _ in range(2))
        for now, after in zip(left, right, strict=True):
            gather(updated, left=now, right=after, sum=total)
            total, updated = updated, total
        return total

"""C text shared by kernels of one instruction set and dtype: the head of every text, and units that
are compiled once and linked into each, so that a GRU compiles in a quarter of the time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from elman.engines.c.compilation.isa import Isa
from elman.engines.c.products.gathering import picked_halves, picked_rows
from elman.engines.c.products.tiles import (
    WIDEST,
    alternating,
    column_products,
    packed_products,
    row_products,
    shuffles,
)
from elman.engines.c.spelling.ops import grouped_reductions

_PRODUCTS = {
    "rows": row_products,
    "outer": packed_products,
    "across": column_products,
    "picked": picked_rows,
    "halves": picked_halves,
}
WIDTHS = range(1, WIDEST + 1)  # widths of tiles (vectors)
_ROWS = "long m, const T *A, long lda, const T *P, long K, T *C, long ldc, int acc"


def file(name: str) -> str:
    """The text of a file in the folder ``headers``."""
    return files("elman.engines.c").joinpath("headers", name).read_text(encoding="utf-8")


@cache
def _vectors(isa: Isa, dtype: str) -> str:
    lines = [f"#define VL {isa.lanes(dtype)}", f"#define WIDEST {WIDEST}"]
    lines += ["#define ELMAN_F64"] if dtype == "float64" else []
    return "\n".join([*lines, file("vectors.h")])


def groups() -> str:
    """C functions of vectors that read other units than their own."""
    return file("groups.h") + grouped_reductions()


@cache
def head(isa: Isa, dtype: str) -> str:
    """Head of a text that is linked with :func:`runtime`: vectors, workers, functions."""
    reductions = re.findall(r"^(SHARED T .*) {$", file("reductions.h"), re.MULTILINE)
    declared = [f"{reduction};" for reduction in reductions]
    texts = [_vectors(isa, dtype), file("runtime.h"), *declared, file("functions.h"), groups()]
    return "\n".join([*texts, file("pairs.h")] if isa.pairs else texts)


def tile_head() -> str:
    """Declarations of the products that :func:`tiles` spells."""
    rows = [f"SHARED void rows{n}({_ROWS});" for n in WIDTHS]
    outer = f"SHARED Outer {', '.join(f'outer{n}' for n in WIDTHS)};"
    across = f"SHARED Across {', '.join(f'across{n}' for n in WIDTHS)};"
    picked_head = f"SHARED Picked {', '.join(f'picked{n}' for n in WIDTHS)};"
    return "\n".join([*rows, outer, across, picked_head])


@cache
def runtime(isa: Isa, dtype: str) -> str:
    """The runtime unit, with which every kernel is linked."""
    texts = [shuffles(isa.lanes(dtype)), *map(file, ("reductions.h", "runtime.c", "spikes.h"))]
    if isa.pairs:
        texts += [file("dot.h"), alternating(isa.lanes(dtype)), file("pairs.c")]
    return "\n".join([head(isa, dtype), *texts])


@cache
def _tiles(isa: Isa, dtype: str, name: str) -> str:
    spell = _PRODUCTS[name[:-1]]
    dot = f"{file('dot.h')}\n" if isa.pairs else ""
    return f"{_vectors(isa, dtype)}\n{dot}{spell(isa, int(name[-1]))}\n"


def tiles(isa: Isa, dtype: str, names: Iterable[str]) -> tuple[str, ...]:
    """The units of products by name: ``rows1``, ``outer4``."""
    return tuple(_tiles(isa, dtype, name) for name in names)

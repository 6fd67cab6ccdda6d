"""Register tiles: rows × vectors of a product, sums in named registers, k split for small rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from elman.engines.c.compilation.isa import Isa

WIDEST = 4  # vectors per tile: more would leave no registers for rows
_UNROLL = 2  # steps of k per round; four are no faster, and take longer to compile


def tile_rows(isa: Isa, vectors: int) -> int:
    """Rows of the full tile of this many vectors."""
    return min(8, isa.accumulators // vectors)


def shuffles(lanes: int) -> str:
    """``transpose``: VL rows of VL elements become VL columns; ``total_of``: the sum of a vector.

    Both take log2(VL) rounds of shuffles.
    """
    lines = [
        "#ifdef __clang__",
        "#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)",
        "#else",
        "#define SHUFFLE(a, b, ...) (V) __builtin_shuffle(a, b, (M){__VA_ARGS__})",
        "#endif",
        "INLINE void transpose(T *to, long step, const T *from, long row) {",
        *(f"    V r{i} = ld(from + {i} * row);" for i in range(lanes)),
    ]
    distance = 1
    while distance < lanes:
        low = [i if not i & distance else lanes + i - distance for i in range(lanes)]
        high = [i + distance if not i & distance else lanes + i for i in range(lanes)]
        for i in range(lanes):
            if not i & distance:
                j = i + distance
                lines.append(
                    f"    {{ V a = r{i}, b = r{j};"
                    f" r{i} = SHUFFLE(a, b, {', '.join(map(str, low))});"
                    f" r{j} = SHUFFLE(a, b, {', '.join(map(str, high))}); }}"
                )
        distance *= 2
    lines += [f"    st(to + {i} * step, r{i});" for i in range(lanes)]
    lines += ["}", "INLINE T total_of(V v) {"]
    while distance > 1:
        distance //= 2
        lanes_across = ", ".join(str(i ^ distance) for i in range(lanes))
        lines.append(f"    v += SHUFFLE(v, v, {lanes_across});")
    return "\n".join([*lines, "    return LANE(v, 0);", "}"])


def alternating(lanes: int) -> str:
    """``EVEN`` and ``ODD`` elements of two vectors in a row; after :func:`shuffles`."""
    return "\n".join(
        f"#define {name}(a, b) SHUFFLE(a, b, {', '.join(map(str, range(first, 2 * lanes, 2)))})"
        for first, name in enumerate(("EVEN", "ODD"))
    )


def _splits(isa: Isa, rows: int, vectors: int) -> int:
    """Number of partial sums along k that hide the latency of a small tile."""
    return max(s for s in (1, 2, 4) if s == 1 or s * rows * vectors <= isa.accumulators)


def _step(isa: Isa, rows: int, vectors: int, part: int, a: list[str], b: list[str]) -> str:
    """One k, or a pair of them: load the shorter side into registers, then stream the other."""

    def add(r: int, v: int, left: str, right: str) -> str:
        total = f"c{r}_{v}_{part}"
        return (
            f"{total} = dot({total}, {right}, {left});"
            if isa.pairs
            else (f"{total} += {right} * {left};")
        )

    if vectors <= rows:
        text = "".join(f"V b{v} = {b[v]};" for v in range(vectors))
        for r in range(rows):
            text += f"{{V a = pair(&{a[r]});" if isa.pairs else f"{{T a = {a[r]};"
            text += "".join(add(r, v, "a", f"b{v}") for v in range(vectors)) + "}"
        return text
    broadcast = "pair(&" if isa.pairs else "bc("
    text = "".join(f"V a{r} = {broadcast}{a[r]});" for r in range(rows))
    for v in range(vectors):
        text += f"{{V b = {b[v]};"
        text += "".join(add(r, v, f"a{r}", "b") for r in range(rows)) + "}"
    return text


@dataclass(frozen=True)
class Operands:
    """How a tile addresses its operands, as C text.

    Attributes:
        name: the first letter of the tile's name.
        parameters: stride parameters, before and after P.
        left: index in A of the element of row r at k; a tile has ``rows`` rows.
        step: stride of A along k.
        right: stride of P along k; empty: the vectors of the tile.
    """

    name: str
    parameters: tuple[str, str]
    left: str
    step: str
    right: str = ""


ROWS = Operands("t", ("long lda, ", ""), "{r} * lda + {k}", "1")
PACKED = Operands("p", ("", ""), "{k} * {rows} + {r}", "{rows}")  # tiles [k][rows]
COLUMNS = Operands("s", ("long lda, ", "long ldp, "), "{k} * lda + {r}", "lda", "ldp")


def tile(isa: Isa, rows: int, vectors: int, operands: Operands) -> str:
    """C[rows, vectors·VL] (+)= A · P."""
    name = f"{operands.name}{vectors}_{rows}"
    splits = _splits(isa, rows, vectors)
    unroll = max(splits, _UNROLL)
    sums = [f"c{r}_{v}_{q}" for q in range(splits) for r in range(rows) for v in range(vectors)]
    before, behind = operands.parameters
    step, right = operands.step.format(rows=rows), operands.right or f"{vectors} * VL"
    lines = [
        f"NOINLINE void {name}(const T *restrict A, {before}const T *restrict P, {behind}long K,"
        " T *restrict C, long ldc, int acc) {",
        "    V " + ", ".join(f"{name} = {{0}}" for name in sums) + ";",
    ]

    def step_text(offset: int, part: int) -> str:
        a = [f"A[{operands.left.format(k=offset, r=r, rows=rows)}]" for r in range(rows)]
        b = [f"ld(P + {offset} * {right} + {v} * VL)" for v in range(vectors)]
        return "{" + _step(isa, rows, vectors, part, a, b) + "}"

    total = {
        (r, v): " + ".join(f"c{r}_{v}_{q}" for q in range(splits))
        for r in range(rows)
        for v in range(vectors)
    }
    if operands is COLUMNS:  # C has left the near caches since rows were last added: 2 to 4 %
        prefetches = (f"__builtin_prefetch(C + {r} * ldc + {v} * VL, 1);" for r, v in total)
        lines.append(f"    if (acc) {{ {' '.join(prefetches)} }}")
    lines.append("    long k = 0;")
    lines.append(f"    for (; k + {unroll} <= K; k += {unroll}) {{")
    lines.extend(f"        {step_text(u, u % splits)}" for u in range(unroll))
    lines.append(f"        A += {unroll} * {step}; P += {unroll} * {right};")
    lines.append("    }")
    lines.append(f"    for (; k < K; k++) {{ {step_text(0, 0)} A += {step}; P += {right}; }}")
    place = {key: f"C + {key[0]} * ldc + {key[1]} * VL" for key in total}
    added = " ".join(f"st({place[key]}, ld({place[key]}) + ({total[key]}));" for key in total)
    fresh = " ".join(f"st({place[key]}, {total[key]});" for key in total)
    lines.append(f"    if (acc) {{ {added} }} else {{ {fresh} }}")
    lines.append("}")
    return "\n".join(lines)


_STRIDED = Operands("m", ("long ai, long ak, ", "long ldp, "), "{r} * ai + {k} * ak", "ak", "ldp")


def strided_products(isa: Isa) -> str:
    """``product4``, ``product1``: C[m, 4 VL], or [m, VL], (+)= A · P, of any strides."""
    isa = replace(isa, pairs=False)
    parameters = (
        "long m, const T *A, long ai, long ak, const T *P, long ldp, long K, T *C, long ldc,"
        " int acc"
    )
    lines = [f"typedef void Products({parameters});"]
    for vectors in (4, 1):
        most = tile_rows(isa, vectors)
        lines += [tile(isa, rows, vectors, _STRIDED) for rows in range(1, most + 1)]
        lines += [
            f"static void product{vectors}({parameters}) {{",
            "    while (m > 0) {  /* two equal tiles rather than a full one and a sliver */",
            f"        long n = m == {most} || m >= {2 * most} ? {most} : m > {most} ? (m + 1) / 2"
            " : m;",
            "        switch (n) {",
            *(
                f"        case {rows}: m{vectors}_{rows}(A, ai, ak, P, ldp, K, C, ldc, acc); break;"
                for rows in range(1, most + 1)
            ),
            "        default: break;",
            "        }",
            "        m -= n; A += n * ai; C += n * ldc;",
            "    }",
            "}",
        ]
    return "\n".join(lines)


def row_products(isa: Isa, vectors: int) -> str:
    """``rows{vectors}``: C[m, :] (+)= A[m, K] · panel for any number of rows, in full tiles and a
    rest."""
    most = tile_rows(isa, vectors)
    tiles = "\n".join(tile(isa, rows, vectors, ROWS) for rows in range(1, most + 1))
    cases = "\n".join(
        f"            case {rows}: t{vectors}_{rows}(A, lda, P, K, C, ldc, acc); break;"
        for rows in range(1, most + 1)
    )
    return f"""{tiles}
SHARED void rows{vectors}(long m, const T *A, long lda, const T *P, long K, T *C, long ldc,
                          int acc) {{
    for (; m >= {2 * most} || m == {most}; m -= {most}, A += {most} * lda, C += {most} * ldc)
        t{vectors}_{most}(A, lda, P, K, C, ldc, acc);
    while (m > 0) {{  /* the rest in two equal tiles rather than a full one and a sliver */
        long n = m > {most} ? (m + 1) / 2 : m;
        switch (n) {{
{cases}
            default: break;
        }}
        m -= n; A += n * lda; C += n * ldc;
    }}
}}"""


def packed_products(isa: Isa, vectors: int) -> str:
    """``outer{vectors}``: ``rows{vectors}`` with A packed in tiles of ``tile_rows(WIDEST)`` rows.

    A points at k of the first tile, ``skip`` is the length of k, ``done`` the k before it (the
    last tile is narrower, so its k-th element lies elsewhere).
    """
    most = tile_rows(isa, WIDEST)
    tiles = "\n".join(tile(isa, rows, vectors, PACKED) for rows in range(1, most + 1))
    cases = "\n".join(
        f"        case {rows}:"
        f" p{vectors}_{rows}(A - done * {most - rows}, P, K, C, ldc, acc); break;"
        for rows in range(1, most)
    )
    return f"""{tiles}
SHARED void outer{vectors}(long m, const T *A, long skip, const T *P, long K, T *C, long ldc,
                           int acc, long done) {{
    for (; m >= {most}; m -= {most}, A += {most} * skip, C += {most} * ldc)
        p{vectors}_{most}(A, P, K, C, ldc, acc);
    switch (m) {{
{cases}
        default: break;
    }}
}}"""


def column_products(isa: Isa, vectors: int) -> str:
    """``across{vectors}``: C[m, :] (+)= Aᵀ · P, both unpacked: a row of each per k."""
    most = tile_rows(isa, WIDEST)
    tiles = "\n".join(tile(isa, rows, vectors, COLUMNS) for rows in range(1, most + 1))
    cases = "\n".join(
        f"        case {rows}: s{vectors}_{rows}(A, lda, P, ldp, K, C, ldc, acc); break;"
        for rows in range(1, most)
    )
    return f"""{tiles}
SHARED void across{vectors}(long m, const T *A, long lda, const T *P, long ldp, long K, T *C,
                            long ldc, int acc) {{
    for (; m >= {most}; m -= {most}, A += {most}, C += {most} * ldc)
        s{vectors}_{most}(A, lda, P, ldp, K, C, ldc, acc);
    switch (m) {{
{cases}
        default: break;
    }}
}}"""

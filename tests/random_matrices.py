"""Random cells with a matrix per sample, as text; see :mod:`random_cells`.

A generator asks ``choose`` for one of some things: hypothesis, which makes failures small, or a
seeded generator of random numbers, whose cells have less in common.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from random_cells import FEW_SIZES, Drawn, cell_text

T = TypeVar("T")


class Choose(Protocol):
    """Choice of one of some things."""

    def __call__(self, among: Sequence[T], /) -> T: ...


def _one_of(choose: Choose, table: str) -> str:
    """One of the formulas of a table, between | and ends of lines."""
    return choose([text for row in table.split("\n") for text in row.split(" | ")])


MADE = {  # dims of a value -> formulas of others: {a}, {b}: its rows and columns, {c}: any axis
    2: """{ac} @ {cb} | {ca}.T @ {cb} | {ac} @ {bc}.T | {ac} @ {w:c, b} | {w:a, c} @ {cb} | {ba}.T
{ac} @ {w:b, c}.T | outer({a}, {b}) | {ab} + {ab} | {ab} * {ab} | rows({a}) * {ab} | {s} * {ab}
columns({b}) - {ab} | {w:a, b} * {ab} | {ab} + columns({w:b}) | rows({w:a}) * {ab} | sigmoid({ab})
softmax({ab}, axis=0) | softmax({ab}, axis=1) | where({ab} > 0.1234, {ab}, {ab}) | {ab} / (2 + {s})
split(concat({ab}, {ab}), 2)[1] | split(outer(concat({a}, {a}), {b}), 2)[0]
concat({ca}, {ba}).T @ concat({cb}, {bb})
shift({ab}, {b}) | shift({ab}.T, {a}).T | {ab} - columns(amax({ab}, axis=0)) | exp(-abs({ab}))
dropout({ab}, 0.3) | zoneout({ab}, {ab}, 0.4) | {ab} * noise({ab}) | uniform({ab}) * {ab}""",
    1: """{ab} @ {b} | {ba}.T @ {b} | sum({ab}, axis=1) | mean({ba}, axis=0) | amax({ab}, axis=1)
amax({ba}, axis=0) | var({ba}, axis=0) | {w:a, b} @ {b} | {a} * {a} | softmax({a}) | sigmoid({a})
outer({a}, concat({b}, {c})) @ concat({b}, {c}) | split(outer({c}, concat({a}, {a})).T @ {c}, 2)[1]
split(amax(columns(concat({a}, {a})) * outer({c}, concat({a}, {a})), axis=0), 2)[0]
{a} + {w:a} | {s} * {a} | {ab} @ {w:b} | zoneout({a}, {a}, 0.4) | {a} + noise({a})
{ba}.T @ unit({b}) | {ab} @ unit({b}) | {a} * unit({a})""",
    0: """mean({ab}) | amax({ab}) | mean({a}) | {s} - {w} | sigmoid({s}) | sum({a} * {a})
{s} * noise({s})""",
}


def matrix_cell(choose: Choose) -> Drawn:
    """A cell with matrices as states, weights and inputs; ``I`` is its rows K, ``H`` columns V."""
    names = {"q": "K", "x": "V", "m": "", "A": "V, K", "S": "K, V", "h": "V"}
    values = dict(names)
    weights: dict[str, str] = {}
    lines: list[str] = []

    def pick(dims: str) -> str:
        fits = [name for name, own in values.items() if own == dims]
        return choose(fits[::-1]) if fits else make(dims, deepest=True)

    def weight(dims: str) -> str:
        old = [name for name, own in weights.items() if own == dims]
        if old and choose([False, True]):
            return choose(old)
        weights[name := f"w{len(weights)}"] = dims
        return name

    def filled(text: str, axes: dict[str, str]) -> str:
        def fill(hole: re.Match[str]) -> str:
            kind, _, of = hole[1].partition(":")
            if kind == "w":
                return weight(", ".join(axes[axis] for axis in of.split(", ")) if of else "")
            return pick("" if kind == "s" else ", ".join(axes[axis] for axis in kind))

        return re.sub(r"\{([^}]*)\}", fill, text)

    def make(dims: str, *, deepest: bool = False) -> str:
        axes = dict(zip("ab", dims.split(", "), strict=False)) if dims else {}
        text = _one_of(choose, MADE[len(axes)])
        if deepest and len(axes) == 2:
            text = "outer({a}, {b})"
        for axis in "abc":
            axes.setdefault(axis, choose(["K", "V"]))
        text = filled(text, axes)  # which may write lines of its own first
        lines.append(f"v{len(lines)} = tanh({text})")
        values[f"v{len(lines) - 1}"] = dims
        return f"v{len(lines) - 1}"

    for _ in range(choose([2, 3, 4, 5, 6, 7])):
        make(choose(["K, V", "K, V", "V, K", "K, K", "V, V", "K", "V", ""]))

    def late(dims: str) -> str:
        """A value of the formula, made for it if there is none: no leaf."""
        fits = [name for name, own in values.items() if own == dims and name not in names]
        return choose(fits[::-1]) if fits else make(dims)

    output, state = choose(["V", "K", "K, V"]), {"S": "K, V", "h": "V"}
    made = [f"0.5 * {name} + 0.5 * {late(dims)}" for name, dims in state.items()]
    result = late(output)
    inputs = {name: names[name] for name in ("q", "x", "m", "A")}
    if choose([False, False, False, True]):  # gate blocks alike, which one loop computes
        inputs["u"] = state["n"] = "24V"
        made.append("0.5 * n + tanh(u * n)")
    if len(output) == 1 and choose([False, True]):  # products that no state depends on
        axes = {"a": output, "b": "KV".replace(output, "")}
        axis = int(output == "K")
        read = _one_of(
            choose, f"sum(S, axis={axis}) | amax(S * S, axis={axis}) | mean(S) | {result}"
        )
        result = filled(f"{read} * ({{w:a, b}} @ {{b}}) + {{w:a, b}} @ {{b}}", axes)
    text = cell_text(lines, weights, inputs, state, {"y": output}, [result, *made])
    return Drawn(text, choose(FEW_SIZES), choose(FEW_SIZES), 2)


OF_VECTORS = {  # dims of a value -> formulas of others: {K} a vector, {s} a number
    "K": """{K} * {K} | {s} * {K} | {K} - {s} | sigmoid({K}) | {K} / (2 + {s}) | maximum({K}, {s})
where({K} > {s}, {K}, 0.5 * {K}) | cumsum({K}) | softmax({K}) | minimum({K}, {K})""",
    "": """sum({K} * {K}) | mean({K}) | {s} * {s} | {s} - {s} | sigmoid({s}) | maximum({s}, {s})
where({s} > 0.1234, {s}, {s}) | exp(-abs({s})) | amax({K}) | sum({K}) / (2 + {s})""",
}


def linear_matrix_cell(choose: Choose) -> Drawn:
    """A cell whose matrix [K, V] is linear in itself, decayed by states that are vectors and
    numbers; ``I`` is K, ``H`` V."""
    rows = choose(["K", "K", "2K"])  # of the matrix: a vector, or two
    names = {"q": "K", "k": "K", "x": "V", "m": "", "S": f"{rows}, V", "n": "K", "e": ""}
    values, lines, weights = dict(names), list[str](), dict[str, str]()

    def filled(text: str) -> str:
        def pick(hole: re.Match[str]) -> str:
            dims = hole[1].replace("s", "").replace("R", "K")
            fits = [name for name, own in values.items() if own == dims]
            if hole[1] == "R" and rows == "2K":
                return f"concat({choose(fits)}, {choose(fits)})"
            return choose(fits)

        return re.sub(r"\{(K|s|R)\}", pick, text)

    def one_of(table: str) -> str:
        return filled(_one_of(choose, table))

    for number in range(choose([2, 3, 4, 5, 6, 7])):
        dims = choose(["K", ""])
        lines.append(f"v{number} = tanh({one_of(OF_VECTORS[dims])})")
        values[f"v{number}"] = dims
    decay = one_of(
        """rows(sigmoid({R})) * S | sigmoid({s}) * S | 0.5 * S | rows({R}) * S * {s}
rows(sigmoid({R})) * S | sigmoid({s}) * S | dropout(S, 0.2)"""
    )
    delta = one_of("x | x - S.T @ {R} | {s} * x | x - 0.1 * sum(S, axis=0) | 0.1 * sum(S, axis=0)")
    lines.append(f"S = {decay} + outer(0.1 * {filled('{R}')}, {delta})")
    scale = one_of("1.0 | {s} | 1 / (2 + {s}) | 1 / maximum(abs(sum({K} * {K})), 0.5)")
    output, read = "V", f"S.T @ {filled('{R}')}"
    if choose([False, False, True]):  # a product that no state depends on
        output, weights["w0"] = choose([("V", f"{rows}, K"), (rows, "V, K")])
        read = f"{'S' if output == rows else 'S.T'} @ tanh(w0 @ q)"
    results = [f"({scale}) * ({read})", "S"]
    results += [filled("0.5 * n + 0.5 * {K}"), filled("0.5 * e + 0.5 * {s}")]
    inputs, states = ({name: names[name] for name in group} for group in ("qkxm", "Sne"))
    text = cell_text(lines, weights, inputs, states, {"y": output}, results)
    return Drawn(text, choose(FEW_SIZES), choose(FEW_SIZES), 2)


OF_WEIGHTS_ALONG = {  # dims of a value -> formulas of others, each of weights alone
    "K, V": """softmax({K, V}, axis=0) | softmax({K, V}, axis=1) | sigmoid({K, V}) | {K, V} * {K, V}
{K, V} - 0.5 * {K, V}""",
    "K": """sum({K, V}, axis=1) | mean({K, V}, axis=1) | amax({K, V}, axis=1) | var({K, V}, axis=1)
{K, V} @ {V} | softmax({K}) | {K} * {K}""",
    "V": """sum({K, V}, axis=0) | mean({K, V}, axis=0) | amax({K, V}, axis=0) | var({K, V}, axis=0)
{K, V}.T @ {K} | softmax({V}) | {V} - {V}""",
    "": """sum({K}) | amax({V}) | mean({K, V}) | {} * {} | sigmoid({})""",
}


def cell_of_weights(choose: Choose) -> Drawn:
    """A cell whose matrix and vectors are computed of weights alone; ``I`` is K, ``H`` V."""
    weights = {"W": "K, V", "U": "K, V", "g": "K", "b": "V", "s": ""}
    values = {dims: [n for n in weights if weights[n] == dims] for dims in OF_WEIGHTS_ALONG}
    lines: list[str] = []
    for number in range(choose([4, 5, 6, 7, 8])):
        dims = choose([*OF_WEIGHTS_ALONG])
        text = _one_of(choose, OF_WEIGHTS_ALONG[dims])
        filled = re.sub(r"\{(.*?)\}", lambda hole: choose(values[hole[1]]), text)
        lines.append(f"v{number} = tanh({filled})")
        values[dims].append(f"v{number}")
    matrix, k, v, s = (values[dims][-1] for dims in OF_WEIGHTS_ALONG)
    results = [f"0.5 * h + 0.5 * tanh({s} * ({matrix}.T @ ({k} * q)) + {v} * x)"]
    text = cell_text(lines, weights, {"q": "K", "x": "V"}, {"h": "V"}, {}, results)
    return Drawn(text, choose(FEW_SIZES), choose(FEW_SIZES), 2)


@st.composite
def matrix_cells(draw: st.DrawFn) -> Drawn:
    """:func:`matrix_cell` by hypothesis."""
    return matrix_cell(lambda among: draw(st.sampled_from(among)))


@st.composite
def linear_matrix_cells(draw: st.DrawFn) -> Drawn:
    """:func:`linear_matrix_cell` by hypothesis."""
    return linear_matrix_cell(lambda among: draw(st.sampled_from(among)))


@st.composite
def cells_of_weights(draw: st.DrawFn) -> Drawn:
    """:func:`cell_of_weights` by hypothesis."""
    return cell_of_weights(lambda among: draw(st.sampled_from(among)))

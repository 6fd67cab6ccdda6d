"""Graphs as text: names from the cell's lines, sums with coefficients, brackets where needed."""

from __future__ import annotations

import pytest

from elman import cell, cells, compiler
from elman.ir.graph import walk
from elman.ir.ops import OPS
from elman.ir.printer import backward_values, pair_names, show_backward, show_graph, show_step
from elman.ops import exp, sigmoid, split, tanh, where
from elman.passes.names import step_names


def printed(of) -> tuple[str, str]:
    pair = compiler.pair_of(of)
    names = pair_names(pair, step_names(of.graph, pair.step))
    return show_step(pair.step, names), show_backward(pair, names)


def names_of(of):
    pair = compiler.pair_of(of)
    return pair, pair_names(pair, step_names(of.graph, pair.step))


def test_graph_as_written():
    """The cell's own names, shapes at the end, next states last."""
    lines = show_graph(cells.gru.graph).splitlines()
    assert lines[0] == "leaves: x[I]; h[H]; W[3H, I], R[3H, H], b[3H], c[3H]"
    assert "r  = sigmoid(xr + hr)  [H]" in lines
    assert "v1 = W @ x + b  [3H]" in lines
    assert lines[-1] == "next: h′ = (1 - z) * n + z * h"


def test_canonical_step():
    """Blocks are numbered, a sum's brackets are its rates, next states carry a prime."""
    step, backward = printed(cells.gru)
    assert "r  = sigmoid(R.0 @ h + (W.0 @ x + (b.0 + c.0)))  [H]" in step
    assert "h′ = (1 - z) * n + h * z  [H]" in step
    assert "dhn = r * δn  [H]" in backward
    assert "∂R.2 += dhn ⊗ h" in backward
    assert "R.0ᵀ @ δr" in backward


def test_brackets_and_signs():
    """What is printed means what is computed."""

    @cell(input="x[H]", state="h[H]", weights="R[H, H], p[H]")
    def odd(x, h, R, p):
        """Every way to need a bracket."""
        a = x - (h - p)
        b = a / (x * h)
        d = (a / x) * h - -b
        e = p * (R @ (x * h))
        return where(a > 0, 2 - 3 * d, -e) * 0.5

    text = show_graph(odd.graph)
    assert "a = x - (h - p)" in text
    assert "b = a / (x * h)" in text
    assert "d = a / x * h - (-b)" in text
    assert "e = p * (R @ (x * h))" in text
    assert "where(a > 0, 2 - 3 * d, -e) * 0.5" in text


def test_named_once():
    """A name that is used again gets a prime; one that only parts of a line have is not given."""

    @cell(input="x[H]", state="h[H]", weights="R[2H, H]")
    def again(x, h, R):
        """Reuses a name; assigns two at once."""
        u, v = split(R @ h, 2)
        u = tanh(u)
        u = sigmoid(u + x) * u
        a, b = exp(u), exp(v)
        return a * b + a + b

    lines = [line.partition(" = ") for line in show_graph(again.graph).splitlines()]
    names = [name.strip() for name, _, _ in lines]
    assert {"u", "u′", "u_2", "v"} <= set(names)
    assert "a" not in names
    assert len(names) == len(set(names))


@pytest.mark.parametrize("of", cells.CORE)
def test_every_value_is_told_once(of):
    """Each value of both steps has a line, or stands in the line of its one reader."""
    pair, names = names_of(of)
    for values in (list(walk(pair.step.roots)), backward_values(pair)):
        count = dict.fromkeys(values, 0)
        for reader in values:
            for arg in dict.fromkeys(reader.args):
                if arg in count:
                    count[arg] += 1
        for value, readers in count.items():
            if OPS[value.op].kind != "leaf" and value not in names and not names.brief(value):
                assert readers <= 1, names.short(value)


@pytest.mark.parametrize("of", cells.CORE)
def test_text_is_stable(of):
    """No ids, no addresses: a second compilation prints the same."""
    first = printed(of)
    compiler._pair_of.cache_clear()
    assert printed(of) == first
    assert "0x" not in "".join(first)


def test_parts_of_a_wide_value():
    """A value of several gate blocks names its parts; a split's own names win."""

    @cell(input="x[I]", state="h[2H]", weights="W[2H, I], R[2H, 2H]")
    def wide(x, h, W, R):
        """Two gate blocks side by side."""
        pre = W @ x + R @ h
        both = tanh(pre)
        return both * pre

    step, _ = printed(wide)
    assert "pre.1" in step
    assert "h.0′  = tanh(pre.0) * pre.0" in step or "h.0′" in step
    assert "R.1.0 @ h.0" in step

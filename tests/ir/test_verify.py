"""Broken graphs are caught: each invariant has a graph that breaks it."""

from __future__ import annotations

import dataclasses

import pytest

from elman import cells, compiler
from elman.errors import VerifyError
from elman.ir.graph import Graph, Node, Rate, node, walk, with_args
from graph_verify import verified, verified_pair, verify_node

H, P = (("H",),), (("P",),)
x = node("input", (), ("x",), H)
h = node("state", (), ("h",), H)
p = node("state", (), ("p",), P)
m = node("input", (), ("m",))
W = node("weight", (), ("W",), (("H",), ("P",)))

BROKEN = {  # what is said -> a node that breaks it
    "no op 'tahn'": Node("tahn", (h,), (), H),
    "wrong number of arguments": node("tanh", (h, x), (), H),
    "more than two dims": node("weight", (), ("V",), (("H",), ("H",), ("H",))),
    "wrong rate": node("tanh", (h,), (), H, "", Rate.INPUT),
    "operands of unlike shape": node("add", (h, p), (), H),
    "groups of a reduction": node("mean", (h, x), (), ((4,),)),
    "groups of a vector": node("spread", (h,), (), (("P", "P"),)),
    "a scan of unlike shape": node("cumsum", (h,), (), P),
    "coefficients": node("lin", (h, x), ((1.0,), 0.0), H),
    "the left side of a product is a weight": node(
        "matmul", (node("outer", (h, p), (), W.shape), p), (), H
    ),
    "product of unlike shapes": node("matmul", (W, h), (), H),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_nodes(what):
    """Each is named."""
    with pytest.raises(VerifyError, match=what):
        verify_node(BROKEN[what])


def test_sound_nodes():
    """What is right passes."""
    for value in (
        node("add", (h, m), (), H),
        node("matmul", (W, p), (), H),
        node("matmul", (W, h), ("T",), P),
        node("var", (h, p)),
        node("lin", (h, x), ((1.0, 2.0), 0.5), H),
    ):
        verify_node(value)


def test_broken_graphs():
    """An undeclared leaf, a next state of another shape."""
    alien = node("weight", (), ("V",), H)
    root = node("add", (h, alien), (), H)
    with pytest.raises(VerifyError, match="an undeclared leaf"):
        verified(Graph((x,), (h,), (), (root,), (root,)))
    with pytest.raises(VerifyError, match="the next h has another shape"):
        verified(Graph((x,), (h, p), (), (p, p), (p,)))
    assert verified(Graph((x,), (h,), (alien,), (root,), (root,)))


def test_the_compiler_is_watched():
    """In tests it hands on no graph that is broken."""
    alien = node("weight", (), ("V",), H)
    with pytest.raises(VerifyError, match="an undeclared leaf"):
        compiler.build_pair(Graph((x,), (h,), (), (alien,), (alien,)))


def test_broken_pairs():
    """A cotangent of another shape, a value wider than one gate block, a move that is left."""
    pair = compiler.pair_of(cells.lstm)
    assert verified_pair(pair) is pair
    scalar = node("mean", (pair.d_states[0],))
    with pytest.raises(VerifyError, match="a cotangent of another shape"):
        verified_pair(dataclasses.replace(pair, d_states=(scalar, pair.d_states[1])))
    wide = node("input", (), ("x",), (("H", "H"),))
    with pytest.raises(VerifyError, match="wider than one gate block"):
        verified_pair(dataclasses.replace(pair, d_states=(wide, pair.d_states[1])))
    cut = node("split", (pair.d_states[0],), (0, 1), (("H",),))
    with pytest.raises(VerifyError, match="a move is left"):
        verified_pair(dataclasses.replace(pair, d_states=(cut, pair.d_states[1])))


def test_walk_goes_arguments_first_and_once():
    """Every node of a graph once, after what it reads."""
    for cell in cells.CORE:
        seen: set[Node] = set()
        for value in cell.graph.walk():
            assert value not in seen
            assert seen.issuperset(value.args)
            seen.add(value)
    both = node("mul", (h, h), (), H)
    assert list(walk([both, h])) == [h, both]
    assert list(walk([both], stop=lambda value: value is both)) == [both]


def test_unchanged_nodes():
    """The same node where nothing changed."""
    both = node("mul", (h, x), (), H)
    assert with_args(both, (h, x)) is both
    assert with_args(both, (x, h)).args == (x, h)

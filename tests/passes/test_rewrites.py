"""Each rewrite three times: values kept, the wanted effect counted, one golden print."""

from __future__ import annotations

import pytest
import torch

from elman import cell, cells, compiler
from elman.engines.arrays import Arrays
from elman.ir.build import Builder
from elman.ir.evaluate import evaluate
from elman.ir.graph import Graph, Node, walk
from elman.ir.ops import OPS
from elman.ir.pair import Step
from elman.ir.printer import pair_names, show_graph, show_step
from elman.ir.types import shape_size
from elman.ops import concat, layer_norm, sigmoid, split, tanh
from elman.passes.canonical import canonical
from elman.passes.names import step_names
from elman.passes.simplify import share, simplify
from elman.passes.static import split_static
from graph_verify import verified

DIMS = {"I": 3, "H": 5, "K": 2}
BATCH = 4


@cell(input="x[I]", state="h[2K]", weights="W[2K, I], R[2K, 2K], b[2K]")
def idle(x, h, W, R, b):
    """Full of what computes nothing."""
    (whole,) = split(W @ x + b + -0.0, 1)
    minus = -(1 * concat(whole))
    return tanh(-minus + (R.T).T @ h / 1) - 0


@cell(input="x[I]", state="h[H]", weights="W[3H, I], R[3H, H], b[3H]")
def twice(x, h, W, R, b):
    """Everything said again."""
    r = sigmoid(split(W @ x + b, 3)[0] + split(R @ h, 3)[0])
    z = sigmoid(split(W @ x + b, 3)[1] + split(R @ h, 3)[1])
    again = sigmoid(split(W @ x + b, 3)[0] + split(R @ h, 3)[0])
    n = tanh(split(W @ x + b, 3)[2] + again * split(R @ h, 3)[2])
    return (1 - z) * n + z * h + 0 * r


@cell(input="x[I], m", state="h[H], c[H]", weights="W[2H, I+H], p[H], s")
def mixed(x, m, h, c, W, p, s):
    """Products of a joined operand, sums in every order, scalars per sample and per call."""
    u, v = split(W @ concat(x, m * h), 2)
    k = tanh(p * c - (u - 2 * v + s) / 4)
    return layer_norm(k) - (1 - m) * h, c + k - 3


CASES = [*cells.CORE, idle, twice, mixed]
by_name = pytest.mark.parametrize("of", CASES)


def leaf_values(graph: Graph) -> dict[Node, torch.Tensor]:
    """Random numbers for the leaves of a graph: weights in their shape, others with a batch."""
    source = torch.Generator().manual_seed(0)
    values = {}
    for leaf in graph.leaves:
        lead = () if leaf.op == "weight" else (BATCH,)
        shape = (*lead, *shape_size(leaf.shape, DIMS))
        values[leaf] = torch.randn(shape, generator=source, dtype=torch.float64)
    return values


def results(roots: tuple[Node, ...], values: dict[Node, torch.Tensor]) -> list[torch.Tensor]:
    arrays = Arrays(torch.float64, torch.device("cpu"))
    return list(evaluate(arrays, roots, dict(values), DIMS))


def atoms_of(leaf: Node, value: torch.Tensor) -> list[torch.Tensor]:
    """A leaf's value cut as the canonical form cuts the leaf, row by row."""
    sizes = [[shape_size(((gate_block,),), DIMS)[0] for gate_block in dim] for dim in leaf.shape]
    if not sizes:
        return [value]
    if len(sizes) == 1:
        return list(value.split(sizes[0], -1))
    return [block for row in value.split(sizes[0], 0) for block in row.split(sizes[1], 1)]


def ops(graph: Graph | Step) -> list[str]:
    """The ops of a graph that compute something."""
    return [value.op for value in graph.walk() if OPS[value.op].kind != "leaf"]


@by_name
@pytest.mark.parametrize("rewrite", [simplify, share], ids=["simplify", "share"])
def test_values_are_kept(rewrite, of):
    """Before and after compute the same, without any rounding between."""
    before = of.graph
    after = verified(rewrite(before))
    assert after.leaves == before.leaves
    values = leaf_values(before)
    for old, new in zip(results(before.roots, values), results(after.roots, values), strict=True):
        assert torch.equal(old, new)


@by_name
def test_static_inputs_are_parted_off(of):
    """Whatever inputs are static: parts and step together compute the same, and no value of the
    step depends on static inputs and weights alone, unless it is a state that holds it."""
    before = of.graph
    values = leaf_values(before)
    wanted = results(before.roots, values)
    names = [leaf.name for leaf in before.inputs]
    for static in (names[:1], names[1:], names):
        split = split_static(before, static)
        step = verified(split.step)
        held = step.states[len(before.states) :]
        assert len(held) == len(split.once)
        assert [leaf.name for leaf in step.inputs] == [n for n in names if n not in static]
        assert step.next_states[len(before.states) :] == held
        known = {leaf: values[leaf] for leaf in before.leaves if leaf in step.leaves}
        known |= dict(zip(held, results(split.once, values), strict=True))
        got = results((*step.next_states[: len(before.states)], *step.outputs), known)
        for old, new in zip(wanted, got, strict=True):
            assert torch.equal(old, new)
        for value in step.walk():
            free = {leaf for leaf in walk((value,)) if leaf.op in ("input", "state")}
            assert not value.args or not free or not free <= {*held}


@by_name
def test_canonical_keeps_values(of):
    """The canonical step computes the same gate blocks, up to the order of sums."""
    before = verified(share(simplify(of.graph)))
    step = canonical(before, Builder())
    values = leaf_values(before)
    cut: dict[Node, torch.Tensor] = {}
    for leaves, gate_blocks in (
        (before.inputs, step.inputs),
        (before.states, step.states),
        (before.weights, step.weights),
    ):
        parts = [part for leaf in leaves for part in atoms_of(leaf, values[leaf])]
        cut.update(zip(gate_blocks, parts, strict=True))
    whole = results(before.roots, values)
    want = [part for root, v in zip(before.roots, whole, strict=True) for part in atoms_of(root, v)]
    got = results(step.roots, cut)
    for old, new in zip(want, got, strict=True):
        torch.testing.assert_close(new.expand(old.shape), old, rtol=0, atol=1e-12)


@by_name
def test_rewrites_settle(of):
    """A second run of a rewrite finds nothing left to do."""
    for rewrite in (simplify, share):
        once = rewrite(of.graph)
        assert ops(rewrite(once)) == ops(once)


def test_simplify_counts():
    """Fifteen operations, of which five compute something."""
    assert len(ops(idle.graph)) == 15
    assert sorted(ops(simplify(idle.graph))) == ["add", "add", "matmul", "matmul", "tanh"]


def test_share_counts():
    """Four times W @ x and three times R @ h become one of each; the reset gate one, too."""
    before, after = ops(twice.graph), ops(share(twice.graph))
    assert before.count("matmul") == 8
    assert after.count("matmul") == 2
    assert (before.count("sigmoid"), after.count("sigmoid")) == (3, 2)


def test_canonical_counts():
    """No move of gate blocks is left, a product per block, and only n-ary sums."""
    step = canonical(share(simplify(mixed.graph)), Builder())
    found = ops(step)
    assert not {"split", "concat", "add", "sub", "neg"} & set(found)
    assert found.count("matmul") == 4
    assert all(len(dim) == 1 for value in step.walk() for dim in value.shape)


def test_canonical_tells_equal_cells_apart_from_others():
    """Three ways of writing one product make one step; another formula does not."""
    from elman.passes.digest import digest

    @cell(input="x[I]", state="h[H]", weights="W[H, I+H], b[H]")
    def joined(x, h, W, b):
        """One matrix for both operands."""
        return tanh(W @ concat(x, h) + b)

    @cell(input="x[I]", state="h[H]", weights="W[H, I+H], b[H]")
    def time_reversed(x, h, W, b):
        """The same, its sum in another order."""
        return tanh(b + W @ concat(x, h))

    @cell(input="x[I]", state="h[H]", weights="W[H, I+H], b[H]")
    def other(x, h, W, b):
        """Another sign."""
        return tanh(W @ concat(x, h) - b)

    names = [digest(compiler.pair_of(of).step) for of in (joined, time_reversed, other)]
    assert names[0] == names[1] != names[2]


def test_golden_simplify(golden):
    """What is left of a cell full of nothing."""
    golden("pass_simplify", f"{show_graph(idle.graph)}\n\n{show_graph(simplify(idle.graph))}")


def test_golden_share(golden):
    """A cell that says everything again, and once."""
    golden("pass_share", f"{show_graph(twice.graph)}\n\n{show_graph(share(twice.graph))}")


def test_golden_canonical(golden):
    """Blocks, gathered sums, rates: brackets show what leaves the loop."""
    pair = compiler.pair_of(mixed)
    names = pair_names(pair, step_names(mixed.graph, pair.step))
    golden("pass_canonical", f"{show_graph(mixed.graph)}\n\n{show_step(pair.step, names)}")

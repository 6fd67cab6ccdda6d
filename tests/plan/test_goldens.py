"""What the partition decides for each cell of the library, as text and in words.

The sizes are I = H = 128, every gradient is wanted. Products per step and waits count what happens
in the time loop; a taped value is told by the op that makes it.
"""

from __future__ import annotations

import pytest

from elman import cells, compiler
from elman.ir.graph import Rate
from elman.passes.names import step_names
from elman.plan.build import program
from elman.plan.printer import program_names, show_program, syncs
from elman.plan.program import Phase, Program
from elman.plan.spec import Spec
from specs import spec_of

LINES = 40


def made(cell, size: int = 128, **options) -> Program:
    """The program of a cell at I = H = size with every gradient wanted."""
    dims = tuple(sorted(cell.bind(size, size).items()))
    wants = frozenset(entry.name for entry in (*cell.inputs, *cell.weights))
    return program(compiler.pair_of(cell), spec_of(dims, **{"wants": wants, **options}))


def hints(cell):
    return step_names(cell.graph, compiler.pair_of(cell).step)


def told(cell, group: str) -> set[str]:
    """The values of one group of a cell's program, by the names that the print gives them."""
    of = made(cell)
    names = program_names(of, hints(cell))
    return {names.short(value) for value in getattr(of, group)}


def products(phase: Phase) -> list[tuple[int, int]]:
    """Per joined product of a phase: how many sums it makes, how many operands it joins along k."""
    return [
        (len(bundle.accs), len(bundle.operands))
        for segment in phase.segments
        for part in segment.parts
        for bundle in part.bundles
    ]


def computed(phase: Phase) -> list:
    """Every vector that a phase computes."""
    return [v for segment in phase.segments for part in segment.parts for v in part.nodes]


@pytest.mark.parametrize("cell", cells.CORE)
def test_golden(golden, cell):
    """One text per cell; a change of a decision shows in the diff."""
    text = show_program(made(cell), hints(cell))
    assert len(text.splitlines()) <= LINES
    assert max(map(len, text.splitlines())) <= 100
    golden(f"plan_{cell.name}", text)


def counts(cell) -> tuple[int, ...]:
    """What a cell costs per step, as numbers, in the order of HEAD."""
    of = made(cell)
    assert of.backward is not None
    vectors = sum(bool(value.shape) for value in of.kept)
    waits = syncs(of.forward.step), syncs(of.backward.step)
    return len(of.hoisted), vectors, len(of.kept) - vectors, *waits, len(of.stored)


HEAD = ("hoisted", "taped", "scalars", "forward", "backward", "stored")


def test_counts(golden):
    """Vectors hoisted and taped, scalars taped, how often units wait for each other per step
    (forward, backward), and what the backward stores."""
    rows = [("", *HEAD), *((cell.name, *counts(cell)) for cell in cells.CORE)]
    lines = [f"{name:<16}" + "".join(f"{entry:>9}" for entry in row) for name, *row in rows]
    golden("plan_counts", "\n".join(lines))


def test_gru_saves_the_recurrent_product():
    """SVAIL's variant 4: r, z, n and the recurrent product; no product is done twice."""
    of = made(cells.gru)
    assert told(cells.gru, "kept") == {"r", "z", "n", "hn"}
    assert of.backward is not None
    backward = [*computed(of.backward.before), *computed(of.backward.step)]
    assert not [v for v in backward if v.op == "matmul" and v.rate <= Rate.STATE]
    assert not [v for v in backward if v.op in ("tanh", "sigmoid")]


def test_gru_recomputes_the_candidate_from_a_kept_projection():
    """With the projection among the inputs, n is one tanh from what is there: three slots do."""
    from elman import cell
    from elman.ops import sigmoid, split, tanh

    @cell(input="g[3H]", state="h[H]", weights="R[3H, H], c[3H]")
    def projected(g, h, R, c):
        """A GRU whose input projection is done outside."""
        xr, xz, xn = split(g, 3)
        hr, hz, hn = split(R @ h + c, 3)
        r = sigmoid(xr + hr)
        z = sigmoid(xz + hz)
        n = tanh(xn + r * hn)
        return (1 - z) * n + z * h

    dims = (("H", 128),)
    of = program(compiler.pair_of(projected), Spec(dims, wants=frozenset({"g", "R", "c"})))
    names = program_names(of, hints(projected))
    assert {names.short(value) for value in of.kept} == {"r", "z", "hn"}
    assert of.backward is not None
    assert [v.op for v in computed(of.backward.step)].count("tanh") == 1


@pytest.mark.parametrize("cell", [cells.rnn, cells.indrnn])
def test_derivative_from_the_output_tapes_nothing(cell):
    """tanh′ and relu′ are read off the state sequence, which is there anyway."""
    assert made(cell).kept == ()
    assert made(cell).tape == ()


@pytest.mark.parametrize("cell", [cells.gru, cells.lstm, cells.lem])
def test_one_workspace_of_four_slots(cell):
    """Projection, taped value and gate gradient follow each other in four slots, and no others."""
    of = made(cell)
    assert of.backward is not None
    assert of.tape == ("H",) * 4
    assert of.forward.chunk == of.backward.chunk == ()
    for slot in of.slots:
        assert [when for when, _ in slot.values][-2:] == ["step", "back"]


@pytest.mark.parametrize(
    "cell, forward, backward",
    [
        (cells.rnn, [(1, 1)], [(1, 1)]),
        (cells.gru, [(3, 1)], [(1, 3)]),
        (cells.lstm, [(4, 1)], [(1, 4)]),
        (cells.lstm_peephole, [(4, 1)], [(1, 4)]),
        (cells.lstm_layernorm, [(4, 1)], [(1, 4)]),
        (cells.gru_before, [(2, 1), (1, 1)], [(1, 1), (1, 2)]),
        (cells.lem, [(3, 1), (1, 1)], [(1, 1), (1, 3)]),
        (cells.mgu, [(1, 1), (1, 1)], [(1, 1), (1, 1)]),
        (cells.indrnn, [], []),
    ],
)
def test_products_per_step(cell, forward, backward):
    """Forward joins the rows of one operand, backward the sums along k; gru_before and lem take
    two products each way."""
    of = made(cell)
    assert of.backward is not None
    assert products(of.forward.step) == forward
    assert products(of.backward.step) == backward


@pytest.mark.parametrize("cell", cells.CORE)
def test_weights_and_inputs_leave_the_loop(cell):
    """No product with the input and none for its gradient runs in the time loop."""
    of = made(cell)
    assert of.backward is not None
    inputs = set(of.pair.step.inputs)
    assert not [v for v in computed(of.forward.step) if v.op == "matmul" and v.args[1] in inputs]
    d_inputs = {d for d in of.pair.d_inputs if d is not None}
    assert not d_inputs & set(computed(of.backward.step))

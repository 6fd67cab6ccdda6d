"""The cuts: exact, and what the design says comes out of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman import cell, cells, compiler
from elman.engines.c.engine import PRICES
from elman.errors import EngineError
from elman.ir.graph import Node, Rate, node
from elman.ops import tanh
from elman.plan.build import program
from elman.plan.forecast import usual_rows
from elman.plan.frontier import INFINITE, frontier
from elman.plan.partition import below, partition
from elman.plan.prices import Prices
from elman.plan.program import Phase, Program
from elman.plan.schedule import CHUNK_ROWS, Division, Schedule
from elman.plan.segments import full_reads
from elman.plan.slots import Life, Slot, assign
from elman.plan.spec import Spec
from specs import spec_of

DIMS = (("H", 128), ("I", 128))
H = (("H",),)


def planned(made, prices=PRICES, dims=DIMS, **options) -> Program:
    """The program of a cell; every gradient is wanted unless said otherwise."""
    names = frozenset(leaf.name for leaf in (*made.graph.inputs, *made.graph.weights))
    fields = {"wants": names, **options}
    return program(compiler.pair_of(made), spec_of(dims, **fields), prices)


def phases(made: Program) -> list[Phase]:
    sweeps = [made.forward, *([made.backward] if made.backward else [])]
    return [phase for sweep in sweeps for phase in (sweep.before, sweep.step, sweep.after)]


def cheapest(nodes, needed, free, keep, recompute) -> float:
    """The least cost over all choices of what to keep, tried one by one."""
    best = float("inf")
    choosable = [value for value in nodes if value not in free]
    for count in range(len(choosable) + 1):
        for kept in itertools.combinations(choosable, count):
            best = min(best, cost(kept, nodes, needed, free, keep, recompute))
    return best


def cost(kept, nodes, needed, free, keep, recompute) -> float:
    """What it costs to keep these, and to compute again what is needed and not kept."""
    pending = [value for value in needed if value not in free and value not in kept]
    again: set[Node] = set()
    while pending:
        value = pending.pop()
        if value in again:
            continue
        again.add(value)
        pending.extend(
            arg for arg in value.args if arg in nodes and arg not in free and arg not in kept
        )
    return sum(map(keep, kept)) + sum(map(recompute, again))


@given(data=st.data())
def test_the_cut_is_exact(data):
    """On random graphs of up to eight values no other choice is cheaper."""
    nodes: list[Node] = []
    for index in range(data.draw(st.integers(1, 8))):
        args = data.draw(st.lists(st.sampled_from(nodes), max_size=3)) if nodes else []
        op = "lin" if args else "state"
        extra = ((1.0,) * len(args), 0.0) if args else (f"h{index}",)
        nodes.append(node(op, args, extra, H))
    needed = data.draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True))
    free = set(data.draw(st.lists(st.sampled_from(nodes), max_size=2)))
    price = st.sampled_from([0.0, 0.5, 1.0, 3.0, INFINITE])
    keeps = {value: data.draw(price) for value in nodes}
    redos = {value: data.draw(price) for value in nodes}
    least = cheapest(nodes, needed, free, keeps.__getitem__, redos.__getitem__)
    if least == INFINITE:
        return  # no choice is allowed: the planner never asks this
    kept = frontier(nodes, needed, free, keeps.__getitem__, redos.__getitem__)
    assert not free.intersection(kept)
    assert cost(kept, nodes, needed, free, keeps.__getitem__, redos.__getitem__) == pytest.approx(
        least
    )


def test_recompute_tapes_nothing_and_save_redoes_no_product():
    """The two ends of the tape."""
    for made in cells.CORE:
        assert planned(made, tape="recompute").tape == ()
        saved = planned(made, tape="save")
        products = [value for value in saved.rematerialised if value.op == "matmul"]
        assert not [value for value in products if value.rate <= Rate.STATE], made.name
        auto = planned(made)
        assert len(auto.tape) <= len(saved.tape), made.name


def test_inference_tapes_nothing():
    """Without a backward there is no tape and no second sweep."""
    made = planned(cells.lstm, training=False)
    assert (made.tape, made.backward, made.sums) == ((), None, ())


@pytest.mark.parametrize("coef", [0.3, -1.0, 2.0, 1.0])
def test_scaled_sums_of_products_join_along_k(coef):
    """One product of both states, whatever the sum is multiplied by, and so in the backward, where
    two products of one value meet."""

    @cell(input="x[I]", state="h[H], k[H]", weights="A[H, H], B[H, H], C[H, I], D[H, H]")
    def scaled(x, h, k, A, B, C, D):
        """A sum of products, scaled, and a value that two products read."""
        v = coef * tanh(coef * (A @ h + B @ k) + C @ x)
        return tanh(A @ v), tanh(D @ v)

    found = planned(scaled)
    assert found.backward is not None
    for sweep, operands in ((found.forward, [2, 1]), (found.backward, [2, 1])):
        bundles = [
            bundle
            for segment in sweep.step.segments
            for part in segment.parts
            for bundle in part.bundles
        ]
        assert [len(bundle.operands) for bundle in bundles] == operands


@pytest.mark.parametrize("made", cells.CORE)
def test_what_is_given_is_loaded_where_it_is_read(made):
    """What one or two given values make by arithmetic, with any scalars, is computed in the first
    segment that reads it."""
    for phase in phases(planned(made)):
        level = {v: i for i, s in enumerate(phase.segments) for part in s.parts for v in part.nodes}
        scalars = {value for segment in phase.segments for value in segment.scalars}
        whole = {arg for value in {*level, *scalars} for arg in full_reads(value)}
        writes = [w for s in phase.segments for part in s.parts for w in part.writes]
        results = {value for value, buffer in writes if buffer.where != "scratch"}
        for value in set(level) - whole:
            parts = [v for v in below((value,), set(phase.buffers) - set(level)) if v.shape]
            inner = [part for part in parts if part in level]
            simple = all(v.op != "matmul" and not full_reads(v) for v in inner)
            readings = [level[reader] for reader in level if value in reader.args]
            if simple and readings and len(parts) - len(inner) <= 2:
                assert level[value] == min(readings) or value in results


def test_k_decides_what_leaves_the_loop():
    """W @ x is hoisted where I is large, and rematerialised in the loop where I = 1 makes it
    cheap."""
    assert planned(cells.rnn).hoisted
    assert not planned(cells.rnn, dims=(("H", 128), ("I", 1))).hoisted


def test_only_wanted_gradients_are_planned():
    """Frozen weights have no sums; without dx there is no product for it."""
    only_b = planned(cells.lstm, wants=frozenset({"b"}))
    assert {term.right for term in only_b.sums} == {None}
    assert only_b.backward is not None
    assert not only_b.backward.after.segments or not any(
        part.bundles for segment in only_b.backward.after.segments for part in segment.parts
    )


def test_chunks_of_small_cells_stay_in_a_core():
    """Few rows between batched products where they fit a cache and gradients are small; a division
    says otherwise."""
    few, many = (
        usual_rows(planned(cells.gru, dims=(("H", size), ("I", size)))) for size in (64, 512)
    )
    assert few < many == CHUNK_ROWS
    assert usual_rows(planned(cells.gru, dims=(("H", 64), ("I", 64)), training=False)) == many
    assert Division("one").bind(1000, 8, 1, few).chunk == few // 8
    assert Division("one", 384).bind(1000, 8, 1, few).chunk == 48


@pytest.mark.parametrize(
    "name", ["units", "one/384", "4-steps/batch", "one/k-128", "2-steps/units/7/rows-3/k-128"]
)
def test_names_of_schedules(name):
    """Of divisions, merged steps and blocks; they are stored, and stay."""
    assert Schedule.parse(name).name == name
    for wrong in (f"{name}/0", f"{name}/k-0", f"{name}/cows-3", f"{name}/k-", f"x{name}"):
        with pytest.raises(EngineError, match="units/k-128"):
            Schedule.parse(wrong)


PRICE = st.sampled_from([0.001, 0.04, 0.4, 1.0, 5.0, 50.0])


@given(
    made=st.sampled_from(cells.CORE),
    prices=st.builds(Prices, PRICE, PRICE, PRICE, PRICE, PRICE),
    tape=st.sampled_from(["auto", "save", "recompute"]),
)
def test_every_value_is_there_when_it_is_read(made, prices, tape):
    """Whatever the prices: a phase reads what it computes itself, or what has a home."""
    for phase in phases(planned(made, prices, tape=tape)):
        done: set[Node] = set()
        for segment in phase.segments:
            parts = [value for part in segment.parts for value in part.nodes]
            for value in (*segment.scalars, *parts):
                for arg in value.args:
                    there = arg in done or arg in phase.buffers or arg.rate == Rate.WEIGHT
                    assert there, f"{phase.name}: {value!r} reads {arg!r}"
                done.add(value)
            for value, _ in (*segment.scalar_writes, *(w for p in segment.parts for w in p.writes)):
                there = value in done or value in phase.buffers or value.rate == Rate.WEIGHT
                assert there, f"{phase.name}: {value!r} is stored, but never computed"


def test_cuts_come_from_the_pair():
    """What is kept between two phases are nodes of the unchanged pair."""
    pair = compiler.pair_of(cells.lstm_layernorm)
    spec = Spec(DIMS, wants=frozenset({"x", "R", "gc"}))
    cuts = partition(pair, spec, PRICES)
    everything = {
        *below(pair.step.roots),
        *below(pair.d_states),
        *below(d for _, d in cuts.d_inputs),
    }
    everything |= {v for term in cuts.sums for v in below([term.left])}
    assert {*cuts.tape, *cuts.hoisted, *cuts.rematerialised, *cuts.stored} <= everything


def test_slots_follow_one_another():
    """A value may follow another at the same unit; not while all are read, nor in another size."""
    a, b, c = (node("tanh", (node("state", (), (n,), H),), (), H) for n in "abc")
    lives = {a: Life(0, 5, False), b: Life(5, 9, False), c: Life(5, 7, False)}
    found = assign([a, b, c], lives, [], [])
    assert found == {a: (False, 0), b: (False, 0), c: (False, 1)}
    lives[a] = Life(0, 5, True)
    assert assign([a, b], lives, [], [])[b] == (False, 1)
    other = node("state", (), ("p",), (("P",),))
    assert not Slot("H").fits(other, Life(0, 1, False))


def test_values_that_one_segment_stores_share_no_slot():
    """The one that is stored last would be there, whichever is read later."""
    a, b = (node("input", (), (name,), (("H",),)) for name in "ab")
    lives = {a: Life(4, 4, False), b: Life(4, 9, False)}
    for order in ([a, b], [b, a]):
        assert len({index for _, index in assign(order, lives, [], []).values()}) == 2


def test_a_scalar_read_by_many_is_not_overwritten():
    """Scalars of a step are read by every unit: their slot is free only after the phase."""

    @cell(input="x[I], m", state="h[H]", weights="W[H, I]")
    def one(x, m, h, W):
        return tanh(W @ x + tanh(m) * h) * tanh(m + 1)

    made = planned(one, Prices(save=0.001, transcendental=50.0))
    scalars = [columns for columns in made.slots if columns.gate_block is None]
    assert all(len(columns.values) == 1 for columns in scalars)

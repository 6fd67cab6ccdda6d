"""Four cuts of one unchanged graph pair: tape, hoist, sink, rematerialise.

tape:  forward -> backward        hoist: batched prologue -> forward step
sink:  step -> batched epilogue   rematerialise: batched prologue -> backward step
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from elman.ir.graph import Node, Rate, walk
from elman.ir.ops import COMPARISONS
from elman.ir.pair import Pair, Sum, loop_invariant
from elman.ir.types import is_matrix
from elman.plan.frontier import INFINITE, frontier
from elman.plan.prices import Prices, compute_cost, save_cost
from elman.plan.spec import Spec

_LEAVES = ("input", "state", "cotangent")


@dataclass(frozen=True, eq=False)
class Cuts:
    """Result of the four cuts: where each value is computed. Tuples are in graph order.

    Attributes:
        tape: primal values the forward keeps for the backward, in addition to inputs and states.
        hoisted: input-rate values computed for all T·B before the forward loop and read in it.
        emitted: values the forward loop keeps for its epilogue (an output that is not a state).
        rematerialised: values computed for all T·B before the backward loop (primal, or from dy
            alone).
        stored: values the backward loop keeps for its epilogue (gate gradients).
        d_inputs: wanted cotangents of input gate blocks, (index, node).
        sums: the terms of the wanted weights' gradients.
        late_outputs: indices of output gate blocks computed after the forward loop.
    """

    tape: tuple[Node, ...]
    hoisted: tuple[Node, ...]
    emitted: tuple[Node, ...]
    rematerialised: tuple[Node, ...]
    stored: tuple[Node, ...]
    d_inputs: tuple[tuple[int, Node], ...]
    sums: tuple[Sum, ...]
    late_outputs: tuple[int, ...]


def below(roots: Iterable[Node], available: Collection[Node] = ()) -> list[Node]:
    """Nodes a phase may have to compute for ``roots``, arguments first.

    The walk stops at loop-invariant values, which are left out, and at ``available`` ones.
    """
    nodes = walk(roots, stop=lambda v: loop_invariant(v) or v in available)
    return [value for value in nodes if not loop_invariant(value)]


def _boundary(values: Iterable[Node], roots: Iterable[Node], rate: Rate) -> set[Node]:
    """Values of at most ``rate`` that are roots, or arguments of ``values`` of higher rates."""
    read = {arg for value in values if value.rate > rate for arg in value.args}
    return {value for value in read.union(roots) if value.rate <= rate}


def wanted_sums(pair: Pair, wants: Collection[str]) -> tuple[Sum, ...]:
    """The sums from which the gradients of the wanted weights are computed."""
    roots = [
        d
        for leaf, d in zip(pair.step.weights, pair.d_weights, strict=True)
        if d is not None and leaf.name in wants
    ]
    used = set(walk(roots))
    targets = {target for target, d in pair.d_invariants if d in used}
    return tuple(term for term in pair.sums if term.target in targets)


def random_valued(values: Iterable[Node]) -> set[Node]:
    """Values that depend on random numbers alone: never saved, because drawing them again is
    cheaper and storage in half precision would round them."""
    random: set[Node] = set()
    for value in values:
        operands = [arg for arg in value.args if arg.op not in ("const", "count")]
        if value.op == "uniform" or (operands and random.issuperset(operands)):
            random.add(value)
    return random


@dataclass(frozen=True, eq=False)
class Related:
    """Comparisons whose sides share an operand, such as ``v == amax(v)``, the derivative of
    ``amax``, and ``v - amax(v) < 0``.

    Sides that are equal by the formula are equal in memory only if the shared operand was rounded
    once. A phase that recomputes one side, a product above all, rounds it differently.

    Attributes:
        comparisons: no later phase recomputes them.
        dependents: values between a shared operand and a comparison: saved with the operand only.
    """

    comparisons: frozenset[Node]
    dependents: frozenset[Node]


def related(values: Iterable[Node]) -> Related:
    """Find such comparisons among ``values``."""
    comparisons: set[Node] = set()
    dependents: set[Node] = set()
    for value in values:
        if value.op not in COMPARISONS:
            continue
        sides = [side for arg in value.args for side in (arg.args if arg.op == "lin" else (arg,))]
        count = Counter(v for side in sides for v in below([side]) if v.args)
        common = {v for v in count if count[v] > 1}
        if common:
            comparisons.add(value)
            dependents |= {
                v for v in count if v not in common and not common.isdisjoint(below([v]))
            }
    return Related(frozenset(comparisons), frozenset(dependents - comparisons))


class _Cutter:
    """The four cuts for one pair, one spec and one set of prices."""

    def __init__(self, pair: Pair, spec: Spec, prices: Prices) -> None:
        self.pair, self.spec, self.prices = pair, spec, prices
        self.sizes = spec.sizes
        step = pair.step
        roots = list(step.roots)
        if spec.training:  # without training nothing is computed for a backward
            summed = [value for term in pair.sums for value in (term.left, term.right)]
            roots += filter(None, (*pair.d_states, *pair.d_inputs, *summed))
        every = below(roots)
        self.random_valued, self.related = random_valued(every), related(every)
        self.every = every
        self.available = {*step.inputs, *step.states, *step.next_states, *pair.d_outputs}
        self.sums = wanted_sums(pair, spec.wants) if spec.training else ()
        self.d_inputs = tuple(
            (index, d)
            for index, (leaf, d) in enumerate(zip(step.inputs, pair.d_inputs, strict=True))
            if spec.training and d is not None and leaf.name in spec.wants
        )

    def save(self, value: Node) -> float:
        if value in self.random_valued:
            return INFINITE
        return save_cost(value, self.sizes, self.prices)

    def outside_loop(
        self, save: Callable[[Node], float], free: Collection[Node]
    ) -> Callable[[Node], float]:
        """Cost of computing a value in a batched phase and saving it for the loop: INFINITE for
        matrices per sample, and for values computed from matrix states."""
        step = self.pair.step  # whose matrices are in a near cache within the loop, not outside it
        states = {v for v in (*step.states, *step.next_states) if is_matrix(v)}
        computed: set[Node] = set()
        for value in self.every:
            if value not in free and (
                is_matrix(value) or any(arg in states or arg in computed for arg in value.args)
            ):
                computed.add(value)
        return lambda value: INFINITE if value in computed else save(value)

    def save_apart(self, value: Node) -> float:
        """Cost of saving a value when others may be recomputed."""
        return INFINITE if value in self.related.dependents else self.save(value)

    def compute_again(self, value: Node) -> float:
        """Cost of recomputing a value in a second phase."""
        return INFINITE if value in self.related.comparisons else self.compute(value)

    def compute(self, value: Node) -> float:
        return compute_cost(value, self.sizes, self.prices)

    @property
    def late(self) -> list[Node]:
        """Values that the backward's epilogue needs: input gradients and operands of sums."""
        operands = [v for term in self.sums for v in (term.left, term.right) if v is not None]
        return list(dict.fromkeys([*(d for _, d in self.d_inputs), *operands]))

    def tape(self) -> tuple[Node, ...]:
        """Primal values the backward reads; derivative factors may be taped like any other."""
        if not self.spec.training:
            return ()
        roots = [*self.pair.d_states, *self.late]
        if self.spec.options.tape == "recompute":
            kept = self.related.comparisons
            return tuple(v for v in below(roots, kept) if v in kept and v.rate <= Rate.STATE)
        everything = below(roots)
        primal = [v for v in everything if v.rate <= Rate.STATE]
        read = _boundary(everything, self.late, Rate.STATE)
        forward = self.pair.primal
        factor = 0.0 if self.spec.options.tape == "save" else 1.0  # "save": recompute nothing

        def keep(value: Node) -> float:
            # a derivative factor is extra work and an extra store in the forward
            extra = 0.0 if value in forward else self.compute(value) + 0.5 * self.save(value)
            saved = self.save(value)
            # 0.001: of two tapes that cost the same, the one of fewer values
            return saved if saved == INFINITE else factor * saved + extra + 0.001

        return frontier(primal, read, self.available, keep, self.compute_again)

    def hoist(self, roots: list[Node], free: set[Node]) -> tuple[Node, ...]:
        """Input-rate values worth computing for all T·B at once."""
        everything = below(roots)
        nodes = [v for v in everything if v.rate == Rate.INPUT]
        read = _boundary(everything, roots, Rate.INPUT)
        keep = self.outside_loop(self.save_apart, free)
        return frontier(nodes, read, free, keep, self.compute_again)

    def sink(self, loop: list[Node], late: list[Node], free: set[Node]) -> tuple[Node, ...]:
        """Values the loop keeps for its epilogue; what only the epilogue needs is computed
        there."""
        in_loop = set(below(loop, free)) - free
        nodes = below(late, free)
        operands = {v.args[1] for v in in_loop if v.op == "matmul"}
        # products that the loop does not need, and all values computed from them: the epilogue
        # computes them for all rows at once, so they are never pulled into the loop
        outside: set[Node] = set()
        for value in nodes:
            # a matrix per sample, and every reader of one, belongs to the loop, even if an operand
            # is a product that only the epilogue needs (n in sum(n * z, S * U))
            if (
                value not in in_loop
                and not any(map(is_matrix, (value, *value.args)))
                and (value.op == "matmul" or any(arg in outside for arg in value.args))
            ):
                outside.add(value)

        def keep(value: Node) -> float:
            if value in outside:
                return INFINITE
            if value in in_loop and value in operands:
                return 0.0  # an operand of a product is written to memory anyway
            if any(map(is_matrix, value.args)):
                return self.save(value)  # no later phase can compute it
            late = 0.0 if value in in_loop else self.prices.late * self.compute(value)
            return self.save_apart(value) + late

        def rematerialise(value: Node) -> float:
            # a matrix per sample is available in the loop alone, so its readers belong there
            if value.op in _LEAVES or is_matrix(value) or any(map(is_matrix, value.args)):
                return INFINITE
            return self.compute_again(value) if value in in_loop else 0.0

        return frontier(nodes, late, free, keep, rematerialise)

    def rematerialise(self, roots: list[Node], free: set[Node]) -> tuple[Node, ...]:
        """Values without carry worth computing for all T·B before the backward loop."""
        everything = below(roots, free)
        nodes = [v for v in everything if v.rate <= Rate.OUTPUT]
        read = _boundary(everything, roots, Rate.OUTPUT)
        return frontier(nodes, read, free, self.outside_loop(self.save, free), self.compute)


def partition(pair: Pair, spec: Spec, prices: Prices) -> Cuts:
    """Decide tape, hoist, sink and rematerialisation, in this order: later cuts read what earlier
    ones keep."""
    cutter = _Cutter(pair, spec, prices)
    step = pair.step
    tape = cutter.tape()
    next_states = [v for v in step.next_states if not loop_invariant(v)]
    in_loop = set(below([*next_states, *(v for v in tape if v.rate == Rate.STATE)]))
    # an output with a product that the loop does not need is computed after it, for all rows
    late_outputs = tuple(
        index
        for index, value in enumerate(step.outputs)
        if value not in step.next_states
        and value.rate == Rate.STATE
        and any(v.op == "matmul" and v not in in_loop for v in below([value]))
    )
    late = [step.outputs[index] for index in late_outputs]
    early = [
        v for i, v in enumerate(step.outputs) if i not in late_outputs and not loop_invariant(v)
    ]
    leaves = {*step.inputs, *step.states, *step.next_states}
    compared = [v for v in below(late) if v in cutter.related.comparisons]
    loop = [*next_states, *early, *tape, *compared]  # an epilogue would round their sides again
    emitted = cutter.sink(loop, late, {*leaves, *tape}) if late else ()
    taped_inputs = {v for v in tape if v.rate == Rate.INPUT}
    hoisted: tuple[Node, ...] = ()
    if "hoisting" not in spec.options.without:
        hoisted = cutter.hoist([*loop, *emitted], {*step.inputs, *taped_inputs})
    if not spec.training:
        return Cuts((), hoisted, emitted, (), (), (), (), late_outputs)
    free = {*cutter.available, *tape}
    carried = [v for v in pair.d_states if not loop_invariant(v)]
    stored = cutter.sink(carried, [v for v in cutter.late if not loop_invariant(v)], free)
    rematerialised = cutter.rematerialise([*carried, *stored], free)
    return Cuts(
        tape, hoisted, emitted, rematerialised, stored, cutter.d_inputs, cutter.sums, late_outputs
    )

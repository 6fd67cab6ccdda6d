"""Which of a job's weights is which of torch's, read off two equal steps walked side by side."""

from __future__ import annotations

from dataclasses import dataclass

from elman.engines.aten.formulas import Formula
from elman.engines.base import Job
from elman.ir.graph import Node, walk
from elman.ir.pair import loop_invariant
from elman.ir.types import show_shape
from elman.passes.digest import ordered


@dataclass(frozen=True)
class Binding:
    """Positions in the job's weights; -1 for a bias that the job does not have."""

    w_ih: int
    w_hh: int
    biases: tuple[int, ...] = ()  # none, or torch's b_ih and b_hh


def _names(value: Node) -> frozenset[str]:
    return frozenset(leaf.name for leaf in walk([value]) if leaf.op == "weight")


def _correspondence(formula: Formula, job: Job) -> dict[frozenset[str], frozenset[str]] | str:
    """Names of torch's weights -> names of the job's, per loop-invariant value; or why there is
    none."""
    found: dict[frozenset[str], frozenset[str]] = {}
    for theirs, ours in zip(ordered(formula.step), ordered(job.pair.source), strict=True):
        if not loop_invariant(theirs):
            continue
        key, names = _names(theirs), _names(ours)
        if key and found.setdefault(key, names) != names:
            theirs_named = " and ".join(sorted(key))
            return f"{theirs_named} of torch's {formula.function} are several weights here"
    return found


def bind(formula: Formula, job: Job) -> Binding | str:
    """Find torch's weights among the job's; a text says why that is impossible.

    The two steps have the same digest, so both walks meet the same values in the same order.
    """
    found = _correspondence(formula, job)
    if isinstance(found, str):
        return found
    names = [leaf.name for leaf in job.graph.weights]
    shapes = {leaf.name: leaf.shape for leaf in job.graph.weights}
    place: dict[str, tuple[int, ...]] = {}
    for declared in formula.cell.weights:
        ours = found[frozenset({declared.name})]
        for name in ours:
            if shapes[name] != declared.shape:
                own = f"{name}{show_shape(shapes[name])}"
                return f"{own} is not {declared} of torch's {formula.function}"
        place[declared.name] = tuple(index for index, name in enumerate(names) if name in ours)
    used = sorted(index for indices in place.values() for index in indices)
    if used != list(range(len(names))):
        return f"torch's {formula.function} has no place for all of {', '.join(names)}"
    biases = [place[entry.name] for entry in formula.cell.weights[2:]]
    if formula.two_biases:
        both = frozenset({formula.cell.weights[2].name, formula.cell.weights[3].name})
        if found[both] != frozenset(names[index] for pair in biases for index in pair):
            return f"the gates of torch's {formula.function} add both biases"
        if any(len(indices) != 1 for indices in biases):
            return f"torch's {formula.function} has one bias per product"
        return Binding(place["W"][0], place["R"][0], (biases[0][0], biases[1][0]))
    if not biases:
        return Binding(place["W"][0], place["R"][0])
    if len(biases[0]) > 2:
        return f"torch's {formula.function} has at most two biases"
    return Binding(place["W"][0], place["R"][0], (*biases[0], -1)[:2])

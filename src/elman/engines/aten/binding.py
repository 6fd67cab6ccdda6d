"""Match a job's weights with those of torch's layer, by walking both equal steps in parallel."""

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
    """Indices into the job's weights; -1 for a missing bias."""

    w_ih: int
    w_hh: int
    biases: tuple[int, ...] = ()  # none, or torch's b_ih and b_hh


def _names(value: Node) -> frozenset[str]:
    return frozenset(leaf.name for leaf in walk([value]) if leaf.op == "weight")


def _correspondence(formula: Formula, job: Job) -> dict[frozenset[str], frozenset[str]] | str:
    """Names of torch's weights -> names of the job's, per loop-invariant value; or why there is
    none."""
    job_names: dict[frozenset[str], frozenset[str]] = {}
    for torch_value, job_value in zip(ordered(formula.step), ordered(job.pair.source), strict=True):
        if not loop_invariant(torch_value):
            continue
        key, names = _names(torch_value), _names(job_value)
        if key and job_names.setdefault(key, names) != names:
            torch_names = " and ".join(sorted(key))
            return f"{torch_names} of torch's {formula.function} are several weights here"
    return job_names


def bind(formula: Formula, job: Job) -> Binding | str:
    """Find torch's weights among the job's; a text says why that is impossible.

    The two steps have the same digest, so both walks visit equal values in the same order.
    """
    job_names = _correspondence(formula, job)
    if isinstance(job_names, str):
        return job_names
    names = [leaf.name for leaf in job.graph.weights]
    shapes = {leaf.name: leaf.shape for leaf in job.graph.weights}
    place: dict[str, tuple[int, ...]] = {}
    for declared in formula.cell.weights:
        matching = job_names[frozenset({declared.name})]
        for name in matching:
            if shapes[name] != declared.shape:
                declaration = f"{name}{show_shape(shapes[name])}"
                return f"{declaration} is not {declared} of torch's {formula.function}"
        place[declared.name] = tuple(index for index, name in enumerate(names) if name in matching)
    indices_used = sorted(index for indices in place.values() for index in indices)
    if indices_used != list(range(len(names))):
        return f"torch's {formula.function} has no place for all of {', '.join(names)}"
    biases = [place[entry.name] for entry in formula.cell.weights[2:]]
    if formula.two_biases:
        bias_names = frozenset({formula.cell.weights[2].name, formula.cell.weights[3].name})
        if job_names[bias_names] != frozenset(names[index] for pair in biases for index in pair):
            return f"the gates of torch's {formula.function} add both biases"
        if any(len(indices) != 1 for indices in biases):
            return f"torch's {formula.function} has one bias per product"
        return Binding(place["W"][0], place["R"][0], (biases[0][0], biases[1][0]))
    if not biases:
        return Binding(place["W"][0], place["R"][0])
    if len(biases[0]) > 2:
        return f"torch's {formula.function} has at most two biases"
    return Binding(place["W"][0], place["R"][0], (*biases[0], -1)[:2])

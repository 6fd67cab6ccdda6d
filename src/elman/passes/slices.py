"""Matrices per sample whose columns, or rows, do not depend on each other: a dim that can be cut.

The columns of ``S = a * S + outer(k, u)`` with ``u = v - S.T @ k`` are recurrences of their own,
which read the same ``a`` and ``k``. So a matrix that is too large for a near cache is run as
several samples of fewer columns: what has no such dim is read by all of them, and its gradient is
the sum of theirs.
"""

from __future__ import annotations

from collections import Counter

from elman.ir.graph import Node, walk
from elman.ir.pair import Step
from elman.ir.types import is_matrix, matrix_axes, sample_axes

# ops that know a unit's place among the others, or draw a number for each
_OF_PLACES = ("count", "cumsum", "swapaxes", "one_hot", "uniform", "draw")


def find_slices(step: Step) -> str | None:
    """The name of a dim of a matrix among the states along which no value of a canonical step
    depends on another one; None if there is none, or a step multiplies by weights. The only output
    has the dim."""
    changing = [leaf for leaf in step.states if is_matrix(leaf) and leaf not in step.held]
    matrices = [matrix_axes(leaf) for leaf in changing]
    names = dict.fromkeys(axes[k] for k in (1, 0) for axes in matrices)
    return next((d for d in names if isinstance(d, str) and _can_be_cut(step, d)), None)


def _can_be_cut(step: Step, dim: str) -> bool:
    leaves = (*step.inputs, *step.states)
    gate_blocks = Counter(leaf.data[0] for leaf in leaves)  # of each array
    cut = [leaf for leaf in leaves if dim in sample_axes(leaf)]
    return (
        not step.weights
        and len(step.outputs) == 1
        and all(gate_blocks[leaf.data[0]] == 1 for leaf in cut)
        and dim in sample_axes(step.output)
        and all(_keeps(value, dim) for value in walk(step.roots))  # numbers of units, too
    )


def _keeps(value: Node, dim: str) -> bool:
    """Whether each unit along a dim is computed from units at the same place alone."""
    axes = sample_axes(value)
    if value.op in _OF_PLACES:
        return dim not in (value.data if value.op == "count" else axes)
    if dim not in axes:
        return not any(dim in sample_axes(arg) for arg in value.args)
    if axes.count(dim) > 1 or (value.op == "roll" and axes[0] == dim):
        return False
    if value.op == "spread" and len(axes) == 1:  # of as many groups as the whole has
        return not value.args[0].shape
    return True

"""The invariants of graphs as code: tests run them after tracing and after every rewrite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest import mock

from elman import compiler, passes
from elman.engines.base import Job
from elman.errors import VerifyError
from elman.ir.graph import Graph, Node, Rate, node, walk
from elman.ir.ops import OF_PARTS, OPS
from elman.ir.pair import Pair
from elman.ir.types import Axis, Dim, is_matrix, matrix_axes, parts_of
from elman.nn.autograd.derived import PerSampleKernel


def _check(holds: bool, value: Node, problem: str) -> None:
    if not holds:
        raise VerifyError(f"{problem}: {value!r}")


def _grouped(groups: Node, vectors: tuple[Node, ...]) -> bool:
    """Whether a value has groups for each gate block of one vector."""
    if len(vectors) != 1 or len(vectors[0].shape) != 1 or len(groups.shape) != 1:
        return False
    return len(groups.shape[0]) == len(vectors[0].shape[0])


def _units(dim: Dim) -> list[tuple[Axis, Axis]]:
    """Names of rows with their columns, in order; a number is as many rows of one unit."""
    units: list[tuple[Axis, Axis]] = []
    for block in dim:
        rows, columns = block if isinstance(block, tuple) else (block, "")
        for part in parts_of(rows):
            units += [(1, columns)] * part if isinstance(part, int) else [(str(part), columns)]
    return units


def verify_node(value: Node) -> None:
    """Arity, shapes and rate of one node. Raises VerifyError."""
    op = OPS.get(value.op)
    if op is None:
        raise VerifyError(f"no op {value.op!r}")
    _check(op.arity is None or len(value.args) == op.arity, value, "wrong number of arguments")
    _check(len(value.shape) <= 2, value, "more than two dims")
    if value.args:
        _check(value.rate == node(value.op, value.args, (), value.shape).rate, value, "wrong rate")
    if op.kind == "pointwise":
        wide = {arg.shape for arg in value.args if arg.shape}
        _check(wide <= {value.shape}, value, "operands of unlike shape")
    if op.kind == "reduce":
        _check(value.shape == () or _grouped(value, value.args), value, "groups of a reduction")
    if op.kind == "spread":
        (arg,) = value.args
        grouped = arg.shape == () or _grouped(arg, (value,))
        _check(len(value.shape) == 1 and grouped, value, "groups of a vector")
    if value.op in ("fold", "tile"):
        (arg,) = value.args
        matrix, vector = (arg, value) if value.op == "fold" else (value, arg)
        as_columns = is_matrix(matrix) and vector.shape == ((matrix_axes(matrix)[1],),)
        _check(as_columns, value, "the columns of a matrix per sample")
    if value.op == "swapaxes":
        axes = matrix_axes(value.args[0])[::-1]
        _check(is_matrix(value) and matrix_axes(value) == axes, value, "a transpose")
    elif value.op in OF_PARTS:
        part, wide = value.args[0], value
        if value.op == "cut":
            part, wide = wide, part
        units = _units((*value.data, *part.shape[0]))
        _check(units == _units(wide.shape[0])[: len(units)], value, "no part of a gate block")
    elif op.kind == "scan":
        _check(value.shape == value.args[0].shape != (), value, "a scan of unlike shape")
    if value.op == "reblock":
        _check(_units(value.shape[0]) == _units(value.args[0].shape[0]), value, "other units")
    if value.op == "lin":
        _check(len(value.coefs) == len(value.args), value, "coefficients")
    if value.op == "bmm":
        _check(all(map(is_matrix, (value, *value.args))), value, "matrices of each sample")
        (rows, inner), (like, columns) = (
            matrix_axes(arg)[:: -1 if side in value.data else 1]
            for arg, side in zip(value.args, "LR", strict=True)
        )
        alike = inner == like and matrix_axes(value) == (rows, columns)
        _check(alike, value, "product of unlike shapes")
    if value.op == "matmul":
        matrix, vector = value.args
        rows, cols = matrix.shape[::-1] if value.transposed else matrix.shape
        _check(matrix.rate == Rate.WEIGHT, value, "the left side of a product is a weight")
        _check(
            vector.shape == (cols,) and value.shape == (rows,), value, "product of unlike shapes"
        )


def verified(graph: Graph) -> Graph:
    """Check a graph: every node well formed, every leaf declared. Returns it; raises
    VerifyError."""
    leaves = set(graph.leaves)
    for value in graph.walk():
        verify_node(value)
        if value.op in ("input", "state", "weight"):
            _check(value in leaves, value, "an undeclared leaf")
    for leaf, root in zip(graph.states, graph.next_states, strict=True):
        _check(leaf.shape == root.shape, root, f"the next {leaf.name} has another shape")
    return graph


def verified_pair(pair: Pair) -> Pair:
    """Check a pair: gate blocks only, no moves, cotangents shaped like their values. Returns it;
    raises VerifyError."""
    step = pair.step
    sums = [value for term in pair.sums for value in (term.left, term.right) if value is not None]
    gradients = [d for d in (*pair.d_inputs, *pair.d_weights) if d is not None]
    for value in walk([*step.roots, *pair.d_states, *sums, *gradients]):
        verify_node(value)
        _check(all(len(dim) == 1 for dim in value.shape), value, "wider than one gate block")
        _check(OPS[value.op].kind != "move" or value.op == "transpose", value, "a move is left")
    for leaf, d in (
        *zip(step.states, pair.d_states, strict=True),
        *zip(step.inputs, pair.d_inputs, strict=True),
        *zip(step.weights, pair.d_weights, strict=True),
    ):
        _check(d is None or d.shape == leaf.shape, leaf, "a cotangent of another shape")
    return pair


@contextmanager
def always_verified() -> Iterator[None]:
    """Check each graph and each pair that the compiler makes."""

    def checked(function: Callable[..., Any], check: Callable[[Any], Any]) -> Callable[..., Any]:
        return wraps(function)(lambda *arguments: check(function(*arguments)))

    def sound(job: Job) -> Job:
        verified_pair(job.pair)
        return job

    rewrites = tuple(checked(rewrite, verified) for rewrite in passes.PASSES)
    with (
        mock.patch.object(passes, "PASSES", rewrites),
        mock.patch.multiple(
            compiler,
            share=checked(compiler.share, verified),
            merge_steps=checked(compiler.merge_steps, lambda graph: graph and verified(graph)),
            without_stand_ins=checked(compiler.without_stand_ins, verified_pair),
        ),
        mock.patch.object(
            PerSampleKernel, "_factor_job", checked(PerSampleKernel._factor_job, sound)
        ),
    ):
        yield

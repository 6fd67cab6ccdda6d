"""Layers as ``torch.onnx.export`` translates them: ONNX's operators RNN, GRU and LSTM, or a scan
over the steps of any other formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman import compiler
from elman.engines.arrays import Arrays
from elman.engines.base import DifferentiableKernel, Job, Kernel
from elman.engines.call import Call, Result
from elman.engines.reference.engine import side_by_side, widened
from elman.errors import warn
from elman.frontend.cell import Cell
from elman.ir.evaluate import evaluate
from elman.ir.graph import Graph, Node, Rate, walk, with_args
from elman.ir.ops import STAND_INS
from elman.ir.types import shape_size
from elman.nn.engine_choice import traces_onnx
from elman.nn.layout.signature import parts_of
from elman.passes import rewritten
from elman.passes.draws import expected
from elman.plan.spec import Spec
from elman.torch_internals import scan
from elman.tuning.kernels import engine_for
from elman.tuning.request import Rule

WITHIN = "within"  # an option of exported calls, which no caller gives


class _Operator(NamedTuple):
    """An operator of ONNX: name, the order of torch's gates in it, and further attributes."""

    name: str
    gates: tuple[int, ...]
    attributes: Mapping[str, Any] = {}


_OPERATORS = {  # by torch's functions
    "rnn_tanh": _Operator("RNN", (0,)),
    "rnn_relu": _Operator("RNN", (0,), {"activations": ["Relu"]}),
    "gru": _Operator("GRU", (1, 0, 2), {"linear_before_reset": 1}),
    "lstm": _Operator("LSTM", (0, 3, 1, 2)),
}


class OperatorKernel(DifferentiableKernel):
    """One layer in one direction as an operator of ONNX.

    torch's exporter has translations of its own layers, too; theirs fix the number of steps
    (torch 2.13, onnxscript 0.7).

    Args:
        function: of torch, whose formula it is.
        binding: of the weights to torch's (:class:`elman.engines.aten.binding.Binding`).
        scan: the same layer for other types than float32, which runtimes lack these operators for.
    """

    engine = "reference"

    def __init__(self, function: str, binding: Any, scan: ScanKernel) -> None:
        self._operator, self._binding, self._scan = _OPERATORS[function], binding, scan

    def forward(self, call: Call) -> Result:
        """Run all steps; see :class:`Kernel`."""
        (name, gates, attributes), binding, x = self._operator, self._binding, call.inputs[0]
        if x.dtype is not torch.float32:
            return self._scan.forward(call)

        def place(index: int) -> Tensor:
            weight = call.weights[index]
            blocks = weight.chunk(len(gates))
            return torch.cat([blocks[gate] for gate in gates])

        zero = torch.zeros_like(place(binding.w_hh)[:, 0])
        biases = [zero if index < 0 else place(index) for index in binding.biases]
        arguments = [x, place(binding.w_ih)[None], place(binding.w_hh)[None]]
        bias = torch.cat(biases)[None] if biases else None
        states = [value.unsqueeze(0) for value in call.states]
        units = states[0].shape[-1]
        output, *last = torch.onnx.ops.symbolic_multi_out(
            name,
            (*arguments, bias, None, *states),  # between them: lengths
            {"hidden_size": units, **attributes},
            dtypes=[x.dtype] * (1 + len(states)),
            shapes=[(x.shape[0], 1, x.shape[1], units), *[value.shape for value in states]],
        )
        return Result(output.squeeze(1), tuple([value.squeeze(0) for value in last]))


class ScanKernel(DifferentiableKernel):
    """One layer in one direction as torch's scan. Values that depend on no state are computed
    before it, for all steps at once.

    Args:
        graph: the step in ``eval()``.
        dims: sizes of its dims.
    """

    engine = "reference"

    def __init__(self, graph: Graph, dims: Mapping[str, int]) -> None:
        self._graph, self._dims = graph, dict(dims)

    def forward(self, call: Call) -> Result:
        """Run all steps; see :class:`Kernel`."""
        graph, like = self._graph, call.states[0]
        # a view of a transposed x with B = 1 has torch's exporter conclude that B is always 1
        inputs = tuple(map(_copy, call.inputs))
        states = list(zip(graph.states, graph.next_states, call.states, strict=True))
        static = {old: value for old, after, value in states if after is old}
        if len(static) == len(states):  # a scan carries something
            static.clear()
        carried = [(old, after, value) for old, after, value in states if old not in static]
        roots = (*[after for _, after, _ in carried], *graph.outputs)
        outside = dict.fromkeys(v for v in walk(roots, stop=_before_loop) if _before_loop(v))
        leaves = dict(zip((*graph.inputs, *graph.weights), inputs + call.weights, strict=True))
        before = dict(zip(outside, self._values(like, (*outside,), leaves), strict=True))
        moving = {v: x for v, x in before.items() if any(leaf.op == "input" for leaf in walk([v]))}
        moving = moving or {graph.inputs[0]: inputs[0]}  # and is over something
        fixed = {v: x for v, x in before.items() if v not in moving and v.op != "const"} | static
        widths = [shape_size(v.shape, self._dims) for v in graph.outputs]
        count, names = len(carried), (*[old for old, _, _ in carried], *moving, *fixed)

        def step(*values: Tensor) -> list[Tensor]:
            results = self._values(like, roots, dict(zip(names, values, strict=True)))
            after = [widened(v, old.shape) for v, old in zip(results, values[:count])]
            sizes = [(values[0].shape[0], *width) for width in widths]
            outputs = [widened(*each) for each in zip(results[count:], sizes, strict=True)]
            return [_copy(value) for value in (*after, side_by_side(outputs))]

        starts = [_copy(value) for _, _, value in carried]
        rows, constants = (map(_copy, values.values()) for values in (moving, fixed))
        *ends, output = scan(step, starts, [*rows], [*constants])
        last = static | {old: end for (old, _, _), end in zip(carried, ends, strict=True)}
        return Result(output, tuple([last[state] for state in graph.states]))

    def _values(
        self, like: Tensor, roots: tuple[Node, ...], known: Mapping[Node, Tensor]
    ) -> tuple[Tensor, ...]:
        return evaluate(Arrays(like.dtype, like.device), roots, dict(known), self._dims)


def _copy(value: Tensor) -> Tensor:
    """A value that is no other's view, which a scan refuses."""
    return value.detach().clone(memory_format=torch.contiguous_format)


def _before_loop(value: Node) -> bool:
    return value.rate < Rate.STATE


def exported_kernel(cell: Cell, dims: Sequence[tuple[str, int]], rules: tuple[Rule, ...]) -> Kernel:
    """The kernel of a cell that torch's exporter translates."""
    graph = expected(compiler.graph_of(cell, rules))
    graph = graph.rebuilt(
        lambda old, args: args[0] if old.op in STAND_INS else with_args(old, args)
    )
    job = Job(cell.name, graph, compiler.build_pair(graph), Spec(tuple(dims)))
    engine, scanned = engine_for("aten", job), ScanKernel(rewritten(graph), dict(dims))
    if isinstance(engine, str):
        return scanned
    torchs: Any = engine.compile(job)
    return OperatorKernel(torchs.function, torchs.binding, scanned)


def warn_of_fixed_batch(size: Any, module: str) -> None:
    """Warn if the trace of a call has found that a B which the caller asked to be dynamic is always
    1, as torch's operations do which compare strides.

    Args:
        size: B of the input, taken before the call; a number where it was not dynamic.
        module: its name.
    """
    if not isinstance(size, torch.SymInt) or torch.compiler.is_dynamo_compiling():
        return
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # slow to import

    if traces_onnx() and statically_known_true(size == 1):
        warn(
            f"the batch of the exported {module} is 1, though it was to be dynamic: from how an "
            "example of one sample lies in memory torch's exporter concludes that B is always 1\n"
            "  hint  an example with two samples"
        )


def without_lengths(x: Any, options: Mapping[str, Any], batch_first: bool) -> Mapping[str, Any]:
    """Options of a call with a mask in the place of ``lengths=``; :data:`WITHIN` says which steps
    are within their sequence, for its outputs and states. Nothing is reset in the padding."""
    first = parts_of(x)[0]
    steps = torch.arange(first.shape[1 if batch_first else 0], device=first.device)
    within = steps.unsqueeze(1) < torch.as_tensor(options["lengths"], device=first.device)
    within = within.transpose(0, 1) if batch_first else within
    rest = {name: value for name, value in options.items() if name != "lengths"}
    flags = {name: (rest[name] != 0) & within for name in ("mask", "reset") if name in rest}
    return {**rest, "mask": within, **flags, WITHIN: within}

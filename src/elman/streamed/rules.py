"""Operations that look at several steps: convolutions, recurrent layers, pools, cuts in time."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional

from elman import compiler
from elman.engines.call import Call
from elman.engines.reference.engine import steps
from elman.errors import InputError
from elman.nn.compile.names import group_of
from elman.passes.draws import expected
from elman.streamed.running import NOW, RowsError, Step, refuse_zeros
from elman.streamed.sequence import Flow, describe

_END = 2**63 - 1  # of a slice that reaches to the end
_aten = torch.ops.aten


class _Windows:
    """Windows of rows, one for each row of a result.

    Args:
        flow: of what is read.
        taps, stride, dilation: of a window.
        padding: rows of zeros before the first.

    Attributes:
        result: how the result arrives.
        before: rows of earlier steps that are read.
    """

    def __init__(self, flow: Flow, taps: int, stride: int, padding: int, dilation: int) -> None:
        if flow.rows % stride:
            raise RowsError(stride, flow.rows)
        padding += flow.zeros
        self.span, self._stride, self._dilation = dilation * (taps - 1) + 1, stride, dilation
        # Row j of the result reads rows j · stride - padding + 0 … span - 1; the newest that all of
        # these have arrived of is that many rows ahead
        ahead = flow.shift + padding - self.span
        self._lag = ahead % stride  # rows that have arrived behind the newest window
        self.result = Flow(flow.axis, flow.rows // stride, ahead // stride + 1)
        self.before = max(0, self.span + self._lag - stride)
        self.padded = padding > 0

    def of(self, rows: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """The taps of each row of the result."""
        windows: list[Sequence[Tensor]] = []
        for late in reversed(range(self.result.rows)):
            end = len(rows) - self._lag - late * self._stride
            windows.append(rows[end - self.span : end : self._dilation])
        return windows


def _convolution(step: Step, node: Node) -> tuple[Any, Any]:
    """y[j] = b + Σₖ W[:, :, k] x[j · stride - padding + k · dilation]."""
    named = step.arguments(node)
    x, W, b = named["input"], step.of(named["weight"]), step.of(named["bias"])
    flow = step.flow(x)
    if flow is None or flow.axis != 2:
        return step.run_locally(node)
    (stride,), (dilation,), groups = named["stride"], named["dilation"], named["groups"]
    padding = named["padding"]
    if isinstance(padding, str):
        padding = [dilation * (W.shape[2] - 1) // 2 if padding == "same" else 0]
    windows = _Windows(flow, W.shape[2], stride, padding[0], dilation)
    _refuse_ahead(node, windows.result)
    rows = step.rows_of(x, windows.before, only_valid=windows.padded)
    results: list[Tensor] = []
    for taps in windows.of(rows):
        terms = [_by_channel(tap, W[:, :, k], groups) for k, tap in enumerate(taps)]
        results.append(sum(terms[1:], terms[0] if b is None else terms[0] + b))
    return [row.unsqueeze(2) for row in results], windows.result


def _by_channel(x: Tensor, W: Tensor, groups: int) -> Tensor:
    """One tap of a convolution: x [B, C] by W [O, C / groups]."""
    if groups == 1:
        return functional.linear(x, W)
    if groups == x.shape[1] == W.shape[0]:
        return x * W[:, 0]
    parts = zip(x.chunk(groups, 1), W.chunk(groups, 0), strict=True)
    return torch.cat([functional.linear(part, matrix) for part, matrix in parts], 1)


def _refuse_ahead(node: Node, flow: Flow) -> None:
    if flow.shift > 0:
        raise InputError(
            f"{describe(node)} is padded more than its window needs: it begins before the first "
            "step",
            "padding=dilation * (kernel_size - 1) at most",
        )


def _pool(reduce: Callable[[Sequence[Tensor]], Tensor]) -> Callable[[Step, Node], tuple[Any, Any]]:
    """A pool over windows of rows, without padding."""

    def run(step: Step, node: Node) -> tuple[Any, Any]:
        named = step.arguments(node)
        x = named["self"]
        flow = step.flow(x)
        if flow is None or flow.axis != step.rank(x) - 1:
            return step.run_locally(node)
        (size,), (padding,) = named["kernel_size"], named["padding"]
        stride, dilation = named["stride"] or [size], named.get("dilation", [1])
        if padding or flow.zeros or named["ceil_mode"]:
            raise InputError(f"{describe(node)}: a pool over steps has no padding here")
        windows = _Windows(flow, size, stride[0], 0, dilation[0])
        rows = step.rows_of(x, windows.before)
        results = [reduce(taps).unsqueeze(flow.axis) for taps in windows.of(rows)]
        return results, windows.result

    return run


def _padding(step: Step, node: Node) -> tuple[Any, Any]:
    """Zeros before and behind a sequence: those behind it come too late to matter."""
    named = step.arguments(node)
    x, pads = named["self"], named["pad"]
    flow = step.flow(x)
    if flow is None:
        return step.run_locally(node)
    at = 2 * (step.rank(x) - 1 - flow.axis)
    others = [n for k, n in enumerate(pads) if k not in (at, at + 1)]
    if at >= len(pads):
        return step.run_locally(node)
    value = named["value"]
    if any(others) or value or named.get("mode", "constant") != "constant" or pads[at] < 0:
        raise InputError(f"{describe(node)}: steps are padded with zeros alone")
    return step.values[x], flow._replace(zeros=flow.zeros + pads[at])


def _cut(step: Step, node: Node) -> tuple[Any, Any]:
    """``x[:, first:]``, ``x[:, :-n]`` and ``x[:, -1:]`` along time."""
    named = step.arguments(node)
    x, first = named["self"], named["start"] or 0
    flow = step.flow(x)
    if flow is None or named["dim"] % step.rank(x) != flow.axis:
        return step.run_locally(node)
    refuse_zeros(node, flow)
    end = _END if named["end"] is None else named["end"]
    if named["step"] != 1 or not isinstance(first, int):
        raise InputError(f"{describe(node)}: a slice of steps takes all, or the last one")
    if first == -1:
        return step.values[x][-1], NOW
    if first < 0 or (isinstance(end, int) and 0 <= end < _END):
        raise InputError(f"{describe(node)}: a slice of steps has a fixed length")
    return step.values[x], flow._replace(shift=flow.shift - first)


def _last(step: Step, node: Node) -> tuple[Any, Any]:
    """``x[:, -1]`` along time: the newest row."""
    named = step.arguments(node)
    x = named["self"]
    flow = step.flow(x)
    if flow is None or named["dim"] % step.rank(x) != flow.axis:
        return step.run_locally(node)
    refuse_zeros(node, flow)
    if named["index"] != -1:
        raise InputError(f"{describe(node)}: of all steps the last one alone can be picked")
    return step.values[x][-1].squeeze(flow.axis), NOW


def _over_time(
    update: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Callable[[Step, Node], tuple[Any, Any]]:
    """A running reduction; ``update`` takes what it was, a row, and the number of rows with it."""

    def run(step: Step, node: Node) -> tuple[Any, Any]:
        named = step.arguments(node)
        x, dims, keep = named["self"], named.get("dim"), named.get("keepdim", False)
        flow = step.flow(x)
        rank = step.rank(x)
        sizes = named.get("output_size")
        if sizes is not None:  # an adaptive pool, over the last axis
            dims, keep = ([rank - 1] if [*sizes] == [1] else []), True
        dims = [dims] if isinstance(dims, int) else dims
        axes = [dim % rank for dim in dims or ()]
        if flow is None or (dims and flow.axis not in axes):
            return step.run_locally(node)
        if axes != [flow.axis]:
            raise InputError(f"{describe(node)}: over steps alone, then over other axes")
        refuse_zeros(node, flow)
        rows = step.rows_of(x)
        total = step.state(node.name, rows[0])
        number = step.state(f"{node.name}_rows", rows[0].new_zeros(rows[0].shape[0]))
        ones = [1] * (rows[0].dim() - 1)
        for at, row in enumerate(rows):
            number = step.if_valid(number + 1.0, number, flow, at)
            total = step.if_valid(update(total, row, number.reshape(-1, *ones)), total, flow, at)
        step.keep(node.name, total)
        step.keep(f"{node.name}_rows", number)
        return total.unsqueeze(flow.axis) if keep else total, NOW

    return run


def _with_places(step: Step, node: Node) -> tuple[Any, Any]:
    """The largest over steps, by an operation that also returns its place."""
    named = step.arguments(node)
    flow, dim = step.flow(named["self"]), named.get("dim", -1)
    if flow is not None and dim % step.rank(named["self"]) == flow.axis:
        return [_over_time(_largest)(step, node)[0], None], (NOW, None)
    if "dim" not in named or any(user.args[1] for user in node.users):
        return step.run_locally(node)

    def apply(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, None]:
        return torch.amax(x, dim, keepdim), None  # no operation reads the place

    return step.run_locally(node, apply)


def _mean(total: Tensor, row: Tensor, number: Tensor) -> Tensor:
    return total + (row - total) / torch.clamp(number, min=1.0)


def _sum(total: Tensor, row: Tensor, number: Tensor) -> Tensor:
    return total + row


def _largest(total: Tensor, row: Tensor, number: Tensor) -> Tensor:
    return torch.where(number <= 1.0, row, torch.maximum(total, row))


def _recurrent(step: Step, node: Node) -> tuple[Any, Any]:
    """The layers of an operator of elman's, row by row."""
    given: Any = node.args
    inputs, states, weights, values, lengths, _, name, _, options, *_ = given
    group = group_of(name)
    if group.directions:
        raise InputError(f"{describe(node)} is bidirectional: it needs the whole sequence")
    if values or options or lengths is not None:
        raise InputError(f"{describe(node)} takes options in its call, which a step has not")
    flow = step.flow(inputs[0])
    if flow is None or any(step.flow(x) != flow for x in inputs):
        raise InputError(f"{describe(node)} reads other than sequences of the same steps")
    refuse_zeros(node, flow)
    if any(step.kind(start) is not None for start in states):
        raise InputError(f"{describe(node)} begins with a state that depends on the input")
    starts, matrices = step.of(states), step.of(weights)
    names = [f"{node.name}_{k}" for k in range(len(starts))]
    now = [step.state(n, start) for n, start in zip(names, starts, strict=True)]
    if step.carry is None and any(bool(start.count_nonzero()) for start in starts):
        step.findings.learned.add(node.name)
    if node.name in step.findings.learned:
        first = step.count(now[0].new_zeros(now[0].shape[0])) < 1.0
        now = [
            torch.where(first.reshape(-1, *[1] * (value.dim() - 1)), start, value)
            for start, value in zip(starts, now, strict=True)
        ]
    outputs: list[Tensor] = []
    for at, row in enumerate(zip(*(step.rows_of(x) for x in inputs), strict=True)):
        output, after = _one_step(group.runners, row, now, matrices)
        pairs = zip(after, now, strict=True)
        now = [step.if_valid(new, old, flow, at) for new, old in pairs]
        outputs.append(output)
    for n, value in zip(names, now, strict=True):
        step.keep(n, value)
    return [[row.unsqueeze(0) for row in outputs], *now, None], (flow, *[NOW] * len(now), None)


def _one_step(
    runners: Sequence[Any],
    row: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """One step of layers: the output of the last, and all states."""
    after: list[Tensor] = []
    first, at = row[0], 0
    output = first
    for runner in runners:
        graph = expected(compiler.graph_of(runner.cell))
        count = len(graph.weights)
        own = states[len(after) : len(after) + len(graph.states)]
        call = Call(
            (first.unsqueeze(0), *[x.unsqueeze(0) for x in row[1:]]),
            tuple(own),
            tuple(weights[at : at + count]),
        )
        ((_, new, output),) = steps(graph, dict(runner.dims), call)
        after += new
        at += count
        first = output
    return output, after


def _item(step: Step, node: Node) -> tuple[Any, Any]:
    given: Any = node.args
    of, index = given
    kind = step.kind(of)
    kind = kind[index] if isinstance(kind, tuple) and not isinstance(kind, Flow) else kind
    return step.values[of][index], kind


def _normalised(step: Step, node: Node) -> tuple[Any, Any]:
    """A batch norm with the statistics of training: x [B, C, ..] times a number per channel, plus
    another one."""
    named = step.arguments(node)
    if named.get("training"):
        raise InputError(f"{describe(node)} normalises over the batch", "model.eval()")

    def apply(x: Tensor, *_: Any, **__: Any) -> Tensor:
        names = ("weight", "bias", "running_mean", "running_var")
        weight, bias, mean, variance = (step.of(named[name]) for name in names)
        scale = torch.rsqrt(variance + named["eps"])
        scale = scale if weight is None else weight * scale
        shift = -mean * scale if bias is None else bias - mean * scale
        axes = [1] * (x.dim() - 2)
        return x * scale.reshape(-1, *axes) + shift.reshape(-1, *axes)

    return step.run_locally(node, apply)


def _embedding(step: Step, node: Node) -> tuple[Any, Any]:
    """Rows of a matrix, as its product with vectors that are 1 at a number and 0 elsewhere."""
    if step.flow(step.arguments(node)["indices"]) is None:
        return step.run_locally(node)

    def apply(W: Tensor, indices: Tensor, *_: Any, **__: Any) -> Tensor:
        numbers = torch.arange(len(W), device=W.device)
        return (indices.unsqueeze(-1) == numbers).to(W.dtype) @ W

    return step.run_locally(node, apply)


def _one_hot(step: Step, node: Node) -> tuple[Any, Any]:
    """1 at a number, 0 elsewhere; torch's own looks for the largest number first."""

    def apply(indices: Tensor, count: int = -1) -> Tensor:
        if count < 0:
            raise InputError(f"{describe(node)} depends on the largest number", "num_classes=")
        return (indices.unsqueeze(-1) == torch.arange(count, device=indices.device)).long()

    return step.run_locally(node, apply)


def _new(step: Step, node: Node) -> tuple[Any, Any]:
    """A constant of the type of a value."""
    if step.graph.time_axes[node.name] is not None:
        return step.run_locally(node)
    nodes = node.all_input_nodes
    first = {n: step.values[n][0] if step.flow(n) else step.values[n] for n in nodes}
    return step.call(node, node.target, first), None


RULES: dict[Any, Callable[[Step, Node], tuple[Any, Any]]] = {
    operator.getitem: _item,
    torch.ops.elman.recurrent.default: _recurrent,
    _aten.conv1d.default: _convolution,
    _aten.conv1d.padding: _convolution,
    _aten.batch_norm.default: _normalised,
    _aten.embedding.default: _embedding,
    _aten.one_hot.default: _one_hot,
    _aten.pad.default: _padding,
    _aten.constant_pad_nd.default: _padding,
    _aten.slice.Tensor: _cut,
    _aten.select.int: _last,
    _aten.max_pool1d.default: _pool(lambda taps: functools.reduce(torch.maximum, taps)),
    _aten.avg_pool1d.default: _pool(lambda taps: sum(taps[1:], taps[0]) / len(taps)),
    **{getattr(_aten, f"new_{name}").default: _new for name in ("zeros", "ones", "full", "empty")},
    _aten.mean.dim: _over_time(_mean),
    _aten.sum.dim_IntList: _over_time(_sum),
    _aten.amax.default: _over_time(_largest),
    _aten.adaptive_avg_pool1d.default: _over_time(_mean),
    _aten.max.dim: _with_places,
    _aten.adaptive_max_pool1d.default: _with_places,
}

"""``to_onnx``: a module as a file that ONNX Runtime and others run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elman.checks import check_flag, check_path
from elman.errors import InputError
from elman.extras import require
from elman.frontend.cell import Cell
from elman.interchange.onnx.ops import KINDS, emit_operator
from elman.interchange.onnx.step import ValueNames, emit_scan, step_of
from elman.interchange.onnx.writer import INT64, Slot, Writer, write_model
from elman.interchange.weights.arrays import Kind, kind_of, to_numpy, without_changes
from elman.interchange.weights.layouts import layer_to_arrays
from elman.ir.fingerprint import fingerprint
from elman.ir.types import shape_size
from elman.nn.modules.sequence import SequenceModule

T, B, STATES = "T", "B", "1 or B"  # names of sizes that a call decides


@dataclass(frozen=True)
class OnnxModel:
    """A written ONNX model.

    Attributes:
        path: of the file.
        inputs: shapes by name: the cell's inputs, static inputs, and initial states, which are
            zeros, or what is learned, if they are not given.
        outputs: shapes by name: the outputs, then the last states.
        operators: the operator of each layer: ``GRU``, ``LSTM``, ``RNN``, or ``Scan``.

    Example:
        >>> model = elman.export.to_onnx(elman.GRU(8, 16), "gru.onnx")
        >>> model.path.name
        'gru.onnx'
    """

    path: Path
    inputs: dict[str, tuple[int | str, ...]]
    outputs: dict[str, tuple[int | str, ...]]
    operators: list[str]


def to_onnx(
    module: Any, path: str | Path, *, lengths: bool = False, scan: bool = False
) -> OnnxModel:
    """Write a module as an ONNX model with its weights, layers and directions, as in ``eval()``.

    RNN, GRU and LSTM, also ``cells.gru_before`` and ``cells.lstm_peephole``, become ONNX's own
    operators. Any other cell becomes a ``Scan`` whose body is one step of its formula in standard
    operators; values that do not depend on the state are computed before it, for all time steps.

    The model uses float32 and opset 18; T and B may differ in each call. Its inputs are the cell's
    inputs by name, x [T, B, I] ([B, T, I] with ``batch_first``), static inputs [B, S], and the
    optional initial states ``h_0`` [layers·directions, B, H], named after the cell's states; their
    default is the module's default initial state. Its outputs are ``out`` [T, B, H·directions]
    (``out``, ``out_1`` … if the cell has several) and the states after the last step, ``h_n``
    [layers·directions, B, H]. If the states of the layers differ, they are ``h_l0_0`` and
    ``h_l0_n`` … [1, B, H].

    Args:
        module: :class:`elman.Recurrent`, ``RNN``, ``GRU`` or ``LSTM``.
        path: the file to write, usually ``….onnx``.
        lengths: whether the model also takes integer ``lengths`` [B] of a padded batch. The output
            is then zero past each end, and the last states are those of each sequence's last step.
        scan: write RNN, GRU and LSTM as a ``Scan``, too, for runtimes without these operators.

    Returns:
        The file, and the model's inputs and outputs.

    Raises:
        InputError: the module is of another kind, or an operation has no ONNX operator.
        MissingPackageError: without the package ``onnx`` (``pip install "elman[export]"``).
        OSError: the file cannot be written.

    Example:
        >>> model = elman.export.to_onnx(elman.GRU(8, 16), "gru.onnx")
    """
    if not isinstance(module, SequenceModule):
        raise InputError(
            f"to_onnx takes a recurrent module, not {type(module).__name__}",
            "elman.Recurrent(cell, …), elman.LSTM(…); of a larger model, its recurrent part",
        )
    path = check_path("path", path, 'elman.export.to_onnx(net, "net.onnx")')
    model = _Model(module, check_flag("lengths", lengths), check_flag("scan", scan))
    with torch.no_grad():
        model.build()
    write_model(model.w, path, module.runtime.signature.cell)
    inputs, outputs = (
        {slot.name: slot.shape for slot in side} for side in (model.w.inputs, model.w.outputs)
    )
    return OnnxModel(path, inputs, outputs, model.operators)


class _Model:
    """Builder of the graph of one module."""

    def __init__(self, module: Any, lengths: bool, scan: bool) -> None:
        self.module, self.w = module, Writer(require("onnx", "to_onnx"))
        self.lengths = self.w.name("lengths") if lengths else None
        self.within: str | None = None
        self.form, self.takes = module.runtime.signature.form, module.runtime.signature.takes
        cells = [cell for cell, *_ in module._formulas()]
        self.kinds = [None if scan else _operator(cell) for cell in cells]
        self.directions = 1 + bool(module.bidirectional)
        self.operators: list[str] = []
        self.starts: list[str] = []  # of each tensor of states, the initial one
        self.ends: list[list[str]] = []  # and its last value, of each layer and direction

    def build(self) -> None:
        """Inputs, layers from the lowest on, outputs."""
        signature, runners = self.module.runtime.signature, self.module.runners
        lead, w = ([B, T] if self.module.batch_first else [T, B]), self.w
        entries = [(w.name(name), shape) for name, shape in signature.inputs]
        inputs = [self._add_input(name, lead, shape) for name, shape in entries]
        static = [self._add_static_input(name, shape) for name, shape in signature.static]
        self.shape = w.emit("Shape", inputs[0], start=0, end=2)
        self.batch = w.emit("Slice", self.shape, w.integers(1), w.integers(2))
        if self.lengths is not None:
            self.within = self._add_mask(self.lengths)
        learned = self.module._initial() or [None] * len(signature.states)
        self.starts = [
            self._add_state(name, shape, value)
            for (name, shape), value in zip(signature.states, learned, strict=True)
        ]
        self.ends = [[] for _ in self.starts]
        count = len(runners) // self.directions
        layers = [
            [*runners.items()][self.directions * k : self.directions * (k + 1)]
            for k in range(count)
        ]
        outs = inputs[:1]
        for number, layer in enumerate(layers):
            below, last = outs[0], number + 1 == count
            outs = self._layer(number, layer, [below, *inputs[1:], *static], last)
            if self.module.residual and number:
                outs[0] = w.emit("Add", outs[0], below)
        self._add_outputs(outs, lead)
        for (name, shape), ends in zip(signature.states, self.ends, strict=True):
            states = ends[0] if len(ends) == 1 else w.emit("Concat", *ends, axis=0)
            self._add_output(f"{name}_n", states, (signature.lead, B), shape)

    def _add_input(self, name: str, lead: list[str], shape: tuple[int, ...]) -> str:
        """Add an input and bring it into the layout [T, B, n]."""
        w = self.w
        w.inputs.append(Slot(name, (*lead, *shape)))
        if self.module.batch_first:
            name = w.emit("Transpose", name, perm=[1, 0, *range(2, 2 + len(shape))])
        return name if shape else w.emit("Unsqueeze", name, w.integers(-1))

    def _add_static_input(self, name: str, shape: tuple[int, ...]) -> str:
        name = self.w.name(name)
        self.w.inputs.append(Slot(name, (B, *shape)))
        return name if shape else self.w.emit("Unsqueeze", name, self.w.integers(-1))

    def _add_mask(self, lengths: str) -> str:
        """Add the input of lengths; a mask [T, B, 1] of the steps within each sequence."""
        w = self.w
        w.inputs.append(Slot(lengths, (B,), INT64))
        count = w.emit("Gather", self.shape, w.integer(0))
        steps = w.emit("Range", w.integer(0), count, w.integer(1))
        before = w.emit("Less", w.emit("Unsqueeze", steps, w.integers(1)), lengths)
        return w.emit("Unsqueeze", before, w.integers(-1))

    def _add_state(self, name: str, shape: tuple[int, ...], learned: Any) -> str:
        """Add initial states [layers·directions, B, n], or [1, B, n] of one, as an input; the
        default is zeros, or the learned states [layers·directions, n]."""
        w, lead = self.w, self.module.runtime.signature.lead
        default = np.zeros((lead, 1, *shape))
        if learned is not None:
            default += to_numpy(learned).reshape(default.shape)
        name = w.array(f"{name}_0", default)
        w.inputs.append(Slot(name, (lead, STATES, *shape)))
        if not shape:
            name = w.emit("Unsqueeze", name, w.integers(-1))
        sizes = [w.integers(1), self.batch, w.integers(1)]
        return w.emit("Expand", name, w.emit("Concat", *sizes, axis=0))

    def _layer(
        self, number: int, layer: list[tuple[str, Any]], inputs: list[str], last: bool
    ) -> list[str]:
        """Emit a layer; its outputs, directions concatenated."""
        w, at, kind = self.w, self.directions * number, self.kinds[number]
        if kind is not None:
            places_of = [self.form.places(index) for index in range(at, at + self.directions)]
            initial = [self._initial_states(places) for places in zip(*places_of)]
            arrays, suffix = layer_to_arrays(self.module, "onnx", number, kind), f"l{number}"
            outputs = emit_operator(w, kind, inputs[0], initial, arrays, suffix, self.lengths)
            for places, value in zip(zip(*places_of), outputs.last, strict=True):
                self._record_last_states(places, value)
            self.operators.append(KINDS[kind.name])
            return [outputs.out]
        outs = [
            self._scan(at + end, suffix, runner, inputs, last)
            for end, (suffix, runner) in enumerate(layer)
        ]
        self.operators.append("Scan")
        return [v[0] if len(v) == 1 else w.emit("Concat", *v, axis=-1) for v in zip(*outs)]

    def _scan(
        self, index: int, suffix: str, runner: Any, inputs: list[str], last: bool
    ) -> list[str]:
        w, cell = self.w, runner.cell
        graph, places = step_of(cell.graph), self.form.places(index)
        outer = ValueNames(w, dict(runner.dims), self.shape, 2, cell.name)
        names = [inputs[k] for k in self.takes[index]]
        ranks = [2] * len(cell.inputs) + [1] * len(cell.static)
        for leaf, name, rank in zip(graph.inputs, names, ranks, strict=True):
            outer.bind(leaf, name, rank)
        for leaf, weight in zip(graph.weights, self.module._current_weights()[index], strict=True):
            value = weight.detach().cpu().float().numpy()
            name = w.array(f"{leaf.name}_{suffix}", value if leaf.shape else value.reshape(1))
            outer.bind(leaf, name, 0)
        initial = [
            w.emit("Squeeze", self._initial_states([place]), w.integers(0)) for place in places
        ]
        count = len(graph.outputs) if last else 1
        scan = emit_scan(outer, graph, initial, count, suffix.endswith("_reverse"), self.within)
        for (k, _), value in zip(places, scan.last, strict=True):
            self.ends[k].append(w.emit("Unsqueeze", value, w.integers(0)))
        return scan.outputs

    def _initial_states(self, places: Sequence[tuple[int, int]]) -> str:
        """Initial states [directions, B, n] at some places of the states' layout."""
        w = self.w
        if not self.form.alike:
            starts = [self.starts[k] for k, _ in places]
            return starts[0] if len(starts) == 1 else w.emit("Concat", *starts, axis=0)
        k, first = places[0]
        if len(places) == len(self.module.runners):
            return self.starts[k]
        stop = first + len(places)
        return w.emit("Slice", self.starts[k], w.integers(first), w.integers(stop), w.integers(0))

    def _record_last_states(self, places: Sequence[tuple[int, int]], value: str) -> None:
        """Record the last states [directions, B, n] at some places of the states' layout."""
        w = self.w
        if self.form.alike or len(places) == 1:
            self.ends[places[0][0]].append(value)
            return
        for at, (k, _) in enumerate(places):
            part = w.emit("Slice", value, w.integers(at), w.integers(at + 1), w.integers(0))
            self.ends[k].append(part)

    def _add_outputs(self, outs: list[str], lead: list[str]) -> None:
        """Add the outputs of the last layer, in the module's layout."""
        last = self.module.stack.runners[-1]
        for name, value in zip(outs, last.cell.graph.outputs, strict=True):
            shape = _sizes(value, dict(last.dims), self.directions)
            if not shape:
                name = self.w.emit("Squeeze", name, self.w.integers(-1))
            if self.module.batch_first:
                name = self.w.emit("Transpose", name, perm=[1, 0, *range(2, 2 + len(shape))])
            self._add_output("out", name, tuple(lead), shape)

    def _add_output(
        self, name: str, value: str, lead: tuple[int | str, ...], shape: tuple[int, ...]
    ) -> None:
        if not shape and lead[0] not in (T, B):
            value = self.w.emit("Squeeze", value, self.w.integers(-1))
        (name,) = self.w.emit_node("Identity", [value], [self.w.name(name)])
        self.w.outputs.append(Slot(name, (*lead, *shape)))


def _operator(cell: Cell) -> Kind | None:
    """Find the ONNX operator that computes the forward of a cell; None if there is none."""
    unaffected = fingerprint(step_of(cell.graph)) == fingerprint(
        step_of(without_changes(cell).graph)
    )
    return kind_of(cell) if unaffected else None


def _sizes(value: Any, dims: dict[str, int], directions: int) -> tuple[int, ...]:
    """Sizes of an output of the last layer; a scalar has an axis in two directions only."""
    shape = shape_size(value.shape, dims)
    return (directions * (shape[0] if shape else 1),) if shape or directions == 2 else ()

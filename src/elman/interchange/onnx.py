"""``to_onnx``: a module as a file that ONNX Runtime and others run, by torch's exporter."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elman.checks import check_flag, check_path
from elman.errors import InputError
from elman.escaping import printable
from elman.extras import require
from elman.nn.layout.layout import unwrap_single
from elman.nn.layout.signature import parts_of
from elman.nn.modules.sequence import SequenceModule

OPSET = 18
T, B, STATES = "T", "B", "1 or B"  # names of sizes that a call decides
_RECURRENT = ("RNN", "GRU", "LSTM", "Scan")
_STEPS, _SAMPLES = 4, 3  # of the example that is traced


@dataclass(frozen=True)
class OnnxModel:
    """A written ONNX model.

    Attributes:
        path: of the file.
        inputs: shapes by name: the cell's inputs, static inputs, and initial states, which are
            zeros, or what is learned, if they are not given.
        outputs: shapes by name: the outputs, then the last states.
        operators: the operator of each layer and direction: ``GRU``, ``LSTM``, ``RNN``, or
            ``Scan``.

    Example:
        >>> model = elman.export.to_onnx(elman.GRU(8, 16), "gru.onnx")
        >>> model.path.name
        'gru.onnx'
    """

    path: Path
    inputs: dict[str, tuple[int | str, ...]]
    outputs: dict[str, tuple[int | str, ...]]
    operators: list[str]


def to_onnx(module: Any, path: str | Path, *, lengths: bool = False) -> OnnxModel:
    """Write a module as an ONNX model with its weights, layers and directions, as in ``eval()``.

    RNN, GRU and LSTM become ONNX's own operators. Any other cell becomes a ``Scan`` whose body is
    one step of its formula in standard operators; values that do not depend on the state are
    computed before it, for all time steps. A whole model with recurrent layers is exported by
    ``torch.onnx.export(model, args, dynamo=True, dynamic_shapes=…)``.

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

    Returns:
        The file, and the model's inputs and outputs.

    Raises:
        InputError: the module is of another kind, a weight is computed by a hook, or an input has
            the name of another value of the model.
        MissingPackageError: without the packages ``onnx`` and ``onnxscript`` (``pip install
            "elman[export]"``).
        OSError: the file cannot be written.

    Example:
        >>> model = elman.export.to_onnx(elman.GRU(8, 16), "gru.onnx")
    """
    if not isinstance(module, SequenceModule):
        raise InputError(
            f"to_onnx takes a recurrent module, not {type(module).__name__}",
            "torch.onnx.export(model, args, dynamo=True) exports a model around such layers",
        )
    if module.quantize is not None:
        raise InputError("quantize= has no ONNX", "elman.export.to_c, or a module without it")
    path = check_path("path", path, 'elman.export.to_onnx(net, "net.onnx")')
    for package in ("onnx", "onnxscript"):
        require(package, "to_onnx")
    module._current_weights()  # raises for weights that a hook computes
    traced = _Traced(module, check_flag("lengths", lengths))
    with _quiet(), torch.no_grad():
        program: Any = torch.onnx.export(
            traced,
            tuple(value for value, _ in traced.inputs.values()),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[*traced.inputs],
            output_names=traced.output_names,
            dynamic_shapes={"values": tuple(sizes for _, sizes in traced.inputs.values())},
        )
    graph = program.model.graph
    graph.name = printable(module.runtime.signature.cell, "")
    _make_optional(graph, traced.states)
    program.save(str(path))
    inputs, outputs = (
        {slot.name: tuple([d if type(d) is int else str(d) for d in slot.shape]) for slot in slots}
        for slots in (graph.inputs, graph.outputs)
    )
    return OnnxModel(path, inputs, outputs, [n.op_type for n in graph if n.op_type in _RECURRENT])


class _Traced(nn.Module):
    """A module whose arguments and results are tensors in a row.

    Attributes:
        inputs: by name, an example, and the names of the sizes that a call decides.
        states: by name, default initial states [layers·directions, 1, n].
        output_names: in order.
    """

    def __init__(self, module: SequenceModule, lengths: bool) -> None:
        super().__init__()
        net: Any = copy.deepcopy(module).float().cpu().eval()
        net._forward_hooks.clear()
        net._forward_pre_hooks.clear()
        kind: Any = {"dtype": torch.float32, "device": "cpu"}  # whatever torch's defaults are
        self.module, self.lengths = net, lengths
        runtime = net.runtime
        signature = runtime.signature
        self._time = 1 if net.batch_first else 0
        self._form, self._lead = signature.form, signature.lead
        steps, batch = torch.export.Dim(T), torch.export.Dim(B)
        sizes = {self._time: steps, 1 - self._time: batch}
        lead = (_SAMPLES, _STEPS) if net.batch_first else (_STEPS, _SAMPLES)
        self.inputs: dict[str, tuple[Tensor, dict[int, Any]]] = {}
        for (name, _), shape in zip(signature.inputs, runtime.input_sizes, strict=True):
            self.inputs[name] = torch.ones(*lead, *shape, **kind), sizes
        for (name, _), shape in zip(signature.static, runtime.static_sizes, strict=True):
            self.inputs[name] = torch.ones(_SAMPLES, *shape, **kind), {0: batch}
        self.counts = len(signature.inputs), len(signature.static)
        if lengths:
            self.inputs["lengths"] = torch.full((_SAMPLES,), _STEPS, device="cpu"), {0: batch}
        zeros = [torch.zeros(self._lead, 1, *shape, **kind) for shape in runtime.state_sizes]
        learned = net._initial_beside(zeros) or [0] * len(zeros)
        self.states: dict[str, Tensor] = {}
        for (name, _), start, value in zip(signature.states, zeros, learned):
            start += value
            self.states[f"{name}_0"] = start
            self.inputs[f"{name}_0"] = start, {}
        outputs = len(runtime.stack.runners[-1].cell.graph.outputs)
        names = ["out", *[f"out_{k}" for k in range(1, outputs)]]
        self.output_names = names + [f"{name}_n" for name, _ in signature.states]
        taken = ["lengths"] * lengths + [f"{name}_0" for name, _ in signature.states]
        for name, _ in (*signature.inputs, *signature.static):
            if name in (*taken, *self.output_names):
                hint = "call it otherwise in the formula"
                raise InputError(f"input {name} has the name of a state or an output in ONNX", hint)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Outputs, then the last states."""
        given, (inputs, static) = iter(values), self.counts
        x = [next(given) for _ in range(inputs)]
        fixed = [next(given) for _ in range(static)]
        options: dict[str, Any] = {"static": unwrap_single(fixed)} if fixed else {}
        if self.lengths:
            options["lengths"] = next(given)
        batch = x[0].shape[1 - self._time]
        states = [value.expand(self._lead, batch, *value.shape[2:]) for value in given]
        out, last = self.module(unwrap_single(x), self._form.nest(states), **options)
        return (*parts_of(out), *self._form.arrays(last))


def _make_optional(graph: Any, states: dict[str, Tensor]) -> None:
    """Give initial states a default, and let them have one sample or as many as x."""
    ir = require("onnxscript.ir", "to_onnx")
    for slot in graph.inputs:
        if slot.name in states:
            default = states[slot.name]
            slot.shape = ir.Shape([default.shape[0], STATES, *default.shape[2:]])
            slot.const_value = ir.tensor(default.numpy(), name=slot.name)
            graph.initializers[slot.name] = slot


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's notes on other packages and on its own means."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

"""The graph of a model of whole sequences, and where time lies in each of its values."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Node

from elman.errors import InputError
from elman.nn.modules.sequence import SequenceModule
from elman.nn.modules.swap import accelerate, is_torchs
from elman.torch_internals import pytree, symbols_of

_BATCH = 3  # samples of the traced call: torch takes the size 1 for a constant


class Flow(NamedTuple):
    """The rows of a sequence that arrive in each step.

    Attributes:
        axis: of time.
        rows: that arrive in each step.
        shift: the number of the newest row, from that of the newest row of the input on, counted at
            this value's rate: -2 for a value that depends on what is two rows ahead.
        zeros: rows of zeros that the model puts before it.
    """

    axis: int
    rows: int
    shift: int = 0
    zeros: int = 0


class SequenceGraph:
    """A model, traced with any number of steps and samples.

    Args:
        model: of sequences; a copy of it is traced, in eval mode, torch's recurrent layers replaced
            by elman's.
        example: its inputs, with a batch axis.

    Attributes:
        model: the copy.
        inputs: the example, of several samples. batch_axis: theirs.
        nodes: in the order in which they run.
        constants: by the name of a placeholder, the path of a parameter or buffer, ``model.…``, or
            a tensor.
        places: of the inputs, among the nodes.
        axes: of each input, which one is time.
        time_axes: of each node's value, by name; None: it has no axis of steps; several values
            have a tuple.

    Raises:
        InputError: the model cannot be traced, or no operation shows which axis is time.
    """

    def __init__(self, model: nn.Module, example: Sequence[Tensor]) -> None:
        self.model = _copied(model)
        if any(map(is_torchs, self.model.modules())):
            accelerate(self.model)
        for module in self.model.modules():
            if isinstance(module, SequenceModule):
                module.engine = "reference"
        program: Any = None
        for self.batch_axis in (0, 1):  # the axis that has time in models of [T, B, ..] is 0
            self.inputs = [_enlarged(x, self.batch_axis) for x in map(_in_float32, example)]
            program = self._traced(type(model).__name__)
            self._read(program)
            if self.axes[0] != self.batch_axis:
                break

    def _traced(self, name: str) -> Any:
        auto = torch.export.Dim.AUTO
        sizes = [{k: auto for k, n in enumerate(x.shape) if n > 1} for x in self.inputs]
        try:
            with torch.no_grad():
                return torch.export.export(
                    _Called(self.model),
                    (tuple(self.inputs),),
                    dynamic_shapes=(tuple(sizes),),
                    strict=False,
                    # else a pool makes the number of steps a constant
                    prefer_deferred_runtime_asserts_over_guards=True,
                )
        except Exception as error:
            raise InputError(
                f"torch.export cannot trace {name}: {_first_line(error)}",
                "torch.export.export(model, (x,), strict=False) shows what stands in the way",
            ) from error

    def _read(self, program: Any) -> None:
        for node in [*program.graph.nodes]:  # checks of sizes and types of the traced call
            if node.op == "call_function" and "_assert" in str(node.target):
                program.graph.erase_node(node)
            if node.target is torch.ops.aten.rms_norm.default:  # None is another one in float64
                named = {"weight": None, "eps": None, **node.kwargs}
                named |= dict(zip(("weight", "eps"), node.args[2:]))
                named["eps"] = named["eps"] or torch.finfo(torch.float32).eps
                node.args, node.kwargs = node.args[:2], named
        program.graph.eliminate_dead_code()
        self.nodes: list[Node] = list(program.graph.nodes)
        signature = program.graph_signature
        self.constants: dict[str, str | Tensor] = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
        }
        lifted = signature.inputs_to_lifted_tensor_constants
        self.constants |= {name: program.constants[path] for name, path in lifted.items()}
        places = [
            n for n in self.nodes if n.op == "placeholder" and n.name in signature.user_inputs
        ]
        time = self._time_symbol(places)
        self.time_axes = {n.name: _axis(n.meta.get("val"), time) for n in self.nodes}
        self.axes = [self.time_axes[node.name] for node in places]
        if None in self.axes:
            raise InputError(
                f"no axis of input {self.axes.index(None)} is that of the steps of the others",
                "one input, torch.cat((x, z), -1); what never changes belongs to the model",
            )
        self.places = places

    def _time_symbol(self, places: Sequence[Node]) -> str:
        """The name of the number of steps: of what a recurrent layer or a convolution reads."""
        sizes = {s for n in places for size in n.meta["val"].shape for s in symbols_of(size)}
        for node in self.nodes:
            args: Any = node.args
            if node.target is torch.ops.elman.recurrent.default:
                size = args[0][0].meta["val"].shape[0]
            elif node.target in (torch.ops.aten.conv1d.default, torch.ops.aten.conv1d.padding):
                size = args[0].meta["val"].shape[-1]
            else:
                continue
            found = symbols_of(size) & sizes
            if len(found) == 1:
                return next(iter(found))
        raise InputError(
            "the model has neither a recurrent layer nor a Conv1d over steps: which axis is time?",
            "an example of several steps: torch.randn(1, 50, 8)",
        )


class _Called(nn.Module):
    """A model whose inputs are one tuple, whatever form its own arguments have."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: tuple[Tensor, ...]) -> Any:
        return self.model(*inputs)


def _axis(traced: Any, symbol: str) -> Any:
    """The axis of a traced value whose size depends on the number of steps; of several values a
    tuple."""
    if isinstance(traced, (tuple, list)):
        return tuple(_axis(value, symbol) for value in traced)
    shape = getattr(traced, "shape", ())
    return next((k for k, size in enumerate(shape) if symbol in symbols_of(size)), None)


def call(function: Any, args: Any, kwargs: Any, exact: bool) -> Any:
    """Call an operation of a traced model; if it is to be ``exact``, in float64."""
    if exact:
        double = {torch.float32: torch.float64}
        args, kwargs = pytree.tree_map_only(torch.dtype, lambda v: double.get(v, v), (args, kwargs))
        if getattr(function, "__name__", "").partition(".")[0] in ("zeros", "ones", "full"):
            kwargs = {"dtype": torch.float64, **kwargs}
    return function(*args, **kwargs)


def _copied(model: nn.Module) -> nn.Module:
    """A copy in float32 and eval mode, its weights as they are now."""
    try:
        return copy.deepcopy(model).eval().float()
    except RuntimeError as error:
        raise InputError(
            f"{type(model).__name__} cannot be copied: {_first_line(error)}",
            "torch.nn.utils.parametrizations.weight_norm, not torch.nn.utils.weight_norm",
        ) from error


def _in_float32(x: Tensor) -> Tensor:
    return x.detach().float() if x.is_floating_point() else x


def describe(node: Node) -> str:
    """Where in a model an operation stands: ``conv.0 (Conv1d)``, and its name."""
    stack = node.meta.get("nn_module_stack") or {}
    modules = [(path.partition(".")[2], kind) for path, kind in stack.values()]
    modules = [(path, kind) for path, kind in modules if path]
    name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
    if not modules:
        return f"{name} in forward"
    path, kind = modules[-1]
    kind = kind if isinstance(kind, str) else kind.__name__
    return f"{path} ({kind.rpartition('.')[2]}), {name}"


def _enlarged(x: Tensor, axis: int) -> Tensor:
    """An input of a few samples, whose number stands for any."""
    if x.dim() < 2:
        raise InputError(f"an input {[*x.shape]} has no axes of samples and steps")
    return x.narrow(axis, 0, 1).repeat_interleave(_BATCH, axis)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]

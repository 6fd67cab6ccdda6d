"""A trained module as portable C99: ``elman.export.to_c(module, "dir")``."""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elman import compiler
from elman.checks import check_path, check_text
from elman.engines.arrays import Arrays
from elman.engines.base import Job
from elman.engines.c.spelling.ops import SPELL
from elman.engines.c.text.units import file
from elman.errors import InputError
from elman.interchange.c.project import Project, read_text_file
from elman.interchange.c.step import LayerText
from elman.ir.evaluate import evaluate
from elman.ir.graph import Node
from elman.ir.types import shape_size
from elman.nn.execute.layer import Runner
from elman.nn.modules.sequence import SequenceModule
from elman.nn.modules.subclasses import is_torchs
from elman.nn.modules.swap import accelerate
from elman.passes.draws import expected
from elman.passes.static import split_static
from elman.plan.spec import PlanOptions, Spec
from elman.steps.layer import StepLayer
from elman.steps.loop import Loop
from elman.streamed.model import StreamedStep
from elman.torch_internals import pytree

_PLAIN = PlanOptions(without=frozenset({"hoisting"}))  # one step knows no batch of all steps


@dataclass(frozen=True)
class Exported:
    """A written C project.

    Attributes:
        folder: where the files are.
        name: of all functions and files.
        inputs: sizes of the inputs of a step, by name.
        output: size of the output of a step.
        weights: how many numbers the arrays hold.
        state: how many numbers the caller's struct holds.
        rows: steps of the inputs that one call takes, one behind another: the product of a model's
            strides.
        late: the output of a call is that of so many calls before: a model looks ahead.

    Example:
        >>> written = elman.export.to_c(elman.GRU(8, 16), "gru_c", name="gru")
        >>> written.name
        'gru'
    """

    folder: Path
    name: str
    inputs: dict[str, int]
    output: int
    weights: int
    state: int
    rows: int = 1
    late: int = 0


def to_c(module: Any, folder: str | Path, name: str = "model", *, example: Any = None) -> Exported:
    """Write a module as C99 that needs no library, allocates no memory and has no global state.

    A recurrent module can have any cell, layers, heads and residual connections. Of another model,
    all is written that runs step by step: recurrent layers of torch and elman, convolutions over
    time (causal, strided, dilated, depthwise), linear layers, norms, embeddings, activations,
    residuals, means over the steps so far. Convolutions that look ahead make the output late. Each
    operation is compared with the model's; what computes something else step by step is refused by
    its name.

    The code computes in float32, as in ``eval()``. The folder then has ``NAME.h`` (``NAME_step``
    from x [I] to y [H], ``NAME_run`` over T steps), ``NAME.c``, ``NAME_weights.h``,
    ``NAME_check.c``, which compares with the module's results, and a ``Makefile`` (``make check``).
    Several outputs are stored one after another in y. A sequence starts from the module's default
    initial state. gcc and clang compile the code to vectors, by default as wide as the target's
    (``-DLANES=4``, 8, 16).

    Args:
        module: a unidirectional :class:`elman.Recurrent`, ``RNN``, ``GRU`` or ``LSTM``, or a model
            of sequences.
        folder: created if missing; files of the same names are replaced.
        name: prefix of files, types and functions; a C identifier.
        example: of a model of another kind its input, or a tuple of its inputs, with axes of
            samples and of several steps. A recurrent module needs none, and none is read.

    Raises:
        InputError: the module is bidirectional or does not run step by step, a weight is not
            finite, or an operation has no C text.

    Example:
        >>> written = elman.export.to_c(elman.GRU(8, 16), "gru_c", name="gru")
        >>> causal = torch.nn.Sequential(torch.nn.Conv1d(8, 16, 5, stride=2), torch.nn.ReLU())
        >>> written = elman.export.to_c(causal, "causal_c", example=torch.randn(1, 8, 50))
        >>> written.rows
        2
    """
    folder = check_path("folder", folder, 'elman.export.to_c(net, "gru_c")')
    _check_name(name)
    streamed = None
    if isinstance(module, nn.Module) and is_torchs(module):
        module = accelerate(copy.deepcopy(module))
    if not isinstance(module, SequenceModule):
        streamed = _streamed(module, example)
        module = streamed.layer
    runners, weights = _layers(module)
    layers: list[LayerText] = []
    for index, (runner, layer_weights) in enumerate(zip(runners, weights, strict=True)):
        sizes = dict(runner.dims)
        spec = Spec(runner.dims, "float32", "cpu", frozenset(), False, _PLAIN)
        cell = runner.cell
        # static inputs are inputs of each step; matrices of weights that meet those of a sample are
        # states that hold a constant
        once, graph = split_static(expected(cell.graph), ())
        job = Job(cell.name, graph, compiler.build_pair(graph), spec)
        _check_ops(job.pair.step.walk(), cell.name)
        exact = [weight.detach().double() for weight in layer_weights]
        values = dict(zip(graph.weights, exact, strict=True))
        constants = evaluate(Arrays(torch.float64, torch.device("cpu")), once, values, sizes)
        layers.append(LayerText(f"{name}_l{index}", job, exact, constants))
    outputs = runners[-1].cell.output_names
    names, about = ([], "") if streamed is None else (streamed.names, streamed.about)
    project = Project(name, layers, bool(module.residual), module, outputs, names, about)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in project.files().items():
        (folder / path).write_text(text, encoding="utf-8")
    return Exported(
        folder,
        name,
        project.inputs,
        project.output,
        sum(len(values) for values in project.arrays().values()),
        project.heads * sum(size for fields in project.members() for _, size in fields),
        *(() if streamed is None else (streamed.rows, streamed.late)),
    )


def _check_name(name: str) -> None:
    check_text("name", name, 'name="model"')
    if not name.isidentifier() or not name.isascii():
        raise InputError(f"{name!r} is not a C identifier")


class _Streamed(NamedTuple):
    """A model as one layer that runs it step by step.

    Attributes:
        layer: the formula of a step.
        names: of its inputs.
        rows, late: see :class:`Exported`.
    """

    layer: StepLayer
    names: Sequence[str]
    rows: int
    late: int

    @property
    def about(self) -> str:
        """Sentences for the header: how many steps of the inputs a call takes, how late y is."""
        parts: list[str] = []
        if self.rows > 1:
            parts.append(f"A step takes {self.rows} steps of the inputs, one behind another.")
        if self.late:
            parts.append(f"The model looks ahead: y belongs to the step {self.late} calls before.")
        return " ".join(parts)


def _streamed(model: Any, example: Any) -> _Streamed:
    """Trace a model and read its step as a formula. Raises InputError for a model that does not run
    step by step."""
    if not isinstance(model, nn.Module):
        raise InputError(f"to_c takes a module, not {type(model).__name__}", "elman.GRU(8, 16)")
    inputs = example if isinstance(example, (tuple, list)) else (example,)
    if not all(isinstance(x, Tensor) for x in inputs):
        raise InputError(
            f"to_c needs an input of {type(model).__name__}, to see how it runs",
            'to_c(model, "model_c", example=torch.randn(1, 50, 8))',
        )
    step = StreamedStep(model, inputs)
    if not step.keeps:
        raise InputError(f"{type(model).__name__} keeps nothing from one step to the next")
    given = step.cut(step.inputs)[0]
    loop = Loop(step, carry_first=True)
    x = tuple([value.unsqueeze(0) for value in given])
    carry = step.first(len(given[0]))
    layer = loop.layer(x[0] if len(x) == 1 else x, carry)
    sizes = [math.prod(size) for size in layer.runtime.input_sizes]
    if sizes != [value[0].numel() for value in given]:
        raise InputError(f"{type(model).__name__} mixes samples, or depends on their number")
    results = pytree.tree_leaves(step(carry, given[0] if len(given) == 1 else given)[1])
    runner = next(iter(layer.runners.values()))
    widths = [shape_size(v.shape, dict(runner.dims)) for v in runner.cell.graph.outputs]
    if sum(map(math.prod, widths)) != sum(value[0].numel() for value in results):
        raise InputError(
            f"two results of {type(model).__name__} are the same in every step",
            "return one of them: the last row of what is returned for each step is that of y",
        )
    return _Streamed(layer, _names_of_inputs(model, len(inputs)), step.rows, step.late)


def _names_of_inputs(model: nn.Module, count: int) -> list[str]:
    """Names of the parameters of ``forward``, if they are as many as the inputs."""
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][:count]
    return names if len(names) == count else []


def _layers(module: Any) -> tuple[list[Runner], list[list[Tensor]]]:
    """Runners and weights of the layers. Raises InputError for what cannot be exported."""
    if bool(getattr(module, "bidirectional", False)):
        raise InputError("a bidirectional module has no single step: it needs the whole sequence")
    weights = module._current_weights()
    for layer_weights, names in zip(weights, module.runtime.names, strict=True):
        for weight, parameter in zip(layer_weights, names):
            if not bool(torch.isfinite(weight).all()):
                raise InputError(f"{parameter} is not finite everywhere: C has no text for that")
    return list(module.runners.values()), weights


def _check_ops(nodes: Iterable[Node], cell: str) -> None:
    """Raise InputError for an operation whose function is in no text."""
    text = file("functions.h") + read_text_file("mathematics.h") + read_text_file("portable.h")
    functions = set(re.findall(r"(?:V |LANES_OF\()(v_\w+)", text))
    for value in nodes:
        callees = set(re.findall(r"v_\w+", SPELL.get(value.op, "")))
        if not callees <= functions:
            raise InputError(f"{cell} uses {value.op}, which exported C does not have yet")

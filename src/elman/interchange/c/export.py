"""A trained module as portable C99: ``elman.export.to_c(module, "dir")``."""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
from elman.errors import InputError, warn
from elman.integers.formats import Format
from elman.integers.rewrite import Bits, leaf_formats
from elman.interchange.c import running
from elman.interchange.c.integer_project import IntegerProject
from elman.interchange.c.integers import IntegerLayer, on_grid
from elman.interchange.c.project import Project, read_text_file
from elman.interchange.c.step import LayerText
from elman.ir.evaluate import evaluate
from elman.ir.graph import Node
from elman.ir.types import shape_size
from elman.nn.call.weights import round_weights
from elman.nn.execute.layer import Runner
from elman.nn.modules.layer_options import check_bits
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

_FAR = 0.5  # of the size of results: rounded weights alone take a few per cent
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
        state: how many numbers (of float32, 4 bytes) the caller's struct holds; of integer code,
            how many bytes, without what the compiler adds to align them.
        rows: steps of the inputs that one call takes, one behind another: the product of a model's
            strides.
        late: the output of a call is that of so many calls before: a model looks ahead.
        exponents: of integer code, by input and for y: a number n is n · 2^exponent.

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
    exponents: dict[str, int] = field(default_factory=dict)

    def run(self, *inputs: Tensor) -> Tensor:
        """Compile the code for this machine and run sequences by it, each from the initial state:
        what a device computes, to see what it recognises.

        Args:
            inputs: for each input of a step values [B, T, ..], in the unit of the model; integer
                code rounds and limits them as the header says.

        Returns:
            y [B, calls, output], in the unit of the model, without the ``late`` first calls, which
            belong to no step: a call takes ``rows`` steps.

        Raises:
            EngineError: there is no C compiler, or it refuses the code.
            InputError: there are other inputs, or of other sizes.

        Example:
            >>> written = elman.export.to_c(elman.GRU(8, 16), "gru_c", name="gru")
            >>> written.run(torch.randn(2, 50, 8)).shape
            torch.Size([2, 50, 16])
        """
        facts = self.inputs, self.output, self.rows, self.exponents
        y = running.run(self.folder, self.name, *facts, inputs)
        return y[:, self.late :]


def to_c(
    module: Any,
    folder: str | Path,
    name: str = "model",
    *,
    example: Any = None,
    quantize: Bits | int | None = None,
) -> Exported:
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

    A module with ``quantize=``, and any with ``quantize=`` here, is written in integers of 8, 16
    and 32 bits: no instruction computes with floating-point numbers, and every number is the one
    that the quantised module computes. Inputs and y are whole numbers times powers of two, which
    the header names.

    Args:
        module: a unidirectional :class:`elman.Recurrent`, ``RNN``, ``GRU`` or ``LSTM``, or a model
            of sequences.
        folder: created if missing; files of the same names are replaced.
        name: prefix of files, types and functions; a C identifier.
        example: of a model of another kind its input, or a tuple of its inputs, with axes of
            samples and of several steps. A recurrent module needs one with ``quantize`` alone.
        quantize: write a module that was trained in float32 in integers: 8, the bits of weights
            and of what they multiply, or :class:`elman.Bits`. The example, which should be typical
            then, tells how far values reach.

    Raises:
        InputError: the module is bidirectional or does not run step by step, a weight is not
            finite, an operation has no C text, or none in integers, or a part of a model has
            ``quantize=`` and the call has none.

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
        if quantize is None:
            _check_of_floats(module)
        streamed = _streamed(module, example)
        module = streamed.layer
    if quantize is not None or module.quantize is not None:
        module = _calibrated(module, check_bits(quantize), streamed, example)
        return _to_integers(module, folder, name, streamed)
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
    return _write(project, folder, streamed)


def _write(project: Project | IntegerProject, folder: Path, streamed: _Streamed | None) -> Exported:
    """Write the files of a project."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in project.files().items():
        (folder / path).write_text(text, encoding="utf-8")
    return Exported(
        folder,
        project.name,
        project.inputs,
        project.output,
        project.weights,
        project.state,
        1 if streamed is None else streamed.rows,
        0 if streamed is None else streamed.late,
        project.exponents,
    )


def _check_of_floats(model: Any) -> None:
    """Refuse to write a model in float32 that has a layer of integers."""
    parts = model.named_modules() if isinstance(model, nn.Module) else ()
    for name, part in parts:
        if isinstance(part, SequenceModule) and part.quantize is not None:
            reason = f"{name} has quantize=, and what surrounds it would be in float32"
            raise InputError(reason, "to_c(model, folder, example=x, quantize=8)")


def _check_name(name: str) -> None:
    check_text("name", name, 'name="model"')
    if not name.isidentifier() or not name.isascii():
        raise InputError(f"{name!r} is not a C identifier")


class _Streamed(NamedTuple):
    """A model as one layer that runs it step by step.

    Attributes:
        layer: the formula of a step.
        x: the example, as the layer takes it.
        names: of its inputs.
        rows, late: see :class:`Exported`.
        numbers: rows of the largest embedding.
    """

    layer: StepLayer
    x: Any
    names: Sequence[str]
    rows: int
    late: int
    numbers: int

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
    cuts = [torch.stack(values) for values in zip(*step.cut(inputs), strict=True)]
    rows = tuple(  # as the layer takes them: several axes as one, a single unit as a scalar
        [
            value.reshape(*value.shape[:2], *([size] if size > 1 else []))
            for value, size in zip(cuts, sizes, strict=True)
        ]
    )
    x = rows[0] if len(rows) == 1 else rows
    tables = [part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)]
    names = _names_of_inputs(model, len(inputs))
    return _Streamed(layer, x, names, step.rows, step.late, max(tables, default=0))


def _names_of_inputs(model: nn.Module, count: int) -> list[str]:
    """Names of the parameters of ``forward``, if they are as many as the inputs."""
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][:count]
    return names if len(names) == count else []


def _calibrated(
    module: SequenceModule, bits: Bits | None, streamed: _Streamed | None, example: Any
) -> SequenceModule:
    """A module whose values are integers. Raises InputError: nothing says how far they reach."""
    if bits is None:
        module.check_calibrated()
        return module
    if example is None:
        raise InputError("to_c(…, quantize=) needs a typical input", "example=x")
    if module.quantize is not None:
        raise InputError("the module has quantize= of its own", "to_c(module, folder)")
    if streamed is None:
        return _compared(copy.deepcopy(module), bits, example)
    parts = streamed.x if isinstance(streamed.x, tuple) else (streamed.x,)
    floats: list[Tensor] = [part.float() for part in parts]
    for part, value in zip(parts, floats, strict=True):
        if not part.is_floating_point():  # a number may be that of any row
            value.view(-1)[-1] = max(float(value.max()), streamed.numbers - 1)
    return _compared(module, bits, tuple(floats) if len(floats) > 1 else floats[0])


def _compared(module: SequenceModule, bits: Bits, x: Any) -> SequenceModule:
    """The module in integers; a warning tells if they are far from its floats."""

    def results() -> Tensor:
        with torch.no_grad():
            values = pytree.tree_leaves(module(x)[0])
        return torch.cat([value.flatten().double() for value in values])

    want = results()
    module.quantize = bits
    module.calibrate(x)
    off = float((results() - want).norm() / want.norm().clamp(min=1e-9))
    if off > _FAR:
        warn(
            f"in integers the results of this model are off by {off:.0%} of their size on the "
            "example: compare them (written.run(x)) with the model's before they are used"
        )
    return module


def _to_integers(
    module: SequenceModule, folder: Path, name: str, streamed: _Streamed | None
) -> Exported:
    """:func:`to_c` of a module whose values are integers."""
    runners, weights = _layers(module)
    signature, bits, grids = module.runtime.signature, module.quantize, module.runtime.grids
    assert bits is not None, "checked"
    assert grids is not None, "checked"
    if signature.static or module.residual:
        raise InputError("integer C has no static inputs and no residual connections yet")
    exact = round_weights([[w.detach().float() for w in layer] for layer in weights], grids)
    formats: dict[int, Format] = {}
    layers: list[IntegerLayer] = []
    initial: list[dict[str, Tensor]] = []
    starts = signature.form.rows(module._initial()) if module._initial() else []
    for index, (runner, layer_weights) in enumerate(zip(runners, exact, strict=True)):
        raw, ranges = module._formulas()[index][0].graph, module.ranges(index)
        leaves = leaf_formats(raw, ranges, bits)
        below = layers[-1].output if layers else None
        for at, leaf in zip(signature.takes[index], raw.inputs, strict=True):
            formats.setdefault(at, leaves[leaf.name])
        taken = [formats[at] for at in signature.takes[index]]
        given = [below or taken[0], *taken[1:]]
        of_inputs = {leaf.name: of for leaf, of in zip(raw.inputs, given, strict=True)}
        graph = expected(runner.cell.graph)
        spec = Spec(runner.dims, "float32", "cpu", frozenset(), False, _PLAIN)
        job = Job(runner.cell.name, graph, compiler.build_pair(graph), spec)
        states = {leaf.name: leaves[leaf.name] for leaf in raw.states}
        layers.append(IntegerLayer(f"{name}_l{index}", job, layer_weights, of_inputs, states))
        if starts:
            initial.append(
                {
                    leaf.name: on_grid(value.detach().double(), states[leaf.name])
                    for leaf, value in zip(raw.states, starts[index], strict=True)
                }
            )
    names, about = ([], "") if streamed is None else (streamed.names, streamed.about)
    inputs = [formats[at] for at in range(len(formats))]
    project = IntegerProject(name, layers, module, inputs, initial, names, about)
    return _write(project, folder, streamed)


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

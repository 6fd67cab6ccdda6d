"""A trained module as portable C99: ``elman.export.to_c(module, "dir")``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
from elman.nn.execute.layer import Runner
from elman.nn.modules.sequence import SequenceModule
from elman.passes.draws import expected
from elman.passes.static import split_static
from elman.plan.spec import PlanOptions, Spec

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


def to_c(module: Any, folder: str | Path, name: str = "model") -> Exported:
    """Write a module as C99 that needs no library, allocates no memory and has no global state.

    The module can have any cell, layers, heads and residual connections; the code computes in
    float32, as in ``eval()``. The folder then has ``NAME.h`` (``NAME_step`` from x [I] to y [H],
    ``NAME_run`` over T steps), ``NAME.c``, ``NAME_weights.h``, ``NAME_check.c``, which compares
    with the module's results, and a ``Makefile`` (``make check``). Several outputs are stored one
    after another in y. A sequence starts from the module's default initial state. gcc and clang
    compile the code to vectors, by default as wide as the target's (``-DLANES=4``, 8, 16).

    Args:
        module: a unidirectional :class:`elman.Recurrent`, ``RNN``, ``GRU`` or ``LSTM``.
        folder: created if missing; files of the same names are replaced.
        name: prefix of files, types and functions; a C identifier.

    Raises:
        InputError: the module is of another kind or bidirectional, a weight is not finite, or an
            operation has no C text.

    Example:
        >>> written = elman.export.to_c(elman.GRU(8, 16), "gru_c", name="gru")
    """
    folder = check_path("folder", folder, 'elman.export.to_c(net, "gru_c")')
    runners, weights = _layers(module, name)
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
    project = Project(name, layers, bool(module.residual), module, runners[-1].cell.output_names)
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
    )


def _layers(module: Any, name: str) -> tuple[list[Runner], list[list[Tensor]]]:
    """Runners and weights of the layers. Raises InputError for what cannot be exported."""
    if not isinstance(module, SequenceModule):
        raise InputError(
            f"to_c takes a recurrent module, not {type(module).__name__}",
            "elman.Recurrent(cell, …), elman.LSTM(…); of a larger model, its recurrent part",
        )
    check_text("name", name, 'name="model"')
    if not name.isidentifier() or not name.isascii():
        raise InputError(f"{name!r} is not a C identifier")
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

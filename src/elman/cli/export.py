"""Export a cell and its weights as portable C or ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from elman.cell_files import find_cell
from elman.cli._options import (
    CELL,
    LAST,
    OUTPUT,
    RUN,
    CellOfRun,
    Dims,
    Heads,
    Hidden,
    Inputs,
    Trust,
    option,
    resolve_sizes,
    set_options,
)
from elman.cli._terminal import plain
from elman.errors import InputError, RunError
from elman.export import to_c, to_onnx
from elman.interchange.weights.state_dict import load_weights, read_state_dict
from elman.layers import Stack
from elman.nn import GRU, LSTM, RNN, Recurrent
from elman.train.loop.layers import BUILT_IN
from elman.train.loop.task import Trained, move_inputs
from elman.train.run.folder import RunFolder, is_run
from elman.train.run.loading import Weights, load, weights_of
from elman.train.tasks.registry import task_of

_LAYERS = {"GRU": GRU, "LSTM": LSTM, "RNN": RNN}
SHAPING = {"hidden", "inputs", "layers", "heads", "residual", "dim", "weights"}

EXAMPLES = (
    "elman export gru --hidden 32 --inputs 8 --c exported",
    "elman export runs/20260101-120000-text --c exported",
)


def export(
    context: typer.Context,
    cell: Annotated[
        str, typer.Argument(help="A cell (gru, lstm, another one, file.py:cell), or a run folder.")
    ],
    c: Annotated[
        Path | None,
        typer.Option("--c", help="Write portable C99 into this folder.", rich_help_panel=OUTPUT),
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option(help="Write an ONNX model to this file.", rich_help_panel=OUTPUT),
    ] = None,
    hidden: Hidden = 128,
    inputs: Inputs = None,
    layers: Annotated[int, typer.Option(help="Number of layers.", rich_help_panel=CELL)] = 1,
    heads: Heads = 1,
    residual: Annotated[
        bool,
        typer.Option(
            help="Add each layer's input to its output, from the second layer on.",
            rich_help_panel=CELL,
        ),
    ] = False,
    dim: Dims = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Weights: a run folder, or a state_dict (.safetensors, .pt); random by default.",
            rich_help_panel=CELL,
        ),
    ] = None,
    model: Annotated[
        bool,
        typer.Option(
            "--model",
            help="The whole model, with its read-out and in the unit of the data, as C.",
            rich_help_panel=RUN,
        ),
    ] = False,
    quantize: Annotated[
        int | None,
        typer.Option(
            help="The whole model in integers of so many bits (8), calibrated with the run's data.",
            rich_help_panel=RUN,
        ),
    ] = None,
    last: Annotated[bool, typer.Option("--last", help=LAST, rich_help_panel=RUN)] = False,
    file: CellOfRun = None,
    trust: Trust = False,
    name: Annotated[
        str,
        typer.Option(help="Name of the C files, types and functions.", rich_help_panel=OUTPUT),
    ] = "model",
) -> None:
    """Export a cell and its weights as portable C or ONNX.

    A run folder exports its recurrent layers, or with --model all of it; it needs no sizes.

    `make check` in the folder of C compiles the code and compares its results with the module's.
    """
    if c is None and onnx is None:
        raise typer.BadParameter("say what is written, and where: --c DIR, or --onnx FILE")
    which: Weights = "last" if last else "best"
    options: dict[str, Any] = {}
    if _names_a_run(cell):
        if superfluous := [*filter(SHAPING.__contains__, set_options(context))]:
            text = f"a run folder has them: leave {' '.join(map(option, superfluous))} out"
            raise typer.BadParameter(text)
        run = load(Path(cell), weights=which, cell=file, trust=trust)
        if model or quantize is not None:
            if onnx is not None:
                raise typer.BadParameter("--model and --quantize write C alone: --c DIR")
            module, options = _whole_of(run, quantize)
        else:
            module = _layers_of(run)
    elif file or trust or model or quantize is not None:
        names = "--cell, --trust, --model and --quantize"
        raise typer.BadParameter(f"{names} are for run folders, and this is none")
    else:
        shape: dict[str, Any] = {"num_layers": layers, "heads": heads, "residual": residual}
        formula = find_cell(cell)
        size, height, dims = resolve_sizes(formula, hidden, inputs, dim)
        if cell in BUILT_IN:  # which have no other dims
            formula.bind(size, height, **dims)
            module: Any = _LAYERS[BUILT_IN[cell]](size, height, **shape)
        else:
            module = Recurrent(formula, size, height, **{**shape, **dims})
    if weights is not None:
        of_run = weights.is_dir()
        tensors = weights_of(RunFolder(weights), which).tensors if of_run else None
        load_weights(module, tensors or read_state_dict(weights), weights)
    try:
        lines = [] if c is None else _write_c(module, c, name, options)
        lines += [] if onnx is None else _write_onnx(module, onnx)
    except OSError as error:
        raise RunError("cannot write there", error=error) from error
    for line in lines:
        Console().print(plain(line), soft_wrap=True)


def _names_a_run(text: str) -> bool:
    """Whether a text is a run folder, or a path that might be meant as one."""
    path = Path(text)
    return is_run(path) or ("/" in text and ":" not in text and not path.is_file())


def _layers_of(run: Trained) -> Any:
    """The recurrent layers of a run, as trained. Raises InputError: each of them is a part of a
    larger one."""
    layers = run.layers
    if not isinstance(layers, (*_LAYERS.values(), Recurrent)):
        first = "blocks[0].layer.cell" if isinstance(layers, Stack) else "layers[0]"
        title = "the run has norms between its recurrent layers"
        hint = f'elman.export.to_c(elman.load("{run.path}").layers.{first}, "layer_0")'
        raise InputError(title, hint, path=run.path)
    return layers


def _whole_of(run: Trained, quantize: int | None) -> tuple[Any, dict[str, Any]]:
    """The whole model of a run, and the options of an export: an example of the run's data where
    its values count."""
    if any(isinstance(part, Stack) for part in run.model.modules()):
        cell = run.config.cell
        raise InputError(f"the whole model has residual blocks of {cell}, of which no C is written")
    module = run.as_module().cpu().eval()
    if quantize is None:
        return module, {"example": module.random()}
    inputs = task_of(run.config).prepare(run.config).batch(0, slice(0, run.config.batch)).inputs
    example = module.example(move_inputs(inputs, run.weight))
    return module, {"example": example, "quantize": quantize}


def _write_c(module: Any, folder: Path, name: str, options: dict[str, Any]) -> list[str]:
    """Write C; what was written."""
    project = to_c(module, folder, name, **options)
    shapes = ", ".join(f"{input_name} [{size}]" for input_name, size in project.inputs.items())
    exponents = [f"{name} in units of 2^{power}" for name, power in project.exponents.items()]
    return [
        f"{project.folder}: {name}_step takes {shapes} and gives y [{project.output}]; "
        f"{project.weights:,} weights, {project.state:,} numbers of state"
        + f"; {', '.join(exponents)}"
        * bool(exponents),
        f"make -C {project.folder} check",
    ]


def _write_onnx(module: Any, path: Path) -> list[str]:
    """Write ONNX; what was written."""
    model = to_onnx(module, path)

    def shapes_text(slots: dict[str, tuple[int | str, ...]]) -> str:
        return ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in slots.items())

    operators = f"{model.path}: {', '.join(model.operators)}"
    return [operators, f"takes {shapes_text(model.inputs)}", f"gives {shapes_text(model.outputs)}"]

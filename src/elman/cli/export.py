"""Write a cell with its weights for elsewhere: portable C, ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from elman.cli._printing import plain
from elman.cli.explain import sizes
from elman.errors import RunError, diagnostic
from elman.export import to_c, to_onnx
from elman.nn import GRU, LSTM, RNN, Recurrent
from elman.train.layers import BUILT_IN, find_cell
from elman.train.weights import load_weights

_LAYERS = {"GRU": GRU, "LSTM": LSTM, "RNN": RNN}


def export(
    cell: Annotated[str, typer.Argument(help="gru, lstm, another cell, or file.py:cell.")],
    c: Annotated[
        Path | None, typer.Option("--c", help="Write portable C99 into this folder.")
    ] = None,
    onnx: Annotated[Path | None, typer.Option(help="Write an ONNX model to this file.")] = None,
    hidden: Annotated[int, typer.Option(help="Units: the first state's size.")] = 128,
    inputs: Annotated[int | None, typer.Option(help="Size of the input; as --hidden.")] = None,
    layers: Annotated[int, typer.Option(help="Layers.")] = 1,
    heads: Annotated[int, typer.Option(help="Heads of each layer.")] = 1,
    residual: Annotated[bool, typer.Option(help="Add a layer's input to its output.")] = False,
    dim: Annotated[list[str] | None, typer.Option(help="Another size of the cell: P=32.")] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="A run folder, or a state_dict as .safetensors or .pt; else as drawn."),
    ] = None,
    name: Annotated[str, typer.Option(help="Of files, types and functions.")] = "model",
) -> None:
    """Write a trained cell as C99: one step function, weights as arrays, no library; or as ONNX.

    In the folder of C `make check` builds it and compares it with what the module computes here.
    """
    if c is None and onnx is None:
        raise typer.BadParameter("say what is written, and where: --c DIR, or --onnx FILE")
    options: dict[str, Any] = {
        "num_layers": layers,
        "heads": heads,
        "residual": residual,
        **sizes(dim or []),
    }
    size = hidden if inputs is None else inputs
    if cell in BUILT_IN:
        module: Any = _LAYERS[BUILT_IN[cell]](size, hidden, **options)
    else:
        module = Recurrent(find_cell(cell), size, hidden, **options)
    if weights is not None:
        load_weights(module, weights)
    try:
        told = [] if c is None else _as_c(module, c, name)
        told += [] if onnx is None else _as_onnx(module, onnx)
    except OSError as error:
        raise RunError(diagnostic("cannot write there", [("error", str(error))])) from error
    for line in told:
        Console().print(plain(line), soft_wrap=True)


def _as_c(module: Any, folder: Path, name: str) -> list[str]:
    """Write C; what was written."""
    made = to_c(module, folder, name)
    shapes = ", ".join(f"{what} [{size}]" for what, size in made.inputs.items())
    return [
        f"{made.folder}: {name}_step takes {shapes} and gives y [{made.output}]; "
        f"{made.weights:,} weights, {made.state:,} numbers of state",
        f"make -C {made.folder} check",
    ]


def _as_onnx(module: Any, path: Path) -> list[str]:
    """Write ONNX; what was written."""
    made = to_onnx(module, path)

    def told(slots: dict[str, tuple[int | str, ...]]) -> str:
        return ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in slots.items())

    operators = f"{made.path}: {', '.join(made.operators)}"
    return [operators, f"takes {told(made.inputs)}", f"gives {told(made.outputs)}"]

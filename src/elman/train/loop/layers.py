"""A run's recurrent layers: elman's, and torch's of the same sizes beside them."""

from __future__ import annotations

from typing import Any

from torch import nn

import elman.nn
from elman.cell_files import find_cell, find_sequence_cell
from elman.errors import InputError
from elman.ir.types import names_in
from elman.layers.stack import LAYERS, Stack
from elman.layers.strided import Strided
from elman.train.loop.config import RANDOM_OPTIONS, Config

BUILT_IN = {"gru": "GRU", "lstm": "LSTM", "rnn": "RNN"}


def recurrent(
    config: Config, inputs: int, layers: int, static: int = 0, *, baseline: bool = False
) -> nn.Module:
    """Build recurrent layers called as torch.nn.GRU is; with `baseline` torch's own.

    A cell of a published layer makes residual blocks of that layer, other cells if they are asked
    for. Of layers that run in both directions each direction has half of the units.

    Args:
        inputs: size of the first layer's input.
        static: size of the static input that the cell reads.
    """
    dropout = config.dropout if layers > 1 else 0.0  # torch warns where there is no between
    both = getattr(config, "bidirectional", False)
    units = config.hidden // (2 if both else 1)
    options: dict[str, Any] = {"num_layers": layers, "dropout": dropout}
    if baseline:
        layer = getattr(nn, BUILT_IN[config.cell])
        return layer(inputs, units, bidirectional=both, **options)
    options["engine"] = config.engine
    if _runs_blocks(config):
        return Stack(config.cell, inputs, units, **options)
    options |= {
        "heads": getattr(config, "heads", 1),
        "residual": config.adds_inputs,
        **{name: getattr(config, name) for name in RANDOM_OPTIONS},
    }
    if (strides := getattr(config, "strides", 1)) > 1:
        cell, powers = find_sequence_cell(config.cell), [2**k for k in range(strides)]
        return Strided(cell, inputs, units, powers, **options)
    options["bidirectional"] = both
    if config.cell in BUILT_IN:
        return getattr(elman.nn, BUILT_IN[config.cell])(inputs, units, **options)
    cell = find_sequence_cell(config.cell, bool(static))
    options |= {str(entry.shape[0][0]): static for entry in cell.static}
    return elman.nn.Recurrent(cell, inputs, units, **options)


def reads_static(config: Config) -> bool:
    """Return whether a run's cell has a static input."""
    is_known = config.cell in BUILT_IN or config.cell in LAYERS
    return not is_known and bool(find_cell(config.cell).static)


def output_size(config: Config, layers: nn.Module) -> int:
    """Size of the (first) output of a run's layers, which a read-out reads: of cells with outputs
    of their own it may be another one than ``--hidden``."""
    return getattr(layers, "output_size", config.hidden)


def check_cell(config: Config) -> None:
    """Find the cell of a run, before its data are read. Raises InputError, RunError: as
    :func:`find_sequence_cell`; InputError: residual blocks have no such option."""
    if _runs_blocks(config):
        options = [name for name in RANDOM_OPTIONS if getattr(config, name)]
        options += [name for name in ("heads", "strides") if getattr(config, name, 1) > 1]
        options += ["residual"] if config.adds_inputs else []
        options += ["bidirectional"] if getattr(config, "bidirectional", False) else []
        options += ["uniform"] if getattr(config, "uniform", None) is not None else []
        if options:
            option = options[0].replace("_", "-")
            title = f"a block of {config.cell} has no option {option}"
            raise InputError(title, f"leave --{option} out, or the preset that sets it")
    if getattr(config, "bidirectional", False):
        if getattr(config, "strides", 1) > 1:
            raise InputError("layers with strides run in one direction", "leave one of both out")
        if config.hidden % 2:
            title = f"{config.hidden} hidden units cannot be halved for two directions"
            raise InputError(title, f"--hidden {config.hidden + 1}")
    if config.cell not in LAYERS and config.cell not in BUILT_IN:
        takes_static = config.TAKES_STATIC and getattr(config, "strides", 1) == 1
        cell = find_sequence_cell(config.cell, takes_static)
        declared = (*cell.inputs, *cell.states, *cell.outputs, *cell.weights)
        known = (cell.inputs[0], *cell.static, *cell.states[:1])
        given = set[str]().union(*(names_in(entry.shape) for entry in known))
        free = sorted({name for entry in declared for name in names_in(entry.shape)} - given)
        if free:
            title = f"{cell.name} has a dim {free[0]} of its own, which no option of a run sizes"
            raise InputError(title, f"a number, or the state's dim, in the place of {free[0]}")


def _runs_blocks(config: Config) -> bool:
    return config.cell in LAYERS or config.runs_blocks


def cell_fingerprint(config: Config) -> str:
    """The fingerprint of a cell that is in the user's file, which may change; else nothing. Raises
    RunError: as :func:`find_cell`."""
    return find_cell(config.cell).fingerprint if ":" in config.cell else ""


def refuse_twin(config: Config) -> str | None:
    """The reason why torch.nn has no layers like a run's; None if it has."""
    if config.cell not in BUILT_IN:
        return f"torch.nn has no cell like {config.cell}"
    for name in ("heads", "strides"):
        if getattr(config, name, 1) > 1:
            return f"torch.nn has no {name}"
    if config.adds_inputs or config.runs_blocks:
        return "torch.nn has no residual layers"
    for name in RANDOM_OPTIONS:
        if getattr(config, name):
            return f"torch.nn has no {name.replace('_', ' ')}"
    return None

"""The character model: embedding, recurrent layers, and a read-out of the next character."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import elman.nn
from elman import cells
from elman.errors import ElmanError, InputError, RunError, rows
from elman.train.config import Config

BUILT_IN = {"gru": "GRU", "lstm": "LSTM", "rnn": "RNN"}


class CharModel(nn.Module):
    """Predicts the next character at every step.

    Args:
        size: V, number of characters.
        embedding: size of a character's vector.
        hidden: size of the recurrent layers' output.
        recurrent: a module called as torch.nn.GRU is.
        dropout: share of values dropped before the read-out.
    """

    def __init__(
        self, size: int, embedding: int, hidden: int, recurrent: nn.Module, dropout: float = 0.0
    ):
        super().__init__()
        self.embedding = nn.Embedding(size, embedding)
        self.recurrent = recurrent
        self.dropout = nn.Dropout(dropout)
        self.readout = nn.Linear(hidden, size)

    def forward(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Predict.

        Args:
            ids [T, B]: characters as numbers.
            state: what the previous call returned; zeros if None.

        Returns:
            logits [T, B, V]: of the character after each.
            state: the recurrent layers' last state.
        """
        out, state = self.recurrent(self.embedding(ids), state)
        return self.readout(self.dropout(out)), state


def build_model(config: Config, size: int, *, baseline: bool = False) -> CharModel:
    """Build the model of a run; with `baseline` the same on torch.nn's recurrent layer."""
    torch.manual_seed(config.seed)
    recurrent = torch_recurrent(config) if baseline else own_recurrent(config)
    return CharModel(size, config.embedding, config.hidden, recurrent, config.dropout)


def own_recurrent(config: Config) -> nn.Module:
    """Build elman's recurrent layers for the cell of a configuration."""
    options: dict[str, Any] = {
        "num_layers": config.layers,
        "dropout": between(config),
        "engine": config.engine,
    }
    if config.cell in BUILT_IN:
        layer = getattr(elman.nn, BUILT_IN[config.cell])
        return layer(config.embedding, config.hidden, **options)
    cell = find_cell(config.cell)
    return elman.nn.Recurrent(cell, config.embedding, config.hidden, **options)


def torch_recurrent(config: Config) -> nn.Module:
    """Build torch's recurrent layers of the same sizes."""
    layer = getattr(nn, BUILT_IN[config.cell])
    return layer(config.embedding, config.hidden, num_layers=config.layers, dropout=between(config))


def between(config: Config) -> float:
    """Dropout between layers; torch warns if there is only one."""
    return config.dropout if config.layers > 1 else 0.0


def find_cell(name: str) -> Any:
    """Find a cell: a name of elman.cells, or file.py:cell of the user's.

    Raises:
        InputError: if the library has no such cell.
        RunError: if the file does not exist, does not run, or has no such cell.
    """
    if ":" not in name:
        if (cell := getattr(cells, name, None)) is None:
            raise InputError(
                rows(
                    f"no cell is called {name!r}",
                    [("known", ", ".join(sorted(cell.name for cell in cells.ALL)))],
                    hint="--cell gru, or --cell my_file.py:my_cell for a cell of your own",
                )
            )
        return cell
    path, _, attribute = name.rpartition(":")
    file = Path(path).expanduser()
    if not file.is_file():
        raise RunError(rows("the file of the cell does not exist", [("path", str(file))]))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise RunError(rows("the file of the cell is no Python file", [("path", str(file))]))
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ElmanError:
        raise
    except Exception as error:
        details = [("path", str(file)), ("error", f"{type(error).__name__}: {error}")]
        raise RunError(rows("the file of the cell does not run", details)) from error
    if not hasattr(module, attribute):
        raise RunError(rows(f"the file has no cell {attribute!r}", [("path", str(file))]))
    return getattr(module, attribute)

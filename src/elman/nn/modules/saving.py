"""What a saved model names: the globals that ``torch.load`` has to be allowed."""

from __future__ import annotations

from typing import Any

from elman import cells, ops
from elman.frontend.cell import bound_cell
from elman.nn.modules.linear_cross_entropy import LinearCrossEntropyLoss
from elman.nn.modules.recurrent import Recurrent
from elman.nn.modules.torch_layers import GRU, LSTM, RNN
from elman.plan.spec import PlanOptions

NAMED = (GRU, LSTM, RNN, Recurrent, LinearCrossEntropyLoss, PlanOptions, bound_cell)


def safe_globals() -> list[Any]:
    """List elman's entries for the allow-list of ``torch.load(path, weights_only=True)``.

    A model saved by ``torch.save(model, path)`` loads with::

        with torch.serialization.safe_globals([*elman.safe_globals(), MyModel, torch.nn.Linear]):
            model = torch.load(path)

    The file of ``elman.GRU`` and the like names the class, and ``elman.PlanOptions`` if the layer
    has a plan. The file of a ``Recurrent`` names its class, its cell, :func:`elman.bound_cell` if
    options or heads are bound, and functions passed as options. Add your own cells and functions
    like your classes: ``[*elman.safe_globals(), MyModel, my_cell]``.

    Returns:
        The classes of modules and options, the cells of ``elman.cells``, the functions of
        ``elman.ops``, and ``elman.bound_cell``.

    Example:
        >>> torch.save(elman.GRU(8, 16), "net.pt")
        >>> with torch.serialization.safe_globals(elman.safe_globals()):
        ...     net = torch.load("net.pt")
    """
    return [*NAMED, *cells.ALL, *(getattr(ops, name) for name in ops.__all__)]

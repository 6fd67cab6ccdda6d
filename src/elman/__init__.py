"""elman: write a recurrent cell once, as its formula; train it as fast as the hardware allows."""

from __future__ import annotations

from elman import cells, ops
from elman.drawing import draw
from elman.engines.deer.api import deer, linear_scan
from elman.frontend.cell import cell
from elman.nn import (
    GRU,
    LSTM,
    RNN,
    GRUCell,
    LSTMCell,
    Recurrent,
    RNNCell,
    accelerate,
    restore,
    using,
)
from elman.nn.explained import explain

__version__ = "0.1.0.dev0"

__all__ = [
    "accelerate",
    "restore",
    "GRU",
    "GRUCell",
    "LSTM",
    "LSTMCell",
    "RNN",
    "RNNCell",
    "Recurrent",
    "cell",
    "cells",
    "deer",
    "linear_scan",
    "ops",
    "using",
    "explain",
    "draw",
    "__version__",
]

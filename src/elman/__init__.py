"""elman: write a recurrent cell once, as its formula; train it as fast as the hardware allows."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from elman import cells, errors, nn, ops, weights
from elman.engines.deer.api import deer, linear_scan
from elman.frontend.cell import bound_cell, cell
from elman.integers.rewrite import Bits
from elman.nn import (
    GRU,
    LSTM,
    RNN,
    LinearCrossEntropyLoss,
    Recurrent,
    Stream,
    accelerate,
    release,
    restore,
    shard_time,
    using,
)
from elman.nn.inspect import explain, tune
from elman.nn.records import NAMED as _NAMED
from elman.nn.records import safe_globals
from elman.plan.spec import PlanOptions
from elman.version import __version__

if _TYPE_CHECKING:
    from elman import export, functional, layers
    from elman.measuring.measure import measure
    from elman.programs import Accelerate, AccelerateTrainer, install, uninstall
    from elman.steps.api import scan
    from elman.steps.loop import Loop
    from elman.steps.showing import draw
    from elman.train.run.loading import load

for _public in _NAMED:
    _public.__module__ = __name__  # what pickles call it, wherever it is defined


_LAZY = {  # names of rooms that few runs need
    "Accelerate": "elman.programs",
    "AccelerateTrainer": "elman.programs",
    "Loop": "elman.steps.loop",
    "draw": "elman.steps.showing",
    "install": "elman.programs",
    "load": "elman.train.run.loading",
    "measure": "elman.measuring.measure",
    "scan": "elman.steps.api",
    "uninstall": "elman.programs",
}


def __getattr__(name: str) -> _Any:
    """Rooms that a training run does not need are imported when they are asked for."""
    if name in ("export", "functional", "layers"):
        return _import_module(f"elman.{name}")
    if name in _LAZY:
        return getattr(_import_module(_LAZY[name]), name)
    hint = f": elman.functional.{name}(model)" * (name in ("install", "uninstall", "report"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    """List the public names: further rooms become attributes once something imports them."""
    return sorted(__all__)


__all__ = [
    "Accelerate",
    "AccelerateTrainer",
    "accelerate",
    "restore",
    "GRU",
    "LSTM",
    "Loop",
    "LinearCrossEntropyLoss",
    "Bits",
    "PlanOptions",
    "RNN",
    "Recurrent",
    "Stream",
    "bound_cell",
    "cell",
    "cells",
    "deer",
    "errors",
    "export",
    "functional",
    "install",
    "layers",
    "linear_scan",
    "load",
    "measure",
    "nn",
    "ops",
    "release",
    "safe_globals",
    "scan",
    "shard_time",
    "tune",
    "uninstall",
    "using",
    "weights",
    "explain",
    "draw",
    "__version__",
]

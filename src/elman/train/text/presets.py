"""Settings of word models that are compared everywhere.

Zaremba et al. 2014, "Recurrent Neural Network Regularization", arXiv:1409.2329, section 4.1
(medium and large), and the program published with it (small). There a loss is summed over the T
steps of a segment; here it is their mean, so the learning rate is T times as large and the largest
norm of the gradient the T-th part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _zaremba(
    units: int, bptt: int, uniform: float, dropout: float, clip: float, stairs: str
) -> Mapping[str, Any]:
    return {
        "level": "word",
        "cell": "lstm",
        "layers": 2,
        "hidden": units,
        "embedding": units,
        "batch": 20,
        "bptt": bptt,
        "uniform": uniform,
        "dropout": dropout,
        "embedding_dropout": dropout,
        "optimizer": "sgd",
        "weight_decay": 0.0,
        "warmup": 0.0,
        "lr": 1.0 * bptt,
        "clip": clip / bptt,
        "schedule": f"stairs:{stairs}",
        "epochs": int(stairs.partition("/")[2].partition(":")[0]),
    }


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "small": _zaremba(200, 20, uniform=0.1, dropout=0.0, clip=5, stairs="4/13:2"),
    "medium": _zaremba(650, 35, uniform=0.05, dropout=0.5, clip=5, stairs="6/39:1.2"),
    "large": _zaremba(1500, 35, uniform=0.04, dropout=0.65, clip=10, stairs="14/55:1.15"),
}

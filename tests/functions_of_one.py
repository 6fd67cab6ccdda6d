"""Ops of one value that are functions of torch's names too: one row each for the tests of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from elman import ops


class Function(NamedTuple):
    """What tests have to know of an op.

    Attributes:
        most: the largest value of it and its argument, for values up to 3; 0: not in random cells.
        within: text of an argument that it is defined and not flat for, of any value ``{0}``.
        rounded: whether it is, and may differ from torch's in the last bits.
        keeps_zero: whether it is 0 at 0, of the sign that torch's has.
    """

    most: float = 0.0
    within: str = "{0}"
    rounded: bool = True
    keeps_zero: bool = True


FUNCTIONS = {
    "tanh": Function(1),
    "sigmoid": Function(1, keeps_zero=False),
    "relu": Function(3, rounded=False, keeps_zero=False),
    "exp": Function(1, "-abs({0})", keeps_zero=False),
    "log": Function(2, "1.5 + {0} * {0}", keeps_zero=False),
    "sqrt": Function(3, "0.5 + {0} * {0}"),
    "abs": Function(3, rounded=False),
    "sin": Function(1),
    "cos": Function(1, keeps_zero=False),
    "erf": Function(1),
    "softplus": Function(3, keeps_zero=False),
    "atan": Function(1.6),
    "asinh": Function(2),
    "expm1": Function(1, "-abs({0})"),
    "floor": Function(rounded=False),  # one that jumps needs values away from where it does
    "round": Function(rounded=False),
    "sign": Function(rounded=False, keeps_zero=False),
}
AUTHORS = {name: of for name, of in FUNCTIONS.items() if hasattr(ops, name)}


def torchs(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """torch's function of a name."""
    return functional.softplus if name == "softplus" else getattr(torch, name)


def within(name: str, value: Any) -> Any:
    """An argument that is made of a value of a cell, or of a tensor."""
    return eval(FUNCTIONS[name].within.format("v"), {"v": value})


def text_of(name: str) -> str:
    """A formula of any value ``{0}`` as the author of a cell writes it."""
    return f"{name}({FUNCTIONS[name].within})"

"""Hints: replacements for functions of torch, numpy or Python in formulas."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

_PERMUTED = 'a matrix of zeros and ones: constants="P[H, H]", P @ v'
_CUT = (
    "a step knows no batch: split(v, 2) cuts units, concat(a, b) joins them, groups= reduces parts"
)
_DRAWN = "uniform(v) in [0, 1), or noise(v) of a normal distribution, for each unit"

_SPELLED = {  # the name in torch or numpy -> what to write instead
    "addmm": "W @ v + b",
    "argmax": "hardmax(v), which is 1 at the largest unit, else 0",
    "bernoulli": "uniform(p) < p",
    "cat": "concat(a, b)",
    "chunk": "split(v, 2)",
    "clamp": "clip(v, low, high)",
    "concatenate": "concat(a, b)",
    "detach": "stop_gradient(v)",
    "dot": "sum(v * h)",
    "expand": "spread(values, like); a scalar meets every vector as it is",
    "flip": _PERMUTED,
    "gather": _PERMUTED,
    "heaviside": "v > 0, which is 1 or 0; spike(v) has a gradient too",
    "hstack": "concat(a, b)",
    "index_select": _PERMUTED,
    "lerp": "a + w * (b - a)",
    "linear": "W @ v + b",
    "log1p": "log(1 + v)",
    "logical_and": "a * b of two conditions",
    "logical_or": "maximum(a, b) of two conditions",
    "max": "amax(v) of all units, or maximum(a, b) of two values",
    "min": "-amax(-v) of all units, or minimum(a, b) of two values",
    "norm": "sqrt(sum(v * v))",
    "normal": _DRAWN,
    "outer": "outer(k, v) from elman.ops, a matrix of each sample",
    "einsum": "outer(k, v), S @ q and S.T @ k, or W @ v of weights",
    "one_hot": "hardmax(v), which is 1 at the largest unit, else 0",
    "rand_like": "uniform(v)",
    "randn_like": "noise(v)",
    "reciprocal": "1 / v",
    "repeat": "concat(v, v)",
    "repeat_interleave": "spread(values, like)",
    "reshape": _CUT,
    "roll": _PERMUTED,
    "rsqrt": "1 / sqrt(v)",
    "sign": "where(v > 0, 1, where(v < 0, -1, 0))",
    "square": "v * v",
    "squeeze": _CUT,
    "t": "W.T",
    "tensor_split": "split(v, 2)",
    "tile": "concat(v, v)",
    "transpose": "W.T",
    "unsqueeze": _CUT,
    "view": _CUT,
}

BUILTINS_OF_TWO = {  # Python's functions of two values -> what to write instead
    "max": "maximum(a, b) from elman.ops",
    "min": "minimum(a, b) from elman.ops",
}
BUILTINS_OVER_UNITS = {  # those of all units -> what to write instead
    "sum": "from elman.ops import sum: sum(v) is the sum of all units",
    "max": "amax(v) from elman.ops is the largest unit; maximum(a, b) the larger of two values",
    "min": "-amax(-v), amax from elman.ops, is the smallest unit; minimum(a, b) of two values",
    "any": "amax(v) of conditions, amax from elman.ops, is 1 if one of them is",
    "all": "1 - amax(1 - v) of conditions, amax from elman.ops, is 1 if all of them are",
    "sorted": "a step has no order of units; amax(v) from elman.ops is the largest",
}


def known_functions() -> dict[str, Callable[..., Any]]:
    """Functions for cell authors, by name."""
    from elman.frontend import activations, functions, reductions, spikes  # which use the tracer

    rooms = functions, activations, reductions, spikes
    return {name: getattr(room, name) for room in rooms for name in room.__all__}


def written_call(name: str) -> str:
    """Signature of a function for cell authors, ``dropout(v, p, per='step')``; empty if unknown."""
    function = known_functions().get(name)
    if function is None:
        return ""
    parameters = [
        parameter.replace(annotation=parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
    ]
    return f"{name}{inspect.Signature(parameters)}"


def hint_for(name: str) -> str:
    """The hint where a function of torch or numpy is called.

    It names elman's own function of that name, what to write instead, or says that there is none.
    """
    functions = [*known_functions()]
    if name in functions:
        return f"from elman.ops import {name}"
    if name in _SPELLED:
        return _SPELLED[name] if name == "outer" else f"write {_SPELLED[name]}"
    near = get_close_matches(name, [*functions, *_SPELLED], 1)
    suggestion = f"; there is {near[0]}" if near and near[0] in functions else ""
    return f"elman.ops has no {name}{suggestion}: write it with what help(elman.ops) lists"

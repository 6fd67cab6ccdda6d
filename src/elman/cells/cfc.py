"""Closed-form continuous-time networks, as ncps has them."""

from functools import cache
from inspect import Parameter, signature
from typing import Any

from elman.cells._numbered import named, numbered
from elman.frontend.cell import Cell, cell
from elman.frontend.lines import refuse
from elman.ops import abs, concat, exp, sigmoid, split, tanh

_SOURCE = "Hasani et al. 2022, arXiv:2106.13898; as CfCCell of ncps"


def lecun_tanh(v):
    """1.7159 tanh(0.666 v), elementwise: the backbone's activation."""
    return 1.7159 * tanh(0.666 * v)


def _backbone(x, h, A, a, deeper, activation):
    """Features of input and state: ``A, a`` are the first layer's, ``deeper`` those of the rest."""
    v = activation(A @ concat(x, h) + a)
    if deeper:
        B, d = deeper
        count = len(B.node.shape[0]) // len(v.node.shape[0])
        for matrix, bias in zip(split(B, count), split(d, count), strict=True):
            v = activation(matrix @ v + bias)
    return v


def _declared(formula, name: str, layers: int, heads: str) -> Cell:
    """The cell of a formula of x, t, h, all weights."""
    deeper = f", B[{layers - 1}U, U], d[{layers - 1}U]" if layers > 1 else ""
    weights = f"A[U, I+H], a[U]{deeper}, {heads}"
    names = ["x", "t", "h", *(part.partition("[")[0].strip() for part in weights.split("],"))]
    options = [
        parameter
        for parameter in signature(formula).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    arguments = [Parameter(parameter, Parameter.POSITIONAL_OR_KEYWORD) for parameter in names]
    formula.__signature__ = signature(formula).replace(parameters=[*arguments, *options])
    name = name if layers == 1 else f"{name}_{layers}"
    decorator = cell(input="x[I], t", state="h[H]", weights=weights, source=_SOURCE)
    return decorator(named(formula, name))


@cache
def cfc_of(layers: int) -> Cell:
    """``cfc`` with a backbone of 1 or more layers: ``Recurrent(cells.cfc_of(2), …, U=128)``."""

    def cfc(x, t, h, A, a, *rest, mode="default", activation=lecun_tanh):
        """``t`` is the time since the last step, one number per sample (1 if steps are equal).

        ``mode`` is ``"default"`` or ``"no_gate"``; ``cfc_pure`` is ncps' third. The backbone has U
        units. F and f have the heads ff1, ff2, time_a, time_b in order.

        Raises:
            TraceError: there is no such mode.
        """
        *deeper, F, f = rest
        one, two, fade, start = split(F @ _backbone(x, h, A, a, deeper, activation) + f, 4)
        one, two, gate = tanh(one), tanh(two), sigmoid(fade * t + start)
        if mode == "no_gate":
            return one + gate * two
        if mode != "default":
            refuse(
                f"mode must be default or no_gate, not {mode!r}",
                "cells.cfc_pure is the third, pure",
            )
        return one * (1 - gate) + gate * two

    return _declared(cfc, "cfc", layers, "F[4H, U], f[4H]")


@cache
def cfc_pure_of(layers: int) -> Cell:
    """``cfc_pure`` with a backbone of 1 or more layers."""

    def cfc_pure(x, t, h, A, a, *rest, activation=lecun_tanh):
        """The approximate solution itself: ncps' mode ``"pure"``. ``t``, U and A, a as of ``cfc``.

        F, f are the head ff1; w and scale are ncps' w_tau and A.
        """
        *deeper, F, f, w, scale = rest
        head = F @ _backbone(x, h, A, a, deeper, activation) + f
        return scale - scale * exp(-t * (abs(w) + abs(head))) * head

    return _declared(cfc_pure, "cfc_pure", layers, "F[H, U], f[H], w[H], scale[H]")


def __getattr__(name: str) -> Any:
    if name.startswith("cfc_pure_"):
        return numbered(__name__, name, "cfc_pure", cfc_pure_of)
    return numbered(__name__, name, "cfc", cfc_of)


cfc = cfc_of(1)
cfc_pure = cfc_pure_of(1)

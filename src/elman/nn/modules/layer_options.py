"""Options of all modules, beyond those of torch's layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict, TypeVar

import torch
from torch import nn

from elman.checks import check_choice, check_flag, check_share, check_size, shown
from elman.errors import InputError
from elman.frontend.changes import Change, ClippedGradient, RecurrentDropout, Zoneout
from elman.frontend.draws import Per
from elman.integers.rewrite import Bits
from elman.nn.engine_choice import check_engine
from elman.plan.spec import USUAL, PlanOptions, Precision, check_plan, check_precision

Layers = TypeVar("Layers", bound=type)


class Options(TypedDict, total=False):
    """Options of all modules, beyond those of torch's layers.

    Attributes:
        engine: the name of an engine. The default ``"auto"`` follows ``elman.using`` and
            ELMAN_ENGINE, or else uses the fastest engine by measurement.
        heads: number of independent copies of the cell, each with its part of the units. The
            formula describes one copy: reductions, counts and random numbers are those of one
            head's units. A matrix that multiplies a head's own values is block-diagonal, stored as
            [rows, columns / heads]. Inputs with a divided dim, ``x[H]``, are divided; inputs and
            weights without one, ``x[I]`` or a scalar, are shared. A scalar state or output that
            depends on a head's own values is one per head, [B, heads]. Of a cell with a matrix per
            sample and no weights, heads are samples: all sizes are divided, inputs and outputs are
            [T, B, heads, ·], or joined [T, B, heads · n], states [.., B, heads, K, V], and static
            inputs [heads, ..] or [B, heads, ..].
        plan: how cells are compiled, and what the forward saves for the backward.
        precision: of products in float32 on a CPU: ``"bf16"`` rounds their operands to bfloat16,
            if the processor multiplies such numbers; sums, states, gradients and all else stay
            float32. ``"ieee"`` rounds nothing. None: the precision of ``plan``, or else of
            ``torch.backends.mkldnn.rnn.fp32_precision``.
        residual: add a layer's input to its output, from the second layer on.
        clip_gradient: clip the gradient that each step passes to the previous states, elementwise
            to [-clip_gradient, clip_gradient]; None: no clipping.
        learn_initial: train the default initial states: parameters ``initial_h`` …
            [layers · directions, H], one per state, initially zero or as in the cell's ``init=``;
            if the states of the layers differ, ``initial_h_l0`` … [1, H].
        zoneout: share of units that keep their old state in a training step, for all states or by
            name, ``{"h": 0.05, "c": 0.5}``. In evaluation, states are the weighted mean of both.
        recurrent_dropout: share of a state's units that are dropped in products with weight
            matrices, in training.
        recurrent_dropout_per: ``"sequence"`` drops the same units in all steps, ``"step"`` draws
            new ones in each.
        weight_dropout: share of the elements of each recurrent matrix dropped per call, in
            training.
        quantize: train with values that integers of few bits hold, as the code of
            ``elman.export.to_c`` computes them: ``elman.Bits(weights=8, operands=8, states=16)``,
            or 8 for these. ``calibrate`` tells how far values reach. None: float32.
    """

    engine: str
    heads: int
    plan: PlanOptions
    precision: Precision | None
    residual: bool
    clip_gradient: float | None
    learn_initial: bool
    zoneout: float | Mapping[str, float]
    recurrent_dropout: float
    recurrent_dropout_per: Per
    weight_dropout: float
    quantize: Bits | int | None


class ModuleOptions(nn.Module):
    """A module with options.

    Class attributes are the options of a module of torch's whose class was changed to elman's.
    """

    engine: str = "auto"
    heads: int = 1
    plan: PlanOptions = USUAL
    precision: Precision | None = None
    residual: bool = False
    clip_gradient: float | None = None
    learn_initial: bool = False
    zoneout: float | Mapping[str, float] = 0.0
    recurrent_dropout: float = 0.0
    recurrent_dropout_per: Per = "sequence"
    weight_dropout: float = 0.0
    quantize: Bits | None = None

    def _set_options(self, options: Options) -> None:
        """Check and set the options of all modules.

        Raises:
            InputError, EngineError: an option is invalid.
        """
        for name, check in _CHECKS.items():
            value = check(options.get(name, getattr(ModuleOptions, name)))
            if name not in ("plan", "quantize") or value != getattr(ModuleOptions, name):
                setattr(self, name, value)  # defaults would put their classes into saved files

    @property
    def _layer_options(self) -> PlanOptions:
        """The options with which each layer is compiled.

        Raises:
            InputError: an option is invalid.
        """
        options, precision = check_plan(self.plan).compiled, check_precision(self.precision)
        return options if precision is None else options.with_precision(precision)

    @property
    def _changes(self) -> tuple[Change, ...]:
        """Changes of the formula: dropout of states, zoneout, clipped gradients.

        Raises:
            InputError: an option is invalid.
        """
        changes: list[Change] = []
        dropped = RecurrentDropout(self.recurrent_dropout, self.recurrent_dropout_per)
        if dropped.share:
            changes.append(dropped)
        if isinstance(self.zoneout, Mapping):
            changes.append(Zoneout(tuple(self.zoneout.items())))
        elif check_share("zoneout", self.zoneout):
            changes.append(Zoneout(self.zoneout))
        if self.clip_gradient is not None:
            changes.append(ClippedGradient(self.clip_gradient))
        return tuple(changes)

    @property
    def _new_formula(self) -> list[str]:
        """Options in use that change a cell's formula."""
        options = [f"{self.heads} heads"] if self.heads != 1 else []
        if self.clip_gradient is not None:
            options.append(f"clip_gradient={self.clip_gradient}")
        options += [f"zoneout={self.zoneout}"] if self.zoneout else []
        if self.training and self.recurrent_dropout:
            options.append(f"recurrent_dropout={self.recurrent_dropout}")
        return options

    @property
    def _beyond_torch(self) -> list[str]:
        """Options in use that torch's own layers do not have."""
        options = [*self._new_formula, *["residual"] * self.residual]
        options += [f"without {name}" for name in sorted(check_plan(self.plan).without)]
        options += ["learn_initial"] if self.learn_initial else []
        options += ["quantize"] if self.quantize is not None else []
        if self.training and self.weight_dropout:
            options.append(f"weight_dropout={self.weight_dropout}")
        if self.plan.checkpoint is not None and torch.is_grad_enabled():
            options.append("checkpoint")
        return options


def check_bits(bits: Any) -> Bits | None:
    """The value of ``quantize``. Raises InputError: it is none."""
    if bits is None:
        return None
    if isinstance(bits, int) and not isinstance(bits, bool):
        bits = Bits(bits, bits)
    if not isinstance(bits, Bits):
        hint = "quantize=8, or elman.Bits(weights=8, operands=8, states=16)"
        raise InputError(f"quantize= is a number of bits, not {shown(bits)}", hint)
    for name, most in (("weights", 8), ("operands", 8), ("states", 16)):
        check_size(f"quantize: {name}", getattr(bits, name), 2, most)
    return bits


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "engine": check_engine,
    "heads": partial(check_size, "heads"),
    "plan": check_plan,
    "precision": check_precision,
    "residual": partial(check_flag, "residual"),
    "clip_gradient": lambda limit: None if limit is None else ClippedGradient(limit).limit,
    "learn_initial": partial(check_flag, "learn_initial"),
    "zoneout": lambda p: p if isinstance(p, Mapping) else check_share("zoneout", p),
    "recurrent_dropout": partial(check_share, "recurrent_dropout"),
    "recurrent_dropout_per": partial(
        check_choice, "recurrent_dropout_per", choices=("step", "sequence")
    ),
    "weight_dropout": partial(check_share, "weight_dropout"),
    "quantize": check_bits,
}
OPTIONS = tuple(_CHECKS)


def show_options(layers: Layers) -> Layers:
    """Add the options to a constructor's signature, for ``help`` and editors."""
    constructor: Any = layers.__init__
    signature = inspect.signature(constructor)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name, kind in Options.__annotations__.items():
        default, kind = getattr(ModuleOptions, name), getattr(kind, "__forward_arg__", kind)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=kind))
    further = signature.parameters.get("cell_arguments")
    parameters += [further] if further is not None else []
    constructor.__signature__ = signature.replace(parameters=parameters)
    return layers

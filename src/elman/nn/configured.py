"""What all modules take beside sizes, and torch's do not."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any, TypedDict, TypeVar, cast, get_args

from elman.checks import MOST_LAYERS, check_choice, check_flag, check_share, check_size
from elman.frontend.changes import (
    Change,
    ClippedGradient,
    RecurrentDropout,
    Zoneout,
)
from elman.frontend.draws import Per
from elman.nn.using import checked
from elman.plan.checkpoint import EVERYTHING, Checkpoint, Steps
from elman.plan.checkpoint import checked as checked_steps
from elman.plan.spec import PlanOptions, Tape

Layers = TypeVar("Layers", bound=type)


class Options(TypedDict, total=False):
    """What all modules take beside sizes, and torch's do not.

    Attributes:
        engine: a name; or ``"auto"``: what ``elman.using`` or ELMAN_ENGINE says, else the engine
            that benchmarks fastest.
        heads: so many copies of the formula side by side, each of hidden_size / heads units, that
            do not see each other's past: weights that multiply a state are block-diagonal, stored
            as [rows, columns / heads].
        tape: how much the forward keeps for the backward: ``"save"``, ``"auto"``,
            ``"recompute"``.
        residual: from the second layer on, a layer's input is added to its output.
        without: optimizations that are left out, to measure what they gain: names of
            ``elman.plan.spec.OPTIMIZATIONS``.
        checkpoint: the forward keeps the states of every so many steps and no tape, which the
            backward computes again: about one more forward, as long as so many steps of all
            samples are more rows than a weight has. ``"auto"``: the fewest spans that fit into
            the budget, or none if the whole tape fits.
        memory_budget: bytes, or as ``"2GiB"``, that states and tapes of all layers may take in a
            training step, beside inputs, outputs and gradients; with ``checkpoint="auto"``.
        clip_gradient: what flows from a step back into the states before it is held within
            [-clip_gradient, clip_gradient], component by component; None: as it is.
        learn_initial: what a sequence begins with that is given no state is learned: parameters
            ``initial_h`` … [layers · directions, H], zeros at first.
        zoneout: share of units that keep their old state in a step of training, of all states or by
            name, ``{"h": 0.05, "c": 0.5}``; the mean of both otherwise.
        recurrent_dropout: share of units of a state that are dropped, in training, where a weight
            matrix multiplies them.
        recurrent_dropout_per: ``"sequence"``: the same units in all steps; ``"step"``.
        weight_dropout: share of each matrix that multiplies what depends on a state that is dropped
            in a call in training.
    """

    engine: str
    heads: int
    tape: Tape
    residual: bool
    without: Collection[str]
    checkpoint: Steps
    memory_budget: int | str | None
    clip_gradient: float | None
    learn_initial: bool
    zoneout: float | Mapping[str, float]
    recurrent_dropout: float
    recurrent_dropout_per: Per
    weight_dropout: float


class Configured:
    """A module with options.

    Class attributes are what a module of torch's has whose class was changed to ours.
    """

    engine: str = "auto"
    heads: int = 1
    tape: Tape = "auto"
    residual: bool = False
    without: tuple[str, ...] = ()
    checkpoint: Steps = None
    memory_budget: int | None = None
    clip_gradient: float | None = None
    learn_initial: bool = False
    zoneout: float | Mapping[str, float] = 0.0
    recurrent_dropout: float = 0.0
    recurrent_dropout_per: Per = "sequence"
    weight_dropout: float = 0.0

    def _set_options(self: Any, options: Options) -> None:
        """Take the options that all modules have.

        Raises:
            InputError, EngineError: one cannot be so.
        """
        plan = PlanOptions.of(options.get("tape", "auto"), options.get("without", ()))
        self.engine = checked(options.get("engine", "auto"))
        self.heads = check_size("heads", options.get("heads", 1))
        self.tape, self.without = plan.tape, tuple(sorted(plan.without))
        self.residual = check_flag("residual", options.get("residual", False))
        self.checkpoint, self.memory_budget = checked_steps(
            options.get("checkpoint"), options.get("memory_budget")
        )
        limit = options.get("clip_gradient")
        self.clip_gradient = None if limit is None else ClippedGradient(limit).limit
        self.learn_initial = check_flag("learn_initial", options.get("learn_initial", False))
        kept = options.get("zoneout", 0.0)
        self.zoneout = kept if isinstance(kept, Mapping) else check_share("zoneout", kept)
        self.recurrent_dropout = check_share(
            "recurrent_dropout", options.get("recurrent_dropout", 0.0)
        )
        per = check_choice(
            "recurrent_dropout_per",
            options.get("recurrent_dropout_per", "sequence"),
            get_args(Per),
        )
        self.recurrent_dropout_per = cast(Per, per)
        self.weight_dropout = check_share("weight_dropout", options.get("weight_dropout", 0.0))

    @property
    def _changes(self) -> tuple[Change, ...]:
        """How states are read and written otherwise than the formula says.

        Raises:
            InputError: an option cannot be so.
        """
        found: list[Change] = []
        dropped = RecurrentDropout(self.recurrent_dropout, self.recurrent_dropout_per)
        if dropped.share:
            found.append(dropped)
        if isinstance(self.zoneout, Mapping):
            found.append(Zoneout(tuple(self.zoneout.items())))
        elif check_share("zoneout", self.zoneout):
            found.append(Zoneout(self.zoneout))
        if self.clip_gradient is not None:
            found.append(ClippedGradient(self.clip_gradient))
        return tuple(found)

    @property
    def _checkpoint(self) -> Checkpoint:
        """``checkpoint`` and ``memory_budget`` as they are set now."""
        if self.checkpoint is None:
            return EVERYTHING
        steps, budget = checked_steps(self.checkpoint, self.memory_budget)
        return Checkpoint(0 if steps == "auto" or steps is None else steps, budget or 0)


def signed(layers: Layers) -> Layers:
    """A class whose constructor shows each option, as ``help`` and editors ask for it."""
    made: Any = layers.__init__
    signature = inspect.signature(made)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name, kind in Options.__annotations__.items():
        default = getattr(Configured, name)
        kind = getattr(kind, "__forward_arg__", kind)
        own.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
        )
    made.__signature__ = signature.replace(parameters=own)
    return layers


def limited(num_layers: Any) -> Any:
    """``num_layers`` for torch, which refuses what is none, and makes any number of layers.

    Raises:
        InputError: there are too many to be made.
    """
    if isinstance(num_layers, int) and num_layers > MOST_LAYERS:
        check_size("num_layers", num_layers, 1, MOST_LAYERS)
    return num_layers


def unknown(options: Any) -> dict[str, Any]:
    """Options that elman does not have, for torch's own error message."""
    return {name: options[name] for name in options if name not in Options.__annotations__}

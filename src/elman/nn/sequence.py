"""The front door: one way in and out of every module that runs a cell over sequences."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils.rnn import PackedSequence

from elman.errors import InputError
from elman.frontend.changes import (
    Change,
    ClippedGradient,
    RecurrentDropout,
    Zoneout,
    check_share,
)
from elman.frontend.draws import Per
from elman.ir.types import dim_size
from elman.nn.autograd.transforms import transformed
from elman.nn.compile.operator import run_compiled
from elman.nn.dense import check_dense
from elman.nn.dispatch import Runner
from elman.nn.draws import Draws, draw_keys, packed_keys
from elman.nn.handing import Outputs
from elman.nn.layered import Formula
from elman.nn.options import Option
from elman.nn.reset import Reset, ResetTo, check_flags, reset_mask, reset_start
from elman.nn.runners import runners_of
from elman.nn.signature import Layout, Signature
from elman.nn.stack import Stack
from elman.nn.states import one_or_all
from elman.nn.using import autocast_type, checked, serves
from elman.passes.draws import draws_of
from elman.plan.checkpoint import EVERYTHING, Checkpoint, Steps
from elman.plan.checkpoint import checked as checked_steps
from elman.plan.spec import PlanOptions, Tape

PARTS = "_parts"  # the attribute that no copy and no pickle has


class Options(TypedDict, total=False):
    """What all modules take beside sizes, and torch's do not.

    Attributes:
        engine: ``"auto"`` (benchmarked), or a name; ``elman.using`` and ELMAN_ENGINE override it.
        heads: groups of units that do not see each other's past: weights that multiply a state are
            block-diagonal, stored as [rows, columns / heads].
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


class Parts(NamedTuple):
    """What follows from a module's cell, sizes and options.

    Attributes:
        runners: one per layer and direction, by the suffix of its weights' names: ``l0``,
            ``l0_reverse`` …
        stack: of them.
        names: of the parameters of each.
        signature: what the module takes.
        draws: how often cells draw random numbers anew: per ``step``, per ``sequence``.
    """

    runners: dict[str, Runner]
    stack: Stack
    names: list[list[str]]
    signature: Signature
    draws: tuple[str, ...] = ()


class Prepared(NamedTuple):
    """A call whose arguments have been checked.

    Attributes:
        inputs, states, layout: as of :class:`Opened`.
        weights: of each layer and direction.
        mask: of resets, in the inner layout; None if there are none.
        lengths: of a padded batch that is packed only inside a compiled program.
        cast: what the results are cast to; None: as they are.
        learned: initial states [layers · directions, 1, n], laid out as ``states``; None if they
            are not learned.
        given: whether states were given.
    """

    inputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    layout: Layout
    weights: list[list[Tensor]]
    mask: Tensor | None
    lengths: Any
    cast: torch.dtype | None
    learned: tuple[Tensor, ...] | None
    given: bool


class SequenceModule:
    """What RNN, GRU, LSTM and Recurrent share.

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
    _parts: Parts | None = None

    def _set_options(self: Any, options: Options) -> None:
        """Take the options that all modules have.

        Raises:
            InputError, EngineError: one cannot be so.
        """
        plan = PlanOptions.of(options.get("tape", "auto"), options.get("without", ()))
        self.engine, self.heads = checked(options.get("engine", "auto")), options.get("heads", 1)
        self.tape, self.without = plan.tape, tuple(sorted(plan.without))
        self.residual = bool(options.get("residual", False))
        self.checkpoint, self.memory_budget = checked_steps(
            options.get("checkpoint"), options.get("memory_budget")
        )
        self.clip_gradient = options.get("clip_gradient")
        self.learn_initial = bool(options.get("learn_initial", False))
        self.zoneout = options.get("zoneout", 0.0)
        self.recurrent_dropout = options.get("recurrent_dropout", 0.0)
        self.recurrent_dropout_per = options.get("recurrent_dropout_per", "sequence")
        self.weight_dropout = check_share(options.get("weight_dropout", 0.0), "weight_dropout")

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
        elif self.zoneout:
            found.append(Zoneout(self.zoneout))
        if self.clip_gradient is not None:
            found.append(ClippedGradient(self.clip_gradient))
        return tuple(found)

    @property
    def _asked(self) -> Checkpoint:
        """What is asked of the backward's memory now."""
        if self.checkpoint is None:
            return EVERYTHING
        steps, budget = checked_steps(self.checkpoint, self.memory_budget)
        return Checkpoint(0 if steps == "auto" or steps is None else steps, budget or 0)

    def _formula(self) -> Formula:
        """The cell of all layers, the size of its first state, and those of its other dims."""
        raise NotImplementedError

    def _formulas(self: Any) -> list[Formula]:
        """The same of each layer, lowest first."""
        return [self._formula()] * self.num_layers

    def _parameter_names(self, runners: Mapping[str, Runner]) -> list[list[str]]:
        """The names of the weights of each layer and direction, in its cell's order.

        Args:
            runners: of each, by the suffix of the names.
        """
        raise NotImplementedError

    def _make_parts(self: Any) -> Parts:
        """Make what follows from the cell, the sizes and the options."""
        two, options = bool(self.bidirectional), PlanOptions(self.tape, frozenset(self.without))
        runners = runners_of(self._formulas(), self.input_size, two, bool(self.residual), options)
        signature = Signature.of({name: (r.cell, dict(r.dims)) for name, r in runners.items()})
        return Parts(
            runners,
            Stack(
                list(runners.values()), 1 + two, not self.residual, signature.form, signature.takes
            ),
            self._parameter_names(runners),
            signature,
            draws_of([runner.cell.graph for runner in runners.values()]),
        )

    @property
    def parts(self) -> Parts:
        """What follows from the cell, the sizes and the options, made when first asked for."""
        if self._parts is None:
            self._parts = self._make_parts()
        return self._parts

    @property
    def stack(self) -> Stack:
        """Who runs the layers."""
        return self.parts.stack

    @property
    def runners(self) -> dict[str, Runner]:
        """Who runs each layer and direction, by the suffix of its weights' names: ``l0``,
        ``l0_reverse`` …"""
        return self.parts.runners

    @property
    def output_size(self: Any) -> int:
        """Size of the output (of several the first): the last layer's cell's times the number of
        directions."""
        runner = self.parts.stack.runners[-1]
        shape = runner.cell.graph.output.shape
        directions = 2 if self.bidirectional else 1
        return dim_size(shape[0], dict(runner.dims)) * directions if shape else 1

    def step(
        self: Any,
        x: Any,
        state: Any = None,
        *,
        reset: Tensor | None = None,
        static: Any = None,
    ) -> tuple[Tensor, Any]:
        """Run one step of a stream.

        Without gradients, weights are used as they lie in memory: nothing is packed or kept.

        Args:
            x [B, I]: the input now, or a tuple of inputs; [I] unbatched; a scalar input is [B].
            state: what the step before returned, as for :meth:`forward`; zeros (or what is learned)
                if omitted.
            reset [B]: samples whose state becomes that before the step.
            static [B, S]: of a cell with static inputs, as for :meth:`forward`.

        Returns:
            out [B, H]: the last layer's output; [H] unbatched.
            state: to be given to the next step.

        Raises:
            InputError: the module is bidirectional, or x has the wrong rank.
            ShapeError: x or reset has the wrong size.
        """
        if self.bidirectional:
            raise InputError(
                "step: a bidirectional module needs the whole sequence, from its end as well"
            )
        several = isinstance(x, (tuple, list))
        values = tuple(x) if several else (x,)
        if not values or not all(isinstance(value, Tensor) for value in values):
            raise InputError("step: x is a tensor, or a tuple of tensors")
        for value in values:
            check_dense(value, "step: x")
        rank, dims = self._rank - 1, values[0].dim()
        if dims not in (rank, rank - 1):
            raise InputError(
                f"step: x must have {rank} dimensions (or {rank - 1}, unbatched), got {dims}: "
                f"the axis of time is left out"
            )
        axis = 1 if self.batch_first and dims == rank else 0
        row = tuple([value.unsqueeze(axis) for value in values])
        more: dict[str, Any] = {} if static is None else {"static": static}
        if reset is not None:
            check_flags(reset, values[0].shape[: dims - rank + 1])
            more["reset"] = reset.unsqueeze(axis)
        out, after = self(row if several else row[0], state, **more)
        outs = [part.squeeze(axis) for part in (out if isinstance(out, tuple) else (out,))]
        return one_or_all(outs), after

    @property
    def _rank(self) -> int:
        """Dims of a batch of the first input."""
        return 2 + len(self.parts.signature.inputs[0][1])

    def _weights(self: Any) -> list[list[Tensor]]:
        """The weights of each layer and direction as they are now: parameters, or what stands in
        their place (parametrizations)."""
        own = self._parameters
        return [
            [getattr(self, name) if (weight := own.get(name)) is None else weight for name in names]
            for names in (self._parts or self.parts).names
        ]

    def _make_initial(self: Any, device: Any, dtype: torch.dtype | None) -> None:
        """Make parameters of the initial states, if they are learned: zeros."""
        if self.learn_initial:
            signature = self.parts.signature
            for name, sizes in signature.states:
                zeros = torch.zeros(signature.lead, *sizes, device=device, dtype=dtype)
                self.register_parameter(f"initial_{name}", Parameter(zeros))

    def _initial(self: Any) -> list[Tensor]:
        """Initial states that are learned, [layers · directions, n], or [1, n] of each layer and
        direction with its own; none if they are not."""
        if not self.learn_initial:
            return []
        return [getattr(self, f"initial_{name}") for name, _ in self.parts.signature.states]

    def _prepared(
        self: Any,
        x: Any,
        state: Any,
        lengths: Any,
        reset: Any,
        weights: list[list[Tensor]],
        static: Any = None,
    ) -> Prepared:
        """Check all arguments and bring them into the inner layout, in one type.

        Under autocast that is autocast's, as of torch's layers; where no engine computes in it, the
        results alone have it.

        Raises:
            ShapeError, InputError: as ``forward``.
        """
        like = weights[0][0] if weights[0] else None
        cast: torch.dtype | None = None
        if torch._C._is_any_autocast_enabled():
            kind = _device(x if like is None else like)
            half = autocast_type(kind)
            if half is not None:
                cast = half
                drawn = self.training and (self._parts or self.parts).draws
                kept = like is not None and (drawn or not serves(kind, half))
                computed = like.dtype if like is not None and kept else half
                x, state, weights, static = [
                    _cast(value, computed) for value in (x, state, weights, static)
                ]
                like = None if like is None else _cast(like, computed)
        batch_first, later = self.batch_first, None
        if lengths is not None and torch.compiler.is_compiling():
            lengths, later = None, lengths
        parts: Parts = self._parts or self.parts
        opened = parts.signature.opened(x, state, like, batch_first, lengths, static)
        if later is not None and opened.layout.packing is not None:
            raise InputError("lengths go with padded tensors, not with a PackedSequence")
        mask = None if reset is None else reset_mask(reset, x, opened, batch_first)
        inputs, states, layout = opened
        learned = None
        if self.learn_initial:
            dtype = states[0].dtype
            learned = tuple([value.unsqueeze(1).to(dtype) for value in self._initial()])
            if state is None:
                states = tuple([v.expand(s.shape) for v, s in zip(learned, states, strict=True)])
        return Prepared(
            inputs, states, layout, weights, mask, later, cast, learned, state is not None
        )

    def _run(
        self: Any,
        prepared: Prepared,
        engine: str,
        reset_to: ResetTo | None,
        outputs: Outputs = None,
    ) -> tuple[list[Any], tuple[Tensor, ...]]:
        """Run all layers.

        Returns:
            Every value that the last layer hands out, and the last states.

        Raises:
            EngineError: as ``forward``.
        """
        inputs, states, layout, weights, mask, lengths, cast, learned, given = prepared
        _, stack, _, signature, per = self._parts or self.parts
        if cast is not None:
            with torch.autocast(inputs[0].device.type, enabled=False):
                results = self._run(prepared._replace(cast=None), engine, reset_to, outputs)
            return _cast(results, cast)
        share = self.dropout if self.training else 0.0
        if self.training and self.weight_dropout:
            weights = self._dropped(weights)
        per = per if self.training else ()
        resets = None
        start = reset_start(reset_to, self.learn_initial, given)
        if mask is not None:
            resets = Reset(mask, start)
            one_step = layout.packing is None and inputs[0].shape[0] == 1
            if one_step and not self.bidirectional:
                states, mask, resets = resets.only_step(states, learned), None, None
        if mask is not None and start == "learned" and learned is not None:
            rows = signature.form.rows([value.squeeze(1) for value in learned])
            weights = [[*own, *row] for own, row in zip(weights, rows, strict=True)]
        if torch.compiler.is_compiling() and layout.packing is None:
            flags = None if mask is None else (mask, start)
            made, last = run_compiled(
                self,
                inputs,
                states,
                weights,
                engine,
                share,
                self.residual,
                lengths,
                flags,
                self._asked,
                outputs,
                per,
            )
            return signature.closed(made, last, layout)
        options: list[Option] = [Draws(per, self._keys(per, prepared))] if per else []
        if resets is not None:
            options.append(resets)
        every = (*inputs, *states, *[weight for group in weights for weight in group])
        seen_through = transformed(every) is not None
        made, last = stack.run(
            inputs,
            states,
            weights,
            engine if engine == "reference" or not seen_through else None,
            share,
            self.residual,
            None if layout.packing is None else layout.packing.packed,
            options,
            EVERYTHING if seen_through else self._asked,
            outputs,
        )
        return signature.closed(made, last, layout)

    def _dropped(self: Any, weights: list[list[Tensor]]) -> list[list[Tensor]]:
        """The weights of a call, of those that multiply what depends on a state some dropped
        (Wan et al. 2013; Merity, Keskar & Socher 2018, arXiv:1708.02182v1, sec. 2)."""
        dropped: list[list[Tensor]] = []
        for runner, own in zip(self.parts.stack.runners, weights, strict=True):
            cell = runner.cell
            chosen = (cell.whole or cell).division.blocks - cell.constants
            dropped.append(
                [
                    torch.dropout(value, self.weight_dropout, True) if e.name in chosen else value
                    for e, value in zip(cell.weights, own)
                ]
            )
        return dropped

    def _keys(self: Any, per: tuple[str, ...], prepared: Prepared) -> list[Tensor]:
        """Keys for the random numbers of a call, of padded sequences as of the whole batch."""
        like, (packing, padding) = prepared.inputs[0], prepared.layout[2:]
        lead, batch = len(self.runners), prepared.states[0].shape[1]
        rows = (padding.steps, batch) if padding is not None else like.shape[: 1 + (not packing)]
        keys = draw_keys(per, lead, rows, batch, like.dtype, like.device)
        if padding is None or packing is None:
            return keys
        return packed_keys(per, keys, padding, packing)

    def _handed_out(
        self, made: list[Any], last: tuple[Tensor, ...], outputs: Outputs
    ) -> tuple[Any, ...]:
        """Results as ``forward`` returns them: a tuple of what there are several of.

        Args:
            made, last: as of :meth:`_run`.
            outputs: as of a call.
        """
        handing, form = self.parts.stack.handing(outputs), self.parts.signature.form
        out = one_or_all([made[k] for k in handing.outputs])
        if outputs is None:
            return out, form.closed(last)
        return out, one_or_all([made[k] for k in handing.states]), form.closed(last)


def named(x: Any, state: Any, input: Any, hx: Any) -> tuple[Any, Any]:
    """x and the state, under our names or under torch's.

    Raises:
        TypeError: one is there under both; or there is no x.
    """
    for ours, theirs, names in ((x, input, "x and input"), (state, hx, "state and hx")):
        if ours is not None and theirs is not None:
            raise TypeError(f"forward() got {names}, which are the same argument")
    if x is None and input is None:
        raise TypeError("forward() missing 1 required argument: 'x'")
    return (input if x is None else x), (hx if state is None else state)


def _device(value: Any) -> str:
    """torch's device type of a tensor, of packed rows, or of the first of several."""
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value.device.type if isinstance(value, Tensor) else "cpu"


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Tensors as autocast casts them: all floating-point ones but float64; in lists and tuples."""
    if isinstance(value, Tensor):
        wide = value.dtype is torch.float64 or not value.is_floating_point()
        return value if wide else value.to(dtype)
    if isinstance(value, PackedSequence):
        return value._replace(data=_cast(value.data, dtype))
    if isinstance(value, (tuple, list)):
        return type(value)([_cast(part, dtype) for part in value])
    return value

"""The front door: one way in and out of every module that runs a cell over sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from elman.checks import check_size
from elman.errors import InputError, diagnostic
from elman.ir.types import dim_size
from elman.nn.arguments import Marks, Prepared, cast_to, device_type
from elman.nn.autograd.transforms import transformed
from elman.nn.call_cache import LayerCallCache
from elman.nn.compile.names import key_of
from elman.nn.compile.traced import run_compiled
from elman.nn.configured import Configured
from elman.nn.dense import row_of
from elman.nn.dispatch import Runner
from elman.nn.draws import Draws, check_draws, draw_keys, draws_to_keep, keys_of, packed_keys
from elman.nn.flags import check_flags
from elman.nn.layered import Formula
from elman.nn.mask import Mask, without_masked
from elman.nn.options import Option
from elman.nn.outputs import Outputs, RunSettings
from elman.nn.parts import Parts
from elman.nn.reset import Reset, reset_start
from elman.nn.runners import begins_otherwise, multiplies_states, runners_of
from elman.nn.signature import Signature
from elman.nn.stack import Stack
from elman.nn.states import one_or_all
from elman.nn.using import HALVES, autocast_type, serves
from elman.passes.draws import draws_of
from elman.plan.checkpoint import EVERYTHING
from elman.plan.spec import PlanOptions
from elman.torch_internals import autocast_enabled


class SequenceModule(Configured):
    """What RNN, GRU, LSTM and Recurrent share."""

    _parts: Parts | None = None

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
        stack = Stack(
            list(runners.values()), 1 + two, not self.residual, signature.form, signature.takes
        )
        names = self._parameter_names(runners)
        draws = draws_of([runner.cell.graph for runner in runners.values()])
        begins = self.learn_initial or any(map(begins_otherwise, runners.values()))
        call_cache = LayerCallCache(stack, signature, names, draws, not begins)
        recurrent = [multiplies_states(runner.cell) for runner in runners.values()]
        return Parts(
            runners, stack, key_of(stack), names, signature, call_cache, recurrent, draws, begins
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
        mask: Tensor | None = None,
        static: Any = None,
        draws: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Run one step of a stream.

        Without gradients, weights are used as they lie in memory: nothing is packed or kept.

        Args:
            x [B, I]: the input now, or a tuple of inputs; [I] unbatched; a scalar input is [B].
            state: what the step before returned, as for :meth:`forward`; zeros (or what is learned)
                if omitted.
            reset [B]: samples whose state becomes that before the step.
            mask [B]: samples whose state stays as it is where it is 0, as for :meth:`forward`.
            static [B, S]: of a cell with static inputs, as for :meth:`forward`.
            draws [B, layers·directions, n]: the random numbers of the step, ``draws[t]`` of
                :meth:`draws`; [layers·directions, n] unbatched.

        Returns:
            out [B, H]: the last layer's output; [H] unbatched.
            state: to be given to the next step.

        Raises:
            InputError: the module is bidirectional, or x has the wrong rank; draws are given where
                nothing is drawn.
            ShapeError: x, reset, mask or draws has the wrong size.
        """
        if self.bidirectional:
            raise InputError(
                "step: a bidirectional module needs the whole sequence, from its end as well"
            )
        if static is not None:
            self.parts.signature.check_static()
        several, rank = isinstance(x, (tuple, list)), self._rank - 1
        values = row_of(x, rank)
        dims = values[0].dim()
        axis = 1 if self.batch_first and dims == rank else 0
        row = tuple([value.unsqueeze(axis) for value in values])
        more: dict[str, Any] = {} if static is None else {"static": static}
        for name, flags in (("reset", reset), ("mask", mask)):
            if flags is not None:
                check_flags(name, flags, values[0].shape[: dims - rank + 1])
                more[name] = flags.unsqueeze(axis)
        if draws is not None:
            check_flags("draws", draws, values[0].shape[: dims - rank + 1], self._halves())
            more["draws"] = draws.unsqueeze(axis)
        out, after = self(row if several else row[0], state, **more)
        outs = [part.squeeze(axis) for part in (out if isinstance(out, tuple) else (out,))]
        return one_or_all(outs), after

    def draws(self: Any, steps: int, batch: int | None = None) -> Tensor:
        """Draw the random numbers of a call, or of so many steps, to be given to it.

        ``net(x, draws=net.draws(T, B))`` is ``net(x)`` of the same seed. A rollout whose steps had
        ``draws[t]`` is run again, as a whole, by an update that is given ``draws``, or those of
        some samples, ``draws[:, rows]``. They decide all that the cells draw, not torch's dropout
        between layers (``dropout=``), nor ``weight_dropout=``.

        Args:
            steps: T.
            batch: B; none for a single sequence, unbatched.

        Returns:
            [T, B, layers·directions, n], or [B, T, ..] with ``batch_first``, of int32, where the
            module's weights are: n = 2 halves of a key, 24 bits each, from which all numbers of a
            step follow; 4, the second key last, where cells draw both per step and per sequence.
            A key per sequence stands at all steps alike, so it is indexed as the others, and a step
            uses the one it is given. A direction that runs from the end takes them from the
            beginning in its own order: the first is of its first step. They are drawn in ``eval()``
            too, and can be given where the module trains.

        Raises:
            InputError: the module draws nothing, or T or B is no size.

        Example:
            >>> net = elman.GRU(8, 16, zoneout=0.1)
            >>> x, draws = torch.randn(5, 2, 8), net.draws(5, 2)
            >>> state, outs = None, []
            >>> for t in range(5):
            ...     out, state = net.step(x[t], state, draws=draws[t])
            ...     outs.append(out)
            >>> torch.allclose(torch.stack(outs), net(x, draws=draws)[0], atol=1e-6)
            True
        """
        parts: Parts = self.parts
        check_draws(parts.draws, True, parts.signature.cell)
        check_size("steps", steps)
        check_size("batch", 1 if batch is None else batch)
        like = next((value for own in self._weights() for value in own), None)
        device, lead = None if like is None else like.device, len(parts.runners)
        made = draws_to_keep(parts.draws, lead, steps, batch or 1, device)
        if batch is None:
            return made.squeeze(1)
        return made.transpose(0, 1).contiguous() if self.batch_first else made

    def _halves(self: Any) -> tuple[int, int]:
        """How many halves of keys a row has, by layers · directions.

        Raises:
            InputError: nothing is drawn.
        """
        parts: Parts = self._parts or self.parts
        check_draws(parts.draws, self.training, parts.signature.cell)
        return len(parts.runners), 2 * len(parts.draws)

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

    def _settled_weights(self: Any) -> list[list[Tensor]]:
        """:meth:`_weights`, for what is made of them once.

        Raises:
            InputError: one is computed anew by a hook before each forward, and may be old.
        """
        for name in [name for own in self.parts.names for name in own]:
            if name in vars(self) and self._forward_pre_hooks:
                raise InputError(
                    diagnostic(
                        f"{name} is what a hook computed before the last forward",
                        [],
                        f"torch.nn.utils.prune.remove(net, {name!r}), or remove_weight_norm, "
                        "remove_spectral_norm",
                    )
                )
        return self._weights()

    def _make_initial(self: Any, device: Any, dtype: torch.dtype | None) -> None:
        """Make room for what sequences begin with: parameters if it is learned, else buffers."""
        signature = self.parts.signature
        for name, sizes in signature.states if self.parts.begins else ():
            zeros = torch.zeros(signature.lead, *sizes, device=device, dtype=dtype)
            if self.learn_initial:
                self.register_parameter(f"initial_{name}", Parameter(zeros))
            else:
                self.register_buffer(f"initial_{name}", zeros)

    def _initial(self: Any) -> list[Tensor]:
        """What a sequence begins with that is given no state, [layers · directions, n], or [1, n]
        of each layer and direction with its own; nothing where that is zeros."""
        parts: Parts = self._parts or self.parts
        if not parts.begins:
            return []
        return [getattr(self, f"initial_{name}") for name, _ in parts.signature.states]

    def _prepared(
        self: Any,
        x: Any,
        state: Any,
        lengths: Any,
        marks: Marks,
        weights: list[list[Tensor]],
        static: Any = None,
    ) -> Prepared:
        """Check all arguments and bring them into the inner layout, in one type.

        Under autocast that is autocast's, as of torch's layers; where no engine computes in it, the
        results alone have it. Random numbers are drawn in float32 at least, and so is the rest of a
        call that draws computed: a half of a key has 24 bits.

        Raises:
            ShapeError, InputError: as ``forward``.
        """
        like = weights[0][0] if weights[0] else None
        cast: torch.dtype | None = None
        if autocast_enabled():
            kind = device_type(x if like is None else like)
            half = autocast_type(kind)
            if half is not None:
                cast = half
                drawn = self.training and (self._parts or self.parts).draws
                kept = like is not None and (drawn or not serves(kind, half))
                computed = like.dtype if like is not None and kept else half
                x, state, weights, static = [
                    cast_to(value, computed) for value in (x, state, weights, static)
                ]
                like = None if like is None else cast_to(like, computed)
        batch_first, later = self.batch_first, None
        if lengths is not None and torch.compiler.is_compiling():
            lengths, later = None, lengths
        parts: Parts = self._parts or self.parts
        opened = parts.signature.opened(x, state, like, batch_first, lengths, static)
        if later is not None and opened.layout.packing is not None:
            raise InputError("lengths= is for padded tensors: a PackedSequence has its own lengths")
        halves = () if marks.draws is None else self._halves()
        marks = marks.laid_out(x, opened, batch_first, halves)
        inputs, states, layout = opened
        if marks.mask is not None and torch.is_grad_enabled():
            count = len(parts.signature.inputs)
            inputs = (*without_masked(inputs[:count], marks.mask), *inputs[count:])
        if parts.draws and self.training and inputs[0].dtype in HALVES:
            cast = cast or inputs[0].dtype
            inputs, states, weights = [
                cast_to(value, torch.float32) for value in (inputs, states, weights)
            ]
        learned = None
        if parts.begins:
            dtype = states[0].dtype
            learned = tuple([value.unsqueeze(1).to(dtype) for value in self._initial()])
            if state is None:
                states = tuple([v.expand(s.shape) for v, s in zip(learned, states, strict=True)])
        return Prepared(
            inputs, states, layout, weights, marks, later, cast, learned, state is not None
        )

    def _run(
        self: Any,
        prepared: Prepared,
        engine: str,
        outputs: Outputs = None,
    ) -> tuple[list[Any], tuple[Tensor, ...]]:
        """Run all layers.

        Returns:
            Every value that the last layer hands out, and the last states.

        Raises:
            EngineError: as ``forward``.
        """
        parts: Parts = self._parts or self.parts
        stack, signature, per = parts.stack, parts.signature, parts.draws
        if prepared.cast is not None:
            with torch.autocast(prepared.inputs[0].device.type, enabled=False):
                results = self._run(prepared._replace(cast=None), engine, outputs)
            return cast_to(results, prepared.cast)
        share = self.dropout if self.training else 0.0
        if self.training and self.weight_dropout:
            prepared = prepared._replace(weights=self._dropped(prepared.weights))
        prepared = self._begun(prepared)
        inputs, states, layout, weights, *_ = prepared
        settings = RunSettings(engine, share, self.residual, self._checkpoint, outputs)
        if torch.compiler.is_compiling() and layout.packing is None:
            drawn, key = per if self.training else (), parts.stack_key
            made, last = run_compiled(key, prepared, settings, drawn)
            return signature.closed(made, last, layout)
        every = (*inputs, *states, *[weight for group in weights for weight in group])
        if transformed(every) is not None:  # kernels that every transform goes through
            own = engine if engine == "reference" else None
            settings = settings._replace(engine=own, checkpoint=EVERYTHING)
        packed = None if layout.packing is None else layout.packing.packed
        options = self._options(prepared)
        made, last = stack.run(inputs, states, weights, settings, packed, options)
        return signature.closed(made, last, layout)

    def _begun(self: Any, prepared: Prepared) -> Prepared:
        """A call whose resets are an option of its layers, with what they reset states to; those of
        a call of one step have been done."""
        marks, learned = prepared.marks, prepared.learned
        if marks.reset is None:
            return prepared
        start = reset_start(marks.reset_to, learned is not None, prepared.given)
        if prepared.layout.packing is None and len(marks.reset) == 1 and not self.bidirectional:
            states = Reset(marks.reset, start).only_step(prepared.states, learned)
            return prepared._replace(states=states, marks=marks._replace(reset=None))
        if start == "learned" and learned is not None:
            rows = self.parts.signature.form.rows([value.squeeze(1) for value in learned])
            weights = [[*own, *row] for own, row in zip(prepared.weights, rows, strict=True)]
            prepared = prepared._replace(weights=weights)
        return prepared._replace(marks=marks._replace(reset_to=start))

    def _dropped(self: Any, weights: list[list[Tensor]]) -> list[list[Tensor]]:
        """The weights of a call, of those that multiply what depends on a state some dropped
        (Wan et al. 2013; Merity, Keskar & Socher 2018, arXiv:1708.02182v1, sec. 2)."""
        share = self.weight_dropout
        return [
            [
                torch.dropout(value, share, True) if some else value
                for some, value in zip(which, own)
            ]
            for which, own in zip(self.parts.recurrent, weights, strict=True)
        ]

    def _options(
        self: Any, prepared: Prepared, draw: Callable[..., list[Tensor]] = draw_keys
    ) -> list[Option]:
        """What changes the steps of a call, and adds to its arguments.

        Args:
            prepared: of :meth:`_begun`.
            draw: of the keys.
        """
        per: tuple[str, ...] = (self._parts or self.parts).draws if self.training else ()
        marks = prepared.marks
        options: list[Option] = []
        if marks.draws is not None:
            keys = keys_of(marks.draws, prepared.inputs[0].dtype)
            options.append(Draws(per, keys, given=True))
        elif per:
            options.append(Draws(per, self._keys(per, prepared, draw)))
        if marks.mask is not None:
            options.append(Mask(marks.mask))
        if marks.reset is not None:  # of steps that do not count, too
            options.append(Reset(marks.reset, marks.reset_to))
        return options

    def _keys(
        self: Any, per: tuple[str, ...], prepared: Prepared, draw: Callable[..., list[Tensor]]
    ) -> list[Tensor]:
        """Keys for the random numbers of a call, of padded sequences as of the whole batch."""
        like, (packing, padding) = prepared.inputs[0], prepared.layout[2:]
        lead, batch = len(self.runners), prepared.states[0].shape[1]
        rows = (padding.steps, batch) if padding is not None else like.shape[: 1 + (not packing)]
        keys = draw(per, lead, rows, batch, like.dtype, like.device)
        if padding is None or packing is None:
            return keys
        return packed_keys(keys, padding, packing)

    def _handed_out(
        self, made: list[Any], last: tuple[Tensor, ...], outputs: Outputs, marks: Marks
    ) -> tuple[Any, ...]:
        """Results as ``forward`` returns them: a tuple of what there are several of.

        Args:
            made, last: as of :meth:`_run`.
            outputs, marks: as of a call.
        """
        layout, form = self.parts.stack.output_layout(outputs), self.parts.signature.form
        values, states = layout.picked(made)
        out = one_or_all([marks.handed_out(value) for value in values])
        if outputs is None:
            return out, form.closed(last)
        return out, one_or_all(states), form.closed(last)

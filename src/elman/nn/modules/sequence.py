"""The base class of modules that run a cell over sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from math import prod
from typing import Any, Protocol, Unpack, runtime_checkable

import torch
from torch import Tensor
from torch.nn import Parameter

from elman.checks import check_size, shown
from elman.engines.time_shards import CUT, shards_time
from elman.errors import EngineError, InputError
from elman.frontend.cell import Cell
from elman.ir.types import dim_size
from elman.nn.call.cache import CallCache, Kind
from elman.nn.call.heads import Heads
from elman.nn.call.plan import Arguments, CallPlan, plan_call
from elman.nn.call.runtime import RUNTIME, Runtime
from elman.nn.compile.names import key_of
from elman.nn.engine_choice import check_trace, fixed_engine, requested_engine
from elman.nn.execute.layer import Formula, Runner
from elman.nn.execute.stack import Stack, heads_in_batch, runners_of
from elman.nn.layout.dense import row_of
from elman.nn.layout.layout import MatrixShapes, unwrap_single
from elman.nn.layout.signature import Signature, parts_of
from elman.nn.modules.calibration import CalibratedModule, grids
from elman.nn.options.base import check_sample_values
from elman.nn.options.draws import check_draws, draws_to_keep
from elman.nn.options.registry import STEP_OPTIONS, CallOptions, select_options
from elman.passes.draws import draws_of


@runtime_checkable
class StepModule(Protocol):
    """A module around a step that one of elman's layers runs: ``elman.Loop``."""

    def layer_call(self, x: Any, state: Any = None, **options: Any) -> tuple[Any, ...]:
        """The layer that runs a call, and x, state and options in that layer's form."""
        ...


class SequenceModule(CalibratedModule):
    """Base class of RNN, GRU, LSTM and Recurrent."""

    input_size: int
    hidden_size: Any
    num_layers: int

    def _parameter_names(self, runners: Mapping[str, Runner]) -> list[list[str]]:
        """The names of the weights of each layer and direction, in its cell's order.

        Args:
            runners: of each layer and direction, by the suffix of the names.
        """
        raise NotImplementedError

    def _make_runtime(self, formulas: list[Formula] | None = None) -> Runtime:
        """Build the state derived from the cell, the sizes and the options.

        Args:
            formulas: of the layers; default: those of the module, rounded if ``quantize`` says so.
        """
        two, options = bool(self.bidirectional), self._layer_options
        is_rounded = formulas is None and self._is_calibrated
        written = formulas or self._formulas()
        arguments = self.input_size, two, bool(self.residual), options
        runners = runners_of(written, *arguments)
        if is_rounded:
            runners = runners_of(self._rounded(written, runners), *arguments)
        signature = Signature.of({name: (r.cell, dict(r.dims)) for name, r in runners.items()})
        stack = Stack(
            list(runners.values()), 1 + two, not self.residual, signature.form, signature.takes
        )
        names = self._parameter_names(runners)
        cells = [runner.cell for runner in runners.values()]
        has_initial = self.learn_initial or any(s.name in c.init for c in cells for s in c.states)
        initial = [f"initial_{name}" for name, _ in signature.states] if has_initial else []
        ends = [0, *accumulate(map(len, names))]
        return Runtime(
            runners,
            stack,
            key_of(stack),
            names,
            signature,
            [slice(*pair) for pair in pairwise(ends)],
            CallCache([*chain.from_iterable(names), *initial]),
            [[weight.name in recurrent_of(cell) for weight in cell.weights] for cell in cells],
            draws_of([cell.graph for cell in cells]),
            has_initial,
            options,
            self._make_heads(runners, signature),
            [grids(r.cell, self.quantize) for r in runners.values()]
            if is_rounded and self.quantize is not None
            else None,
        )

    def _make_heads(self, runners: Mapping[str, Runner], signature: Signature) -> Heads | None:
        """Axes that are samples or matrices inside. Raises InputError: an option excludes heads
        that are samples."""
        count = heads_in_batch(self._formulas())
        if count > 1 and self.learn_initial:
            raise InputError(
                f"learn_initial=True: heads of {signature.cell} are samples, and all would begin "
                "with the same state",
                "a parameter S [layers, 1, heads, ·, ·] of yours: net(x, S.expand(-1, B, -1, …))",
            )
        if not any(runner.cell.graph.has_matrices for runner in runners.values()):
            return None
        layers = [(runner.cell, dict(runner.dims)) for runner in runners.values()]
        two = bool(self.bidirectional)
        shapes = MatrixShapes.of(layers, alike=signature.form.alike, bidirectional=two)
        return Heads.of(count, signature, shapes)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[misc]
        return {name: value for name, value in state.items() if name != RUNTIME}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({k: v for k, v in state.items() if k != RUNTIME})
        self._runtime = self._make_runtime()  # now, not while a compiler traces

    def follow_plan(self) -> None:
        """Make new runners if ``plan`` (tape or optimizations) or ``precision`` has changed.

        Raises:
            InputError: one of them is invalid.
        """
        if self._layer_options != self.runtime.options:
            self._runtime = self._make_runtime()

    @property
    def runtime(self) -> Runtime:
        """State derived from the cell, the sizes and the options, made at the first access."""
        if self._runtime is None:
            self._runtime = self._make_runtime()
        return self._runtime

    @property
    def stack(self) -> Stack:
        """The runners of all layers and directions, as a stack."""
        return self.runtime.stack

    @property
    def runners(self) -> dict[str, Runner]:
        """The runner of each layer and direction, by the suffix of its weights' names: ``l0``,
        ``l0_reverse`` …"""
        return self.runtime.runners

    @property
    def output_size(self) -> int:
        """Size of the (first) output: that of the last layer's cell, times the number of
        directions."""
        runner = self.runtime.stack.runners[-1]
        shape = runner.cell.graph.output.shape
        samples = heads_in_batch(self._formulas()) * (2 if self.bidirectional else 1)
        return dim_size(shape[0], dict(runner.dims)) * samples if shape else 1

    def step(self, x: Any, state: Any = None, **options: Unpack[CallOptions]) -> Any:
        """Run one step of a stream.

        Without gradients, kernels read weights in place: nothing is packed or kept.

        Args:
            x [B, I]: the input of the step, or a tuple of inputs; [I] unbatched; a scalar input is
                [B].
            state: the state that the previous step returned, as of :meth:`forward`: a tensor
                [layers, B, H] for each state of the cell; [layers, H] unbatched; default: see
                :meth:`forward`.
            options: ``static`` as for :meth:`forward`; ``reset`` [B], ``mask`` [B] and ``draws``
                [B, layers·directions, n] of this step, without B unbatched; ``reset_to="zeros"``.

        Returns:
            out [B, H]: the last layer's output; [H] unbatched.
            state: the argument of the next step.

        Raises:
            EngineError: a named engine cannot run it; or it is inside :func:`elman.shard_time`.
            InputError: the module is bidirectional, or x has the wrong rank; draws are passed to a
                module that draws nothing.
            ShapeError: x or an option has the wrong size.
            InputError: an option applies to whole sequences only.
        """
        if shards_time():
            raise EngineError(f"{CUT} have no single steps")
        if self.bidirectional:
            raise InputError(
                "step: a bidirectional module needs the whole sequence, from its end as well"
            )
        several, rank = isinstance(x, (tuple, list)), self._rank_of_row(x)
        values = row_of(x, rank)
        dims = values[0].dim()
        axis = 1 if self.batch_first and dims == rank else 0
        row = tuple([value.unsqueeze(axis) for value in values])
        call_options = select_options(options, "step")
        for name, value in call_options.items():
            option = STEP_OPTIONS.get(name)
            if option is not None:
                sizes = option.sizes(self.runtime, self.training)
                sizes = (*self.runtime.head_axis, *sizes) if sizes else ()
                check_sample_values(name, value, values[0].shape[: dims - rank + 1], sizes)
                call_options[name] = value.unsqueeze(axis)
            elif (name, value) != ("reset_to", "zeros") and name != "static":
                reason = f"step: {name}={shown(value)} is of a whole sequence"
                raise InputError(reason, "net.step(x, state, reset=flags)")
        if "static" in call_options:
            self.runtime.signature.check_static()
        out, after = self(row if several else row[0], state, **call_options)
        outs = [part.squeeze(axis) for part in (out if isinstance(out, tuple) else (out,))]
        return unwrap_single(outs), after

    def draws(self, steps: int, batch: int | None = None) -> Tensor:
        """Draw the random numbers of a call, to be passed to it.

        ``net(x, draws=net.draws(T, B))`` is ``net(x)`` of the same seed. An update repeats a
        rollout whose steps had ``draws[t]`` by a call with ``draws``, or, of some samples, with
        ``draws[:, rows]``. Draws determine all random numbers of the cells, but not torch's dropout
        between layers (``dropout=``), nor ``weight_dropout=``.

        Args:
            steps: T.
            batch: B; None for a single, unbatched sequence.

        Returns:
            [T, B, layers·directions, n], or [B, T, ..] with ``batch_first``, int32, on the device
            of the weights: n = 2 halves of a key, 24 bits each, which determines all numbers of a
            step; n = 4, the second key last, if cells draw both per step and per sequence. Heads
            that are samples have an axis of their own: [T, B, heads, layers·directions, n]. A key
            per sequence is repeated at all steps, so that it is indexed like the others. The
            reverse direction takes draws in its own order of time: the first ones for its first
            step. They can be drawn in ``eval()``, too, and used in training.

        Raises:
            InputError: the module draws nothing, or T or B is not a size.

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
        runtime: Runtime = self.runtime
        check_draws(runtime.draws, True, runtime.signature.cell)
        check_size("steps", steps)
        check_size("batch", 1 if batch is None else batch)
        like = next((value for weights in self._weights() for value in weights), None)
        device, lead = None if like is None else like.device, len(runtime.runners)
        heads = runtime.head_axis
        keys = draws_to_keep(runtime.draws, lead, steps, (batch or 1) * prod(heads), device)
        keys = keys.unflatten(1, (batch or 1, *heads)) if heads else keys
        if batch is None:
            return keys.squeeze(1)
        return keys.transpose(0, 1).contiguous() if self.batch_first else keys

    def _rank_of_row(self, x: Any) -> int:
        """Dims of a batch of the first input at one step, given inputs x of one step."""
        heads, first = self.runtime.heads, next(iter(parts_of(x)), None)
        if heads is not None and heads.count > 1 and isinstance(first, Tensor):
            place = heads.axes_before(first.shape, (1, 0))
            if place is not None:
                return first.dim() + 1 - place[0]
        return 1 + len(self.runtime.input_sizes[0])

    def _weights(self) -> list[list[Tensor]]:
        """The current weights of each layer and direction: parameters, or the values of their
        parametrizations."""
        weights = self._parameters
        return [
            [
                getattr(self, name) if (weight := weights.get(name)) is None else weight
                for name in names
            ]
            for names in (self._runtime or self.runtime).names
        ]

    def _current_weights(self) -> list[list[Tensor]]:
        """:meth:`_weights`, for a single use outside of a call.

        Raises:
            InputError: a hook recomputes one before each forward, so its value may be outdated.
        """
        for name in [name for names in self.runtime.names for name in names]:
            if name in vars(self) and self._forward_pre_hooks:
                raise InputError(
                    f"{name} is what a hook computed before the last forward",
                    f"torch.nn.utils.prune.remove(net, {name!r}), or remove_weight_norm, "
                    "remove_spectral_norm",
                )
        return self._weights()

    def _make_initial(self, device: Any, dtype: torch.dtype | None) -> None:
        """Register the default initial states: parameters if they are learned, else buffers."""
        signature = self.runtime.signature
        for name, sizes in signature.states if self.runtime.has_initial else ():
            zeros = torch.zeros(signature.lead, *sizes, device=device, dtype=dtype)
            if self.learn_initial:
                self.register_parameter(f"initial_{name}", Parameter(zeros))
            else:
                self.register_buffer(f"initial_{name}", zeros)

    def _initial(self) -> list[Tensor]:
        """Default initial states, [layers · directions, n], or [1, n] for each layer and direction
        if their states differ; empty for zeros."""
        runtime: Runtime = self._runtime or self.runtime
        if not runtime.has_initial:
            return []
        return [getattr(self, f"initial_{name}") for name, _ in runtime.signature.states]

    def _initial_beside(self, states: Sequence[Tensor]) -> list[Tensor]:
        """:meth:`_initial` in the axes of a caller's states: [lead, 1, .., *sizes]."""
        sizes = [size for _, size in (self.runtime.heads or self.runtime.signature).states]
        return [
            value.detach().reshape(len(value), *[1] * (state.dim() - 1 - len(size)), *size)
            for value, state, size in zip(self._initial(), states, sizes)
        ]

    def _forward(self, x: Any, state: Any, call_options: dict[str, Any]) -> tuple[Any, ...]:
        """:meth:`forward` with heads as samples, and matrices per sample as rows."""
        plans = self.runtime.plans
        kind = plans.kind_of(self, x, state, call_options)
        if kind is not None:
            plan = plans.find(kind)
            if plan is not None:
                return plan.run_again(self, x, state, call_options, kind.weights)
        if torch.compiler.is_compiling():
            engine = fixed_engine(self.engine)
        else:
            check_trace(type(self).__name__)
            engine = requested_engine(self.engine)
        return self._run(*plan_call(self, x, state, call_options, engine), kind)

    def _run(self, plan: CallPlan, arguments: Arguments, kind: Kind | None) -> tuple[Any, ...]:
        """Run a call, and keep its plan for further calls of its kind. For results see ``forward``.

        Raises:
            EngineError, InputError: see ``forward``.
        """
        results = plan.run(self, arguments)
        if kind is not None and self.runtime.plans.keep(kind, plan):
            plan.prepare(arguments.x, arguments.state, arguments.options, kind.weights)
        return results


def recurrent_of(cell: Cell) -> frozenset[str]:
    """The trained matrices of a cell that multiply state-dependent values."""
    return (cell.whole or cell).division.recurrent - cell.constants

"""Plans of calls: made once from the metadata of a call's arguments, run many times.

What is checked in a call, how its arguments are brought into the inner layout, and which kernels
run it, depends on the metadata of its tensors (never on their numbers), on the module's options and
on the modes of torch that are active. A :class:`CallPlan` is all of that. An eager call makes one
and runs it; a later call of the same kind runs the one that :mod:`elman.nn.call.cache` has kept;
torch's compiler traces one; ``explain`` prints what one asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.engines import registry
from elman.engines.call import Call
from elman.engines.precision import BF16, request_precision
from elman.engines.time_shards import CUT, shards_time
from elman.errors import EngineError, InputError, warn_once
from elman.nn.autograd.function import BoundKernel
from elman.nn.autograd.transforms import transform_reason
from elman.nn.call.runtime import CalledModule
from elman.nn.call.weights import Weights, drop_weights, round_weights
from elman.nn.compile.operator import draw_traced_keys, trace_layers
from elman.nn.engine_choice import HALVES, autocast_type, serves, traces_onnx
from elman.nn.execute.onnx import WITHIN, warn_of_fixed_batch, without_lengths
from elman.nn.execute.stack import Bound
from elman.nn.layout.layout import as_number, cast_to, device_type, unwrap_single
from elman.nn.layout.signature import parts_of
from elman.nn.options.base import check_step_values
from elman.nn.options.bound import BoundCall
from elman.nn.options.draws import DRAWS, draw_keys
from elman.nn.options.mask import masked_outputs
from elman.nn.options.outputs import Outputs, RunSettings
from elman.nn.options.registry import STEP_OPTIONS
from elman.nn.options.reset import begin_step
from elman.plan.checkpoint import EVERYTHING, Checkpoint
from elman.torch_internals import autocast_enabled, constant, saved_tensors_are_hooked


class Arguments(NamedTuple):
    """Arguments of a call, in the type that is computed in.

    Attributes:
        x, state, options: as the caller gives them; only options that say something.
        weights: of the module, of each layer and direction, as they are now.
    """

    x: Any
    state: Any
    options: Mapping[str, Any]
    weights: Weights


class CallPlan:
    """Everything that the metadata of a call decide.

    Args:
        module: that is called.
        arguments: of the call.
        engine: a name, or ``auto``.
        device: torch's device type.
        autocast: the type that autocast asks for.

    Attributes:
        results: under autocast the type of the results.
        precision: asked for by autocast, or by a module in bfloat16; empty: by neither.
        is_torchs: whether torch's own forward is what was chosen for every layer.

    Raises:
        ShapeError, InputError: an argument is not what the module takes.
    """

    def __init__(
        self,
        module: CalledModule,
        arguments: Arguments,
        engine: str,
        device: str,
        autocast: torch.dtype | None = None,
    ) -> None:
        x, state, options, weights = arguments
        runtime = self.runtime = module.runtime
        self.device, self.autocast, self.results = device, autocast, autocast or torch.float32
        self.training, self.directions = module.training, 1 + bool(module.bidirectional)
        like = weights[0][0] if weights[0] else None
        self.traced = torch.compiler.is_compiling()
        outputs: Outputs = options.get("outputs")
        lengths, signature = "lengths" in options, runtime.signature
        self.layout = signature.check(
            x, state, options.get("static"), like, module.batch_first, lengths and not self.traced
        )
        if lengths and self.traced and self.layout.packed:
            raise InputError("lengths= is for padded tensors: a PackedSequence has its own lengths")
        for name, option in STEP_OPTIONS.items():
            if name in options:
                sizes = option.sizes(runtime, self.training)
                check_step_values(name, options[name], parts_of(x)[0], self.layout, sizes)
        self.traced = self.traced and not self.layout.packed
        self.number_type = signature.number_type(x, like)
        self.draws = bool(runtime.draws) and self.training
        # a half of a key has 24 bits, so calls that draw are computed in float32 at least; so are
        # those that engines serve in float32 alone
        half = self.number_type in HALVES
        on_kernel = engine == "auto" and serves(device, torch.float32)
        self.wide = half and (self.draws or (on_kernel and not serves(device, self.number_type)))
        rounds = torch.bfloat16 in (autocast, self.number_type if self.wide else None)
        self.precision = BF16 if rounds and device == "cpu" else ""
        self.weight_dropout = module.weight_dropout if self.training else 0.0
        share = module.dropout if self.training else 0.0
        checkpoint = Checkpoint.of(module.plan.checkpoint, module.plan.memory_budget)
        self.settings = RunSettings(engine, share, module.residual, checkpoint, outputs)
        self.output_layout = runtime.stack.output_layout(outputs)
        self._bound: Bound = {}
        single = len(self.output_layout.shapes) == 1 and not any(
            runner.holds for runner in runtime.runners.values()
        )
        # a reset of a single step is one of the state, before a call without options
        alone = [*options] == ["reset"] and not (self.traced or self.layout.packed)
        self._begins = (
            alone
            and self.directions == 1
            and self.layout.time_major(options["reset"]).shape[0] == 1
        )
        self._usual = (  # inputs [T, B, n] alone go in, and nothing happens to them on their way
            single
            and signature.form.alike
            and not (options and not self._begins)
            and not (self.layout.packed or runtime.has_initial or self.draws or self.wide)
            and not (self.weight_dropout or runtime.grids or self.settings.between)
        )
        self._usual_kernel: BoundKernel | None = None
        self._zero_states: tuple[Tensor, ...] = ()  # of usual calls that are given no state
        self.is_torchs = False
        self._enters = True  # whether inputs are brought into the inner layout for them

    def enter(
        self,
        module: CalledModule,
        arguments: Arguments,
        draw: Callable[..., list[Tensor]] = draw_keys,
    ) -> BoundCall:
        """Bring the arguments of a call of this kind into the inner layout.

        Args:
            draw: of the keys of random numbers.

        Raises:
            ShapeError, InputError: lengths do not go with x.
        """
        x, state, options, weights = arguments
        runtime, layout, kind = self.runtime, self.layout, self.number_type
        lengths, sequences, static = options.get("lengths"), parts_of(x), options.get("static")
        rows = layout.rows(sequences[0], lengths)
        inputs = [as_number(layout.enter_steps(value, rows), kind) for value in sequences]
        batch = inputs[0].shape[1] if rows is None else rows.batch
        if static is not None:
            inputs += [as_number(layout.enter_static(v, rows), kind) for v in parts_of(static)]
        if self.wide:
            inputs, weights = cast_to((inputs, weights), torch.float32)
        initial: tuple[Tensor, ...] | None = None
        if runtime.has_initial:
            dtype = inputs[0].dtype
            initial = tuple([value.unsqueeze(1).to(dtype) for value in module._initial()])
        if state is not None:
            arrays = runtime.signature.form.arrays(state)
            states = tuple([as_number(layout.enter_state(v, rows), kind) for v in arrays])
            states = cast_to(states, torch.float32) if self.wide else states
        elif initial is not None:
            states = tuple([v.expand(v.shape[0], batch, *v.shape[2:]) for v in initial])
        else:
            states = self._zeros(batch, inputs[0])
        if self.weight_dropout:
            weights = drop_weights(weights, runtime.recurrent, self.weight_dropout)
        if runtime.grids is not None:
            weights = round_weights(weights, runtime.grids)
        call = BoundCall(
            runtime,
            self.training,
            self.directions,
            layout,
            options,
            tuple(inputs),
            states,
            weights,
            initial,
            state is not None,
            rows,
            torch.as_tensor(lengths) if self.traced and lengths is not None else None,
        )
        if self.draws and "draws" not in options:
            DRAWS.draw(call, draw)
        for name, option in STEP_OPTIONS.items() if options else ():
            if name in options:
                option.enter(layout.enter_steps(options[name], rows), call)
        return call

    def run(self, module: CalledModule, arguments: Arguments) -> tuple[Any, ...]:
        """Run a call of this kind.

        Returns:
            What ``forward`` returns.

        Raises:
            EngineError: the engine asked for by name cannot run this cell.
            ShapeError, InputError: as of :meth:`enter`; a memory budget is less than any way needs.
        """
        if self.autocast is not None and torch.is_autocast_enabled(self.device):
            with torch.autocast(self.device, enabled=False):
                return cast_to(self.run(module, arguments), self.results)
        batch: Any = 0
        if self.traced and self.layout.batched:
            batch = parts_of(arguments.x)[0].shape[0 if self.layout.batch_first else 1]
        call = self.enter(module, arguments, draw_traced_keys if self.traced else draw_keys)
        settings = self.settings
        if self.traced and shards_time():
            _warn_of_shards()
            raise EngineError(f"{CUT} are not compiled")
        if self.traced and traces_onnx():
            if self.draws:
                raise InputError("random numbers are those of training", "model.eval()")
            settings = settings._replace(engine=None, checkpoint=EVERYTHING)
            results = self.leave(call, *self.runtime.stack.run(call, settings, {}))
            warn_of_fixed_batch(batch, type(module).__name__)
            return results
        if self.traced:
            return self.leave(call, *trace_layers(call, settings, self.precision))
        if transform_reason(call.tensors) is not None:  # kernels that every transform goes through
            call.unshare()
            engine = settings.engine if settings.engine == "reference" else None
            settings = settings._replace(engine=engine, checkpoint=EVERYTHING)
        return self.leave(call, *self._run_stack(call, settings))

    def _run_stack(
        self, call: BoundCall, settings: RunSettings
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Run the stack with products of the requested precision; returns as :meth:`Stack.run`."""
        with request_precision(self.precision) if self.precision else nullcontext():
            return self.runtime.stack.run(call, settings, self._bound)

    def run_again(
        self,
        module: CalledModule,
        x: Any,
        state: Any,
        options: Mapping[str, Any],
        weights: Sequence[Tensor],
    ) -> tuple[Any, ...]:
        """Run a further call of this kind, whose tensors are plain ones.

        Args:
            weights: of all layers and directions, one after another.
        """
        # a prepared kernel saves other tensors than the first call; checkpoints count them
        if self._usual_kernel is not None and not saved_tensors_are_hooked():
            state = self._begun(state, options)
            return self._run_usual(self._usual_kernel, x, state, weights)
        layers = [weights[cut] for cut in self.runtime.cuts]
        call = self.enter(module, Arguments(x, state, options, layers))
        return self.leave(call, *self._run_stack(call, self.settings))

    def _begun(self, state: Any, options: Mapping[str, Any]) -> Any:
        """The caller's state, reset if the call has a single step."""
        if not self._begins or state is None:
            return state
        states = state if isinstance(state, (tuple, list)) else (state,)
        return begin_step(states, self.layout.time_major(options["reset"]))

    def prepare(
        self, x: Any, state: Any, options: Mapping[str, Any], weights: Sequence[Tensor]
    ) -> None:
        """After the first call, find what runs usual ones of this kind without further layouts: a
        kernel that the engine prepares (:meth:`Engine.prepare`), or that of a single layer.

        Args:
            x, state, options, weights: of the call, as of :meth:`run_again`.
        """
        groups = [*self._bound.values()]
        engines = {bound.kernel.engine for group in groups for bound in group.kernels}
        self.is_torchs = self._usual and not options and engines == {"aten"}
        single = len(groups) == 1 and len(groups[0].kernels) == 1
        if not (self._usual and single and self.directions == 1):
            return
        bound, layout, state = groups[0].kernels[0], self.layout, self._begun(state, options)
        kernel, inputs = bound.kernel, tuple([layout.time_major(value) for value in parts_of(x)])
        states = (
            [layout.enter_state(value, None) for value in parts_of(state)]
            if state is not None
            else []
        )
        if any(value.dtype is torch.bool for value in (*inputs, *states)):
            return  # masks become numbers in each call
        starts = tuple(states) or self._zeros(inputs[0].shape[1], inputs[0])
        if all(tensor.is_contiguous() for tensor in (*inputs[1:], *states, *weights)):
            call = Call(inputs, starts, tuple(weights), stacked=True)
            kernel = registry.find(kernel.engine).prepare(kernel, call)
        if kernel is not bound.kernel:  # it writes to no state
            self._zero_states = () if states else starts
        elif len(self.runtime.runners) > 1:
            return
        self._enters = bound.training or kernel is bound.kernel
        self._usual_kernel = bound._replace(kernel=kernel)

    def _run_usual(
        self, kernel: BoundKernel, x: Any, state: Any, weights: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        """Run a usual call; inputs lie as the caller has them."""
        states = () if state is None else state if isinstance(state, (tuple, list)) else (state,)
        batched, batch_first = self.layout.batched, self.layout.batch_first
        inputs = (x,) if isinstance(x, Tensor) else tuple(x)
        if self._enters and (batch_first or not batched):
            inputs = tuple([self.layout.time_major(value) for value in inputs])
        if not batched:
            states = [value.unsqueeze(1) for value in states]
        starts = tuple(states) or self._zero_states or self._zeros(inputs[0].shape[1], inputs[0])
        output, last, _ = kernel.run(Call(inputs, starts, tuple(weights), None, True))
        if not batched:
            output, last = output.squeeze(1), tuple([value.squeeze(1) for value in last])
        elif batch_first:
            output = output.transpose(0, 1)
        return output, last[0] if len(last) == 1 else last

    def leave(
        self, call: BoundCall, output: Sequence[Tensor], last: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        """Results as the caller has them.

        Args:
            call: that has been run.
            output: every value that the last layer hands out, in the inner layout.
            last: the last states.
        """
        layout, rows, options = self.layout, call.rows, call.options
        values, states = [
            [layout.leave_steps(value, rows) for value in group]
            for group in self.output_layout.select(output)
        ]
        last = layout.leave_states(last, rows)
        if self.wide:
            values, states, last = cast_to((values, states, last), self.number_type)
        if options.get("masked_output") == "zeros":
            values = [masked_outputs(value, options["mask"]) for value in values]
        if WITHIN in options:  # lengths= of a call that is exported
            values, states = (
                [masked_outputs(value, options[WITHIN]) for value in group]
                for group in (values, states)
            )
        out, end = unwrap_single(values), self.runtime.signature.form.nest(last)
        return (out, end) if self.settings.outputs is None else (out, unwrap_single(states), end)

    def _zeros(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """States [lead, B, n] of zeros."""
        signature = self.runtime.signature
        lead = signature.lead
        return tuple([like.new_zeros(lead, batch, *sizes) for _, sizes in signature.states])


@constant  # called while the compiler traces, which takes the error behind it for a graph break
def _warn_of_shards() -> bool:
    """Warn that a call inside of ``shard_time`` runs as without torch.compile."""
    warn_once(f"{CUT} are not compiled: they run as without torch.compile")
    return True


def plan_call(
    module: CalledModule, x: Any, state: Any, options: Mapping[str, Any], engine: str
) -> tuple[CallPlan, Arguments]:
    """Check a call and plan it; arguments as of ``forward`` and :class:`CallPlan`.

    Under autocast it is computed in autocast's type, as torch's layers are; where no engine does,
    in the weights', and the results alone have autocast's. Formulas without weights, which torch
    would compute with states in float32, are computed in float32.

    Raises:
        ShapeError, InputError: an argument is not what the module takes.
    """
    module.follow_plan()
    module.check_calibrated()
    if traces_onnx() and module.runtime.grids is not None:
        raise InputError("quantize= has no ONNX", "elman.export.to_c(net, folder)")
    if traces_onnx() and "lengths" in options:
        options = without_lengths(x, options, module.batch_first)
    weights = module._weights()
    device = device_type(weights[0] or x)
    half = autocast_type(device) if autocast_enabled() else None
    if half is not None:
        half = half if weights[0] else torch.float32
        draws_numbers = module.training and module.runtime.draws
        keeps = len(weights[0]) > 0 and (draws_numbers or not serves(device, half))
        keeps = keeps or module.runtime.grids is not None  # whose numbers need 24 bits
        computed = weights[0][0].dtype if keeps else half
        x, state, weights = [cast_to(value, computed) for value in (x, state, weights)]
        if "static" in options:
            options = {**options, "static": cast_to(options["static"], computed)}
    arguments = Arguments(x, state, options, weights)
    return CallPlan(module, arguments, engine, device, half), arguments

"""RNN, GRU and LSTM in place of torch.nn's: their constructors, weights, results and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Unpack

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from elman.checks import MOST_LAYERS, check_size, shown
from elman.engines.time_shards import shards_time
from elman.errors import EngineError, InputError, ShapeError, warn
from elman.nn.call.plan import CallPlan, plan_call
from elman.nn.call.runtime import Runtime
from elman.nn.engine_choice import (
    check_export,
    compiles,
    fixed_engine,
    requested_engine,
    unsupported_reason,
)
from elman.nn.execute.layer import Formula, Runner
from elman.nn.layout.dense import as_tensor, is_dense
from elman.nn.layout.packing import check_lengths
from elman.nn.modules.formulas import FORMULAS, PROJECTED
from elman.nn.modules.layer_options import OPTIONS, Options, show_options
from elman.nn.modules.sequence import SequenceModule
from elman.nn.options.registry import CallOptions, select_options, step_options
from elman.torch_internals import allow_compiling, run_whole


@show_options
class TorchLayers(SequenceModule):
    """A layer of torch whose forward runs on elman's engines.

    Calls that no engine runs, and invalid calls, go to torch's own forward, which computes or
    raises torch's error.
    """

    mode: str
    bias: bool
    proj_size: int

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        if isinstance(num_layers, int) and num_layers > MOST_LAYERS:  # torch makes any number
            check_size("num_layers", num_layers, 1, MOST_LAYERS)
        further: dict[str, Any] = {k: v for k, v in options.items() if k not in OPTIONS}
        if check_size("proj_size", proj_size, 0):
            further["proj_size"] = proj_size
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            device=device,
            dtype=dtype,
            **further,
        )
        self._set_options(options)
        if self.heads != 1:
            self._divide()
        self._runtime = self._make_runtime()  # now, not while a compiler traces
        first = next(self.parameters())
        self._make_initial(first.device, first.dtype)
        self.register_ranges()

    def reset_parameters(self) -> None:
        """Draw new weights, as torch's layers do, and set learned initial states to zero."""
        super().reset_parameters()  # type: ignore[misc]
        with torch.no_grad():
            for value in self._initial() if self._runtime is not None else ():
                value.zero_()

    def _divide(self) -> None:
        """Take recurrent weights of several heads: [gates · H, H / heads]."""
        size, heads = self.hidden_size, self.heads
        if size % heads:
            raise ShapeError(f"hidden_size={size} cannot be divided among {heads} heads")
        if self.proj_size:
            raise InputError(f"proj_size={self.proj_size} has no heads")
        for name in [name for name, _ in self.named_parameters() if name.startswith("weight_hh")]:
            values = getattr(self, name)
            setattr(self, name, nn.Parameter(values.new_empty(values.shape[0], size // heads)))
        super().reset_parameters()  # type: ignore[misc]

    def _make_runtime(self, formulas: list[Formula] | None = None) -> Runtime:
        allow_compiling(TorchLayers)
        return super()._make_runtime(formulas)

    def _formulas(self) -> list[Formula]:
        size, dims = self.hidden_size, dict[str, int]()
        cell = FORMULAS[self.mode, bool(self.bias)].with_heads(self.heads)
        if self.proj_size:
            cell, size, dims = PROJECTED[bool(self.bias)], self.proj_size, {"H": size}
        return [(cell.with_changes(*self._changes), size, dims)] * self.num_layers

    def _parameter_names(self, runners: Mapping[str, Runner]) -> list[list[str]]:
        roles = ["weight_ih", "weight_hh"] + ["bias_ih", "bias_hh"] * bool(self.bias)
        roles += ["weight_hr"] * bool(self.proj_size)
        return [[f"{role}_{suffix}" for role in roles] for suffix in runners]

    def extra_repr(self) -> str:
        """torch's text, and every option that is not the default."""
        text = super().extra_repr()  # type: ignore[misc]
        for name in OPTIONS:
            value = getattr(self, name)
            if value != getattr(SequenceModule, name):
                text += f", {name}={value!r}"
        return text

    def __prepare_scriptable__(self) -> NoReturn:
        """The hook of torch.jit.script. Raises InputError."""
        name = f"elman.{self.mode.partition('_')[0]}"
        hint = "torch.jit.script(elman.restore(copy.deepcopy(model)))"
        raise InputError(f"torch.jit.script takes torch's own layers, not {name}", hint)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; warn of torch.ao, which sets ``qconfig`` but quantises torch's classes
        only."""
        if name == "qconfig":
            warn(
                f"torch.ao does not quantise elman.{self.mode.partition('_')[0]}; give it torch's "
                "own layers, if it should: elman.restore(copy.deepcopy(model))"
            )
        super().__setattr__(name, value)

    @run_whole
    def forward(self, input: Any, hx: Any = None, **options: Unpack[CallOptions]) -> Any:
        """Run all layers; arguments and results are torch's.

        Args:
            input: [T, B, I], [B, T, I] with ``batch_first``, [T, I] unbatched, or a PackedSequence.
            hx: initial states; zeros if omitted.
            options: of :class:`elman.nn.options.registry.CallOptions`: ``lengths``, ``reset``,
                ``reset_to``, ``mask``, ``masked_output``, ``draws``, ``outputs``.

        Raises:
            EngineError: the named engine cannot run this; or, with options that torch does not
                have, no engine can.
            ShapeError, InputError: an option does not go with the input, or nothing is drawn.
        """
        call_options = select_options(options) if options else {}
        kind = None
        if self._runtime is not None:  # most calls end here, with the plan of an earlier one
            plans = self._runtime.plans
            kind = plans.kind_of(self, input, hx, call_options)
            if kind is not None:
                plan = plans.find(kind)
                if plan is not None:
                    if plan.is_torchs and not self._beyond_torch:  # the plan would add overhead
                        return super().forward(input, hx)  # type: ignore[misc]
                    return plan.run_again(self, input, hx, call_options, kind.weights)
        if torch.compiler.is_compiling():
            engine = fixed_engine(self.engine)
            if compiles(input, engine, self._type):
                call = plan_call(self, input, hx, call_options, engine)
                reasons = self._options_beyond_torch(engine, call_options)
                self._set_results(call[0], input if hx is None else hx, reasons)
                return self._run(*call, None)
        if "static" in call_options:  # torch's own forward, which may run, would not see it
            self.runtime.signature.check_static()
        engine = requested_engine(self.engine)
        reasons = self._options_beyond_torch(engine, call_options)
        mistake = self._mistake(input, hx, engine)
        reason = mistake or unsupported_reason(input, engine, bool(reasons), self._type)
        if reason is None and engine == "aten" and self._new_formula:
            reason = "torch's own layer has another formula"
        steps = step_options(call_options)
        if reason is None:
            try:
                call = plan_call(self, input, hx, call_options, engine)
            except (ShapeError, InputError) as error:
                if "lengths" in call_options or steps:
                    raise
                mistake = reason = str(error)
            else:
                self._set_results(call[0], input if hx is None else hx, reasons)
                return self._run(*call, kind)
        if not reasons or (mistake is not None and not steps):  # torch computes, or raises
            result = self._torch_forward(input, hx, call_options.get("lengths"))
            if not reasons:
                return _with_states(result) if "outputs" in call_options else result
        check_export(type(self).__name__)
        option = ", ".join(name for name in reasons if name)
        raise EngineError(
            f"engine {engine} cannot run this {type(self).__name__}"
            f"{f' with {option}' if option else ''}: {reason}"
        )

    def _type(self) -> torch.dtype:
        """Of the weights."""
        weight: Any = self.weight_ih_l0
        return weight.dtype

    def _mistake(self, input: Any, hx: Any, engine: str) -> str | None:
        """Why torch runs the call, whatever engines there are: the caller named its layer, or the
        call has a mistake for which torch has an error message."""
        if engine == "aten" and not self._options_beyond_torch(engine, {}):
            return "it is torch's own layer"
        data = input.data if isinstance(input, PackedSequence) else input
        if not isinstance(data, Tensor) or not is_dense(data):
            return "its input is not a dense tensor"
        batch_axis = 0 if self.batch_first else 1
        # torch refuses empty axes, except an empty batch
        if any(not n and (data.dim() < 3 or k != batch_axis) for k, n in enumerate(data.shape)):
            return f"its input is {[*data.shape]}"
        if hx is not None and isinstance(hx, (tuple, list)) != (self.mode == "LSTM"):
            return f"its state is a {type(hx).__name__}"
        return None

    def _options_beyond_torch(self, engine: str, options: Mapping[str, Any]) -> list[str]:
        """Options in use that torch's own forward does not have."""
        named = engine not in ("auto", "aten") or shards_time()
        reasons = [""] if named else []
        reasons += self._beyond_torch
        if "outputs" in options and self.mode == "LSTM":
            reasons.append('outputs="states"')
        return reasons + step_options(options)

    def _set_results(self, plan: CallPlan, state: Any, beyond_torch: list[str]) -> None:
        """Under autocast on a CPU, give a GRU's results the type of its state, as torch does."""
        if self.mode == "GRU" and plan.device == "cpu" and not beyond_torch:
            plan.results = (state.data if isinstance(state, PackedSequence) else state).dtype

    def _torch_forward(self, input: Any, hx: Any, lengths: Any) -> Any:
        """torch's own forward, of padded sequences too.

        Raises:
            InputError: an argument is not a tensor; torch's own error would not name it.
        """
        name = type(self).__name__
        if not isinstance(input, Tensor | PackedSequence):
            raise InputError(
                f"input of {name} must be a tensor or a PackedSequence, got {shown(input)}",
                as_tensor(input, "x"),
            )
        if self.mode == "LSTM":
            states = hx if isinstance(hx, tuple | list) and len(hx) == 2 else (hx,)
            fits = len(states) == 2 and all(isinstance(part, Tensor) for part in states)
            kind, hint = "two tensors, (h, c)", "out, (h, c) = net(x); net(x, (h, c))"
        else:
            kind, fits, hint = "a tensor", isinstance(hx, Tensor), as_tensor(hx, "state")
        if hx is not None and not fits:
            raise InputError(f"state of {name} must be {kind}, got {shown(hx)}", hint)
        if lengths is None:
            return super().forward(input, hx)  # type: ignore[misc]
        if not isinstance(input, Tensor) or input.dim() != 3:
            raise ShapeError("lengths= is for a batch of sequences: this input is a single one")
        batch, steps = input.shape[:2] if self.batch_first else input.shape[1::-1]
        counts = check_lengths(lengths, batch, steps)
        packed = pack_padded_sequence(input, counts, self.batch_first, enforce_sorted=False)
        out, last = super().forward(packed, hx)  # type: ignore[misc]
        return pad_packed_sequence(out, self.batch_first, total_length=steps)[0], last


def _with_states(result: tuple[Any, Any]) -> tuple[Any, ...]:
    """The result of torch's RNN or GRU in the form of ``outputs="states"``."""
    out, last = result
    states = out._replace(data=out.data.clone()) if isinstance(out, PackedSequence) else out.clone()
    return out, states, last


@show_options
class RNN(TorchLayers, nn.RNN):
    """torch.nn.RNN on elman's engines: ``h[t] = tanh(W x[t] + b + R h[t-1] + d)``.

    Same constructor, initial weights, ``state_dict``, results and errors as torch's layer.

    Args:
        input_size: size of x.
        hidden_size: size of h.
        num_layers: layers, each on the output of the one below.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        bias: whether there are biases b and d.
        batch_first: x and the output are [B, T, ·].
        dropout: share of values dropped after each layer but the last, in training.
        bidirectional: a second set of weights runs over the reversed sequence.
        device, dtype: of the parameters.
        options: of :class:`elman.nn.modules.layer_options.Options`: ``engine``, ``heads``,
            ``plan``, ``residual``, ``clip_gradient``, ``learn_initial``, ``zoneout``,
            ``recurrent_dropout``, ``recurrent_dropout_per``, ``weight_dropout``, ``quantize``.

    With heads, ``weight_hh`` is [H, H / heads]; head n has units n·H/heads to (n+1)·H/heads - 1.

    Example:
        >>> net = elman.RNN(8, 16, nonlinearity="relu")
        >>> out, h = net(torch.randn(5, 2, 8))  # of x [T, B, I]
        >>> out.shape, h.shape
        (torch.Size([5, 2, 16]), torch.Size([1, 2, 16]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        further: Any = {**options, "nonlinearity": nonlinearity, "device": device, "dtype": dtype}
        sizes = input_size, hidden_size, num_layers
        super().__init__(*sizes, bias, batch_first, dropout, bidirectional, **further)


class GRU(TorchLayers, nn.GRU):
    """torch.nn.GRU on elman's engines: ``h[t] = (1 - z) * n + z * h[t-1]``.

    Same constructor, initial weights, ``state_dict``, results and errors as torch's layer.

    Args:
        input_size: size of x.
        hidden_size: size of h.
        num_layers: layers, each on the output of the one below.
        bias: whether there are biases.
        batch_first: x and the output are [B, T, ·].
        dropout: share of values dropped after each layer but the last, in training.
        bidirectional: a second set of weights runs over the reversed sequence.
        device, dtype: of the parameters.
        options: of :class:`elman.nn.modules.layer_options.Options`: ``engine``, ``heads``,
            ``plan``, ``residual``, ``clip_gradient``, ``learn_initial``, ``zoneout``,
            ``recurrent_dropout``, ``recurrent_dropout_per``, ``weight_dropout``, ``quantize``.

    With heads, ``weight_hh`` is [3 · H, H / heads].

    Example:
        >>> net = elman.GRU(8, 16, num_layers=2)
        >>> out, h = net(torch.randn(5, 2, 8))  # of x [T, B, I]
        >>> out.shape, h.shape
        (torch.Size([5, 2, 16]), torch.Size([2, 2, 16]))
    """


class LSTM(TorchLayers, nn.LSTM):
    """torch.nn.LSTM on elman's engines: ``c[t] = f * c[t-1] + i * g``, ``h[t] = o * tanh(c[t])``.

    Same constructor, initial weights, ``state_dict``, results and errors as torch's layer.

    Args:
        input_size: size of x.
        hidden_size: size of c, and of h without ``proj_size``.
        num_layers: layers, each on the output of the one below.
        bias: whether there are biases.
        batch_first: x and the output are [B, T, ·].
        dropout: share of values dropped after each layer but the last, in training.
        bidirectional: a second set of weights runs over the reversed sequence.
        proj_size: if not 0, the size of h, which is then a projection of the cell's output.
        device, dtype: of the parameters.
        options: of :class:`elman.nn.modules.layer_options.Options`: ``engine``, ``heads``,
            ``plan``, ``residual``, ``clip_gradient``, ``learn_initial``, ``zoneout``,
            ``recurrent_dropout``, ``recurrent_dropout_per``, ``weight_dropout``, ``quantize``.

    With heads, ``weight_hh`` is [4 · H, H / heads].

    Example:
        >>> net = elman.LSTM(8, 16, bidirectional=True)
        >>> out, (h, c) = net(torch.randn(5, 2, 8))  # of x [T, B, I]
        >>> out.shape, c.shape
        (torch.Size([5, 2, 32]), torch.Size([2, 2, 16]))
    """

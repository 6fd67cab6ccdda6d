"""RNNCell, GRUCell and LSTMCell in place of torch.nn's: one step per call."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from elman.checks import check_choice, shown
from elman.engines import registry
from elman.engines.call import Call, DirectCall
from elman.errors import EngineError, InputError, VerifyError, diagnostic
from elman.nn.arguments import named
from elman.nn.autograd.transforms import transformed
from elman.nn.call_cache import CallCache, Lookup
from elman.nn.dense import as_tensor, check_dense, check_states, is_dense
from elman.nn.dispatch import Runner
from elman.nn.flags import check_flags
from elman.nn.formulas import FORMULAS
from elman.nn.states import one_or_all
from elman.nn.using import checked, wanted

_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_MADE = ("_runner", "_steps")  # what no copy and no pickle has
_by_name = itemgetter(*_WEIGHTS)
_VF: Any = torch._VF
_STEPS: dict[str, Any] = {
    "RNN_TANH": _VF.rnn_tanh_cell,
    "RNN_RELU": _VF.rnn_relu_cell,
    "GRU": _VF.gru_cell,
    "LSTM": _VF.lstm_cell,
}


class _Steps(CallCache):
    """The cache of a module of single steps, on an engine of ours."""

    def __init__(self, runner: Runner, names: Sequence[str]) -> None:
        super().__init__(names, lambda _: ())
        self._runner = runner

    def _results(self, output: Tensor, last: Sequence[Tensor]) -> Any:
        return one_or_all(last)

    def _fast_run(self, module: Any, x: Tensor, lookup: Lookup) -> DirectCall | None:
        if not lookup.states or x.dim() != 2:
            return None
        states = tuple([state.unsqueeze(0) for state in lookup.states])
        call = Call((x.unsqueeze(0),), states, tuple(lookup.weights), None, True)
        kernel, _, training = self._runner.settled(call, wanted(module.engine))
        return None if training else registry.find(kernel.engine).direct([kernel], call)


class _Cell:
    """What the three classes add to torch's: a step on an engine that is asked for by name.

    Left to itself (``auto``) a single step is torch's own: it is over in the time that any kernel
    of elman's takes to be called. What is to be fast is a sequence.
    """

    engine: str = "auto"
    _runner: Runner | None = None
    _steps: _Steps | None = None
    _states: Any = Tensor  # of what type they are

    def forward(
        self: Any,
        x: Any = None,
        state: Any = None,
        *,
        reset: Tensor | None = None,
        input: Any = None,
        hx: Any = None,
    ) -> Any:
        """Run one step; arguments and results are torch's.

        Args:
            x: [B, I], or [I]; ``input=`` as torch calls it.
            state: [B, H] each, or [H]; zeros if omitted; ``hx=`` as torch calls it.
            reset [B]: samples whose state becomes zero before the step; a scalar if unbatched.

        Raises:
            InputError, ShapeError: reset is not a tensor of such a shape.
            TypeError: an argument under both of its names.
        """
        if x is None or input is not None or hx is not None:
            input, hx = named(x, state, input, hx)
        else:
            input, hx = x, state
        if not isinstance(input, Tensor) or not (hx is None or isinstance(hx, self._states)):
            self._refuse(input, hx)
        if reset is not None and hx is not None:
            hx = _reset(input, hx, reset)
        engine = wanted(self.engine)
        if engine == "auto" or engine == "aten":
            # torch's forward is this, and checks; its kernel tells what is wrong with a batch
            weights, mode = _weights(self._parameters), self._mode()
            if weights is not None and input.dim() == 2 and is_dense(input):
                if hx is None:
                    hx = input.new_zeros(input.shape[0], self.hidden_size)
                    hx, batch = (hx, hx) if mode == "LSTM" else hx, True
                elif mode == "LSTM":
                    batch = _is_pair(hx) and hx[0].dim() == hx[1].dim() == 2
                else:
                    batch = hx.dim() == 2
                if batch:
                    return _STEPS[mode](input, hx, *weights)
            check_states(type(self).__name__, hx, mode == "LSTM")
            return super().forward(input, hx)  # type: ignore[misc]
        if self._steps is not None:
            again = self._steps(self, input, hx)
            if again is not None:
                return again
        if not _fits(self, input, hx):
            check_states(type(self).__name__, hx, self._mode() == "LSTM")
            return super().forward(input, hx)  # type: ignore[misc]
        two, batched = isinstance(self, nn.LSTMCell), input.dim() == 2
        x = input if batched else input.unsqueeze(0)
        if hx is None:
            zeros = x.new_zeros(len(x), self.hidden_size)
            states = (zeros, zeros) if two else (zeros,)
        else:
            states = tuple(hx) if two else (hx,)
            states = states if batched else tuple(state.unsqueeze(0) for state in states)
        names = _WEIGHTS[: 4 if self.bias else 2]
        weights = tuple(getattr(self, name) for name in names)
        if self._runner is None or self._steps is None:
            cell = FORMULAS[self._mode(), bool(self.bias)]
            self._runner = Runner(cell, cell.bind(self.input_size, self.hidden_size))
            self._steps = _Steps(self._runner, names)
        if transformed((x, *states, *weights)) is not None:
            engine = None
        _, last, _ = self._runner.run(Call((x.unsqueeze(0),), states, weights), engine)
        self._steps.keep(self, input, hx)
        last = last if batched else tuple(state.squeeze(0) for state in last)
        return last if two else last[0]

    def _refuse(self: Any, input: Any, hx: Any) -> NoReturn:
        """Say of arguments that are no tensors what they must be. Raises InputError."""
        name = type(self).__name__
        if not isinstance(input, Tensor):
            what = f"input of {name} must be a tensor, got {shown(input)}"
            raise InputError(diagnostic(what, [], as_tensor(input, "x")))
        check_states(name, hx, self._states is not Tensor)
        raise VerifyError(f"the arguments of {name} were right after all")

    def __getstate__(self: Any) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[misc]
        return {name: value for name, value in state.items() if name not in _MADE}

    def _mode(self: Any) -> str:
        """torch's name of the formula."""
        if isinstance(self, nn.RNNCell):
            return f"RNN_{self.nonlinearity.upper()}"
        return "GRU" if isinstance(self, nn.GRUCell) else "LSTM"

    def extra_repr(self: Any) -> str:
        """torch's, and the engine if one was named."""
        text = super().extra_repr()  # type: ignore[misc]
        return text if self.engine == "auto" else f"{text}, engine={self.engine!r}"


def _weights(parameters: dict[str, Any]) -> tuple[Any, ...] | None:
    """All weights; None if something else stands in the place of one."""
    try:
        return _by_name(parameters)
    except KeyError:
        return None


def _reset(input: Any, hx: Any, reset: Any) -> Any:
    """The states, zero where they are reset; what does not fit is left to be refused."""
    check_dense(input, "x")
    check_flags("reset", reset, input.shape[:-1])
    if isinstance(hx, (tuple, list)):
        return type(hx)(_reset(input, state, reset) for state in hx)
    if not isinstance(hx, Tensor) or hx.shape[:-1] != input.shape[:-1]:
        return hx
    return hx.masked_fill((reset != 0).unsqueeze(-1), 0)


def _is_pair(hx: Any) -> bool:
    """Whether states are two tensors."""
    return len(hx) == 2 and isinstance(hx[0], Tensor) and isinstance(hx[1], Tensor)


def _fits(module: Any, given: Any, hx: Any) -> bool:
    """Whether the arguments are well-formed; torch says in its own words what is wrong with them.

    Raises:
        EngineError: they are, but of several dtypes or devices.
    """
    if not isinstance(given, Tensor) or given.dim() not in (1, 2):
        return False
    if given.shape[-1] != module.input_size or 0 in given.shape:
        return False
    states = () if hx is None else tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
    if hx is not None and len(states) != 1 + isinstance(module, nn.LSTMCell):
        return False
    lead = given.shape[:-1]
    for state in states:
        if not isinstance(state, Tensor) or state.shape != (*lead, module.hidden_size):
            return False
        if state.dtype != given.dtype or state.device != given.device:
            raise EngineError(
                f"engine {wanted(module.engine)}: input and state differ in dtype or device"
            )
    return True


class RNNCell(_Cell, nn.RNNCell):
    """torch.nn.RNNCell: ``h' = tanh(W x + b + R h + d)``.

    Args:
        input_size, hidden_size: of x and h.
        bias: whether there are b and d.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        device, dtype: of the parameters.
        engine: the name of an engine; ``"auto"`` is torch's own step.

    Example:
        >>> step = elman.RNNCell(8, 16)
        >>> h = step(torch.randn(2, 8))  # from zeros
        >>> h = step(torch.randn(2, 8), h)  # [B, H]
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        engine: str = "auto",
    ) -> None:
        check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
        super().__init__(input_size, hidden_size, bias, nonlinearity, device=device, dtype=dtype)
        self.engine = checked(engine)


class GRUCell(_Cell, nn.GRUCell):
    """torch.nn.GRUCell: ``h' = (1 - z) * n + z * h``.

    Args:
        input_size, hidden_size: of x and h.
        bias: whether there are b and d.
        device, dtype: of the parameters.
        engine: the name of an engine; ``"auto"`` is torch's own step.

    Example:
        >>> step = elman.GRUCell(8, 16)
        >>> h = step(torch.randn(2, 8))  # from zeros
        >>> h = step(torch.randn(2, 8), h)  # [B, H]
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        engine: str = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device=device, dtype=dtype)
        self.engine = checked(engine)


class LSTMCell(_Cell, nn.LSTMCell):
    """torch.nn.LSTMCell: ``c' = f * c + i * g``, ``h' = o * tanh(c')``.

    Args:
        input_size, hidden_size: of x and h.
        bias: whether there are b and d.
        device, dtype: of the parameters.
        engine: the name of an engine; ``"auto"`` is torch's own step.

    Example:
        >>> step = elman.LSTMCell(8, 16)
        >>> h, c = step(torch.randn(2, 8))  # from zeros
        >>> h, c = step(torch.randn(2, 8), (h, c))  # [B, H] each
    """

    _states = (tuple, list)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        engine: str = "auto",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device=device, dtype=dtype)
        self.engine = checked(engine)

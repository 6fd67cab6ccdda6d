"""Modules, changes of them, and calls in any circumstances: what kinds of calls are tested with."""

from __future__ import annotations

import copy
import math
import pickle
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import elman
from elman import PlanOptions, cells
from elman.nn.call.plan import CallPlan
from elman.nn.modules.sequence import SequenceModule
from helpers import assert_close, forced

SIZES = (5, 7)  # of x and h


class OfOurOwn(Tensor):
    """A class of tensors, which may mean anything."""


class Functions(TorchFunctionMode):
    """Sees every function of torch's."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    """Sees every operation."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def one_thread_more():
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def loaded(net: Any) -> None:
    net.load_state_dict({name: value * 0.9 for name, value in net.state_dict().items()})


def scaled(net: Any) -> None:
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(1.1)


def through_data(change: Any) -> Any:
    """A change of the first recurrent matrix that keeps the parameter."""

    def changed(net: Any) -> None:
        weight = [p for p in net.parameters() if p.dim() == 2][1]
        weight.data = change(weight.data)

    return changed


def replaced(net: Any) -> None:
    name, weight = next(iter(net.named_parameters()))
    setattr(net, name, nn.Parameter(weight.detach() * 0.5))


def frozen(net: Any) -> None:
    next(net.parameters()).requires_grad_(False)


def attribute(name: str, value: Any) -> Any:
    return lambda net: setattr(net, name, value)


def input_doubled(_: Any, args: Any) -> Any:
    """A hook that can be pickled: the first argument times 2."""
    return (args[0] * 2, *args[1:])


CHANGES = {
    "nothing": lambda net: None,
    "double": lambda net: net.double(),
    "float": lambda net: net.float(),
    "train": lambda net: net.train(),
    "eval": lambda net: net.eval(),
    "loaded": loaded,
    "scaled in place": scaled,
    "other memory": through_data(torch.clone),
    "other memory, transposed": through_data(lambda w: w.t().contiguous().t()),
    "wrong shape, same memory": through_data(lambda w: w.reshape(w.shape[1], w.shape[0])),
    "negated view": through_data(torch._neg_view),
    "replaced": replaced,
    "frozen": frozen,
    "all frozen": lambda net: net.requires_grad_(False),
    "thawed": lambda net: net.requires_grad_(True),
    "batch_first": attribute("batch_first", True),
    "time first": attribute("batch_first", False),
    "engine": attribute("engine", "reference"),
    "engine c": attribute("engine", "c"),
    "checkpoint": attribute("plan", PlanOptions(checkpoint=1)),
    "weight_dropout": attribute("weight_dropout", 0.5),
    "no weight_dropout": attribute("weight_dropout", 0.0),
    "dropout": attribute("dropout", 0.5),
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "hook": lambda net: net.register_forward_pre_hook(input_doubled),
}
AROUND = {
    "usual": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "deterministic": deterministic,
    "threads": one_thread_more,
    "reference": lambda: forced("reference"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "functions": Functions,
    "dispatched": Dispatched,
}
GIVEN = {
    "a step": lambda x: x[:1],
    "all steps": lambda x: x,
    "one sample": lambda x: x[:, :1],
    "unbatched": lambda x: x[:, 0],
    "strided": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "every other": lambda x: x.repeat(1, 1, 2)[..., ::2],
    "double": lambda x: x.double(),
    "wrong size": lambda x: x[..., 1:],
    "no step": lambda x: x[:0],
    "needs a gradient": lambda x: x.clone().requires_grad_(),
    "of a class": lambda x: x.as_subclass(OfOurOwn),
    "negated": torch._neg_view,
    "sparse": lambda x: x.to_sparse(),
    "packed": lambda x: pack_sequence([x[:, 0], x[:1, 1]]),
}
STATES = {
    "none": lambda states: None,
    "given": lambda states: states,
    "a list": lambda states: [*states] if isinstance(states, tuple) else [states],
    "double": lambda states: doubled(states),
    "one too many": lambda states: (*(states if isinstance(states, tuple) else (states,)), 1),
}


def doubled(states: Any) -> Any:
    return tuple(map(Tensor.double, states)) if isinstance(states, tuple) else states.double()


def modules() -> dict[str, Any]:
    return {
        "gru": lambda: elman.GRU(*SIZES, engine="c"),
        "lstm of two layers": lambda: elman.LSTM(*SIZES, num_layers=2, engine="c"),
        "two directions": lambda: elman.GRU(*SIZES, bidirectional=True, engine="c"),
        "a cell": lambda: elman.Recurrent(cells.mgu, *SIZES, engine="c"),
    }


def made_with_input(name: str) -> tuple[Any, Tensor]:
    """A module and what it takes of one step of two samples."""
    x = torch.randn(1, 2, SIZES[0])
    return modules()[name](), x


def call_of(net: Any, whole: Tensor, change: str, given_: str, state: str) -> tuple[Any, Any, Any]:
    """A module after a change, an input laid out as it takes them, and states that go with it."""
    made = CHANGES[change](net)
    net = made if isinstance(made, nn.Module) else net
    x = GIVEN[given_](whole)
    states = STATES[state](states_of(net, whole if given_ != "one sample" else whole[:, :1]))
    if net.batch_first and isinstance(x, Tensor) and x.dim() == 3 and given_ != "sparse":
        x = x.transpose(0, 1)
    return net, x, states


def outcome(net: Any, x: Any, state: Any, reset: Any = None) -> Any:
    """What a call gives, or how it fails; with gradients where there are any."""
    torch.default_generator.manual_seed(3)  # of what is dropped
    try:
        made = net(x, state) if reset is None else net(x, state, reset=reset)
        values = [value for value in tree_leaves(made) if isinstance(value, Tensor)]
        leaves = [t for t in (x, *net.parameters()) if isinstance(t, Tensor) and t.requires_grad]
        if not any(value.requires_grad for value in values):
            return made
        total = sum(value.double().square().sum() for value in values)
        return made, torch.autograd.grad(total, leaves, allow_unused=True)
    except Exception as error:  # of elman or in the words of torch
        return type(error), str(error)


def assert_equal(got: Any, want: Any) -> None:
    """The same numbers, types and forms."""
    if not isinstance(want, (tuple, list)):
        assert type(got) is type(want)
        if isinstance(want, Tensor):
            assert got.stride() == want.stride()
            assert got.requires_grad == want.requires_grad
            torch.testing.assert_close(got, want)
        else:
            assert got == want
        return
    assert type(got) is type(want)
    for one, other in zip(got, want, strict=True):
        assert_equal(one, other)


def assert_all_close(got: Any, want: Any) -> None:
    """The same numbers, within what the type allows."""
    for one, other in zip(tree_leaves(got), tree_leaves(want), strict=True):
        assert_close(one, other)


def states_of(net: Any, x: Any) -> Any:
    """States of a call, made as another call's last ones."""
    lead = x.shape[:1]
    if isinstance(net, SequenceModule):
        lead = (net.num_layers * (2 if net.bidirectional else 1), x.shape[1])
    made = torch.linspace(-1, 1, math.prod(lead) * SIZES[1]).view(*lead, -1)
    return (made, made * 0.3) if isinstance(net, nn.LSTM) else made


def checked_no_more(*args: Any) -> Any:
    """In place of what checks a call."""
    raise AssertionError("this call has been checked before")


def served_without_checks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Inside, every call must be of a kind that is kept."""

    @contextmanager
    def patched():
        with monkeypatch.context() as patch:
            patch.setattr(CallPlan, "__init__", checked_no_more)
            yield

    return patched()

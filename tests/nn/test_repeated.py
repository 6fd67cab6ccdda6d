"""Calls that come again go straight to the kernel; whatever has changed since is seen."""

from __future__ import annotations

import copy
import math
import pickle
import threading
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_sequence
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import elman
from elman import cells
from elman.nn.sequence import SequenceModule
from helpers import assert_close, need_engine

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
    "checkpoint": attribute("checkpoint", 1),
    "weight_dropout": attribute("weight_dropout", 0.5),
    "no weight_dropout": attribute("weight_dropout", 0.0),
    "dropout": attribute("dropout", 0.5),
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "hook": lambda net: net.register_forward_pre_hook(lambda _, args: (args[0] * 2, *args[1:])),
}
AROUND = {
    "usual": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "deterministic": deterministic,
    "threads": one_thread_more,
    "reference": lambda: elman.using(engine="reference"),
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
    if name == "a step of lstm":
        return elman.LSTMCell(*SIZES, engine="c"), x[0]
    return modules()[name](), x


def outcome(net: Any, x: Any, state: Any) -> Any:
    """What a call gives, or how it fails; with gradients where there are any."""
    torch.default_generator.manual_seed(3)  # of what is dropped
    try:
        made = net(x, state)
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
    return (made, made * 0.3) if isinstance(net, (nn.LSTM, nn.LSTMCell)) else made


STEPS = st.lists(
    st.tuples(
        st.sampled_from([name for name in CHANGES if name != "negated view"]),  # a copy has none
        st.sampled_from(["usual", "no_grad", *AROUND]),
        st.sampled_from(["a step", "all steps", *GIVEN]),
        st.sampled_from(["none", "given", *STATES]),
    ),
    min_size=2,
    max_size=4,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "lstm of two layers"])
@settings(max_examples=6)
@given(steps=STEPS)
def test_every_call_is_that_of_a_fresh_module(name, steps):
    """Kinds of calls and changes of a module in any order, each call three times."""
    need_engine("c")
    torch.default_generator.manual_seed(0)
    net, whole = modules()[name](), torch.randn(3, 2, SIZES[0])
    for change, around, given_, state in steps:
        made = CHANGES[change](net)
        net = made if isinstance(made, nn.Module) else net
        x = GIVEN[given_](whole)
        states = STATES[state](states_of(net, whole if given_ != "one sample" else whole[:, :1]))
        if net.batch_first and isinstance(x, Tensor) and x.dim() == 3 and given_ != "sparse":
            x = x.transpose(0, 1)
        with AROUND[around]():
            want = outcome(copy.deepcopy(net), x, states)
            for _ in range(3):
                assert_equal(outcome(net, x, states), want)


@pytest.mark.parametrize("name", ["gru", "a step of lstm"])
def test_each_change_is_seen(name):
    """After calls without gradients, with them, with a state and without, which all came before."""
    need_engine("c")
    for change in CHANGES:
        torch.default_generator.manual_seed(0)
        net, x = made_with_input(name)
        kinds = [(c, s) for c in ("no_grad", "usual") for s in (None, states_of(net, x))]
        for around, state in kinds * 3:
            with AROUND[around]():
                outcome(net, x, state)
        made = CHANGES[change](net)
        net = made if isinstance(made, nn.Module) else net
        for around, state in kinds:
            with AROUND[around]():
                assert_equal(outcome(net, x, state), outcome(copy.deepcopy(net), x, state))


def checked_no_more(*args: Any) -> Any:
    raise AssertionError("this call has been checked before")


@pytest.mark.parametrize("name", modules())
def test_the_third_call_is_checked_no_more(name, monkeypatch):
    """Without gradients and with them, batched and not, with a state and without: all are found,
    and compute what the oracle does."""
    need_engine("c")
    net = modules()[name]().double()
    whole = torch.randn(2, 3, SIZES[0], dtype=torch.float64)
    for around in ("no_grad", "usual"):
        for x in (whole, whole[:1], whole[:, 0]):
            with AROUND[around]():
                out, state = net(x)
                with elman.using(engine="reference"):
                    want = [net(x), net(x, state)]
                for _ in range(2):
                    net(x), net(x, state)
                with monkeypatch.context() as patch:
                    patch.setattr(SequenceModule, "_prepared", checked_no_more)
                    got = [net(x), net(x, state)]
            assert_all_close(got, want)
            assert out is not got[0][0]


def test_results_are_the_callers_own():
    """Later calls write neither outputs nor states of earlier ones, also of several threads."""
    need_engine("c")
    net, xs = modules()["lstm of two layers"](), torch.randn(40, 1, 2, SIZES[0])
    with torch.no_grad():
        want = [tree_leaves(copy.deepcopy(net)(x)) for x in xs[:8]]
    made: dict[int, Any] = {}

    def run(first: int) -> None:
        with torch.no_grad():
            made[first] = [tree_leaves(net(xs[k % 8])) for k in range(first, first + 60)]

    threads = [threading.Thread(target=run, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first, outcomes in made.items():
        for k, values in enumerate(outcomes):
            torch.testing.assert_close(values, want[(first + k) % 8])


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", ["lstm of two layers", "two directions", "a step of lstm"])
def test_copies_of_parametrized_modules(name):
    """torch copies all of their attributes, also those that no other copy has."""
    need_engine("c")
    net, x = made_with_input(name)
    with torch.no_grad():
        for _ in range(3):
            net(x)
    parametrize.register_parametrization(net, next(iter(net._parameters)), nn.Identity())
    other = copy.deepcopy(net)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.5)
    for _ in range(3):
        assert_equal(outcome(other, x, None), outcome(copy.deepcopy(other), x, None))
    assert not torch.equal(tree_leaves(other(x))[0], tree_leaves(net(x))[0])


@pytest.mark.parametrize("name", modules())
def test_blocks_made_anew_are_of_the_same_layout(name):
    """A kind that came with other threads, in every layout of x: batches and steps stay apart."""
    need_engine("c")
    whole = torch.randn(3, 2, SIZES[0])
    for layout in ("time first", "batch first", "unbatched"):
        net = modules()[name]()
        net.batch_first = layout == "batch first"
        x = whole[:, 0] if layout == "unbatched" else whole
        with torch.no_grad():
            want = copy.deepcopy(net)(x)
            for _ in range(3):
                net(x)
            with one_thread_more():
                assert_equal(net(x), want)
            assert_equal(net(x), want)


def test_transforms_see_no_kernel():
    """Weights that stand in for the module's, batches of batches, derivatives forward and back."""
    need_engine("c")
    net, x = modules()["gru"]().double(), torch.randn(1, 2, SIZES[0], dtype=torch.float64)
    other = {name: value.detach() * 0.5 for name, value in net.named_parameters()}
    calls = {
        "other weights": lambda net: torch.func.functional_call(net, other, (x,)),
        "vmap": lambda net: torch.func.vmap(net, 0, 0)(torch.stack((x, x * 2))),
        "jvp": lambda net: torch.func.jvp(lambda x: net(x)[0], (x,), (x,)),
        "grad": lambda net: torch.func.grad(lambda x: net(x)[0].sum())(x),
        "subclass": lambda net: net(x.as_subclass(OfOurOwn)),
    }
    for around in ("no_grad", "usual"):
        with AROUND[around]():
            for _ in range(3):
                net(x)
            for call in calls.values():
                got, want = call(net), call(copy.deepcopy(net))
                assert_all_close(got, want)


def test_a_kind_that_was_pinned_since_is_chosen_anew(monkeypatch):
    """Records of another process hold from the next call on."""
    need_engine("c")
    net, x = modules()["gru"](), torch.randn(1, 2, SIZES[0])
    with torch.no_grad():
        for _ in range(3):
            net(x)
        monkeypatch.setattr(SequenceModule, "_prepared", checked_no_more)
        net(x)
        assert elman.nn.pin(net, elman.nn.choices(net)) == []
        with pytest.raises(AssertionError, match="checked before"):
            net(x)


@pytest.mark.parametrize("kind", [elman.RNNCell, elman.GRUCell, elman.LSTMCell])
def test_single_steps_come_again(kind):
    """Their results are the caller's own; what does not fit is told as at first."""
    need_engine("c")
    net, x = kind(*SIZES, engine="c").double(), torch.randn(4, 2, SIZES[0], dtype=torch.float64)
    with torch.no_grad():
        state, states, wants = None, [], []
        for now in x:
            with elman.using(engine="reference"):
                wants.append(net(now, state))
            state = net(now, state)
            states.append(state)
        assert net._steps is not None
        assert [kind for kind in net._steps._kinds.values() if kind and kind.run]
        assert_all_close(states, wants)
        for wrong in (x[0, :1], x[0, :, 1:], x[0].float(), x[0, 0], None, 3):
            assert_equal(outcome(net, wrong, state), outcome(copy.deepcopy(net), wrong, state))

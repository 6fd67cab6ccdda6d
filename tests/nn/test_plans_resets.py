"""Calls with ``reset=`` that come again go straight to the kernel, and do what flags say now."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

import elman
from helpers import forced, need_engine
from kinds import (
    AROUND,
    CHANGES,
    GIVEN,
    SIZES,
    STATES,
    OfOurOwn,
    assert_all_close,
    assert_equal,
    call_of,
    modules,
    outcome,
    served_without_checks,
    states_of,
)

NEW = torch.tensor([[True, False], [False, True], [False, False]])  # [T, B]
RESETS = {
    "none": lambda flags: None,
    "some": lambda flags: flags,
    "others": lambda flags: flags.flip(-1),
    "all": torch.ones_like,
    "nothing": torch.zeros_like,
    "numbers": lambda flags: flags.float() * 0.5,
    "integers": lambda flags: flags.long() * -3,
    "trained": lambda flags: flags.float().requires_grad_(),
    "expanded": lambda flags: flags[..., :1].expand_as(flags),
    "every other": lambda flags: flags.repeat_interleave(2, -1)[..., ::2],
    "strided": lambda flags: flags.t().contiguous().t() if flags.dim() == 2 else flags,
    "of inference": lambda flags: inference(flags),
    "sparse": lambda flags: flags.to_sparse(),
    "a step more": lambda flags: torch.cat((flags, flags[:1])),
    "a sample less": lambda flags: flags[..., 1:],
    "with an axis": lambda flags: flags.unsqueeze(-1),
    "of a class": lambda flags: flags.as_subclass(OfOurOwn),
    "without memory": lambda flags: flags.to("meta"),
    "a list": Tensor.tolist,
}


def inference(flags: Tensor) -> Tensor:
    """Flags that no backward may keep."""
    with torch.inference_mode():
        return flags.clone()


def flags_for(net: Any, x: Any) -> Tensor:
    """Flags laid out as x is."""
    if not isinstance(x, Tensor) or x.dim() not in (2, 3):
        return NEW
    if x.dim() == 2:
        return NEW[: len(x), 0]
    return NEW.t()[: len(x), : x.shape[1]] if net.batch_first else NEW[: len(x), : x.shape[1]]


# most calls run: of others any one, seldom
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["nothing"] * 9 + [name for name in CHANGES if name != "negated view"]),
        st.sampled_from(["usual", "no_grad", "usual", "no_grad", *AROUND]),
        st.sampled_from(["a step", "all steps", "a step", "all steps", "unbatched", *GIVEN]),
        st.sampled_from(["none", "given", "given", *STATES]),
        st.lists(st.sampled_from(["none", "some", *RESETS]), min_size=2, max_size=3),
    ),
    min_size=2,
    max_size=4,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "lstm of two layers"])
@settings(max_examples=6)
@given(steps=STEPS)
def test_every_call_is_that_of_a_fresh_module(name, steps):
    """Flags of any kind and none in any order, among changes of the module."""
    need_engine("c")
    torch.default_generator.manual_seed(0)
    net, whole = modules()[name](), torch.randn(3, 2, SIZES[0])
    for change, around, given_, state, resets in steps:
        net, x, states = call_of(net, whole, change, given_, state)
        if given_ == "unbatched" and states is not None:
            states = unbatched(states)
        with AROUND[around]():
            for reset in resets * 3:
                flags = RESETS[reset](flags_for(net, x))
                want = outcome(copy.deepcopy(net), x, states, flags)
                assert_equal(outcome(net, x, states, flags), want)


def unbatched(states: Any) -> Any:
    """States without an axis of samples."""
    kind = type(states)
    if kind is Tensor:
        return states[:, 0].contiguous()
    return kind(unbatched(s) if isinstance(s, Tensor) else s for s in states)


@pytest.mark.parametrize("steps", [1, 3])
def test_all_flags_are_seen(steps):
    """After calls that came before, with flags and without, each other kind of flags is taken, or
    refused, as by a fresh module; so are those of the first kind then."""
    need_engine("c")
    torch.default_generator.manual_seed(0)
    net, x = modules()["gru"](), torch.randn(steps, 2, SIZES[0])
    state, flags = states_of(net, x), NEW[:steps]
    for around in ("no_grad", "usual"):
        with AROUND[around]():
            first = outcome(copy.deepcopy(net), x, state, flags)
            for _ in range(3):
                outcome(net, x, state), outcome(net, x, state, flags)
            for make in RESETS.values():
                own = make(flags)
                want = outcome(copy.deepcopy(net), x, state, own)
                for _ in range(3):
                    assert_equal(outcome(net, x, state, own), want)
                    assert_equal(outcome(net, x, state, flags), first)


@pytest.mark.parametrize("name", modules())
def test_the_third_call_is_checked_no_more(name, monkeypatch):
    """Kinds of a step and of several, batched and not, with gradients and without: their values are
    those of the oracle, whatever the flags are, and calls without flags are other kinds."""
    need_engine("c")
    net = modules()[name]().double()
    whole = torch.randn(3, 2, SIZES[0], dtype=torch.float64)
    states = [states_of(net, whole)]
    states = (
        [tuple(s.double() for s in states[0])] if name.startswith("lstm") else [states[0].double()]
    )
    for x, state in (
        (whole, states[0]),
        (whole[:1], states[0]),
        (whole[:, 0], unbatched(states[0])),
    ):
        first = flags_for(net, x)
        calls = [(s, f) for s in (state, None) for f in (first, ~first, first & False, None)]
        for around in ("no_grad", "usual"):
            with AROUND[around]():
                with forced("reference"):
                    want = [outcome(net, x, *call) for call in calls]
                for _ in range(2):
                    for call in calls:
                        outcome(net, x, *call)
                with served_without_checks(monkeypatch):
                    got = [outcome(net, x, *call) for call in calls]
            for one, other in zip(got, want, strict=True):
                assert not isinstance(one[0], type), one
                assert_all_close(one, other)


@pytest.mark.parametrize("name", ["gru", "a cell"])
def test_further_arguments_are_seen(name):
    """What else a call may be given, after kinds without it."""
    need_engine("c")
    net, x = modules()[name](), torch.randn(3, 2, SIZES[0])
    state = states_of(net, x)
    more = [{"reset_to": "initial"}, {"lengths": torch.tensor([2, 3])}, {"outputs": "states"}]
    for around in ("no_grad", "usual"):
        with AROUND[around]():
            for _ in range(3):
                net(x, state, reset=NEW)
            for given_ in more:
                want = copy.deepcopy(net)(x, state, reset=NEW, **given_)
                for _ in range(3):
                    assert_equal(net(x, state, reset=NEW, **given_), want)


def test_batch_first(monkeypatch):
    """Flags [B, T]."""
    need_engine("c")
    net = elman.LSTM(*SIZES, batch_first=True, engine="c").double()
    x = torch.randn(2, 3, SIZES[0], dtype=torch.float64)
    for part in (x, x[:, :1], x[:1]):
        state = tuple(torch.randn(1, len(part), SIZES[1]).double() for _ in range(2))
        flags = NEW.t()[2 - len(part) :, : part.shape[1]]
        with forced("reference"):
            want = outcome(net, part, state, flags)
        net(part, state, reset=flags), net(part, state, reset=flags)
        with served_without_checks(monkeypatch):
            assert_all_close(outcome(net, part, state, flags), want)


def test_streams_come_again(monkeypatch):
    """``step`` and ``Stream`` with flags, which change from step to step."""
    need_engine("c")
    net, xs = modules()["lstm of two layers"]().double(), torch.randn(3, 2, SIZES[0]).double()
    with forced("reference"), torch.no_grad():
        want = net(xs, reset=NEW)[0]
    with torch.no_grad():
        for _ in range(3):
            stream = elman.Stream(net)
            made = [net.step(xs[0], reset=NEW[0])]
            made += [net.step(xs[1], made[0][1], reset=NEW[1])]
            for x, flags in zip(xs, NEW, strict=True):
                stream(x[None], reset=flags[None])
        with served_without_checks(monkeypatch):
            stream = elman.Stream(net)
            pairs = zip(xs, NEW, strict=True)
            outs = [stream(x[None], reset=flags[None])[0] for x, flags in pairs]
            assert_all_close(torch.stack(outs), want)
            out, state = net.step(xs[0], reset=NEW[0])
            assert_all_close([out, net.step(xs[1], state, reset=NEW[1])[0]], [*want[:2]])


@pytest.mark.parametrize("steps", [1, 3])
def test_flags_may_change_before_the_backward(steps):
    """The backward has flags of its own: the caller's are written anew by the next episode."""
    need_engine("c")
    net, x = modules()["gru"](), torch.randn(steps, 2, SIZES[0])
    state = states_of(net, x).requires_grad_()
    want = None
    for _ in range(4):
        flags = NEW[:steps].clone()
        out = net(x, state, reset=flags)[0]
        flags.logical_not_()
        got = torch.autograd.grad(out.sum(), (state, *net.parameters()))
        want = got if want is None else want
        torch.testing.assert_close(got, want)
    assert want is not None
    assert not want[0][:, 0].any()
    assert want[0][:, 1].any()


def test_threads_have_flags_of_their_own():
    """Several threads, each with other flags, write neither each other's results nor states."""
    need_engine("c")
    net, x = modules()["lstm of two layers"](), torch.randn(1, 2, SIZES[0])
    state = states_of(net, x)
    kept = [value.clone() for value in state]
    masks = [torch.tensor([[bool(k & 1), bool(k & 2)]]) for k in range(4)]
    with torch.no_grad():
        want = [tree_leaves(copy.deepcopy(net)(x, state, reset=mask)) for mask in masks]
    made: dict[int, Any] = {}

    def run(first: int) -> None:
        with torch.no_grad():
            order = [(first + k) % 4 for k in range(60)]
            made[first] = [(k, tree_leaves(net(x, state, reset=masks[k]))) for k in order]

    threads = [threading.Thread(target=run, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 3
    for k, values in [one for outcomes in made.values() for one in outcomes]:
        torch.testing.assert_close(values, want[k])
    torch.testing.assert_close([*state], kept)

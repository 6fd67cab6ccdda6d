"""Calls with ``reset=`` that come again go straight to the kernel, and do what flags say now."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import elman
from elman.errors import InputError
from elman.nn.call.plan import CallPlan
from helpers import forced, need_engine
from kinds import (
    AROUND,
    SIZES,
    OfOurOwn,
    assert_all_close,
    assert_equal,
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


def test_threads_have_results_and_flags_of_their_own():
    """Several threads, each with other inputs and flags, write neither each other's results nor
    states, nor what earlier calls returned."""
    need_engine("c")
    net, xs = modules()["lstm of two layers"](), torch.randn(4, 1, 2, SIZES[0])
    state = states_of(net, xs[0])
    kept = [value.clone() for value in state]
    masks = [torch.tensor([[bool(k & 1), bool(k & 2)]]) for k in range(4)]
    with torch.no_grad():
        want = [tree_leaves(copy.deepcopy(net)(xs[k], state, reset=masks[k])) for k in range(4)]

    def run(first: int) -> list[Any]:
        with torch.no_grad():
            order = [(first + k) % 4 for k in range(60)]
            return [(k, tree_leaves(net(xs[k], state, reset=masks[k]))) for k in order]

    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(run, range(3)))
    for k, values in [one for outcomes in made for one in outcomes]:
        torch.testing.assert_close(values, want[k])
    torch.testing.assert_close([*state], kept)


@pytest.mark.parametrize("form", ["time first", "batch first", "unbatched"])
@pytest.mark.parametrize("make", [elman.GRU, elman.LSTM, elman.RNN])
def test_single_steps_run_the_kernel_that_was_prepared(monkeypatch, make, form):
    """A reset of a single step is one of the state: nothing else enters another layout."""
    need_engine("c")
    net = make(4, 6, batch_first=form == "batch first", engine="c")
    x, flags = torch.randn(1, 2, 4), NEW[:1]
    if form == "unbatched":
        x, flags = x[:, 0], flags[:, 0]
    elif net.batch_first:
        x, flags = x.transpose(0, 1).contiguous(), flags.t().contiguous()
    keep = ~flags.reshape(-1, 1)
    with torch.no_grad():
        state = tree_map(torch.randn_like, net(x)[1])
        want = net(x, tree_map(lambda part: part * keep, state))
        for given in (flags, flags.double()):
            for _ in range(2):
                net(x, state, reset=given)
            with monkeypatch.context() as patch:
                patch.setattr(CallPlan, "enter", None)
                assert_equal(net(x, state, reset=given), want)


def test_a_step_resets_to_zeros():
    """``step`` takes ``reset_to="zeros"``, of modules whose initial state is learned."""
    net = elman.GRU(4, 6, learn_initial=True)
    torch.nn.init.normal_(net.initial_h)
    x, state, flags = torch.randn(2, 4), torch.randn(1, 2, 6), torch.tensor([1, 0])
    out = net.step(x, state, reset=flags, reset_to="zeros")[0]
    torch.testing.assert_close(out[0], net.step(x, torch.zeros_like(state))[0][0])
    torch.testing.assert_close(out[1], net.step(x, state)[0][1])
    with pytest.raises(InputError, match="reset_to='initial' is of a whole sequence"):
        net.step(x, state, reset=flags, reset_to="initial")
    with pytest.raises(TypeError, match=r"step\(\) got .* 'done'; its options are lengths, reset"):
        net.step(x, state, done=flags)


def test_a_loop_around_a_layer_is_reported():
    """Training by single steps leaves most of the speed unused."""
    net, x = elman.GRU(4, 6), torch.randn(3, 2, 4)
    net(x[:1])[0].sum().backward()
    assert "each training call has a single step" in elman.nn.report(net)[""]
    net(x)[0].sum().backward()
    assert "single step" not in elman.nn.report(net)[""]

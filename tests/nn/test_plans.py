"""Calls that come again go straight to the kernel; whatever has changed since is seen."""

from __future__ import annotations

import copy
import sys
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_sequence
from torch.utils._pytree import tree_leaves

import elman
from elman.engines.c.run.prepared import PreparedKernel
from elman.nn.call.plan import CallPlan
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
    checked_no_more,
    made_with_input,
    modules,
    one_thread_more,
    outcome,
    served_without_checks,
    states_of,
)

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
        net, x, states = call_of(net, whole, change, given_, state)
        with AROUND[around]():
            want = outcome(copy.deepcopy(net), x, states)
            for _ in range(3):
                assert_equal(outcome(net, x, states), want)


@pytest.mark.parametrize("name", ["gru"])
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
                with forced("reference"):
                    want = [net(x), net(x, state)]
                for _ in range(2):
                    net(x), net(x, state)
                with served_without_checks(monkeypatch):
                    got = [net(x), net(x, state)]
            assert_all_close(got, want)
            assert out is not got[0][0]


def test_a_training_call_that_came_before_passes_few_files():
    """The second call finds the kernel prepared by the first: no other file of engine c's."""
    need_engine("c")
    net, x, files = elman.GRU(16, 16, engine="c"), torch.randn(4, 2, 16), set[str]()
    folder = str(Path(elman.__file__).parent)

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            name = frame.f_code.co_filename.removeprefix(folder)
            # single functions around torch's own, by topics
            files.add("/torch_internals" if name.startswith("/torch_internals/") else name)

    poison = "/engines/c/process/memory.py"  # which fills fresh memory with NaN in tests alone
    for most in (None, 9, 9):
        files.clear()
        sys.setprofile(note)
        try:
            net(x)[0].sum().backward()
        finally:
            sys.setprofile(None)
        assert most is None or len(files - {poison, "/engines/forks.py"}) <= most, sorted(files)


@pytest.mark.parametrize("name", ["gru", "lstm of two layers"])
def test_gradients_of_prepared_calls(name):
    """Two backwards of one call, calls that overlap, and second derivatives are the oracle's."""
    need_engine("c")
    net, xs = modules()[name]().double(), torch.randn(2, 3, 2, SIZES[0], dtype=torch.float64)
    xs.requires_grad_()
    leaves = [xs, *net.parameters()]

    def gradients() -> list[Any]:
        outs = [net(x) for x in xs]
        loss = sum((value**2).sum() for out in outs for value in tree_leaves(out))
        kept = [torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2)]
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        return [*kept, first, torch.autograd.grad(sum((d**2).sum() for d in first), leaves)]

    with forced("reference"):
        want = gradients()
    for _ in range(3):
        assert_all_close(gradients(), want)


@elman.cell(input="x[H]", state="h[H]", weights="W[H, H]", output="y[H]")
def delayed(x, h, W):
    """Its steps have nothing to compute: the product is taken of all steps at once."""
    return W @ h, x


def test_layers_without_work_in_their_steps():
    """Layers at once are forecast as a share of no time."""
    need_engine("c")
    net, x = elman.Recurrent(delayed, 4, 4, num_layers=2), torch.randn(3, 2, 4)
    for trains in (False, True):
        with torch.set_grad_enabled(trains):
            got = net(x)[0]
            with forced("reference"):
                assert_all_close([got], [net(x)[0]])


SEVERAL: dict[str, Any] = {  # cells of several inputs: sizes, inputs of a sample at a step
    "gated_delta_net": ((4, 3), [(4,), (4,), (3,), (), ()]),
    "mlstm": ((4, 3), [(4,), (4,), (3,), (), ()]),
    "gru_d": ((5, 6), [(5,), (5,), (5,)]),
}


def _laid_out(value: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "one sample":
        return value[:, 0].contiguous()
    if layout == "batch first":
        return value.transpose(0, 1).contiguous()
    return value.transpose(0, 1).contiguous().transpose(0, 1) if layout == "transposed" else value


@pytest.mark.parametrize("layout", ["usual", "batch first", "one sample", "transposed"])
@pytest.mark.parametrize("name", SEVERAL)
def test_prepared_calls_of_several_inputs(name, layout):
    """With gradients and without, of one step and of more; each call, other numbers."""
    need_engine("c")
    (sizes, shapes), cell = SEVERAL[name], getattr(elman.cells, name)
    more = {"mean": torch.linspace(-1, 1, 5)} if name == "gru_d" else {}
    net = elman.Recurrent(cell, *sizes, engine="c", batch_first=layout == "batch first", **more)
    oracle = copy.deepcopy(net)
    oracle.engine = "reference"
    state = None
    for T, trains in [(1, False), (3, True)] * 4:
        xs = [torch.randn(T, 2, *shape).sigmoid() for shape in shapes]
        xs = [_laid_out(value, layout).requires_grad_(trains) for value in xs]
        results = []
        for module in (net, oracle):
            with torch.set_grad_enabled(trains):
                out, last = module(tuple(xs), state)
            values = [out, *tree_leaves(last)]
            loss, leaves = sum((v**2).sum() for v in values), [*xs, *module.parameters()]
            grads = torch.autograd.grad(loss, leaves) if trains else ()
            results.append([*(value.detach() for value in values), *grads])
        assert_all_close(results[0], results[1])
        state = tuple(value.detach() for value in tree_leaves(last))
        state = state if len(state) > 1 else state[0]
    plans = [plan for _, plan in net.runtime.plans._plans.values()]
    prepared = [isinstance(plan._usual_kernel.kernel, PreparedKernel) for plan in plans]
    assert all(prepared) == (layout in ("usual", "one sample"))


def test_masks_are_numbers_in_each_call():
    """An input of truth values, which kernels cannot read, in calls that came before."""
    need_engine("c")
    net = elman.Recurrent(elman.cells.mgu, *SIZES, engine="c")
    for _ in range(4):
        x = torch.rand(3, 2, SIZES[0]) > 0.5
        with torch.no_grad():
            assert_equal(net(x), net(x.float()))


PLANNED: dict[str, tuple[Any, Any]] = {  # a module, and the options of a call of it [3, 2, I]
    "reset": (lambda: elman.LSTM(*SIZES, 2), lambda net: {"reset": torch.tensor([[1, 0]] * 3)}),
    "reset to initial": (
        lambda: elman.GRU(*SIZES, learn_initial=True),
        lambda net: {"reset": torch.tensor([[0.0, 1.0]] * 3), "reset_to": "initial"},
    ),
    "mask": (lambda: elman.GRU(*SIZES), lambda net: {"mask": torch.tensor([[1, 0]] * 3)}),
    "lengths": (lambda: elman.LSTM(*SIZES, bidirectional=True), lambda net: {"lengths": [3, 2]}),
    "residual": (lambda: elman.GRU(SIZES[1], SIZES[1], 2, residual=True), lambda net: {}),
    "dropout": (lambda: elman.GRU(*SIZES, 2, dropout=0.5), lambda net: {}),
    "several outputs": (lambda: elman.LSTM(*SIZES), lambda net: {"outputs": "states"}),
    "two directions": (lambda: elman.GRU(*SIZES, 2, bidirectional=True), lambda net: {}),
    "learned states": (lambda: elman.RNN(*SIZES, learn_initial=True), lambda net: {}),
    "weight dropout": (lambda: elman.RNN(*SIZES, weight_dropout=0.5), lambda net: {}),
    "checkpoint": (lambda: elman.GRU(*SIZES, plan=elman.PlanOptions(checkpoint=2)), lambda net: {}),
    "draws": (lambda: elman.GRU(*SIZES, zoneout=0.5), lambda net: {"draws": net.draws(3, 2)}),
}


@pytest.mark.parametrize("name", PLANNED)
def test_options_are_planned_once(name, monkeypatch):
    """The second call of a kind is checked no more, and gives what a fresh module gives."""
    need_engine("c")
    make, options = PLANNED[name]
    net = make()
    net.engine = "c"
    x, given_ = torch.randn(3, 2, net.input_size, requires_grad=True), options(net)
    first = net(x, **given_)
    x = torch.randn_like(x).requires_grad_()
    torch.manual_seed(3)
    want = copy.deepcopy(net)(x, **given_)
    torch.manual_seed(3)
    with served_without_checks(monkeypatch):
        got = net(x, **given_)
    assert_equal(got, want)
    assert not torch.equal(tree_leaves(got)[0], tree_leaves(first)[0])
    leaves = [x, *net.parameters()]
    sum(value.sum() for value in tree_leaves(got)).backward()
    assert all(leaf.grad is not None for leaf in leaves)


@pytest.mark.parametrize("engine", ["c", "auto"])
def test_packed_sequences_are_planned_once(engine, monkeypatch):
    """Whatever their lengths are; kernels are chosen for how long they are."""
    need_engine("c")
    net = elman.GRU(*SIZES, engine=engine)

    def packed(*lengths: int) -> Any:
        return pack_sequence([torch.randn(n, SIZES[0]) for n in lengths], enforce_sorted=False)

    net(packed(3, 2))
    for lengths in ((2, 3), (40, 1), (5, 5)):
        x = packed(*lengths)
        out, last = copy.deepcopy(net)(x)
        with served_without_checks(monkeypatch):
            got, end = net(x)
        assert_all_close((got.data, end), (out.data, last))


@pytest.mark.parametrize("name", ["lstm of two layers", "two directions"])
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


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
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
        monkeypatch.setattr(CallPlan, "__init__", checked_no_more)
        net(x)
        assert elman.nn.pin(net, elman.nn.choices(net)) == []
        with pytest.raises(AssertionError, match="checked before"):
            net(x)


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "reset"), [(1, torch.tensor([[True, False]])), (2, None)])
def test_random_numbers_are_those_of_the_long_way(layers, reset, monkeypatch):
    """In training each call draws as often and the same as one that is checked, of a step as of
    several; otherwise none does. The third call is checked no more. Of training, steps and what is
    around, each case has one half of the combinations."""
    need_engine("c")
    net = elman.GRU(*SIZES, layers, zoneout=0.4, recurrent_dropout=0.3, engine="c").double()
    state = torch.randn(layers, 2, SIZES[1], dtype=torch.float64)
    for training, steps, around in product((True, False), (1, 3), ("no_grad", "usual")):
        if (training + (steps > 1) + (around == "usual") + layers) % 2:
            continue
        net.train(training)
        x = torch.randn(steps, 2, SIZES[0], dtype=torch.float64)
        flags = None if reset is None else reset.expand(steps, 2)
        with AROUND[around]():
            torch.default_generator.manual_seed(5)
            with forced("reference"):
                want = [copy.deepcopy(net)(x, state, reset=flags) for _ in range(4)]
                whole = outcome(net, x, state, flags)
            torch.default_generator.manual_seed(5)
            got = [net(x, state, reset=flags) for _ in range(2)]
            with served_without_checks(monkeypatch):
                got += [net(x, state, reset=flags) for _ in range(2)]
                rest = torch.rand(3)
                assert_all_close(outcome(net, x, state, flags), whole)
        assert_all_close(got, want)
        assert training != torch.equal(got[0][0], got[1][0])
        torch.default_generator.manual_seed(5)
        for _ in range(4):
            copy.deepcopy(net)(x, state, reset=flags)
        assert torch.equal(torch.rand(3), rest)


def test_half_precision_draws_in_float32():
    """Calls that are computed in another type are no kind."""
    net, x = elman.GRU(*SIZES, zoneout=0.4, dtype=torch.bfloat16), torch.randn(1, 2, SIZES[0])
    for _ in range(4):
        want = outcome(copy.deepcopy(net), x.bfloat16(), None)
        assert_equal(outcome(net, x.bfloat16(), None), want)

"""What PyTorch offers around a module: each works on elman's layers as on torch's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parametrizations, prune
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import elman
from elman import torch_internals
from elman.errors import InputError
from elman.ops import tanh
from helpers import need_engine
from products import some_of

KINDS = ("RNN", "GRU", "LSTM")
X = torch.linspace(0, 9, 6 * 3 * 5).reshape(6, 3, 5).sin()


def pair(kind: str, *sizes: int, **options: Any) -> tuple[Any, Any]:
    """torch's layer and elman's with the same weights."""
    torch.manual_seed(1)
    theirs, ours = (getattr(where, kind)(*sizes, **options) for where in (nn, elman))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def trained(module: Any, x: Tensor = X) -> dict[str, Tensor]:
    """Output and gradients, by name."""
    for weight in module.parameters():
        if weight.is_leaf:
            weight.grad = None
    out, _ = module(x)
    out.square().sum().backward()
    leaves = {name: p for name, p in module.named_parameters() if p.is_leaf}
    grads = {name: p.grad.clone() for name, p in leaves.items() if p.grad is not None}
    return {"out": out.detach(), **grads}


def same(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def weight_norm(module: Any) -> None:
    parametrizations.weight_norm(module, "weight_hh_l0")


def old_weight_norm(module: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(module, "weight_hh_l0")


def spectral_norm(module: Any) -> None:
    torch.manual_seed(2)
    # until it has converged: each reading of the weight is a round, and torch reads it more often
    parametrizations.spectral_norm(module, "weight_ih_l0", n_power_iterations=100)


def pruned(module: Any) -> None:
    prune.l1_unstructured(module, "weight_hh_l1", 0.5)


def dropped(module: Any) -> None:
    """A weight that is no parameter any more, replaced before each call."""
    raw = nn.Parameter(module._parameters.pop("weight_hh_l0").data)
    module.register_parameter("raw", raw)

    def drop(module: Any, _: Any) -> None:
        torch.manual_seed(3)
        module.weight_hh_l0 = nn.functional.dropout(module.raw, 0.5)

    module.register_forward_pre_hook(drop)


def dropped_in_place(module: Any) -> None:
    """A tensor among the parameters, as fastai has it."""
    module.register_parameter("raw", nn.Parameter(module.weight_hh_l0.data.clone()))

    def drop(module: Any, _: Any) -> None:
        torch.manual_seed(3)
        module._parameters["weight_hh_l0"] = nn.functional.dropout(module.raw, 0.5)

    module.register_forward_pre_hook(drop)
    drop(module, None)


def tied(module: Any) -> None:
    module.weight_hh_l1 = module.weight_hh_l0


def frozen(module: Any) -> None:
    module.weight_hh_l0.requires_grad_(False)
    module.bias_ih_l1.requires_grad_(False)


CHANGES = (
    *(weight_norm, old_weight_norm, spectral_norm, pruned),
    *(dropped, dropped_in_place, tied, frozen),
)


@pytest.mark.filterwarnings("ignore:RNN module weights")  # torch's own
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changed_weights(kind, change):
    """Weights that are computed, replaced, shared or frozen."""
    theirs, ours = pair(kind, 5, 7, 2)
    for module in (theirs, ours):
        change(module)
    for _ in range(2):
        got, want = trained(ours), trained(theirs)
        assert list(got) == list(want)
        for name, value in want.items():
            same(got[name], value)


def test_frozen_weights_cost_nothing():
    """No gradient is computed for what needs none."""
    need_engine("c")
    net = elman.GRU(5, 7, engine="c")
    net.weight_hh_l0.requires_grad_(False)
    net(X)[0].sum().backward()
    (choice,) = net.stack.runners[0].choices
    assert "R" not in choice.split()
    assert net.weight_hh_l0.grad is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(kind, reentrant):
    """Forward again in the backward, with the same dropout."""
    found = []
    for module in pair(kind, 5, 7, 2, dropout=0.3):
        x = X.clone().requires_grad_()
        torch.manual_seed(4)
        out = checkpoint(lambda x, m=module: m(x)[0], x, use_reentrant=reentrant)
        out.square().sum().backward()
        found.append((out.detach(), x.grad, [p.grad for p in module.parameters()]))
    same(*found)


def test_an_optimizer_and_averages():
    """fused=True, clipping and averaged models see ordinary parameters."""
    found = []
    for module in pair("GRU", 5, 7, 2):
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)
        mean = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        for step in range(5):
            trained(module, X * (1 + step))
            norm = clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            mean.update_parameters(module)
        found.append((norm, mean(X)[0].detach(), [p.detach() for p in module.parameters()]))
    same(*found)


def test_hooks():
    """Of modules: before and after the forward, and of the backward."""
    seen = []
    net = elman.GRU(5, 7)
    net.register_forward_pre_hook(lambda *_: seen.append("before"))
    net.register_forward_hook(lambda *_: seen.append("after"))
    net.register_full_backward_hook(lambda *_: seen.append("back"))
    net(X.clone().requires_grad_())[0].sum().backward()
    assert seen == ["before", "after", "back"]


@pytest.mark.parametrize("kind", KINDS)
def test_old_pickles(kind):
    """States of modules that older versions of torch wrote; and those of torch's own class."""
    theirs, ours = pair(kind, 5, 7, 2)
    names = theirs._all_weights
    old = {name: value for name, value in vars(theirs).items() if not name.startswith("_flat")}
    del old["_all_weights"], old["proj_size"]
    old["all_weights"] = [[getattr(theirs, name) for name in group] for group in names]
    for state in (old, vars(theirs)):
        module = type(ours).__new__(type(ours))
        module.__setstate__(copy.copy(state))
        same(module(X)[0], theirs(X)[0])
        assert module.extra_repr() == theirs.extra_repr()


@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_weights(kind):
    """flatten_parameters, all_weights, extra_repr, hx by keyword."""
    theirs, ours = pair(kind, 5, 7, 2)
    assert ours.flatten_parameters() is None
    assert ours.extra_repr() == theirs.extra_repr()
    same(ours.all_weights, theirs.all_weights, 0.0)
    h = torch.ones(2, 3, 7)
    states = (h, h) if kind == "LSTM" else h
    same(ours(input=X, hx=states), theirs(input=X, hx=states))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes, shape", [((3, 4), (5, 0, 3)), ((3, 4), (0, 2, 3)), ((0, 4), ())])
def test_nothing_at_all(kind, sizes, shape):
    """No samples, no steps, no features: torch's result, or torch's error."""
    found = []
    for where in (nn, elman):
        try:
            out, _ = getattr(where, kind)(*sizes)(torch.zeros(shape))
            found.append(out.shape)
        except (RuntimeError, ValueError) as error:
            found.append((type(error), str(error)))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "own, options, call",
    some_of(
        [False, True],
        [{}, {"residual": True, "num_layers": 2}, {"engine": "reference"}],
        [{}, {"lengths": []}, {"reset": torch.zeros(0, 5), "outputs": "states"}],
    ),
)
def test_no_samples_with_what_torch_lacks(own, options, call):
    """Empty results and zero gradients as without options, of padded sequences too."""
    kind = elman.Recurrent if own else elman.LSTM
    cell = [elman.cells.lstm_layernorm] if own else []
    net = kind(*cell, 4, 4, batch_first=True, **options)
    out, *more, (h, c) = net(torch.zeros(0, 5, 4), **call)
    lead = options.get("num_layers", 1)
    assert (out.shape, h.shape, c.shape) == ((0, 5, 4), (lead, 0, 4), (lead, 0, 4))
    assert all(value.shape == (0, 5, 4) for states in more for value in states)
    out.sum().backward()
    assert not any(weight.grad.any() for weight in net.parameters())


def test_no_features():
    """A network of any cell takes inputs of no features; the gradient is empty too."""
    net = elman.Recurrent(elman.cells.gru, 0, 4)
    net(torch.zeros(5, 3, 0))[0].sum().backward()
    assert net.W_l0.grad.shape == (12, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind):
    """torch's dtypes and torch's values; a network of any cell gives autocast's type."""
    theirs, ours = pair(kind, 5, 7, 2, bidirectional=True)
    net = elman.Recurrent(elman.cells.gru, 5, 7)
    wide = theirs(X)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = ours(X)[0]
        assert net(X)[0].dtype == net(X.bfloat16())[0].dtype == torch.bfloat16
        if torch_internals.cpu_has_bf16():  # else torch's LSTM raises
            want = theirs(X)[0]
            assert got.dtype == want.dtype
            same(got, want, 2e-2)
    same(got.float(), wide, 2e-2)
    got.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in ours.parameters())


@elman.cell(input="x[H]", state="h[H]")
def leaky(x: Any, h: Any) -> Any:
    """Neurons that multiply by no weights."""
    return 0.9 * h + tanh(x)


def test_autocast_of_formulas_without_weights():
    """They are computed in float32, as torch does with their states; bits are those without
    autocast, the gradient has x's type."""
    net, x = elman.Recurrent(leaky, 4, 4), torch.randn(6, 3, 4)
    half = x.bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        h = torch.zeros(3, 4)
        for row in half:
            h = 0.9 * h + torch.tanh(row)
        out, last = net(half)
        whole = torch.compile(net, backend="eager", fullgraph=True)(half)[0]
        exact = net(x)[0]
    assert out.dtype == last.dtype == h.dtype == whole.dtype == torch.float32
    want = net(half.detach().float())[0]
    assert torch.equal(out, want)
    assert torch.equal(whole, want)
    assert torch.equal(exact, net(x)[0])
    out.sum().backward()
    assert half.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_autocast_without_bf16(kind, monkeypatch):
    """Where torch has no bfloat16 on the processor, float32 computes and results are rounded."""
    theirs, ours = pair(kind, 5, 7, 2, bidirectional=True)
    want = theirs(X)[0]
    monkeypatch.setattr("elman.nn.engine_choice.cpu_has_bf16", lambda: False)
    monkeypatch.setattr("elman.nn.engine_choice.lacks_bf16", lambda *of: "no instruction")
    monkeypatch.setattr(f"torch.nn.{kind}.forward", None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = ours(X)[0]
    same(got.float(), want, 1e-2)


FORMS = ("dense", "unbatched", "packed", "unsorted", "lengths")
MODES = ("all", "weights", "x", "some", "no_grad", "inference")


def called(module: Any, x: Tensor, form: str, lengths: list[int], first: bool) -> Any:
    """A call in one of the forms; padded results of ``lengths`` as rows."""
    if form in ("dense", "unbatched"):
        return module(x)
    if form == "lengths" and not isinstance(module, getattr(elman, type(module).__name__)):
        form = "unsorted"  # torch has no lengths
    if form == "lengths":
        out, last = module(x, lengths=lengths)
        return pack_padded_sequence(out, lengths, first, enforce_sorted=False).data, last
    packed = pack_padded_sequence(x, lengths, first, enforce_sorted=form == "packed")
    out, last = module(packed)
    assert isinstance(out, PackedSequence)
    return out.data, last


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@settings(deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    bias=st.booleans(),
    layers=st.integers(1, 2),
    two=st.booleans(),
    first=st.booleans(),
    projected=st.booleans(),
    relu=st.booleans(),
    form=st.sampled_from(FORMS),
    mode=st.sampled_from(MODES),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    engine=st.sampled_from(["auto", "reference", "aten"]),
)
def test_every_option(
    kind, bias, layers, two, first, projected, relu, form, mode, dtype, lengths, engine
):
    """All constructor's options, forms of input and modes of autograd together."""
    options: dict[str, Any] = {"bias": bias, "bidirectional": two, "batch_first": first}
    if kind == "LSTM" and projected:
        options["proj_size"] = 3
    if kind == "RNN" and relu:
        options["nonlinearity"] = "relu"
    theirs, ours = (m.to(dtype) for m in pair(kind, 5, 7, layers, **options))
    ours.engine = engine
    if form == "packed":
        lengths = sorted(lengths, reverse=True)
    if form == "unbatched":
        x = torch.randn(6, 5, dtype=dtype)
    else:
        x = torch.randn(len(lengths), max(lengths), 5, dtype=dtype)
        x = x if first else x.transpose(0, 1)
    found = []
    for module in (ours, theirs):
        own = x.detach().requires_grad_(mode in ("all", "x"))
        for k, weight in enumerate(module.parameters()):
            weight.requires_grad_(mode in ("all", "weights") or (mode == "some" and k % 3 == 1))
        guard: Callable[[], Any] = {
            "no_grad": torch.no_grad,
            "inference": torch.inference_mode,
        }.get(mode, torch.enable_grad)
        with guard():
            results = tree_leaves(called(module, own, form, lengths, first))
        leaves = [v for v in (own, *module.parameters()) if v.requires_grad]
        if leaves:
            loss = sum(value.sin().sum() for value in results)
            results += torch.autograd.grad(loss, leaves, allow_unused=True)
        found.append([None if value is None else value.detach() for value in results])
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    assert len(found[0]) == len(found[1])
    for a, b in zip(*found):
        assert (a is None) == (b is None)
        if b is not None:
            same(a, b, tolerance)


@pytest.mark.parametrize("how", ["c", "keras"])
@pytest.mark.parametrize(
    "change", [nn.utils.spectral_norm, lambda net, name: prune.identity(net, name)]
)
def test_weights_of_hooks_are_not_written(change, how, tmp_path):
    """They are as of the last forward, if there was one; once the hook is gone they are."""
    net = elman.GRU(3, 4)
    change(net, "weight_hh_l0")
    write = {
        "c": lambda: elman.export.to_c(net, tmp_path),
        "keras": lambda: elman.weights.to_arrays(net, "keras"),
    }[how]
    with pytest.raises(InputError, match="weight_hh_l0 is what a hook computed"):
        write()
    if change is not nn.utils.spectral_norm:
        prune.remove(net, "weight_hh_l0")
        write()

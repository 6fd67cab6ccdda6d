"""``precision="bf16"`` of modules: every option, layout and derivative; what it leaves alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad
from torch.utils._pytree import tree_leaves

import elman
import elman.nn
from conformance.calling import by_layout, called, compare, leaves_of
from conformance.rows import ROWS, Given, Row, given_of
from elman import cells
from elman.engines import registry
from elman.engines.base import Engine
from elman.engines.c.compilation import isa
from elman.engines.c.engine import LARGE_WEIGHTS, CEngine
from elman.errors import InputError
from elman.torch_internals import cpu_has_bf16
from helpers import assert_close, need_isa
from products import every

F32 = torch.float32
SEEDS = (1, 2, 3)
BF16 = {"precision": "bf16", "dtype": F32}
X = torch.randn(9, 3, 4, generator=torch.Generator().manual_seed(0))


SLOW = CEngine.slow_bf16


@pytest.fixture(autouse=True)
def _rounded(monkeypatch):
    """Operands are rounded on every processor, also where that gains nothing."""
    monkeypatch.setattr(CEngine, "slow_bf16", Engine.slow_bf16)
    registry.lacks_bf16.cache_clear()
    yield
    registry.lacks_bf16.cache_clear()


def without_instruction(monkeypatch):
    """The processor, as engine c sees it, has no instruction for pairs."""
    flags = isa.cpu_flags() - {"avx512_bf16", "bf16"}
    monkeypatch.setattr(isa, "cpu_flags", lambda: flags)


def single(given: Given) -> Given:
    """The same arguments in float32."""

    def each(values: Any) -> Any:
        if isinstance(values, list):
            return [each(value) for value in values]
        return values.detach().float().requires_grad_()

    states = None if given.states is None else each(given.states)
    return replace(given, inputs=each(given.inputs), static=each(given.static), states=states)


def agree(row: Row, run: Any, **options: Any) -> None:
    """Engines c and reference, which rounds alike, agree as float32 does, for one seed of several:
    a number in the middle between two of bfloat16 may go either way."""
    for seed in SEEDS:
        net = row.make(**BF16, **options)
        given = single(given_of(row, net, seed=seed))
        results = {}
        for engine in ("c", "reference"):
            net.engine = engine
            results[engine] = run(net, row, given)
        try:
            return compare(results["c"], results["reference"], leaves_of(net, given))
        except AssertionError:
            if seed == SEEDS[-1]:
                raise


@pytest.mark.parametrize("name", every(4, [name for name in ROWS if name != "dropout of all"]))
def test_options(name):
    """Every option of calls and modules, of several layers."""
    row = ROWS[name]
    alike = isinstance(row.of, str) and "num_layers" not in row.options
    agree(row, called, **({"num_layers": 2} if alike else {}))


@pytest.mark.parametrize("name", ["lstm", "mask, reset"])
@pytest.mark.parametrize("layout", ["batch first", "unbatched", "packed", "lengths", "strided"])
def test_layouts(layout, name):
    """However arguments lie, in both directions."""
    agree(ROWS[name], partial(by_layout, layout), bidirectional=True)


def gru(**options: Any) -> Any:
    """A GRU with weights that are always the same."""
    torch.manual_seed(0)
    return elman.GRU(4, 16, **options)


def same(one: Any, other: Any) -> bool:
    return torch.equal(one(X)[0], other(X)[0])


def test_steps_are_those_of_a_sequence():
    """Without gradients one step rounds weights on their way."""
    net = gru(precision="bf16")
    with torch.no_grad():
        want, state = net(X)[0], None
        for x, row in zip(X, want, strict=True):
            out, state = net.step(x, state)
            assert_close(out, row)


def test_it_is_asked_for_by_module_plan_or_torch():
    """``precision=`` comes before ``plan=``, that before torch's switch; a call of the same kind
    follows a change."""
    plain, rounded = gru(), gru(precision="bf16")
    assert not same(plain, rounded)
    assert same(rounded, gru(plan=elman.PlanOptions(precision="bf16")))
    assert same(plain, gru(plan=elman.PlanOptions(precision="bf16"), precision="ieee"))
    switch = torch.backends.mkldnn.rnn
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        assert same(plain, rounded)
        assert not same(gru(precision="ieee"), rounded)
    finally:
        switch.fp32_precision = before
    assert not same(plain, rounded)
    plain.precision = "bf16"
    assert same(plain, rounded)


def test_nothing_is_rounded_unasked():
    """A module in float32 is one with ``precision="ieee"``; in float64 nothing is rounded."""
    assert same(gru(), gru(precision="ieee"))
    double = gru(precision="bf16", dtype=torch.float64)
    assert torch.equal(double(X.double())[0], gru(dtype=torch.float64)(X.double())[0])
    with pytest.raises(InputError, match="precision must be 'ieee' or 'bf16', got 'tf32'"):
        gru(precision="tf32")


def test_explained():
    """``explain`` says what is rounded; records name it, and pin it."""
    net = gru(precision="bf16")
    net(X)
    text = elman.explain(net, X, measure=False).all
    assert "operands of products are rounded to bfloat16" in text
    assert "with products of bf16" in text
    (record,) = elman.nn.choices(net).values()
    assert all("precision=bf16" in request for request in record)
    other = gru(precision="bf16")
    assert not elman.nn.pin(other, elman.nn.choices(net))
    assert same(net, other)


@pytest.mark.parametrize("lacking", ["flag", "isa"])
def test_a_processor_without_such_products(lacking, monkeypatch):
    """It computes in float32, and says why."""
    want = gru()(X)[0]
    if lacking == "flag":
        without_instruction(monkeypatch)
    else:
        need_isa("scalar", monkeypatch)
    monkeypatch.setattr(CEngine, "slow_bf16", SLOW)
    net = gru(precision="bf16")
    assert_close(net(X)[0], want)
    text = elman.explain(net, X, measure=False).all
    assert "operands of products are not rounded to bfloat16: " in text
    assert "has no products of bfloat16" in text


def test_large_weights_are_rounded_on_every_processor(monkeypatch):
    """One or two samples read weights beyond the caches in half the time without an instruction
    for their products, too; more samples do not."""
    without_instruction(monkeypatch)
    monkeypatch.setattr(CEngine, "slow_bf16", SLOW)
    sizes = {"T": 2, "I": 64, "H": 1536}
    assert 3 * sizes["H"] * (sizes["I"] + sizes["H"]) * 4 > LARGE_WEIGHTS
    torch.manual_seed(0)
    net = elman.GRU(sizes["I"], sizes["H"], precision="bf16", engine="c")
    for samples, rounds in ((1, True), (2, True), (3, False)):
        x = torch.randn(sizes["T"], samples, sizes["I"])
        text = elman.explain(net, x, measure=False).all
        assert ("operands of products are rounded to bfloat16" in text) == rounds
        with torch.no_grad():
            found = net(x)[0]
            with elman.using(engine="reference"):
                assert_close(found, net(x)[0] if rounds else want_of(net, x))


def want_of(net, x):
    """A module's output without rounding, by operations."""
    plain = elman.GRU(x.shape[-1], net.hidden_size, engine="reference")
    plain.load_state_dict(net.state_dict())
    return plain(x)[0]


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_autocast(kind):
    """Autocast for bfloat16 asks layers for it; results have its type, weights keep theirs."""
    net, rounded = getattr(elman, kind)(4, 16), getattr(elman, kind)(4, 16, precision="bf16")
    rounded.load_state_dict(net.state_dict())
    with torch.autocast("cpu", torch.bfloat16):
        out, state = net(X)
        text = elman.explain(net, X, measure=False).all
        theirs = ()  # of an LSTM on processors that oneDNN computes no bfloat16 on
        if kind != "LSTM" or cpu_has_bf16():
            theirs = getattr(torch.nn, kind)(4, 16)(X)
    assert "torch's own" not in text
    assert torch.equal(out, rounded(X)[0].to(out.dtype))
    kinds = [value.dtype for value in tree_leaves((out, state))]
    assert kinds == ([value.dtype for value in tree_leaves(theirs)] or [torch.bfloat16] * 3)
    out.float().sum().backward()
    assert {value.grad.dtype for value in net.parameters()} == {F32}


@pytest.mark.parametrize("kind", ["Recurrent", "GRU"])
@pytest.mark.parametrize("asks", ["autocast", "bfloat16"])
def test_compiled(asks, kind):
    """Under torch.compile autocast, and a module in bfloat16, ask for it as without, in one graph:
    bits and types are the same."""
    sizes = (cells.mgu, 4, 16, 2) if kind == "Recurrent" else (4, 16, 2)
    net, x = getattr(elman, kind)(*sizes), X.clone()
    if asks == "bfloat16":
        net, x = net.bfloat16(), X.bfloat16()
    found = []
    for call in (net, torch.compile(net, fullgraph=True, backend="aot_eager")):
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=asks == "autocast"):
            results = tree_leaves(call(x))
        sum(value.float().sum() for value in results).backward()
        found.append([*results, *[value.grad for value in net.parameters()]])
    plain = tree_leaves(net.float()(X))[0] if asks == "autocast" else None
    for mine, other in zip(*found, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other)
    assert plain is None or not torch.equal(found[1][0], plain.to(found[1][0].dtype))


def test_further_derivatives_are_of_float32():
    """Second derivatives, and transforms of torch.func, run on kernels that round nothing."""
    plain, rounded = gru(), gru(precision="bf16")

    def second(net: Any) -> torch.Tensor:
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(net(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    def gradients(net: Any) -> torch.Tensor:
        weights = {name: value.detach() for name, value in net.named_parameters()}
        return grad(lambda x: functional_call(net, weights, (x,))[0].square().sum())(X)

    for run in (second, gradients):
        got, want = run(rounded), run(plain)
        assert (got - want).norm() < 2e-2 * want.norm()


def test_bits_repeat():
    """The same call gives the same bits; deterministic algorithms change none of it."""
    net = gru(precision="bf16")

    def bits() -> list[torch.Tensor]:
        net.zero_grad()
        net(X)[0].square().sum().backward()
        return [value.grad.clone() for value in net.parameters()]

    first = bits()
    assert all(map(torch.equal, first, bits()))
    torch.use_deterministic_algorithms(True)
    try:
        again = bits()
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(first, again, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("kind", ["Recurrent", "GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_modules_in_half_precision(dtype, kind):
    """Modules in bfloat16 or float16 run on engine c in float32, those in bfloat16 with such
    products; results and gradients have their type."""
    torch.manual_seed(0)
    sizes = (cells.lstm_peephole, 4, 16, 2) if kind == "Recurrent" else (4, 16, 2)
    half = getattr(elman, kind)(*sizes).to(dtype)
    full = copy.deepcopy(half).float()
    full.precision = "bf16" if dtype is torch.bfloat16 else "ieee"
    found, mix = [], torch.randn(9, 3, 16).sign()
    for net, x in ((half, X.to(dtype)), (full, X.to(dtype).float())):
        for _ in range(2):  # planned, and run again
            out, state = net(x)
        (out.float() * mix).sum().backward()
        grads = [value.grad for value in net.parameters()]
        found.append([out, *tree_leaves(state), *grads])
    for mine, other in zip(*found, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, other.to(dtype))
    assert all(run["engine"] == "c" for run in elman.nn.choices(half)["l0"].values())

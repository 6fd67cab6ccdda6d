"""Transforms of torch on engine c: right to any order, and never through the reference."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves

import elman
from calls import forward, given_of
from elman import cells
from elman.engines.reference.engine import ReferenceKernel
from elman.nn.execute.layer import Runner
from helpers import Case, Sizes, forced, need_engine, random_case
from kernels import case_of
from random_cells import drawn_cells
from unseen import UNSEEN

F64 = torch.float64
CASES = {cell: Sizes(T=4, B=3, I=3, H=5) for cell in (*cells.CORE, cells.rlif)} | UNSEEN
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


@pytest.fixture(autouse=True)
def engine():
    need_engine("c")


def same(got: Any, want: Any, tolerance: float = 1e-9) -> None:
    ours, theirs = tree_leaves(got), tree_leaves(want)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max())


def both(monkeypatch: pytest.MonkeyPatch, compute: Any) -> None:
    """The same from engine reference, and without it."""
    with forced("reference"):
        want = compute()
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        patch.setattr(ReferenceKernel, "forward", only_to_verify)
        with forced("c"):
            same(compute(), want)


def losses(case: Case) -> tuple[Any, Any, tuple[Any, ...]]:
    """A loss on a case by engine c and by reference, and its arguments: inputs, states, weights."""
    runner = Runner(case.cell, case.dims)
    reference = runner.oracle()._reference
    parts = given_of(case)

    def loss(kernel: Any) -> Any:
        def run(inputs: Any, states: Any, weights: Any) -> torch.Tensor:
            output, last, _ = forward(kernel, (inputs, states, weights))
            total = (output * case.d_output[:, : output.shape[1]]).sin().sum()
            for end, d in zip(last, case.d_last.values()):
                total = total + (end * d[: end.shape[0]]).sin().sum()
            return total

        return run

    return loss(runner.oracle()), loss(reference), parts


_reference = ReferenceKernel.forward


def only_to_verify(self: ReferenceKernel, *arguments: Any) -> Any:
    """The reference judges kernels before they run, and runs nothing in their place."""
    assert any(frame.filename.endswith("verification.py") for frame in inspect.stack(0))
    return _reference(self, *arguments)


def norm(loss: Any) -> Any:
    """The squared norm of all gradients of a loss."""

    def run(*arguments: Any) -> torch.Tensor:
        found = grad(loss, argnums=(0, 1, 2))(*arguments)
        return sum((g.square().sum() for g in tree_leaves(found)), torch.zeros((), dtype=F64))

    return run


def check(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """First and second derivatives, forward and backward, and gradients by sample."""
    ours, theirs, arguments = losses(case)
    moves = tuple(tuple(torch.randn_like(value) for value in part) for part in arguments)

    def each(loss: Any) -> Any:
        def one(inputs: Any, states: Any, weights: Any) -> torch.Tensor:
            wide = tuple(x.unsqueeze(1) for x in inputs), tuple(s.unsqueeze(0) for s in states)
            return loss(*wide, weights)

        return vmap(grad(one, argnums=(0, 1, 2)), in_dims=(1, 0, None))

    def all_of(loss: Any) -> Any:
        yield grad(loss, argnums=(0, 1, 2))(*arguments)
        yield jvp(loss, arguments, moves)
        yield each(loss)(*arguments)
        yield grad(norm(loss), argnums=(0, 1, 2))(*arguments)
        yield jvp(grad(loss, argnums=(0, 1, 2)), arguments, moves)

    want = list(all_of(theirs))
    with monkeypatch.context() as patch:
        patch.setattr(ReferenceKernel, "forward", only_to_verify)
        same(list(all_of(ours)), want)


UNLIKE = {  # cells of every kind, beside those of conformance; the rest take minutes of compiling
    *("lstm_layernorm", "slstm", "minlstm", "rlif", "three_states", "attending", "scalars"),
}


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=cell.name, marks=() if cell.name in UNLIKE else pytest.mark.long)
        for cell in CASES
    ],
)
def test_every_cell(cell, monkeypatch):
    """Every built-in and every unseen cell."""
    check(random_case(cell, CASES[cell], dtype=F64), monkeypatch)


@settings(max_examples=2, deadline=None)
@given(drawn=drawn_cells())
def test_random_cells(drawn):
    """Cells nobody has written."""
    with pytest.MonkeyPatch.context() as patch:
        check(case_of(drawn, 3, 2, F64), patch)


def net(kind: str = "GRU", **options: Any) -> Any:
    return getattr(elman, kind)(3, 4, dtype=F64, **options)


def task(module: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """A loss of parameters and one sequence [T, I], and the parameters."""

    def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        out, last = functional_call(module, parameters, (x.unsqueeze(1),))
        return out.square().sum() + sum(end.sin().sum() for end in tree_leaves(last))

    return loss, {name: value.detach() for name, value in module.named_parameters()}


X = torch.linspace(-1, 2, 5 * 6 * 3, dtype=F64).reshape(5, 6, 3).sin()


def test_of_modules(monkeypatch):
    """Nested transforms of a module of both directions."""
    loss, parameters = task(net("LSTM", bidirectional=True))
    ones = {name: torch.ones_like(value) for name, value in parameters.items()}
    several = {name: torch.stack((value, 2 * value)) for name, value in parameters.items()}
    samples = vmap(grad(loss), in_dims=(None, 1))

    def norms(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return sum((g.square().sum() for g in grad(loss)(parameters, x).values()), x.new_zeros(()))

    def compute() -> Any:
        x = X[:, 0]
        yield jacrev(loss, argnums=1)(parameters, x), jacfwd(loss, argnums=1)(parameters, x)
        yield hessian(loss, argnums=1)(parameters, x)
        yield samples(parameters, X)
        yield vmap(grad(norms), in_dims=(None, 1))(parameters, X)
        yield grad(lambda p: sum((g**3).sum() for g in samples(p, X).values()))(parameters)
        yield jvp(lambda p: samples(p, X), (parameters,), (ones,))
        yield vmap(samples, in_dims=(None, 0))(parameters, torch.stack((X, -X)))
        yield vmap(grad(loss), in_dims=(0, None))(several, x)
        yield vmap(grad(loss), in_dims=(0, 1), chunk_size=1)(several, X[:, :2])

    both(monkeypatch, lambda: list(compute()))


def test_outputs_may_be_written_to(monkeypatch):
    """What the backward needs is not the output that the caller holds."""
    module = net()

    def loss(x: torch.Tensor) -> torch.Tensor:
        out, _ = module(x)
        return (out.mul_(2.0) * torch.arange(4.0, dtype=F64)).sum()

    both(monkeypatch, lambda: grad(loss)(X))


def test_mutated_arguments_are_noticed():
    """A weight that changes between forward and backward is an error, as in torch."""
    module = net()
    x = X.clone().requires_grad_()
    (dx,) = torch.autograd.grad(module(x)[0].square().sum(), x, create_graph=True)
    with torch.no_grad():
        module.weight_hh_l0.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        dx.sum().backward()


def test_autograd_through_vmap(monkeypatch):
    """Parameters that torch's own autograd follows, outside the transform."""
    module = net()

    def compute() -> Any:
        out = vmap(lambda x: module(x.unsqueeze(1))[0], in_dims=1)(X)
        return torch.autograd.grad(out.square().sum(), list(module.parameters()))

    both(monkeypatch, compute)


@pytest.mark.parametrize("lengths", [[5, 2, 3, 1, 5, 4], torch.tensor([5, 5, 4, 3, 2, 1])])
def test_with_lengths(lengths, monkeypatch):
    """Padded sequences of several lengths, under every kind of transform."""
    module = net("LSTM", bidirectional=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        out, (h, c) = module(x, lengths=lengths)
        return out.square().sum() + h.sum() + c.square().sum()

    def compute() -> Any:
        yield grad(loss)(X), jvp(loss, (X,), (X.cos(),))
        yield vmap(grad(loss))(torch.stack((X, -X)))
        yield grad(lambda x: grad(loss)(x).square().sum())(X)
        yield vjp(loss, X)[0]

    both(monkeypatch, lambda: list(compute()))


def test_third_derivatives():
    """Derivatives of derivatives of derivatives, against finite differences."""
    module = elman.RNN(2, 3, dtype=F64)

    def slope(x: torch.Tensor) -> torch.Tensor:
        return grad(lambda x: grad(lambda x: module(x)[0].pow(3).sum())(x).square().sum())(x)

    x = torch.randn(3, 1, 2, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(slope, (x,))


def test_dtypes_without_a_kernel(monkeypatch):
    """Half precision is computed in float32; by name, the reference computes in it."""
    x = torch.randn(5, 2, 3, dtype=torch.bfloat16)
    for engine in ("auto", "reference"):
        module = elman.Recurrent(cells.gru, 3, 4, dtype=torch.bfloat16, engine=engine)
        d = grad(lambda x, module=module: module(x)[0].float().square().sum())(x)
        assert d.dtype == torch.bfloat16


def test_nested_forward_mode(monkeypatch):
    """The outer level moves too; of gradients by sample as well."""
    module = elman.RNN(3, 4, dtype=F64)
    x, a, b = X[:2, :1], X[:2, :1].cos(), X[:2, :1].sin()

    def inner(x: torch.Tensor) -> torch.Tensor:
        return jvp(grad(lambda x: module(x)[0].sin().sum()), (x,), (a,))[1]

    moved = jvp(inner, (x,), (b,))[1].detach()
    step = 1e-5
    slope = (inner(x + step * b) - inner(x - step * b)).detach() / (2 * step)
    assert moved.abs().max() > 1e-3
    torch.testing.assert_close(moved, slope, atol=1e-8, rtol=1e-6)

    loss, parameters = task(module)
    samples = vmap(grad(loss), in_dims=(None, 1))

    def by_sample(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return jvp(lambda x: samples(parameters, x), (x,), (X.cos(),))[1]

    twice = jvp(by_sample, (X,), (X.sin(),))[1]
    ends = (by_sample(X + step * side * X.sin()) for side in (1, -1))
    for (name, above), below in zip(next(ends).items(), next(ends).values(), strict=True):
        slope = (above - below) / (2 * step)
        assert slope.abs().max() > 1e-3
        torch.testing.assert_close(twice[name], slope, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("more", [{}, {"num_layers": 2, "bidirectional": True}])
def test_cotangents_of_a_later_transform(more):
    """Batched and dual cotangents of an output that was computed before."""
    module = net("GRU", **more)
    x = X.clone().requires_grad_()

    def gradient(cotangent: torch.Tensor, **options: bool) -> torch.Tensor:
        return torch.autograd.grad(module(x)[0], x, cotangent, **options)[0]

    with forced("c"):
        d = torch.randn(3, *module(x)[0].shape, dtype=F64)
        each = torch.stack([gradient(one) for one in d])
        same(gradient(d, is_grads_batched=True), each)
        same(gradient(d, is_grads_batched=True, create_graph=True), each)
        with forward_ad.dual_level():
            dual = gradient(forward_ad.make_dual(d[0], d[1]))
            same(forward_ad.unpack_dual(dual).tangent, each[1])
        output = module(x)[0]

        def kept(cotangent: torch.Tensor, again: bool = False) -> torch.Tensor:
            return torch.autograd.grad(output, x, cotangent, retain_graph=True, create_graph=again)[
                0
            ]

        same(torch.func.vmap(kept)(d), each)
        same(torch.func.jvp(kept, (d[0],), (d[1],))[1], each[1])
        weighed = torch.func.grad(lambda v: (kept(v, True) * x.detach()).sum())(d[0])
        # The gradient is linear in its cotangent: <J' v, x> has the derivative J x.
        same(weighed, torch.func.jvp(lambda x: module(x)[0], (x.detach(),), (x.detach(),))[1])

        def loss(x: torch.Tensor) -> torch.Tensor:
            return module(x)[0].sin().sum()

        small = X[:2, :2]
        whole = torch.autograd.functional.hessian(loss, small, vectorize=True)
        same(whole, torch.autograd.functional.hessian(loss, small))


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_samples_without_gradients(name):
    """Torch's layers over slices of their inputs alone."""
    net, x = getattr(elman, name)(5, 7).double(), torch.randn(4, 6, 3, 5, dtype=F64)
    want = torch.stack([net(one)[0] for one in x])
    same(vmap(lambda one: net(one)[0])(x), want)

"""The one autograd function: retained graphs, double backward, versions, what is asked for."""

from __future__ import annotations

import warnings

import pytest
import torch

import elman
from elman import cells
from elman.nn.autograd.derived import derive
from helpers import OwnBackwardEngine, stand_in


@pytest.fixture
def engine(monkeypatch):
    """A correct engine with its own backward, in the place of c."""
    made = OwnBackwardEngine()
    stand_in(monkeypatch, made)
    derive.cache_clear()  # what other tests derived runs on engine c
    yield made
    derive.cache_clear()


def net(engine="c", own=cells.gru, **options):
    """A small module in float64 with the same weights each time."""
    torch.manual_seed(0)
    return elman.Recurrent(own, 3, 4, engine=engine, dtype=torch.float64, **options)


def test_two_backwards_with_retained_graph(engine):
    """The kernel is told to keep its tape, and only then; both backwards agree."""
    module = net()
    x = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    out, _ = module(x)
    first = torch.autograd.grad(out.sum(), [x, *module.parameters()], retain_graph=True)
    second = torch.autograd.grad(out.sum(), [x, *module.parameters()])
    (kernel,) = engine.kernels

    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert kernel.kept[-2:] == [True, False]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()


def test_double_backward_is_right_and_said_once(engine):
    """Where no engine runs derived cells, the reference does; one warning."""

    def penalty(module):
        x = torch.linspace(-1, 1, 18, dtype=torch.float64).reshape(3, 2, 3).requires_grad_()
        h0 = (x[0] @ torch.ones(3, 4, dtype=torch.float64)).unsqueeze(0)  # depends on x itself
        out, h = module(x, h0)
        (dx,) = torch.autograd.grad(out.square().sum() + h.sum(), x, create_graph=True)
        return torch.autograd.grad(dx.square().sum(), [x, *module.parameters()])

    with pytest.warns(UserWarning, match="through engine reference"):
        got = penalty(net())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = penalty(net())
    want = penalty(net("reference"))
    for a, b, c in zip(got, again, want):
        torch.testing.assert_close(a, c)
        assert torch.equal(a, b)


def test_changed_arguments_are_detected(engine):
    """An argument changed in place before the backward raises; it gives no wrong gradient."""
    module = net()
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    out, _ = module(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out, _ = module(x)
    with torch.no_grad():
        module.R_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_outputs_can_be_changed_in_place(engine):
    """A skip connection written as ``out += x`` works as with torch.nn."""
    x = torch.randn(3, 2, 4, dtype=torch.float64)
    grads = []
    for name in ("c", "reference"):
        torch.manual_seed(0)
        module = elman.Recurrent(cells.gru, 4, 4, engine=name, dtype=torch.float64)
        out, h = module(x)
        out += x
        (out.square().sum() + h.sum()).backward()
        grads.append([p.grad for p in module.parameters()])
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b)


def test_only_what_is_wanted_is_computed(engine):
    """Frozen weights and inputs without gradient get none; no tape without grad mode."""
    module = net()
    module.W_l0.requires_grad_(False)
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    out, _ = module(x)
    out.sum().backward()
    (kernel,) = engine.kernels
    assert kernel.job.spec.wants == {"R", "b", "c"}
    assert module.W_l0.grad is None
    with torch.no_grad():
        out, _ = module(x)
    assert not out.requires_grad
    assert not engine.kernels[-1].job.spec.training
    with torch.inference_mode():
        assert module(x)[0].is_inference()


def test_one_of_several_results_is_used(engine):
    """The loss touches only a last state, or only the output."""
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    for pick in (lambda out, state: out, lambda out, state: state[0], lambda out, state: state[1]):
        grads = []
        for name in ("c", "reference"):
            module = net(name, cells.lstm)
            pick(*module(x)).sum().backward()
            grads.append([p.grad for p in module.parameters()])
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b)


def test_saved_tensor_hooks(engine):
    """What is kept for the backward may be kept elsewhere."""
    x, module = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True), net(num_layers=2)
    want = torch.autograd.grad(module(x)[0].sum(), x)
    with torch.autograd.graph.save_on_cpu():
        out = module(x)[0]
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x), want)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch.func.jvp's own
@pytest.mark.filterwarnings("ignore:transforms and second derivatives")
def test_transforms_never_reach_a_kernel(engine):
    """vmap, grad, jvp, forward mode and tensors without memory never reach the kernel."""
    module = net()
    parameters = dict(module.named_parameters())
    x = torch.randn(3, 2, 3, dtype=torch.float64)

    def loss(parameters, x):
        return torch.func.functional_call(module, parameters, (x,))[0].square().sum()

    whole = torch.func.grad(loss)(parameters, x)
    each = torch.func.vmap(torch.func.grad(loss), (None, 1))(parameters, x.unsqueeze(2))
    for name in whole:
        torch.testing.assert_close(each[name].sum(0), whole[name])
    torch.func.jvp(lambda x: loss(parameters, x), (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(module(dual)[0]).tangent is not None
    meta = elman.Recurrent(cells.gru, 3, 4, device="meta", engine="c")
    assert meta(torch.zeros(3, 2, 3, device="meta"))[0].shape == (3, 2, 4)
    assert not engine.kernels

"""Calls that come again: what the host did is done again, with other tensors; interpreted."""

from __future__ import annotations

import ctypes
import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton.compiler import CompiledKernel

import elman
from calls import backward, call, forward, given_of
from elman import cells
from elman.engines.triton import batched_phase, source, sweeping
from elman.engines.triton import replay as replay_module
from elman.engines.triton.engine import TritonEngine
from elman.engines.triton.kernel import TritonKernel
from elman.ops import sigmoid, tanh
from helpers import Case, Sizes, assert_all_same, forced, job_of, oracle, random_case

LOOP, GRID, SLICED = "loop/16/4/1", "grid/16/2/3/1", "grid/2/2/3/2"
SIZES = Sizes(T=3, B=3, I=3, H=5)
pytestmark = [
    pytest.mark.interpreted,
    pytest.mark.usefixtures("device"),
    # numpy's, of units beyond the last: they are computed and thrown away
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture
def device(device: str) -> str:
    """The interpreter alone."""
    if device == "cuda":
        pytest.skip("a GPU's calls come again in every other test")
    return device


def made(case: Case, schedule: str) -> TritonKernel:
    """A kernel of its own, which has seen no call."""
    found = TritonEngine().compile(job_of(case), schedule)
    assert isinstance(found, TritonKernel)
    return found


def judged(kernel: TritonKernel, case: Case, times: int = 3, **options: Any) -> None:
    """So many calls, each with numbers of its own; those after the second are replayed."""
    for seed in range(times):
        drawn = random_case(case.cell, SIZES, seed=seed).to(case.dtype)
        assert_all_same(call(kernel, drawn, **options), oracle(drawn), case.dtype, case.T)
    assert kernel.forwards.replayed == times - 2


@pytest.mark.parametrize("schedule", [LOOP, GRID])
@pytest.mark.parametrize(
    "cell", [cells.gru, cells.lstm, cells.lstm_layernorm, cells.sru], ids=lambda cell: cell.name
)
def test_other_numbers(cell: Any, schedule: str) -> None:
    """Output, last states and every gradient of the third call."""
    case = random_case(cell, SIZES)
    kernel = made(case, schedule)
    judged(kernel, case)
    assert kernel.backwards.replayed == 1


def test_slices_of_a_batch() -> None:
    """Two slices of a program's samples, in bfloat16."""
    case = random_case(cells.gru, SIZES).to(torch.bfloat16)
    judged(made(case, SLICED), case, 4)


@pytest.mark.parametrize("cell", [cells.gru, cells.lstm], ids=lambda cell: cell.name)
@pytest.mark.parametrize("backwards", [1, 2])
def test_cotangents(cell: Any, backwards: int) -> None:
    """Kinds of calls in turn: with and without a cotangent, and two backwards of one tape."""
    case = random_case(cell, SIZES)
    kernel = made(case, LOOP)
    for seed in range(4):
        drawn = random_case(cell, SIZES, seed=seed)
        zeros = {name: torch.zeros_like(value) for name, value in drawn.d_last.items()}
        for of, changes in (
            (drawn, {}),
            (replace(drawn, d_output=torch.zeros_like(drawn.d_output)), {"d_output": None}),
            (replace(drawn, d_last=zeros), {"d_last": (None,) * len(zeros)}),
        ):
            found = call(kernel, drawn, backwards=backwards, **changes)
            assert_all_same(found, oracle(of), case.dtype, case.T)
    assert kernel.backwards.replayed == 2 * 3 * backwards


def test_arguments_elsewhere() -> None:
    """Slices of a long sequence, [B, T] as it lies, addresses that are no multiple of 16."""
    case = random_case(cells.gru, SIZES)
    kernel = made(case, LOOP)
    (h,), weights = case.states.values(), tuple(case.weights.values())
    long = torch.randn(40, 3, 3)
    batched = torch.randn(3, 40, 3).transpose(0, 1)
    shifted = torch.randn(40 * 9 + 1)[1:].view(40, 3, 3)
    for first in (0, 3, 8, 13, 20, 32):
        for whole in (long, batched, shifted):
            x = whole[first : first + 3]
            found = forward(kernel, ((x,), (h,), weights)).output
            again = made(case, LOOP)
            want = forward(again, ((x.clone(),), (h,), weights)).output
            torch.testing.assert_close(found, want, rtol=0, atol=0)
    assert kernel.forwards.replayed >= 6


def test_an_argument_given_twice() -> None:
    """A tensor that is input and cotangent: whose place it took is not recorded."""
    case = random_case(cells.gru, Sizes(T=3, B=3, I=5, H=5))
    kernel = made(case, LOOP)

    def grads(x: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
        given = ((x,), tuple(case.states.values()), tuple(case.weights.values()))
        saved = forward(kernel, given).saved
        found = backward(kernel, given, saved, dy, (None,))
        return [grad for grad in found if grad is not None]

    x, dy = torch.randn(2, 3, 3, 5)
    want = grads(x, dy)
    for _ in range(3):
        grads(x, x)
    for found, value in zip(grads(x, dy), want, strict=True):
        torch.testing.assert_close(found, value, rtol=0, atol=0)


def test_weights_of_one_buffer() -> None:
    """Weights that lie behind one another are joined as one; recorded so, they may lie anywhere."""
    case = random_case(two_products, Sizes(T=3, B=3, I=24, H=4))
    kernel = made(case, LOOP)
    flat = torch.cat([value.flatten() for value in case.weights.values()])
    sizes = [value.numel() for value in case.weights.values()]
    pairs = zip(case.weights.items(), flat.split(sizes), strict=True)
    behind = {name: part.view(value.shape) for (name, value), part in pairs}
    apart = {name: value.clone() for name, value in case.weights.items()}
    want = oracle(case)
    for weights in (behind, behind, behind, apart, behind, case.weights):
        assert_all_same(call(kernel, replace(case, weights=weights)), want, case.dtype, case.T)
    assert not kernel.forwards.texts  # a product of both as one matrix


@elman.cell(input="x[I]", state="h[H]", weights="V[H, I], W[H, I], R[H, H]")
def two_products(x: Any, h: Any, V: Any, W: Any, R: Any) -> Any:
    """Two weights of one input."""
    return tanh(V @ x + R @ h) * sigmoid(W @ x)


def test_nothing_is_kept_alive() -> None:
    """A record has no tensor of the call that it was made of."""
    case = random_case(cells.lstm, SIZES)
    kernel = made(case, LOOP)
    for _ in range(2):
        drawn = random_case(cells.lstm, SIZES)
        call(kernel, drawn)
        (x,) = drawn.inputs.values()
        known = weakref.ref(x)
        del drawn, x
        gc.collect()
        assert known() is None


def test_few_kinds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those seen first give way."""
    monkeypatch.setattr(replay_module, "_KEPT", 2)
    case = random_case(cells.rnn, SIZES)
    kernel = made(case, LOOP)
    _, states, weights = given_of(case)
    for _ in range(2):
        for T in (1, 2, 3):
            for _ in range(3):
                forward(kernel, ((torch.randn(T, 3, 3),), states, weights))
    assert kernel.forwards.replayed == 6


class _Compiled(CompiledKernel):
    """Stands for a kernel that a GPU runs: launched with addresses, which the interpreter reads."""

    def __init__(self, kernel: Any, like: list[torch.Tensor | None], options: Any) -> None:
        self.kernel, self.like, self.options = kernel, like, options

    def __getitem__(self, grid: Any) -> Any:
        assert len(grid) == 3

        def launch(*given: Any) -> None:
            pairs = zip(given, self.like, strict=False)
            args = [g if like is None else _at(g, like) for g, like in pairs]
            assert len(given) == len(self.kernel.arg_names)
            self.kernel[grid](*args, **self.options)

        return launch


def _at(address: int, like: torch.Tensor) -> torch.Tensor:
    """A tensor of memory that begins there, of a type and extent."""
    pairs = zip(like.shape, like.stride(), strict=True)
    count = 1 + sum((n - 1) * step for n, step in pairs)
    memory = (ctypes.c_char * (count * like.element_size())).from_address(address)
    return torch.frombuffer(memory, dtype=like.dtype)


class _Kernel:
    """A kernel whose launch gives what a GPU's gives: what was compiled."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.arg_names = kernel, kernel.arg_names

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> _Compiled:
            self.kernel[grid](*args, **options)
            like = [arg if isinstance(arg, torch.Tensor) else None for arg in args]
            return _Compiled(self.kernel, like, options)

        return launch


@pytest.mark.parametrize("cell", [cells.gru, cells.lstm], ids=lambda cell: cell.name)
def test_addresses(cell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: compiled kernels, which get addresses instead of views."""
    for module in (sweeping, batched_phase):
        monkeypatch.setattr(module, "function", lambda *a: _Kernel(source.function(*a)))
    kernel = made(random_case(cell, SIZES), LOOP)
    judged(kernel, random_case(cell, SIZES), 4)
    for replays in (kernel.forwards, kernel.backwards):
        (text,) = replays.texts
        assert "data_ptr()" in text


def test_modules() -> None:
    """Training steps of a stack of both directions, beside engine reference."""
    torch.manual_seed(0)
    options = {"num_layers": 2, "bidirectional": True}
    net = elman.GRU(3, 5, engine="triton", **options)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(4):
        x = torch.randn(4, 3, 3, requires_grad=True)
        found = []
        for engine in ("triton", "reference"):
            with forced(engine):
                out, last = net(x)
            leaves = [x, *net.parameters()]
            grads = torch.autograd.grad(out.sin().sum() + last.cos().sum(), leaves)
            found.append([out, last, *grads])
        for got, want in zip(*found, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        for value, grad in zip(net.parameters(), found[0][3:], strict=True):
            value.grad = grad
        optimizer.step()


def test_autocast_around_a_call_that_comes_again():
    """Kernels take what they were compiled for, recorded or not."""
    case = random_case(cells.gru, SIZES)
    kernel = made(case, LOOP)
    for _ in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kernel.forwards.replayed > 0):
            assert_all_same(call(kernel, case), oracle(case), case.dtype, case.T)
    assert kernel.forwards.replayed == 2

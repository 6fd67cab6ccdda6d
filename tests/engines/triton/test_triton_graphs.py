"""Calls that come again, on memory of their own as in a CUDA graph; interpreted, they run again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import elman
from calls import backward, call, forward
from elman import cells
from elman.engines.triton.device import limits
from elman.engines.triton.device.call_graphs import CallGraphs, CapturedKernel
from elman.engines.triton.engine import TritonEngine
from helpers import Case, Sizes, assert_all_same, assert_close, forced, job_of, oracle, random_case
from products import some_of

LOOP, GRID, NARROW, STEPS = "loop/16/4", "grid/16/2/3", "grid/2/2/3", "steps"
SIZES = Sizes(T=3, B=3, I=3, H=5)
pytestmark = [
    pytest.mark.interpreted,
    # numpy's, of units beyond the last: they are computed and thrown away
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's calls go the way of a GPU's."""
    monkeypatch.setattr(CallGraphs, "applies", lambda self, tensors: True)


def compiled(case: Case, schedule: str, **options: Any) -> CapturedKernel:
    """A kernel that has seen no call."""
    kernel = TritonEngine().compile(job_of(case, **options), schedule)
    assert isinstance(kernel, CapturedKernel)
    return kernel


def sizes(graphs: CallGraphs) -> list[int]:
    """The largest argument of each graph, in elements; the graph used last comes last."""
    return [
        max(value.numel() for value in graph._arguments if value is not None)
        for graph in graphs._graphs.values()
    ]


@pytest.mark.parametrize(
    "cell, schedule, training",
    some_of(
        [cells.gru, cells.lstm_layernorm, cells.sru, cells.lem],
        [LOOP, GRID, STEPS],
        [True, False],
        together=1,
    ),
)
def test_other_numbers(cell: Any, schedule: str, training: bool) -> None:
    """The second call of the same shapes makes a graph, the third uses it."""
    options: dict[str, Any] = {} if training else {"training": False, "wants": frozenset()}
    kernel = compiled(random_case(cell, SIZES), schedule, **options)
    for seed in range(3):
        case = random_case(cell, SIZES, seed=seed)
        want = {name: v for name, v in oracle(case).items() if training or name[0] != "d"}
        assert_all_same(call(kernel, case), want, case.dtype, case.T)
    assert len(kernel.forwards._graphs) == 1
    assert len(kernel.backwards._graphs) == training


def test_heads() -> None:
    """Their division and what joins them are part of the graph."""
    sizes = Sizes(T=3, B=2, I=6, H=6)
    kernel = compiled(random_case(cells.gru.with_heads(2), sizes), LOOP)
    for seed in range(3):
        case = random_case(cells.gru.with_heads(2), sizes, seed=seed)
        assert_all_same(call(kernel, case), oracle(case), case.dtype, case.T)
    assert len(kernel.forwards._graphs) == len(kernel.backwards._graphs) == 1


def test_results_may_be_changed() -> None:
    """A caller writes to the last states of a call whose output and cell states are still needed
    for its backward."""
    net, x = elman.LSTM(3, 5, engine="triton"), torch.randn(3, 2, 3, requires_grad=True)
    for _ in range(3):
        out, (h, c) = net(x)
        product, h = out * out + c * c, h.detach()
        h[:, 0] = 0.0
        product.sum().backward()


def test_inference_mode() -> None:
    """What is captured in it serves no calls outside."""
    net, x = elman.GRU(3, 5, engine="triton").requires_grad_(False), torch.randn(3, 2, 3)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        for _ in range(3):
            with mode():
                assert net(x)[0].isfinite().all()


def test_half_precision() -> None:
    """Several groups of programs, in bfloat16."""
    kernel = compiled(random_case(cells.gru, SIZES).to(torch.bfloat16), NARROW)
    for seed in range(3):
        case = random_case(cells.gru, SIZES, seed=seed).to(torch.bfloat16)
        assert_all_same(call(kernel, case), oracle(case), case.dtype, case.T)


@pytest.mark.parametrize("backwards", [1, 2])
def test_cotangents(backwards: int) -> None:
    """Kinds of calls in turn: with and without a cotangent, and two backwards of one tape."""
    kernel = compiled(random_case(cells.lstm, SIZES), LOOP)
    for seed in range(3):
        case = random_case(cells.lstm, SIZES, seed=seed)
        zeros = {name: torch.zeros_like(value) for name, value in case.d_last.items()}
        for of, changes in (
            (case, {}),
            (replace(case, d_output=torch.zeros_like(case.d_output)), {"d_output": None}),
            (replace(case, d_last=zeros), {"d_last": (None,) * len(zeros)}),
        ):
            got = call(kernel, case, backwards=backwards, **changes)
            assert_all_same(got, oracle(of), case.dtype, case.T)
    assert len(kernel.backwards._graphs) == 3 * backwards


def test_strides_and_arguments_given_twice() -> None:
    """[B, T] as it lies, a tensor that is input and cotangent, expanded cotangents."""
    case = random_case(cells.gru, Sizes(T=3, B=3, I=5, H=5))
    kernel, plain = compiled(case, LOOP), compiled(case, LOOP)

    def grads(kernel: CapturedKernel, x: torch.Tensor, dy: torch.Tensor) -> Sequence[Any]:
        given = ((x,), tuple(case.states.values()), tuple(case.weights.values()))
        return backward(kernel, given, forward(kernel, given).saved, dy, (None,))

    x, y = torch.randn(2, 3, 3, 5)
    for pair in ((x, y), (x, x), (x.transpose(0, 1), y), (x, y[:1, :1].expand(3, 3, 5))):
        want = grads(plain, *(value.clone().contiguous() for value in pair))
        plain.forwards._graphs.clear()
        plain.backwards._graphs.clear()
        for _ in range(3):
            for got, value in zip(grads(kernel, *pair), want, strict=True):
                if value is not None:
                    torch.testing.assert_close(got, value, rtol=0, atol=0)


def test_results_have_memory_of_their_own() -> None:
    """A later call of the same shapes, and its backward, change no result of an earlier one."""
    kernel = compiled(random_case(cells.lstm, SIZES), STEPS)
    case = random_case(cells.lstm, SIZES)
    given = (tuple(case.inputs.values()), tuple(case.states.values()))
    weights = tuple(case.weights.values())
    for _ in range(2):
        result = forward(kernel, (*given, weights))
        backward(kernel, (*given, weights), result.saved, case.d_output, (None, None))
    values = [*result.values, *result.saved]
    before = [(value.clone(), value._version) for value in values]
    other = tuple(value + 1 for value in given[0])
    later = forward(kernel, (other, given[1], weights))
    backward(kernel, (other, given[1], weights), later.saved, case.d_output, (None, None))
    assert not torch.equal(later.output, result.output)
    for value, (copy, version) in zip(values, before, strict=True):
        torch.testing.assert_close(value, copy, rtol=0, atol=0, equal_nan=True)
        assert value._version == version
    places = {value.untyped_storage().data_ptr() for value in values}
    assert not places & {value.untyped_storage().data_ptr() for value in later.saved}
    # the output is the kept states, in a result of a graph too: it takes no more memory
    assert result.output.untyped_storage().data_ptr() in {
        value.untyped_storage().data_ptr() for value in result.saved
    }


def test_kinds_that_come_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs stay while they are used; what finds no room is not captured, and still right."""
    monkeypatch.setattr(limits, "CALL_GRAPHS", 2)
    monkeypatch.setattr(limits, "GRAPH_AGE", 6)
    batches = {B: random_case(cells.rnn, Sizes(T=2, B=B, I=10, H=4)) for B in (2, 3, 4)}
    kernel = compiled(batches[2], STEPS, training=False, wants=frozenset())

    def called(B: int) -> list[int]:
        want = {name: v for name, v in oracle(batches[B]).items() if name[0] != "d"}
        assert_all_same(call(kernel, batches[B]), want, torch.float32, 2)
        return [size // 20 for size in sizes(kernel.forwards)]

    for B in (2, 3, 4):
        assert called(B) == []
    assert called(2) == [2]
    assert called(3) == [2, 3]
    assert called(4) == [2, 3]
    assert called(2) == [3, 2]
    assert [called(2) for _ in range(4)][-1] == [3, 2]
    assert called(4) == [2, 4], "a graph that was not used of late makes room"
    kernel.forwards._capacity = 100
    assert [called(3) for _ in range(3)][-1] == [2, 4]


def test_long_sequences_of_steps_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are packed rows, whose lengths hardly come again."""
    monkeypatch.setattr(limits, "GRAPH_STEPS", 2)
    case = random_case(cells.rnn, SIZES)
    for schedule, count in ((STEPS, 0), (LOOP, 1)):
        kernel = compiled(case, schedule)
        for _ in range(3):
            assert_all_same(call(kernel, case), oracle(case), case.dtype, case.T)
        assert len(kernel.forwards._graphs) == count


def test_no_call_is_kept_alive() -> None:
    """A graph has no tensor of the call that it was made of."""
    kernel = compiled(random_case(cells.lstm, SIZES), LOOP)
    for _ in range(3):
        case = random_case(cells.lstm, SIZES)
        call(kernel, case)
        (x,) = case.inputs.values()
        alive = weakref.ref(x)
        del case, x
        gc.collect()
        assert alive() is None


def test_modules() -> None:
    """Training steps of a stack of both directions, beside engine reference; autocast around."""
    torch.manual_seed(0)
    net = elman.GRU(3, 5, engine="triton", num_layers=2, bidirectional=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(4):
        x = torch.randn(4, 3, 3, requires_grad=True)
        results = []
        for engine in ("triton", "reference"):
            with forced(engine):
                out, last = net(x)
            leaves = [x, *net.parameters()]
            grads = torch.autograd.grad(out.sin().sum() + last.cos().sum(), leaves)
            results.append([out, last, *grads])
        for got, want in zip(*results, strict=True):
            assert_close(got, want)
        for value, grad in zip(net.parameters(), results[0][3:], strict=True):
            value.grad = grad
        optimizer.step()


def test_autocast_around_a_call_that_comes_again() -> None:
    """Kernels take what they were compiled for, captured or not."""
    case = random_case(cells.gru, SIZES)
    kernel = compiled(case, LOOP)
    for _ in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(kernel.forwards._graphs)):
            assert_all_same(call(kernel, case), oracle(case), case.dtype, case.T)


@pytest.mark.parametrize("schedule", [STEPS, LOOP])
def test_a_backward_leaves_the_output_alone(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever saved it may still go backward: neither values nor their version change."""
    net = elman.GRU(3, 5, engine="triton")
    x = torch.randn(4, 2, 3)
    monkeypatch.setattr(TritonEngine, "schedules", lambda *given: (schedule,))
    for _ in range(4):
        out, _ = net(x)
        before, version = out.detach().clone(), out._version
        loss = out.square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        torch.testing.assert_close(out.detach(), before, rtol=0, atol=0)
        assert out._version == version

"""Layers of a stack side by side: a time chunk at a time, each behind the layer below."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import elman
from calls import call_of, forward, given_of
from elman import cells
from elman.engines import registry
from elman.engines.call import Cotangents
from elman.engines.together import Arrangement
from elman.engines.triton import engine as engine_module
from elman.engines.triton import limits
from elman.engines.triton import wavefront as wavefront_module
from elman.engines.triton.call_buffers import BackwardCallBuffers, ForwardCallBuffers
from elman.engines.triton.kernel import TritonKernel
from elman.engines.triton.wavefront import Wavefront, forecast, time_chunks, wavefront
from elman.errors import EngineError
from elman.frontend.cell import Cell
from elman.tuning import together
from elman.tuning.choose import Choice
from elman.tuning.kernels import kernel_of
from helpers import Case, Sizes, assert_all_same, assert_close, forced, job_of, oracle, random_case
from products import some_of

LOOP, GRID = "loop/16/4/1", "grid/2/2/3/2"
COUNTS = st.integers(1, 8)
pytestmark = [
    pytest.mark.interpreted,
    # numpy's, of units beyond the last: they are computed and thrown away
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time chunks of three steps, so that few steps make several."""
    monkeypatch.setattr(limits, "CHUNK_LAUNCH", 0.1)
    monkeypatch.setattr(limits, "CHUNK_MULTIPLE", 3)


@given(steps=st.integers(1, 5000), layers=COUNTS)
def test_time_chunks_cover_all_steps_once(steps: int, layers: int) -> None:
    """All steps once, in order, in cuts at which addresses are aligned."""
    cuts = time_chunks(steps, layers)
    assert [step for cut in cuts for step in range(*cut)] == list(range(steps))
    assert all(first % 16 == 0 for first, _ in cuts)


def test_forecast() -> None:
    """One layer gains nothing; two long ones nearly half; short ones are launched for nothing."""
    assert forecast(1000, 1) == 1.0
    assert forecast(10, 3) >= 1.0
    assert 0.5 < forecast(4000, 2) < 0.6
    assert forecast(4000, 8) < forecast(4000, 4) < forecast(4000, 2)


@given(layers=COUNTS, count=COUNTS)
def test_order(layers: int, count: int) -> None:
    """What a time chunk needs has been begun before it, and what may run beside it has not."""
    order = list(wavefront(layers, count))
    at = {pair: place for place, pair in enumerate(order)}
    assert len(at) == len(order) == layers * count
    for layer, cut in order:
        assert not cut or at[layer, cut - 1] < at[layer, cut]
        if layer:
            assert at[layer - 1, cut] < at[layer, cut]
            assert cut == count - 1 or at[layer - 1, cut + 1] > at[layer, cut]


@pytest.mark.parametrize(
    "cell, schedule",
    some_of(
        [cells.gru, cells.lstm_peephole, cells.lem, cells.minlstm, cells.lstm_layernorm],
        [LOOP, GRID],
        together=1,
    ),
    ids=lambda value: getattr(value, "name", value),
)
def test_a_layer_in_stretches(cell: Cell, schedule: str) -> None:
    """The results of all steps at once: states go from one time chunk to the next in float32."""
    dtype = torch.bfloat16 if cell in (cells.gru, cells.lem) else torch.float32
    case = random_case(cell, Sizes(T=4, B=2, I=6, H=5)).to(dtype)
    made = kernel_of(job_of(case), "triton", schedule)
    assert isinstance(made, TritonKernel)
    got, whole = results(made, case, (0, 1, 3, 4)), results(made, case, (0, 4))
    assert_all_same(got, oracle(case), dtype, case.T)
    for name, value in whole.items():
        torch.testing.assert_close(got[name], value)


def results(made: TritonKernel, case: Case, cuts: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Output, last states and gradients by name."""
    given = call_of(given_of(case))
    parts = list(pairwise(cuts))
    ahead = ForwardCallBuffers(made, given)
    for part in parts:
        ahead.run_steps(*part)
    output, last, saved = ahead.results()
    back = BackwardCallBuffers(
        made, given, saved, Cotangents(case.d_output, tuple(case.d_last.values())), True
    )
    for part in parts[::-1]:
        back.run_steps(*part)
    names = (*case.inputs, *case.states, *case.weights)
    grads = [grad for group in back.results() for grad in group]
    found = {f"d{name}": grad for name, grad in zip(names, grads) if grad is not None}
    return found | {"out": output} | {f"last {k}": end for k, end in zip(case.states, last)}


def stack(monkeypatch: pytest.MonkeyPatch, of: Cell | str, layers: int) -> Any:
    """A module whose layers run at once."""
    real = together.choose_together

    def pinned(*given: Any) -> Any:
        choice = real(*given[:-1], together.AT_ONCE)
        assert choice is not None
        assert isinstance(choice.kernel, Wavefront) == (choice.engine == "triton")
        return choice

    monkeypatch.setattr("elman.nn.execute.group.choose_together", pinned)
    torch.manual_seed(0)
    if isinstance(of, str):
        return getattr(elman, of)(3, 5, num_layers=layers, engine="triton")
    return elman.Recurrent(of, 3, 5, num_layers=layers, engine="triton")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("trained", [(0, 1, 2), (1, 2), (2,), (0,)])
def test_a_stack_beside_torch(trained: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, last states and gradients, whichever layers are frozen."""
    theirs = torch.nn.LSTM(3, 5, 3)
    ours = stack(monkeypatch, "LSTM", 3)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(8, 2, 3, requires_grad=0 in trained)
    start = tuple(torch.randn(3, 2, 5, requires_grad=True) for _ in range(2))

    def values(module: Any) -> list[torch.Tensor]:
        for name, value in module.named_parameters():
            value.requires_grad_(int(name[-1]) in trained)
        out, last = module(x, start)
        loss = out.sin().sum() + sum(end.cos().sum() for end in last)
        wanted = [v for v in (x, *start, *module.parameters()) if v.requires_grad]
        return [out, *last, *torch.autograd.grad(loss, wanted)]

    for got, want in zip(values(ours), values(theirs), strict=True):
        assert_close(got, want)
    with torch.no_grad():
        assert_close(ours(x)[0], theirs(x)[0])


@pytest.mark.usefixtures("short")
def test_packed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of several lengths run one layer after another."""
    ours = stack(monkeypatch, "GRU", 2)
    theirs = torch.nn.GRU(3, 5, 2)
    theirs.load_state_dict(ours.state_dict())
    x = torch.nn.utils.rnn.pack_sequence([torch.randn(n, 3) for n in (7, 4, 1)])
    for got, want in zip(ours(x)[0][:1] + (ours(x)[1],), theirs(x)[0][:1] + (theirs(x)[1],)):
        assert_close(got, want)


@pytest.mark.usefixtures("short")
def test_further_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their gradients are summed over layers."""

    @elman.cell(input="x[I], m", state="h[H]", weights="W[H, I], R[H, H]")
    def gated(x: Any, m: Any, h: Any, W: Any, R: Any) -> Any:
        return elman.ops.tanh(W @ x + m * (R @ h))

    net = stack(monkeypatch, gated, 2)
    x, m = torch.randn(8, 2, 3, requires_grad=True), torch.randn(8, 2, requires_grad=True)
    found: list[tuple[torch.Tensor, ...]] = []
    for engine in ("reference", "triton"):
        with forced(engine):
            loss = net((x, m))[0].square().sum()
        found.append(torch.autograd.grad(loss, [x, m, *net.parameters()]))
    for want, got in zip(*found, strict=True):
        assert_close(got, want)


class Clocks:
    """In the place of streams: what each stream can be sure has been computed."""

    made: ClassVar[list[Clocks]] = []

    def __init__(self, like: torch.Tensor, count: int) -> None:
        self.seen: list[set[Any]] = [set() for _ in range(count)]
        self.here = 0
        Clocks.made.append(self)

    @contextmanager
    def on(self, index: int) -> Iterator[None]:
        self.here = index
        yield
        self.here = 0

    def after(self, index: int, other: int) -> None:
        self.seen[index] |= self.seen[other]

    def hand_over(self, made: Any) -> None:
        assert all(isinstance(value, torch.Tensor) for value in made)

    def __enter__(self) -> Clocks:
        return self

    def __exit__(self, *raised: object) -> None:
        pass


@pytest.mark.usefixtures("short")
def test_lanes_wait_for_what_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time chunk is only begun where its layer's last one, and that of the layer below, are sure;
    and it does not wait for what may run beside it."""
    monkeypatch.setattr(wavefront_module, "Streams", Clocks)
    monkeypatch.setattr(Clocks, "made", [])
    both = (ForwardCallBuffers, BackwardCallBuffers)
    real = {kind: kind.run_steps for kind in both}
    found: list[tuple[int, int]] = []

    def watched(self: Any, first: int = 0, last: int | None = None) -> None:
        if not Clocks.made:  # a layer by itself, while engines are compared
            return real[type(self)](self, first, last)
        clocks = Clocks.made[-1]
        seen = clocks.seen[clocks.here]
        cuts = time_chunks(self.T, 3)
        if isinstance(self, BackwardCallBuffers):
            cuts.reverse()
        cut = cuts.index((first, last))
        assert not cut or (clocks.here, cut - 1) in seen
        if clocks.here:
            assert (clocks.here - 1, cut) in seen
            assert (clocks.here - 1, cut + 1) not in seen
        real[type(self)](self, first, last)
        seen.add((clocks.here, cut))
        found.append((clocks.here, cut))

    for kind in both:
        monkeypatch.setattr(kind, "run_steps", watched)
    ours = stack(monkeypatch, "GRU", 3)
    out, _ = ours(torch.randn(8, 2, 3))
    out.sum().backward()
    # compared with one layer after another, then run: forward and backward of three layers
    assert len(found) == 2 * 2 * 3 * len(time_chunks(8, 3))
    assert len(Clocks.made) == 2 * 2


def test_what_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing where a wavefront cannot be faster; smaller grids where the own ones find no room."""
    case = random_case(cells.gru, Sizes(T=2, B=4, I=64, H=64))
    job = job_of(case)
    triton = registry.find("triton")

    def offered(schedules: list[str], steps: int = 500, beside: bool = False) -> Any:
        kernels = [kernel_of(job, "triton", schedule) for schedule in schedules]
        return triton.together(
            [job] * len(kernels), kernels, steps, 4, Arrangement.of([job], beside)
        )

    grid = "grid/8/8/8/1"  # eight programs
    assert offered([grid, grid], beside=True) is None
    assert offered([grid, grid], steps=10) is None
    assert offered([grid]) is None
    made, share = offered([grid, grid])
    assert isinstance(made, Wavefront)
    assert share < 0.7
    assert [layer.fixed.name for layer in made.layers] == [grid, grid]
    monkeypatch.setattr(engine_module, "processors", lambda: 15)
    made, _ = offered([grid, grid])
    assert [layer.programs(4) <= 7 for layer in made.layers] == [True, True]
    made, _ = offered(["steps", grid])
    assert all(layer.fixed.kind != "steps" for layer in made.layers)
    monkeypatch.setattr(engine_module, "processors", lambda: 1)
    assert offered([grid, grid]) is None


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_wave_that_fails_is_refused(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers run one after another then, and the choice says why."""

    def refuse(*given: Any) -> Any:
        raise EngineError("Triton refuses a kernel: out of resources")

    monkeypatch.setattr(Wavefront, "forward", refuse)
    monkeypatch.setattr(together, "recall", lambda key: None)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    case = random_case(cells.gru, Sizes(T=2, B=1, I=4, H=4))
    jobs = [job_of(case)] * 2
    choices = [Choice("triton", LOOP, kernel_of(job, "triton", LOOP), "asked") for job in jobs]
    choice = together.choose_together(jobs, choices, 2000, 1, Arrangement.of(jobs, False))
    assert choice is not None
    assert choice.schedule == together.APART
    assert "out of resources" in choice.refusals[together.AT_ONCE]


def test_what_begins_a_run_lives_as_long() -> None:
    """Another stream may still read it when the first time chunk has been launched."""
    case = random_case(cells.lstm, Sizes(T=4, B=2, I=3, H=4))
    made = kernel_of(job_of(case), "triton", LOOP)
    assert isinstance(made, TritonKernel)
    given = given_of(case)
    _, _, saved = forward(made, given)
    run = BackwardCallBuffers(
        made, call_of(given), saved, Cotangents(case.d_output, (None, None)), False
    )
    first = [weakref.ref(value) for value in run._carry]
    run.run_steps(2, 4)
    run.run_steps(0, 2)
    assert all(value() is not None for value in first)

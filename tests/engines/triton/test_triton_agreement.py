"""Engine triton against the oracle, every cell, schedule and dtype: in Triton's interpreter, and on
a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton import knobs

import elman
from awkward import double, single
from calls import backward, call, forward, given_of
from elman import cells
from elman.engines.triton.device.source import function
from elman.engines.triton.loops import sweeping
from elman.engines.triton.run.heads import HeadsKernel
from elman.engines.triton.run.kernel import TritonKernel
from elman.frontend.cell import Cell
from elman.ops import concat, tanh
from elman.tuning.kernels import kernel_of
from helpers import Case, Sizes, assert_all_same, assert_close, job_of, oracle, random_case
from library_sizes import VECTORS, sizes_of
from packed_rows import alone, drawn, layout, packed, together
from products import some_of
from unseen import HOLDING, UNSEEN, epilogue, half, holding, output


@elman.cell(input="x[I]", output="h[H]", weights="W[H, I], b[H]")
def dense(x: Any, W: Any, b: Any) -> Any:
    """A layer without a state."""
    return tanh(W @ x + b)


LOOP, STEPS = "loop/16/4", "steps"
GRID, NARROW = "grid/16/2/3", "grid/2/2/3"
EVERY = [LOOP, STEPS, GRID]
CASES = {cell: Sizes(T=3, B=3, I=3, H=5) for cell in cells.CORE} | UNSEEN
CASES |= {cell: Sizes(3, 3, 3, 5, (("U", 7),)) for cell in (cells.cfc, cells.cfc_pure)}
CASES |= {cell: Sizes(3, 3, 3, 5) for cell in (cells.rlif, cells.synaptic, cells.rhn, cells.gru_d)}
CASES |= {dense.recurrent: Sizes(T=3, B=3, I=3, H=5)}
CASES |= {cell: Sizes(4, 3, 3, 6, (("P", 2),) if cell is epilogue else ()) for cell in HOLDING}
DEVICE = "cpu" if knobs.runtime.interpret else "cuda"  # Triton decides once per process
pytestmark = [
    pytest.mark.usefixtures("device"),
    # numpy's, of units beyond the last: they are computed and thrown away
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def kernel(case: Case, schedule: str, **options: Any) -> TritonKernel:
    made = any_kernel(case, schedule, **options)
    assert isinstance(made, TritonKernel)
    return made


def any_kernel(case: Case, schedule: str, **options: Any) -> TritonKernel | HeadsKernel:
    """Of one head, or of several side by side."""
    made = kernel_of(job_of(case.to(DEVICE), **options), "triton", schedule)
    assert isinstance(made, (TritonKernel, HeadsKernel))
    return made


def agrees(case: Case, schedule: str) -> None:
    """Values and every gradient."""
    assert_all_same(call(any_kernel(case, schedule), case), oracle(case), case.dtype, case.T)


REST = [cell for cell in VECTORS if cell not in CASES]


@pytest.mark.parametrize(
    "cell, schedule",
    [
        *((cell, LOOP) for cell in CASES),
        *(pytest.param(cell, LOOP, marks=pytest.mark.long) for cell in REST),
        *some_of([*CASES], [STEPS, GRID], together=1),
    ],
)
def test_every_cell(cell: Cell, schedule: str) -> None:
    """Awkward sizes, in a loop and in one other schedule; what of the library is of the same
    operations in a loop alone."""
    agrees(random_case(cell, CASES.get(cell) or sizes_of(cell, 2, 3)), schedule)


@pytest.mark.parametrize("functions", [single, double], ids=["one value", "two values"])
def test_functions(functions: Any) -> None:
    """Every elementwise function on awkward numbers, the same table as of the engines of the CPU:
    value and gradients are torch's."""
    flushing = () if DEVICE == "cpu" else ("sqrt", "floor")  # as Triton has them compiled
    functions(lambda case: call(any_kernel(case, STEPS), case), torch.float32, flushing)


@pytest.mark.parametrize("schedule", EVERY)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 17, 2, 16), (4, 16, 20, 33)])
def test_awkward_sizes(sizes: tuple[int, int, int, int], schedule: str) -> None:
    """One of everything; a sample more than a program takes; units beyond a power of two."""
    agrees(random_case(cells.gru, Sizes(*sizes)), schedule)


@pytest.mark.parametrize(
    "cell, schedule, dtype",
    some_of(
        [cells.gru, cells.lstm, cells.lstm_layernorm, cells.lem, epilogue],
        [*EVERY, NARROW],
        [torch.bfloat16, torch.float16],
    ),
)
def test_half_precision(cell: Cell, schedule: str, dtype: torch.dtype) -> None:
    """Products in half precision, everything else in float32."""
    sizes = CASES[epilogue] if cell is epilogue else Sizes(T=4, B=3, I=6, H=8)
    agrees(random_case(cell, sizes).to(dtype), schedule)


def test_conversion_to_bfloat16() -> None:
    """Numbers are rounded as torch rounds them: to nearest, ties to even; infinity, NaN, zeros."""
    values = torch.tensor([1.0, 1.00390625, 1.01171875, -3.3e38, 1e-40, 0.0, -0.0, 2.71828])
    values = torch.cat((values, torch.tensor([float("inf"), -float("inf"), float("nan")])))
    values = torch.cat((values, torch.randn(500) * 100.0 ** torch.randn(500)))
    values = torch.nn.functional.pad(values, (0, 512 - len(values)))
    made = torch.empty(512, dtype=torch.bfloat16, device=DEVICE)
    function("rounded", ROUNDED)[(1,)](values.to(DEVICE), made)
    torch.testing.assert_close(made.cpu(), values.bfloat16(), rtol=0, atol=0, equal_nan=True)


ROUNDED = """@triton.jit
def rounded(values, made):
    i = tl.arange(0, 512)
    lib.put(made + i, tl.load(values + i), i < 512)
"""


@pytest.mark.parametrize(
    "cell, schedule",
    some_of([cells.gru, cells.lstm, cells.rnn, cells.lem], [LOOP, "grid/8/2/6"], together=1),
)
def test_bfloat16_of_more_units(cell: Cell, schedule: str) -> None:
    """Twelve inputs and units: what batched phases hand to the steps is kept in bfloat16."""
    agrees(random_case(cell, Sizes(T=3, B=4, I=12, H=12)).to(torch.bfloat16), schedule)


@pytest.mark.parametrize("schedule", EVERY)
@pytest.mark.parametrize("cell", [cells.lstm, UNSEEN and next(iter(UNSEEN))], ids=["lstm", "odd"])
def test_without_training(cell: Cell, schedule: str) -> None:
    """The same values; only the states that are asked for are kept."""
    case = random_case(cell, CASES.get(cell, Sizes(T=3, B=3, I=3, H=5)))
    want = {k: v for k, v in oracle(case).items() if not k.startswith("d")}
    got = call(kernel(case, schedule, training=False, wants=frozenset()), case)
    assert_all_same(got, want, case.dtype, case.T)


@pytest.mark.parametrize("schedule", EVERY)
def test_missing_cotangents_and_two_backwards(schedule: str) -> None:
    """None is zero; a second backward finds the tape as it was."""
    case = random_case(cells.lstm, Sizes(T=3, B=2, I=3, H=4))
    made = kernel(case, schedule)
    whole = call(made, case)
    first = call(made, case, d_last=(None, None))
    second = call(made, case, d_output=None)
    for name in whole:
        if name.startswith("d"):
            torch.testing.assert_close(first[name] + second[name], whole[name])
    again = call(made, case, backwards=2)
    assert all(torch.equal(again[name], whole[name]) for name in whole)


@pytest.mark.parametrize("schedule", EVERY)
def test_only_what_is_wanted(schedule: str) -> None:
    """Frozen weights and inputs get no gradient."""
    case = random_case(cells.gru, Sizes(T=3, B=2, I=3, H=4))
    got = call(kernel(case, schedule, wants=frozenset({"R", "b"})), case)
    assert {name for name in got if name.startswith("d")} == {"dR", "db", "dh"}
    want = {name: value for name, value in oracle(case).items() if name in got}
    assert_all_same(got, want, case.dtype, case.T)


@pytest.mark.parametrize(
    "cell, B",
    [
        (cells.gru, 1),
        (cells.gru, 9),
        (cells.gru_before, 5),
        (cells.lstm_layernorm, 3),
        (cells.lem, 5),
        (cells.indrnn, 9),
        *((cell, 3) for cell in HOLDING),
    ],
)
def test_groups(cell: Cell, B: int) -> None:
    """Several groups of programs, of which the last has fewer samples."""
    more = CASES[cell].more if cell in HOLDING else ()
    agrees(random_case(cell, Sizes(3, B, 3, 6 if cell in HOLDING else 5, more)), NARROW)


def test_more_groups_than_find_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are launched one after another: no program waits for one that has no place."""
    monkeypatch.setattr(sweeping, "processors", lambda: 5)
    agrees(random_case(cells.gru, Sizes(T=3, B=9, I=3, H=5)), NARROW)


@elman.cell(input="x[I]", state="h[H]", weights="W[2*H, I], R[2*H, H], b[2*H], v[H], V[H, I]")
def part_shared(x: Any, h: Any, W: Any, R: Any, b: Any, v: Any, V: Any) -> Any:
    """Two weights are added to a part of what others are."""
    a, c = elman.ops.split(W @ x + R @ h + b, 2)
    return elman.ops.tanh(a) * elman.ops.sigmoid(c + v + V @ x)


@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], V[H, I], Q[H, H], b[H], d[H]")
def all_shared(x: Any, h: Any, W: Any, R: Any, V: Any, Q: Any, b: Any, d: Any) -> Any:
    """Pairs of weights have the same gradient."""
    return elman.ops.tanh(W @ x + R @ h + b + V @ x + Q @ h + d)


@pytest.mark.parametrize(
    "cell, schedule, dtype",
    some_of([part_shared, all_shared], [LOOP, STEPS], [torch.float32, torch.float16]),
)
def test_gradients_have_memory_of_their_own(cell: Cell, schedule: str, dtype: torch.dtype) -> None:
    """autograd adds to them in place."""
    case = random_case(cell, Sizes(T=3, B=2, I=16, H=16)).to(dtype)
    made = kernel(case, schedule)
    assert_all_same(call(made, case), oracle(case), dtype, case.T)
    case = case.to(DEVICE)
    given = given_of(case)
    _, _, saved = forward(made, given)
    grads = backward(made, given, saved, case.d_output, case.d_last.values())
    found = [grad for grad in grads if grad is not None]
    before = [grad.clone() for grad in found]
    for grad, same in zip(found, before, strict=True):
        torch.testing.assert_close(grad, same, rtol=0, atol=0)
        grad.fill_(float("nan"))


@pytest.mark.parametrize(
    "cell, schedule",
    some_of(
        [cells.gru, cells.gru_before, cells.lstm_layernorm],
        ["grid/16/2/8", "grid/4/2/8"],
        together=1,
    ),
)
def test_a_grid_of_one_program_meets_itself(cell: Cell, schedule: str) -> None:
    """The barrier's code runs: whoever comes alone is not kept waiting."""
    agrees(random_case(cell, Sizes(T=3, B=18, I=3, H=6)), schedule)


@pytest.mark.parametrize(
    "cell, schedule",
    some_of(
        [cells.gru, cells.lstm_peephole, cells.lem, cells.indrnn, cells.slstm],
        [LOOP, STEPS, "grid/8/2/2"],
        together=1,
    ),
)
def test_heads(cell: Cell, schedule: str) -> None:
    """Each head is a program's own, with its part of inputs, states and weights."""
    dtype = torch.float16 if cell in (cells.lem, cells.slstm) else torch.float32
    heads, H, B = 3, 12, 9
    case = random_case(cell.with_heads(heads), Sizes(T=3, B=B, I=H, H=H)).to(dtype)
    made = any_kernel(case, schedule)
    assert isinstance(made, HeadsKernel) == (case.cell.heads > 1)
    assert (made.job.single is not None) == (case.cell.heads > 1)
    assert_all_same(call(made, case, backwards=2), oracle(case), dtype, case.T)


@pytest.mark.parametrize(
    "cell, schedule",
    [
        (cells.lstm_layernorm, LOOP),
        (cells.lstm_layernorm, STEPS),
        (cells.onlstm_chunked, STEPS),
        (cells.gru_layernorm, "grid/8/2/2"),
    ],
)
def test_heads_that_reduce(cell: Cell, schedule: str) -> None:
    """A norm, a softmax, a cumulative sum and groups are over the units of each head."""
    sizes = Sizes(T=3, B=2, I=3, H=8, more=(("M", 4),) if cell is cells.onlstm_chunked else ())
    case = random_case(cell.with_heads(2), sizes)
    made = any_kernel(case, schedule)
    assert isinstance(made, HeadsKernel)
    assert_all_same(call(made, case, backwards=2), oracle(case), case.dtype, case.T)


@elman.cell(input="x[I]", state="h[H], n", weights="W[H, I], R[H, H]")
def scalar_state(x, h, n, W, R):
    return tanh(W @ x + R @ h), 0.5 * n + 1.0


@elman.cell(input="x[I]", state="h[H], n", weights="W[H, I], R[H, H]")
def scalar_of_each(x, h, n, W, R):
    return tanh(W @ x + R @ h * n), 0.5 * n + elman.ops.sum(h)


@elman.cell(input="x[I]", state="h[H]", output="y[I], z[H]", weights="W[H, I], R[H, H], V[I, I]")
def shared_output(x, h, W, R, V):
    h = tanh(W @ x + R @ h)
    return V @ x, 2 * h, h


@elman.cell(input="x[I]", state="h[H]", output="y[H], z[2H]", weights="W[H, I], R[H, H]")
def divided_outputs(x, h, W, R):
    h = tanh(W @ x + R @ h)
    return 3 * h, concat(h, 2 * h), h


@pytest.mark.parametrize("cell", [scalar_state, scalar_of_each, shared_output, divided_outputs])
def test_heads_that_share_a_result(cell: Cell) -> None:
    """A state or an output that is not divided: the graph of all heads runs."""
    case = random_case(cell.with_heads(2), Sizes(T=3, B=2, I=3, H=6))
    assert (job_of(case).single is not None) == (cell is divided_outputs)
    agrees(case, LOOP)


def test_heads_that_divide_the_input() -> None:
    """An input of as many units as the state is divided, and so are matrices that multiply it, and
    those that nothing reads."""

    @elman.cell(input="x[H]", state="h[H]", weights="W[H, H], R[H, H], unread[H, H]")
    def reading(x: Any, h: Any, W: Any, R: Any, unread: Any) -> Any:
        return elman.ops.tanh(W @ x + R @ h)

    case = random_case(reading.with_heads(2), Sizes(T=3, B=2, I=6, H=6))
    assert isinstance(any_kernel(case, LOOP), HeadsKernel)
    agrees(case, LOOP)


LENGTHS = {"several": (4, 3, 3, 1), "equal": (2, 2), "more than a program takes": (3, *(1,) * 17)}


@pytest.mark.parametrize(
    "cell, schedule, name",
    [
        *some_of([cells.gru, cells.lstm_peephole, cells.lem, cells.minlstm], EVERY, [*LENGTHS]),
        *some_of([holding, half, output], [*EVERY, NARROW], ["several"], together=1),
    ],
)
def test_packed_rows(cell: Cell, schedule: str, name: str) -> None:
    """Sequences of several lengths: what each gives alone."""
    lengths = LENGTHS[name]
    case = drawn(cell, lengths, torch.float32, H=8 if cell in HOLDING else 7)
    made = kernel(case, schedule)
    assert made.packs
    got = together(made, case.to(DEVICE), lengths, 2)
    assert_all_same(got, alone(case, lengths), torch.float32, max(lengths))


@pytest.mark.parametrize("schedule", [*EVERY, NARROW])
def test_states_that_hold_a_value_are_one_row(schedule: str) -> None:
    """What a forward keeps for the backward."""
    for cell, count in zip(HOLDING, (2, 1, 1, 0), strict=True):
        case = random_case(cell, CASES[cell])
        *sequences, _, _ = forward(kernel(case, schedule), given_of(case.to(DEVICE))).saved
        rows = [sequence.shape[0] for sequence in sequences]
        assert sorted(rows) == [1] * count + [5] * (len(rows) - count), cell.name


@pytest.mark.parametrize(
    "cell, schedule",
    some_of([cells.gru, cells.lstm_peephole], [LOOP, STEPS, "grid/8/2/2"], together=1),
)
def test_packed_rows_of_heads(cell: Cell, schedule: str) -> None:
    """Every head has the same lengths."""
    lengths = (4, 3, 3, 1)
    case = random_case(cell.with_heads(3), Sizes(T=4, B=4, I=12, H=12))
    made = any_kernel(case, schedule)
    assert isinstance(made, HeadsKernel)
    got = together(made, case.to(DEVICE), lengths, 2)
    assert_all_same(got, alone(case, lengths), torch.float32, 4)


@pytest.mark.parametrize("schedule, training", some_of([*EVERY, NARROW], [True, False], together=1))
def test_packed_rows_in_half_precision(schedule: str, training: bool) -> None:
    """Several groups, states that are not kept, and states beside their sequences."""
    lengths = (5, 3, 3, 2, 1)
    case = drawn(cells.lem, lengths, torch.float16, H=6)
    made = kernel(case, schedule) if training else kernel(case, schedule, training=False)
    want = alone(case, lengths)
    there = case.to(DEVICE)
    got = together(made, there, lengths) if training else ends(made, there, lengths)
    assert_all_same(got, {name: want[name] for name in got}, torch.float16, max(lengths))


def ends(made: TritonKernel, case: Case, lengths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Output and last states of packed rows."""
    inputs = [packed(value, lengths) for value in case.inputs.values()]
    states, weights = list(case.states.values()), list(case.weights.values())
    output, last, _ = forward(made, (inputs, states, weights), layout(lengths))
    found = {"out": output, **{f"last {k}": v for k, v in zip(case.states, last, strict=True)}}
    return {name: value.cpu() for name, value in found.items()}


def test_strided_arguments() -> None:
    """Transposed and expanded inputs and cotangents."""
    case = random_case(cells.gru, Sizes(T=4, B=3, I=5, H=6))
    made = kernel(case, LOOP)
    want = call(made, case)
    case.inputs["x"] = case.inputs["x"].transpose(0, 1).contiguous().transpose(0, 1)
    got = call(made, case)
    assert all(torch.equal(got[name], want[name]) for name in want)
    one = torch.ones((), device=DEVICE).expand_as(case.d_output)
    got, want = call(made, case, d_output=one), call(made, case, d_output=one.contiguous())
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_a_stack_of_both_directions() -> None:
    """A module as users have it, beside torch's: two layers, two directions."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True}
    theirs = torch.nn.GRU(3, 5, **options).to(DEVICE)
    ours = elman.GRU(3, 5, engine="triton", **options).to(DEVICE)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 2, 3, device=DEVICE, requires_grad=True)

    def results(module: torch.nn.Module) -> list[torch.Tensor]:
        out, last = module(x)
        loss = out.sin().sum() + last.cos().sum()
        return [out, last, *torch.autograd.grad(loss, [x, *module.parameters()])]

    for got, want in zip(results(ours), results(theirs), strict=True):
        assert_close(got, want)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_autocast_inside_a_compiled_model() -> None:
    """The same numbers in one graph, as an operator that runs in autocast's type."""
    net = elman.LSTM(3, 5, engine="triton").to(DEVICE)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 2, 3, device=DEVICE, requires_grad=True)
    found: list[list[torch.Tensor]] = []
    for module in (net, compiled):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            out, (h, c) = module(x)
        grads = torch.autograd.grad(out.float().sum(), [x, *net.parameters()])
        found.append([out, h, c, *grads])
    for got, want in zip(*found, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert found[1][0].dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_autocast(kind: str) -> None:
    """Where an engine serves its type, layers are cast as torch's are, and run on the engine."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(3, 5, num_layers=2).to(DEVICE)
    ours = getattr(elman, kind)(3, 5, num_layers=2, engine="triton").to(DEVICE)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 2, 3, device=DEVICE, requires_grad=True)
    start = torch.randn(2, 2, 5, device=DEVICE)
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(n, 3, device=DEVICE) for n in (3, 1)])
    state = start if kind == "GRU" else (start, start.clone())
    found: list[list[torch.Tensor]] = []
    for module in (theirs, ours):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            try:
                out, last = module(x, state)
            except RuntimeError as error:
                if module is theirs and "primitive descriptor" in str(error):
                    pytest.skip(f"torch on this processor: {error}")
                raise
            rows, _ = module(packed)
            linear = torch.nn.functional.linear(out, torch.eye(5, device=DEVICE))
        ends = [last] if kind == "GRU" else [*last]
        if module is ours:  # torch's on a CPU keep some in float32; on a GPU all are lower
            assert {value.dtype for value in (out, rows.data, linear, *ends)} == {torch.bfloat16}
        loss = out.float().sin().sum()
        found.append([out, rows.data, *ends, *torch.autograd.grad(loss, [x, *module.parameters()])])
    for got, want in zip(*found[::-1], strict=True):
        off = (got - want).detach().double().norm() / want.detach().double().norm()
        assert float(off) < 3e-2
    assert {value.grad_fn is not None for value in found[1][:2]} == {True}
    assert {value.dtype for value in found[1][-8:]} == {torch.float32}
    assert {choice.engine for r in ours.stack.runners for choice in r.choices.values()} == {
        "triton"
    }

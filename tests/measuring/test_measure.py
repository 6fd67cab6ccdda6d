"""A cell beside its plain loop: agreement by name, times of both, and what is said of them."""

from __future__ import annotations

import pytest
import torch

import elman
from elman import cells
from elman.errors import EngineError, InputError, ShapeError, StepError, VerifyError
from elman.measuring import measure as measure_module
from elman.measuring.measure import Measurement, measure
from elman.measuring.plain_loop import Pairing
from elman.ops import sum, tanh


@elman.cell(
    input="x[I], m",
    static="s[S]",
    state="h[H], n",
    output="y[H], u",
    weights="W[H, I], R[H, H], V[H, S]",
    constants="mask[H]",
    init={"n": 2.0, "R": "eye", "mask": 0.5},
)
def everything(x, m, s, h, n, W, R, V, mask):
    """Scalars, static inputs, constants, several outputs, a start that is no zero."""
    h = tanh(W @ x + mask * (R @ h) + V @ s + m)
    return h * n, sum(h), h, 0.9 * n + m


class Branches(torch.nn.Module):
    """A step that no formula has."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.cell = torch.nn.GRUCell(inputs, hidden)

    def forward(self, x, h):
        return self.cell(x, h) if x.sum() > 0 else h


CELLS = [
    (cells.mgu, {}, {"x", "Wf", "Rf", "bf", "Wn", "Rn", "bn"}),
    (everything, {"S": 2}, {"x", "m", "s", "W", "R", "V"}),
    (cells.zoneout_lstm_layernorm, {}, {"x", "W", "R", "b", "gx", "gh", "gc", "bc"}),
]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """One thread, so that other tests do not matter; a sample is a call."""
    monkeypatch.setattr("elman.tuning.timing.SAMPLE_S", 0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(cell=cells.mgu, **more) -> Measurement:
    """A measurement that takes no time."""
    options = {"steps": 12, "batch": 3, "seconds": 1e-3, "engine": "reference"} | more
    return measure(cell, 4, 6, **options)


@pytest.mark.parametrize("cell, dims, leaves", CELLS)
@pytest.mark.parametrize("training", [True, False])
def test_agreement_by_name(cell, dims, leaves, training):
    """Output, every last state and every gradient but those of constants; compared in full."""
    result = small(cell, training=training, **dims)
    last = {f"last {state.name}" for state in cell.states}
    gradients = {f"gradient of {name}" for name in leaves} if training else set()
    assert set(result.errors) == {"output", *last, *gradients}
    assert max(result.errors.values()) < 1e-5
    assert max(result.errors.values()) > 0
    assert result.compared == 12
    assert result.ratio.median > 0
    assert result.engine == "reference"
    assert result.sizes == {"I": 4, "H": 6, **dims}


def test_flop_are_the_products():
    """W [3H, I] and R [3H, H] forward; three times that with both gradients."""
    forward = 2 * (18 * 4 + 18 * 6) * 12 * 3
    assert small(cells.gru, training=False).flop == forward
    assert small(cells.gru).flop == 3 * forward


@pytest.mark.parametrize("what", ["output", "gradient of Wf", "last h"])
def test_a_wrong_result_is_named(monkeypatch, what):
    """Of elman's alone: the loop is the judge."""
    fused = Pairing.fused

    def off(self):
        values = fused(self)
        return values | {what: values[what] * 1.1}

    monkeypatch.setattr(Pairing, "fused", off)
    with pytest.raises(VerifyError, match=rf"mgu: elman disagrees .*: {what} is off by"):
        small()


def test_chaos_is_compared_over_a_few_steps(monkeypatch):
    """What a formula does with rounding after many steps is no disagreement."""
    fused = Pairing.fused

    def off(self):
        values = fused(self)
        return values | {"output": values["output"] + 1} if len(self.dy[0]) > 10 else values

    monkeypatch.setattr(Pairing, "fused", off)
    result = small()
    assert result.compared == 10
    assert "over 10 steps" in str(result)


def test_result_as_text():
    """Sizes, agreement, who runs, and the ratio."""
    text_of = str(small())
    for text in (
        "mgu: T = 12, B = 3, H = 6, I = 4; float32",
        "gradient of Wn",
        "engine reference",
        "times as fast",
        "GFLOP/s",
    ):
        assert text in text_of


def test_a_busy_machine_is_told(monkeypatch):
    """Times mean little then."""
    monkeypatch.setattr(measure_module.Waiting, "share", lambda waiting: 0.5)
    assert "beware     Other programs took the cores for 50% of the time" in str(small())
    monkeypatch.setattr(measure_module.Waiting, "share", lambda waiting: 0.05)
    assert "beware" not in str(small())


def test_random_numbers_are_left_alone():
    """What is drawn here is drawn apart."""
    before = torch.get_rng_state()
    small()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "wrong, error, said",
    [
        ({"steps": 0}, InputError, "steps must be at least 1, got 0"),
        ({"batch": 2.5}, InputError, r"batch should be of type int"),
        ({"dtype": "int8"}, InputError, "no dtype 'int8'"),
        ({"engine": "fly"}, EngineError, "fly"),
        ({"cell": torch.nn.GRU}, InputError, "takes a cell or a step module, not GRU"),
        ({"cell": torch.nn.GRU(4, 6)}, InputError, "takes a cell or a step module, not GRU"),
        ({"cell": 3}, InputError, "takes a cell or a step module, not int"),
        ({"cell": torch.nn.GRUCell, "heads": 2}, InputError, "a step module takes no heads"),
        ({"cell": torch.nn.GRUCell(4, 7)}, InputError, "GRUCell has hidden_size=7, not 6"),
        ({"cell": torch.nn.Conv1d(4, 6, 3)}, InputError, "Conv1d takes neither a state"),
        ({"cell": Branches}, StepError, "if"),
        ({"cell": cells.ealstm}, ShapeError, "unknown dim S"),
    ],
)
def test_wrong_calls(wrong, error, said):
    """Each with what was given."""
    with pytest.raises(error, match=said):
        small(**wrong)


def test_cells_without_products_have_no_rate_of_them():
    """A weightless cell: its time is no product's."""
    measured = small(cells.gated_delta_net)
    assert measured.flop == 0
    assert "GFLOP/s" not in str(measured)
    assert "GFLOP/s" in str(small())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "module, states",
    [(torch.nn.GRUCell, 1), (torch.nn.LSTMCell(4, 6), 2)],
    ids=["class", "instance"],
)
def test_a_step_module_beside_its_own_loop(module, states, training):
    measured = small(module, training=training)
    names = {"output", *[f"last state {k}" for k in range(states)]}
    weights = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    names |= {f"gradient of {name}" for name in ("x", *weights)} if training else set()
    assert measured.errors.keys() == names
    assert max(measured.errors.values()) < 1e-5
    assert (measured.sizes, measured.engine) == ({"I": 4, "H": 6}, "reference")
    assert "GRUCell: T = 12" in str(measured) or states == 2

"""What elman shows of a step: as of a cell."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import elman
from elman.errors import InputError, StepError


def call(steps: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(steps, 2, 5), torch.zeros(2, 6)


def test_explain_shows_the_formula_with_the_names_of_the_module():
    loop, (x, h) = elman.Loop(nn.GRUCell(5, 6), engine="c"), call()
    text = elman.explain(loop, x, state=h).all
    assert "weight_hh @ s0" in text
    assert "engine c" in text


def test_explain_of_what_cannot_be_read_says_why():
    class Inverse(nn.Module):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return (
                torch.linalg.inv(h.unflatten(-1, (2, 3))[:, :, :2]).flatten(1).repeat(1, 2)[:, :6]
                + x
            )

    loop = elman.Loop(Inverse())
    with pytest.raises(StepError, match="linalg_inv"):
        elman.explain(loop, torch.randn(3, 2, 6), state=torch.randn(2, 6))


def test_tune_finds_loops_in_a_model():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = elman.Loop(nn.GRUCell(5, 6), engine="c")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x, torch.zeros(2, 6))[0]

    tuned = elman.tune(Model(), call()[0])
    assert "rnn" in tuned.text
    assert any(row.chosen for row in tuned.candidates)


def test_draw_of_a_step(tmp_path):
    x, h = call()
    picture = elman.draw(nn.GRUCell(5, 6), tmp_path / "gru.svg", inputs=(x[0], h))
    assert picture.svg.startswith("<svg") or "<svg" in picture.svg
    assert (tmp_path / "gru.svg").read_text() == picture.svg
    assert elman.draw(elman.Loop(nn.GRUCell(5, 6)), inputs=(x[0], h)).svg == picture.svg


def test_draw_of_a_module_without_inputs_is_refused():
    with pytest.raises(InputError):
        elman.draw(nn.GRUCell(5, 6))


def test_a_stream_of_a_loop():
    loop, (x, h) = elman.Loop(nn.LSTMCell(5, 6), engine="reference"), call()
    state = h, h
    whole, _ = loop(x, state)
    stream = elman.Stream(loop, state)
    parts = torch.cat([stream(x[:3]), stream(x[3:4]), stream(x[4:])])
    torch.testing.assert_close(parts, whole)
    stream.reset([1])
    assert stream.state[0][1].count_nonzero() == 0
    assert stream.state[0][0].count_nonzero() > 0
    stream.reset()
    torch.testing.assert_close(stream(x), whole)


class Slope(torch.autograd.Function):
    """A spike with a derivative of its own."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, d):
        return d / (1 + 25 * ctx.saved_tensors[0].abs()) ** 2


@pytest.mark.parametrize("shared", [False, True])
def test_draw_of_a_function_with_its_own_backward(shared):
    """One box, with the factor that the backward multiplies by."""

    class Spikes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 6)

        def forward(self, x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            m = 0.9 * m + self.linear(x)
            spikes = Slope.apply(m - 1)
            return spikes, m - spikes - (0.1 * (m > 1) if shared else 0)

    x, m = call()
    svg = elman.draw(Spikes(), inputs=(x[0], m)).svg
    assert "<svg" in svg
    if not shared:  # a condition that others read, too, is drawn as it is
        assert (svg.count("× d1"), svg.count("stop"), svg.count("no gradient")) == (1, 0, 0)

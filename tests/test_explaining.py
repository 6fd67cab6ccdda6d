"""``explain`` prints every stage, tells bytes and work, and says who runs a cell and why."""

from __future__ import annotations

import re

import pytest
import torch

import elman
from elman import PlanOptions, cells
from elman.errors import EngineError
from elman.explaining import WHY, Explanation, Layer, explain
from elman.plan.spec import Spec
from elman.tuning.choose import Choice
from helpers import OwnBackwardEngine, stand_in

STAGES = ["graph", "step", "backward", "program", "engines", "cost"]


@pytest.mark.parametrize("of", cells.CORE)
def test_every_stage(of):
    """Six stages, each with text, for every cell, without measuring."""
    found = explain(of, hidden_size=16, measure=False)
    assert list(found.stages) == STAGES
    assert all(text.strip() for text in found.stages.values())
    assert str(found).startswith(of.name)
    assert found.all.startswith(of.name)
    assert len(str(found)) < len(found.all)
    for text in found.stages.values():
        assert text.splitlines()[0] in found.all


def test_names_agree_between_stages():
    """What the program tapes and hoists has its line in the canonical step."""
    found = explain(cells.gru, measure=False)
    step = found.stages["step"]
    for line in (
        "r_x = W.0 @ x + (b.0 + c.0)",
        "hn  = c.2 + R.2 @ h",
        "r   = sigmoid(R.0 @ h + r_x)",
    ):
        assert line in step
    assert "taped     z hn r n" in found.stages["program"]


def test_numbers():
    """Tape, states and FLOP of an LSTM, by hand."""
    T, B, I, H = 7, 3, 8, 16
    found = explain(
        cells.lstm, input_size=I, hidden_size=H, steps=T, batch=B, measure=False, engine="c"
    )
    assert found.tape_bytes == 4 * (T * B * 4 * H + (T + 1) * B * 2 * H) == found.peak_bytes
    assert found.peak_bytes is not None
    gradients = 4 * (T * B * I + 4 * H * (I + H + 1))
    assert found.step_bytes == found.peak_bytes + gradients  # nothing was compiled to work in
    assert found.flops == T * B * 3 * 2 * 4 * H * (I + H)


@pytest.mark.parametrize("of", [cells.gru, cells.lstm_layernorm])
def test_work_of_the_formula_and_work_done(of):
    """Products that are computed again are work done, and none of the formula."""
    T, B, H = 7, 3, 8
    kept, again = (
        explain(
            of, hidden_size=H, steps=T, batch=B, measure=False, engine="c", plan=PlanOptions(tape)
        )
        for tape in ("save", "recompute")
    )
    gates = 3 if of is cells.gru else 4
    assert kept.flops == kept.executed_flops == T * B * 3 * 2 * gates * H * 2 * H == again.flops
    assert "computed again" not in kept.stages["cost"]
    assert again.executed_flops is not None
    assert again.flops is not None
    told = re.search(r"computed again, not kept: ([\d,]+) FLOP", again.stages["cost"])
    assert told is not None
    assert again.executed_flops - again.flops == T * B * int(told[1].replace(",", "")) > 0


def test_the_second_forward_is_work_done():
    """Of checkpoints in time; and none without a backward."""
    x, forward = torch.randn(6, 2, 3), 6 * 2 * 2 * 3 * 5 * (3 + 5)
    net = elman.GRU(3, 5, engine="c", plan=PlanOptions("save", checkpoint=2))
    found = elman.explain(net, x.requires_grad_(), measure=False)
    assert (found.flops, found.executed_flops) == (3 * forward, 4 * forward)
    with torch.no_grad():
        found = elman.explain(net, x, measure=False)
    assert found.flops == found.executed_flops == forward


def test_nothing_is_kept_without_a_backward():
    """Without training there is no backward stage to pay for."""
    found = explain(cells.gru, hidden_size=8, training=False, measure=False)
    assert found.tape_bytes == 0
    assert "no gradients" in found.stages["program"]


def test_measured(monkeypatch, empty_cache):
    """Engines are told with their times, best first, and the one that runs is marked."""
    stand_in(monkeypatch, OwnBackwardEngine())
    found = explain(cells.gru, hidden_size=5, input_size=3, steps=4, batch=2)
    times = [one.seconds for one in found.engines if one.seconds is not None]
    assert times == sorted(times)
    assert [one.chosen for one in found.engines].count(True) == 1
    assert "<- runs" in found.stages["engines"]
    assert "benchmarked now" in found.stages["engines"]
    assert (
        "remembered"
        in explain(cells.gru, hidden_size=5, input_size=3, steps=4, batch=2).stages["engines"]
    )


def test_refusals_are_told():
    """aten runs torch's formulas alone; the reason is its own."""
    found = explain(cells.lem, hidden_size=8, measure=False)
    refused = {one.name: one.refusal for one in found.engines if one.refusal}
    assert "not the formula" in refused["aten"]
    assert f"no: {refused['aten']}" in found.stages["engines"]


def test_a_dtype_that_no_engine_has():
    """bfloat16 runs step by step on the reference, and explain says so."""
    with pytest.warns(UserWarning, match="lem runs step by step"):
        found = explain(cells.lem, hidden_size=8, steps=3, batch=2, dtype="bfloat16")
    assert "engine reference, the only one that can" in found.stages["engines"]
    assert "does not follow this program" in found.stages["program"]
    assert found.tape_bytes is None
    assert "what torch keeps" in found.stages["cost"]


def test_a_device_that_no_engine_serves():
    """On another device engines of the CPU say no in their own words; torch ops run anywhere."""
    found = explain(cells.lem, hidden_size=8, device="cuda", measure=False)
    refused = {one.name for one in found.engines if one.refusal}
    able = {one.name.partition(":")[0] for one in found.engines if one.refusal is None}
    able.discard("triton")  # made for it, where Triton is installed
    assert refused >= {"c", "aten"}
    assert able == {"deer", "scan-backward", "reference"}
    assert "this is cuda" in found.stages["engines"]


def test_named_engine_that_cannot():
    """A named engine never falls back."""
    with pytest.raises(EngineError, match="aten"):
        explain(cells.lem, hidden_size=8, engine="aten")


def test_where_every_choice_comes_from_is_told():
    """``Choice.why`` in words, for whatever value its own docstring names."""
    (line,) = re.findall(r"why: ([a-z, ]+):", Choice.__doc__ or "")
    assert set(line.split(", ")) == set(WHY)


def test_layers():
    """Layers are explained one by one; equal programs are told once."""
    wants = frozenset("xWRb")
    layers = [
        Layer(f"l{n}", cells.lstm, Spec((("H", 8), ("I", size)), wants=wants), 5, 2)
        for n, size in enumerate((4, 8))
    ]
    found = explain(layers, measure=False)
    assert isinstance(found, Explanation)
    assert list(found.programs) == ["l0", "l1"]
    assert "l1: H=8 I=8" in found.stages["program"]
    assert found.stages["program"].count("taped") == 1
    assert "  the same" in found.stages["program"]


def test_html_is_escaped():
    """A notebook shows the text, not tags."""
    text = Explanation("title", {"graph": "h′ > <0>"}, (), None, None, {})._repr_html_()
    assert text.startswith("<pre>title")
    assert "h′ &gt; &lt;0&gt;" in text

"""The task regression, from a file to a result: it learns, resumes, and tells."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import elman
from elman.cli._reporting import report_run
from elman.errors import InputError, RunError
from elman.train.loop.layers import check_cell
from elman.train.loop.metrics import read_metrics
from elman.train.loop.objective import SQUARES, evaluate
from elman.train.run.record import read_record
from elman.train.tasks.regression.data import RegressionConfig, prepare
from elman.train.tasks.regression.model import build_model


def test_learns(config, train, console):
    """Far better than the mean; loss, R² and its column, table, plots, all of one story."""
    longer = dataclasses.replace(config, steps=150, hidden=24, lr=2e-2)
    outcome = train(longer, comparing=True)
    result, said = outcome.result, console.file.getvalue()
    record, rows = read_record(outcome.folder), read_metrics(outcome.folder.metrics)

    assert result["valid_score"] > 0.8 > 0.1 > result["baseline"]["score"]
    assert result["valid_loss"] < 0.3 < result["baseline"]["loss"]
    assert "better than the mean of the training targets" in said
    assert result["speed"]["largest_logit_difference"] < 1e-4
    assert rows[-1].valid_score == pytest.approx(result["valid_score"])
    assert set(result["table"]) == {"output 0", "output 1"}
    assert not record.damages
    with np.load(config.data) as file:
        y = file["y_test"]
    first = record.result.shown[0]
    held = y[0, :, 0] if first.over_time else y[:, 0]  # in the unit of the data
    np.testing.assert_allclose(first.true, held, rtol=1e-6)
    assert np.median(np.abs(np.array(first.predicted) - held)) < 0.3 * y.std()
    page = report_run(record).read_text(encoding="utf-8")
    assert page.count("<svg") == 6 + len(record.result.shown)
    assert "R² in validation; mean of the training targets" in page


def test_the_held_out_half_is_read_once(config, train):
    """Weights are chosen by a share of the training half, which alone scales the values."""
    half = dataclasses.replace(config, validation_share=0.5, steps=8)
    data = prepare(half)
    assert len(data.fit) + len(data.valid) == len(prepare(config).fit)
    torch.testing.assert_close(data.fit.y.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    result = train(half).result
    assert result["test_score"] != result["valid_score"]
    assert "held out" in result["table"]


def test_loaded_model_predicts_in_the_unit_of_the_data(config, train):
    """A loaded model predicts from the file's values what the run's result shows, in their unit."""
    outcome = train(dataclasses.replace(config, engine="reference", steps=3))
    shown = read_record(outcome.folder).result.shown[0]
    with np.load(config.data) as file:
        x = file["x_test"]
    run = elman.load(outcome.folder.path)

    predicted = run.predict(x)
    values = predicted[0, :, 0] if shown.over_time else predicted[:, 0]
    np.testing.assert_allclose(values, shown.predicted, rtol=1e-6)
    with pytest.raises(InputError, match=r"x must be \[N, T, 2\], not \[30, 8, 1\]"):
        run.predict(x[:, :, :1])


@pytest.mark.parametrize("cell", ["ealstm", "gru", "gla"])
@pytest.mark.parametrize("validation_share", [0.0, 0.4])
def test_static_inputs_and_gaps(config, train, console, tmp_path, cell, validation_share):
    """A cell's static input or part of each step's; targets that are missing count nowhere; the
    loaded model predicts a whole sequence as it does a step at a time."""
    with np.load(config.data) as file:
        arrays = dict(file)
    draw = np.random.default_rng(1)
    for half in ("train", "test"):
        x, y = arrays[f"x_{half}"], arrays[f"y_{half}"]
        arrays[f"static_{half}"] = s = draw.normal(3, 1, (len(x), 2))
        s[1, 1] = np.nan
        y *= np.nan_to_num(s[:, :1], nan=3.0)[:, None] if y.ndim == 3 else s[:, :1]
        y[draw.random(y.shape) < 0.3] = np.nan
    path = tmp_path / "static.npz"
    np.savez(path, **arrays)
    options = {"hidden": 8, "steps": 6, "lr": 2e-2, "validation_share": validation_share}
    outcome = train(dataclasses.replace(config, data=str(path), cell=cell, layers=2, **options))
    shown = read_record(outcome.folder).result.shown[0]
    assert None in shown.true
    assert None not in shown.predicted
    assert "2 static inputs" in console.file.getvalue()
    assert report_run(read_record(outcome.folder)).exists()

    run = elman.load(outcome.folder.path)
    x, s = arrays["x_test"], arrays["static_test"]
    whole, state = run.predict(x, s), None
    values = whole[0, :, 0] if shown.over_time else whole[:, 0]
    np.testing.assert_allclose(values, shown.predicted, rtol=1e-5)
    for t in range(x.shape[1]):
        day, state = run.predict_step(x[:, t], state, s)
        if shown.over_time:
            np.testing.assert_allclose(day, whole[:, t], rtol=1e-4)
    np.testing.assert_allclose(day, whole[:, -1] if shown.over_time else whole, rtol=1e-4)
    for wrong in (None, s[:, :1], s[:3]):
        with pytest.raises(InputError, match=r"static must be \[30, 2\]"):
            run.predict(x, wrong)


def test_gaps_have_no_gradient_and_no_weight(tmp_path):
    """A batch's loss is the mean of its targets, whose sum of gradients ignores the missing."""
    outputs = torch.randn(4, 3, 2, requires_grad=True)
    targets = torch.randn(4, 3, 2)
    missing = torch.rand(4, 3, 2) < 0.5
    want = (outputs - targets)[~missing].square().mean()
    (expected,) = torch.autograd.grad(want, outputs)
    targets[missing] = float("nan")
    got = SQUARES.loss(outputs, targets)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, outputs)[0], expected)
    outputs = outputs.detach()
    parts = [(outputs[:1], targets[:1]), (outputs[1:], targets[1:] * float("nan"))]
    score = evaluate(SQUARES, parts)
    assert score.loss == pytest.approx(float(SQUARES.loss(*parts[0])), rel=1e-6)
    assert evaluate(SQUARES, parts[1:]).loss == 0


def test_cells_with_static_inputs_need_them(config):
    """The file's name and what it lacks."""
    with pytest.raises(RunError, match="ealstm reads static inputs, and there is no static_train"):
        prepare(dataclasses.replace(config, cell="ealstm"))
    with pytest.raises(InputError, match="not one input of any size"):
        check_cell(dataclasses.replace(config, cell="m2rnn"))


def test_other_shapes_are_refused(config, train):
    """Of a step, and of static inputs that the data has not."""
    run = elman.load(train(dataclasses.replace(config, steps=2)).folder.path)
    with pytest.raises(InputError, match=r"x must be \[N, 2\], not \[3\]"):
        run.predict_step(np.zeros(3))
    with pytest.raises(InputError, match="leave it out: the data has no static inputs"):
        run.predict(np.zeros((3, 8, 2)), np.zeros((3, 1)))


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_other_precisions(config, train, precision):
    """Targets are float32 whatever the weights are."""
    assert train(dataclasses.replace(config, precision=precision, engine="aten")).complete


def saved(folder, shapes, seed=0):
    """Write random arrays of given shapes to a file."""
    draw = np.random.default_rng(seed)
    path = folder / "made.npz"
    np.savez(path, **{name: draw.normal(0, 1, shape) for name, shape in shapes.items()})
    return RegressionConfig(data=str(path), batch=3, hidden=4, engine="reference", steps=2)


@given(
    counts=st.tuples(st.integers(2, 7), st.integers(2, 7)),
    steps=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    rank=st.integers(1, 3),
    flat=st.booleans(),
)
def test_any_shapes(tmp_path_factory, counts, steps, sizes, rank, flat):
    """Batches and outputs have the shape of their targets; halves may differ in length."""
    shapes = {}
    assume(not flat or rank != 2 or sizes[1] == 1 or sizes[1] not in steps)  # which is refused
    for half, n, t in zip(("train", "test"), counts, steps, strict=True):
        shapes[f"x_{half}"] = (n, t) if flat else (n, t, sizes[0])
        shapes[f"y_{half}"] = {1: (n,), 2: (n, sizes[1]), 3: (n, t, sizes[1])}[rank]
    config = saved(tmp_path_factory.mktemp("any"), shapes)
    data = prepare(config)
    model = build_model(config, data.spec)
    for batch in (data.batch(0, slice(0, 3)), next(data.held_out())):
        outputs, state = model(batch.inputs)
        assert outputs.shape == batch.targets.shape
        assert state is None
        assert batch.targets.shape[-1] == (1 if rank == 1 else sizes[1])
    assert sum(batch.inputs.shape[1] for batch in data.test_batches()) == counts[1]
    assert data.fit.y.double().mean() == pytest.approx(0, abs=1e-6)


def test_targets_stay_with_their_inputs(tmp_path):
    """After the shuffle too, at every step."""
    x = np.arange(2 * 5 * 3, dtype=float).reshape(10, 3)
    config = RegressionConfig(data=str(tmp_path / "same.npz"), batch=4)
    np.savez(config.data, x_train=x, y_train=x[:, :, None], x_test=x[:4], y_test=x[:4, :, None])
    for step in range(5):
        batch = prepare(config).batch(step, slice(1, 4))
        assert batch.inputs.shape == (3, 3, 1)
        torch.testing.assert_close(batch.inputs, batch.targets)


def test_baseline_repeats_the_input_where_that_is_better(tmp_path):
    """In the unit of the data, whatever the scales of inputs and targets are."""
    draw = np.random.default_rng(0)
    walks = 100 + np.cumsum(draw.normal(0, 1, (20, 30, 2)), 1)
    x, y = walks[:, :-1], walks[:, 1:]
    path = tmp_path / "walks.npz"
    np.savez(path, x_train=x[:10], y_train=y[:10], x_test=x[10:], y_test=y[10:])
    found = prepare(RegressionConfig(data=str(path))).baseline()
    error = np.mean((x[10:] - y[10:]) ** 2 / y[:10].std((0, 1)) ** 2)
    assert found.name == "repeated input"
    assert found.loss == pytest.approx(error, rel=1e-4)
    np.savez(path, x_train=-x[:10], y_train=y[:10], x_test=-x[10:], y_test=y[10:])
    assert prepare(RegressionConfig(data=str(path))).baseline().name.startswith("mean of")


def test_missing_inputs_count_as_their_mean(tmp_path):
    """NaN among inputs is told, and trained on."""
    config = saved(
        tmp_path, {"x_train": (4, 5, 2), "y_train": (4,), "x_test": (4, 5, 2), "y_test": (4,)}
    )
    with np.load(config.data) as file:
        made = {name: file[name] for name in file.files}
    made["x_train"][1, 2, 0] = np.nan
    np.savez(config.data, **made)
    data = prepare(config)
    assert data.fit.x[1, 2, 0] == 0
    assert "1.2% of the values are missing" in data.about()


def test_held_out_targets_that_do_not_vary(tmp_path, train):
    """R² is unknown, and the run ends with its loss."""
    config = saved(
        tmp_path, {"x_train": (4, 5, 2), "y_train": (4,), "x_test": (4, 5, 2), "y_test": (4,)}
    )
    with np.load(config.data) as file:
        made = {name: file[name] for name in file.files}
    np.savez(config.data, **made | {"y_test": np.ones(4)})
    outcome = train(dataclasses.replace(config, accelerator="cpu"))
    assert outcome.result["valid_score"] is None
    assert "squared error" in report_run(read_record(outcome.folder)).read_text()

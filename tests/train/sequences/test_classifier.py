"""The tasks series and images, from files to a result: they learn, resume, and tell."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import elman
from elman.errors import InputError
from elman.train.loop.layers import check_cell
from elman.train.run.record import read_record
from elman.train.tasks.sequences.config import ImagesConfig, SeriesConfig
from elman.train.tasks.sequences.data import prepare_series
from elman.train.tasks.sequences.model import build_model


@pytest.fixture(scope="session")
def tones(tmp_path_factory):
    """Three kinds of waves, 8 to 20 steps long, of two loudnesses."""
    draw = np.random.default_rng(0)
    arrays = {}
    for half, count in (("train", 60), ("test", 30)):
        lengths = draw.integers(8, 20, count)
        labels, quiet = np.arange(count) % 3, np.arange(count) // 3 % 2
        waves = [
            np.sin(np.arange(n) * (1 + label) + draw.uniform(0, 6)) * (1000 if soft else 9000)
            for n, label, soft in zip(lengths, labels, quiet)
        ]
        arrays |= {
            f"audio_{half}": np.concatenate(waves).astype(np.int16),
            f"length_{half}": lengths,
            f"label_{half}": labels,
        }
    path = tmp_path_factory.mktemp("tones") / "tones.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture
def config(tones):
    """A short run on the tones."""
    return SeriesConfig(
        data=str(tones),
        hidden=12,
        batch=16,
        steps=14,
        validate_every=5,
        checkpoint_every=4,
        log_every=3,
        noise=0.1,
        accelerator="cpu",
        threads=1,
    )


def test_learns(config, train, console):
    """Well above the largest class; by class in the result and on the screen."""
    longer = dataclasses.replace(config, steps=150, hidden=24, lr=1e-2)
    result = train(longer, comparing=True).result
    said = console.file.getvalue()

    assert result["valid_score"] > 0.8 > result["baseline"]["score"]
    assert set(result["table"]) == {"class 0", "class 1", "class 2"}
    assert result["speed"]["largest_logit_difference"] < 1e-4
    assert "better than the largest class" in said
    assert "sequences/s" in said
    assert result["fallbacks"] == 0


def test_the_held_out_half_is_read_once(config, train, console):
    """Weights are chosen by a share of the training half; the held-out half has its own score."""
    outcome = train(dataclasses.replace(config, validation_share=0.2, steps=60, lr=1e-2))
    result, rows = outcome.result, read_record(outcome.folder).rows
    scores = [row.valid_score for row in rows if row.valid_score is not None]
    assert result["valid_score"] == max(scores)
    assert {round(12 * score, 6) % 1 for score in scores} == {0}  # twelve sequences validate
    right = [int(text.split()[0]) for name, text in result["table"].items() if "class" in name]
    assert result["test_score"] == pytest.approx(sum(right) / 30)
    assert "held out" in result["table"]
    assert "12 to validate, 30 held out" in console.file.getvalue()


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_other_precisions(config, train, precision):
    """The held-out half is read in the weights' type, which a loaded model has too."""
    short = dataclasses.replace(config, precision=precision, steps=3, engine="aten")
    outcome = train(short)
    assert outcome.complete
    dtype = torch.float64 if precision == "64-true" else torch.float32
    assert elman.load(outcome.folder.path).weight.dtype == dtype


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "auto"},
        {"engine": "deer", "cell": "paragru", "steps": 6},
        {"residual": True, "layers": 2, "heads": 2, "engine": "reference", "steps": 6},
        {"cell": "lem", "patch": 3, "engine": "reference", "steps": 6},
        {"bidirectional": True, "layers": 2, "steps": 6},
    ],
)
def test_resumed_equals_uninterrupted(config, train, resume, interrupt_at, options):
    """Bit for bit, with noise, dropout and shuffled walks."""
    config = dataclasses.replace(config, **options)
    whole = train(config)
    interrupt_at(3)
    stopped = train(config)
    assert not stopped.complete
    resumed = resume(stopped.folder.path)

    keys = ("valid_loss", "valid_score", "table", "steps")
    assert [resumed.result[key] for key in keys] == [whole.result[key] for key in keys]
    assert resumed.folder.read("facts")["digest"] == whole.folder.read("facts")["digest"]


def accuracy(run, values, labels) -> float:
    """Share of the sequences whose class a loaded model finds."""
    chances = run.predict(values)
    torch.testing.assert_close(chances.sum(-1), torch.ones(len(values)))
    return float(np.mean([run.classes[k] == str(y) for k, y in zip(chances.argmax(-1), labels)]))


def test_loaded_model_classifies_as_the_run_says(config, tones, train):
    """A loaded model finds the classes of waves as the file has them, as the run's result says."""
    options = {"engine": "reference", "steps": 9, "patch": 3, "lr": 2e-2}
    outcome = train(dataclasses.replace(config, **options))
    with np.load(tones) as file:
        ends = file["length_test"].cumsum()[:-1]
        values = [wave[:, None] for wave in np.split(file["audio_test"], ends)]
        labels = file["label_test"]
    run = elman.load(outcome.folder.path)

    found = accuracy(run, values, labels)
    assert found == pytest.approx(outcome.result["valid_score"])
    assert found > 0.4  # so that the order of the classes and the scale count
    with pytest.raises(InputError, match=r"sequence 1 must be \[T, 1\], not \[5\]"):
        run.predict([values[0], values[1][:5, 0]])


def test_images(train, tmp_path):
    """Pixel by pixel in one fixed order; the configuration of the task is read back, and a loaded
    model finds the classes of images as the run says."""
    draw = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (draw.integers(0, 100, (40, 4, 4)) + 150 * y[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    config = ImagesConfig(
        data=str(tmp_path), permute=True, hidden=8, batch=10, steps=60, lr=1e-2,
        accelerator="cpu", threads=1, engine="aten",
    )  # fmt: skip
    outcome = train(config)
    stored = read_record(outcome.folder).config
    assert isinstance(stored, ImagesConfig)
    assert (stored.permute, stored.residual, stored.layers) == (True, True, 2)
    assert "permuted" in outcome.folder.read("facts")["source"]
    found = accuracy(elman.load(outcome.folder.path), x[:20].reshape(20, 16, 1), y[:20])
    assert found == pytest.approx(outcome.result["valid_score"])
    assert found > 0.9


def test_epochs_fix_the_steps(config, train):
    """Walks times sequences over the batch, rounded up."""
    assert train(dataclasses.replace(config, steps=None, epochs=2)).result["steps"] == 8


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bidirectional": True, "layers": 2},
        {"bidirectional": True, "cell": "lem", "engine": "reference"},
        {"bidirectional": True, "residual": True, "heads": 2},
    ],
)
def test_reads_out_at_each_sequences_own_end(config, options):
    """A sequence's logits do not depend on what it is batched with, nor on the padding."""
    config = dataclasses.replace(config, **options)
    data = prepare_series(config)
    model = build_model(config, data.spec).eval()
    x, lengths = next(data.held_out()).inputs
    together, _ = model((x, lengths))
    for k, length in enumerate(lengths.tolist()):
        alone, _ = model((x[:length, k : k + 1], lengths[k : k + 1]))
        torch.testing.assert_close(together[k : k + 1], alone, atol=1e-5, rtol=1e-5)


def test_directions_have_half_of_the_units(config):
    """Torch's twin has the same weights and says the same; the end is read first by one half."""
    config = dataclasses.replace(config, bidirectional=True, layers=2, dropout=0.0)
    data = prepare_series(config)
    model, twin = (build_model(config, data.spec, baseline=b).eval() for b in (False, True))
    twin.load_state_dict(model.state_dict())
    assert model.layers.weight_hh_l1_reverse.shape == (18, 6)
    x, lengths = next(data.held_out()).inputs
    torch.testing.assert_close(model((x, lengths))[0], twin((x, lengths))[0], atol=1e-5, rtol=1e-5)
    for length in (1, 5):
        h, _ = twin.layers(x[:length, :1])
        mean, last = h.mean(0), torch.cat((h[-1, :, :6], h[0, :, 6:]), -1)
        logits = twin.readout(twin.norm(torch.cat((mean, last), -1)))
        torch.testing.assert_close(model((x[:length, :1], torch.tensor([length])))[0], logits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 7}, "7 hidden units cannot be halved"),
        ({"strides": 2}, "layers with strides run in one direction"),
        ({"cell": "lru"}, "a block of lru has no option bidirectional"),
    ],
)
def test_no_second_direction(config, options, message):
    with pytest.raises(InputError, match=message):
        check_cell(dataclasses.replace(config, bidirectional=True, **options))

"""The tasks series and images, from files to a result: they learn, resume, and tell."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import elman
from elman.errors import InputError, RunError
from elman.train.run import run as running
from elman.train.run.record import read_record
from elman.train.tasks.sequences.config import ImagesConfig, SeriesConfig
from elman.train.tasks.sequences.data import prepare_series
from elman.train.tasks.sequences.model import build_model


@pytest.fixture(scope="session")
def tones(tmp_path_factory):
    """Three kinds of waves, 8 to 20 steps long, by two speakers of different loudness."""
    draw = np.random.default_rng(0)
    arrays = {"speaker_names": np.array(["loud", "soft"])}
    for half, count in (("train", 60), ("test", 30)):
        lengths = draw.integers(8, 20, count)
        labels, speakers = np.arange(count) % 3, np.arange(count) // 3 % 2
        waves = [
            np.sin(np.arange(n) * (1 + label) + draw.uniform(0, 6)) * (1000 if who else 9000)
            for n, label, who in zip(lengths, labels, speakers)
        ]
        arrays |= {
            f"audio_{half}": np.concatenate(waves).astype(np.int16),
            f"length_{half}": lengths,
            f"label_{half}": labels,
            f"speaker_{half}": speakers,
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
    """Well above the largest class; by class and by speaker in the result and on the screen."""
    longer = dataclasses.replace(config, steps=150, hidden=24, lr=1e-2)
    result = train(longer, comparing=True).result
    said = console.file.getvalue()

    assert result["valid_accuracy"] > 0.8 > result["baseline"]["accuracy"]
    assert set(result["table"]) == {"class 0", "class 1", "class 2", "of loud", "of soft"}
    assert result["speed"]["largest_logit_difference"] < 1e-4
    assert "better than the largest class" in said
    assert "sequences/s" in said
    assert result["fallbacks"] == 0


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

    keys = ("valid_loss", "valid_accuracy", "table", "steps")
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
    assert found == pytest.approx(outcome.result["valid_accuracy"])
    assert found > 0.4  # so that the order of the classes and the scale count
    with pytest.raises(InputError, match=r"sequence 1 must be \[T, 1\], not \[5\]"):
        run.predict([values[0], values[1][:5, 0]])


def test_loaded_images(train, tmp_path):
    """Pixels, read in the fixed order, by residual layers."""
    draw = np.random.default_rng(0)
    arrays = {}
    for half, count in (("train", 40), ("test", 20)):
        labels = np.arange(count) % 2
        images = draw.integers(0, 256, (count, 4, 4)) // (1 + 3 * labels[:, None, None])
        arrays |= {f"x_{half}": images.astype(np.uint8), f"y_{half}": labels}
    np.savez(tmp_path / "images.npz", **arrays)
    options = {"hidden": 8, "batch": 20, "steps": 6, "permute": True, "lr": 2e-2}
    place = {"engine": "reference", "accelerator": "cpu", "threads": 1, "validate_every": 6}
    outcome = train(ImagesConfig(data=str(tmp_path / "images.npz"), **options, **place))
    run = elman.load(outcome.folder.path)

    found = accuracy(run, arrays["x_test"].reshape(20, 16, 1), arrays["y_test"])
    assert found == pytest.approx(outcome.result["valid_accuracy"])


def test_epochs_fix_the_steps(config, train):
    """Walks times sequences over the batch, rounded up."""
    assert train(dataclasses.replace(config, steps=None, epochs=2)).result["steps"] == 8


def test_unseen_speaker(config, train):
    """The held-out half is one speaker's, all of it."""
    outcome = train(dataclasses.replace(config, unseen="soft", steps=2))
    assert set(outcome.result["table"]) >= {"of soft"}
    assert "of loud" not in outcome.result["table"]
    assert outcome.folder.read("facts")["held_out_sequences"] == 45


def test_joined_by_speaker(config, train):
    """Recordings of a speaker as one long sequence: equal steps, speakers as classes."""
    outcome = train(dataclasses.replace(config, by="group", join=100, steps=2))
    facts = outcome.folder.read("facts")
    assert facts["steps"] == [100, 100]
    assert facts["classes"] == ["loud", "soft"]


@pytest.mark.parametrize("wrong", [{"by": "speaker"}, {"join": 0}])
def test_wrong_choices(wrong):
    """Each is named with what it must be."""
    (name,) = wrong
    with pytest.raises(InputError, match=f"{name} must be"):
        SeriesConfig(**wrong)


def test_changed_data_are_refused(config, train, resume, interrupt_at, tones, tmp_path):
    """A run does not go on with other sequences."""
    copy = tmp_path / "copy.npz"
    copy.write_bytes(tones.read_bytes())
    interrupt_at(3)
    stopped = train(dataclasses.replace(config, data=str(copy)))
    with np.load(tones) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["audio_test"][0] += 1
    np.savez(copy, **arrays)
    with pytest.raises(RunError, match="the data have changed"):
        resume(stopped.folder.path)


def test_images(train, tmp_path):
    """Pixel by pixel, permuted or not; the configuration of the task is stored and read back."""
    draw = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (draw.integers(0, 100, (40, 4, 4)) + 150 * y[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    config = ImagesConfig(
        data=str(tmp_path), permute=True, hidden=8, batch=10, steps=60, lr=1e-2,
        accelerator="cpu", threads=1, engine="aten",
    )  # fmt: skip
    outcome = train(config)
    stored = read_record(outcome.folder).config
    assert isinstance(stored, ImagesConfig)
    assert (stored.permute, stored.residual, stored.layers) == (True, True, 2)
    assert outcome.result["valid_accuracy"] > 0.9
    assert "permuted" in outcome.folder.read("facts")["source"]


def test_reads_out_at_each_sequences_own_end(config):
    """A sequence's logits do not depend on what it is batched with, nor on the padding."""
    data = prepare_series(config)
    model = build_model(config, data.spec).eval()
    x, lengths = next(data.held_out()).inputs
    together, _ = model((x, lengths))
    for k, length in enumerate(lengths.tolist()):
        alone, _ = model((x[:length, k : k + 1], lengths[k : k + 1]))
        torch.testing.assert_close(together[k : k + 1], alone, atol=1e-5, rtol=1e-5)


def test_bad_data_leave_no_folder(tmp_path, console):
    """What cannot be read is told before anything is written."""
    with pytest.raises(RunError, match="does not exist"):
        running.start(SeriesConfig(data=str(tmp_path / "none.npz")), tmp_path / "runs", console)
    assert not (tmp_path / "runs").exists()

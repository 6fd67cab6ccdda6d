"""Models of words: units, presets, tied weights, and the parts of a data set."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning_fabric import Fabric

from elman.errors import MissingPackageError, RunError
from elman.train.loop.metrics import read_metrics
from elman.train.loop.objective import CLASSES, cross_entropy, evaluate
from elman.train.loop.stepper import make_stepper
from elman.train.loop.task import predictions
from elman.train.run.record import read_record
from elman.train.tasks.text.config import TextConfig
from elman.train.tasks.text.corpus import load
from elman.train.tasks.text.data import prepare
from elman.train.tasks.text.model import build_model
from elman.train.tasks.text.task import TEXT

LINE = "the quick {} fox jumps over <unk> dog number {}\n"


@pytest.fixture
def parts(tmp_path):
    """A folder of a data set in three parts, and what does not belong to it."""
    folder = tmp_path / "set"
    folder.mkdir()
    for name, count in (("train", 200), ("valid", 60), ("test", 50)):
        lines = [LINE.format(("red", "brown")[k % 2], k % 9) for k in range(count)]
        (folder / f"x.{name}.txt").write_text("".join(lines) + f"{name}\n")
    (folder / "README.md").write_text("This is not part of it.\n")
    return folder


@pytest.fixture
def words(small_config, parts):
    """The small run, of words."""
    return replace(
        small_config, data=str(parts), level="word", cell="lstm", batch=8, bptt=7, dropout=0.0
    )


def test_perplexity_is_the_unit_everywhere(words, train, console):
    """Training, validation, baseline and test: e to the mean loss of the same words."""
    outcome = train(replace(words, log_every=1))
    record = read_record(outcome.folder)
    data = prepare(words)
    stepper = make_stepper(
        Fabric(accelerator="cpu", devices=1), build_model(words, data.spec), words, TEXT.objective
    )
    first, _ = stepper.train(data.batch(0, slice(0, words.batch)), 1e-3)
    rows = read_metrics(outcome.folder.metrics)
    assert rows[0].train_loss == pytest.approx(math.exp(first), rel=1e-5)
    assert rows[0].train_loss == pytest.approx(len(data.vocabulary), rel=0.2)
    assert rows[-1].valid_loss == record.result.valid_loss
    assert 1 < record.result.valid_loss < len(data.vocabulary) + 5
    assert 1 < record.facts.baseline.loss < 6  # two words of ten cannot be foreseen
    assert record.facts.content["loss"] == "perplexity"
    said = console.file.getvalue()
    assert f"validation: {record.result.valid_loss:.2f} perplexity" in said
    assert "words/s" in said
    assert "perplexity, accuracy" in record.result.table["test"]
    assert "test" not in record.result.sample


def test_the_whole_test_text_is_predicted(words):
    """Test words are seen by nobody but the end of a run; each is predicted once."""
    data = prepare(replace(words, bptt=4))
    model = build_model(words, data.spec).eval()
    with torch.no_grad():
        pairs = list(predictions(model, data.test_batches()))
    predicted = sum(targets.numel() for _, targets in pairs)
    count = len(data.vocabulary.encode(data.corpus.test))
    assert count - 64 < predicted < count
    assert "test" not in data.vocabulary.tokens
    (Path(words.data) / "x.test.txt").unlink()
    assert not [*prepare(words).test_batches()]


def test_the_loss_inside_the_model_is_the_objectives(words):
    """A training step with the loss inside is the same but for rounding."""
    data = prepare(words)
    found = []
    for inside in (True, False):
        objective = replace(CLASSES, inside=inside)
        fabric = Fabric(accelerator="cpu", devices=1)
        stepper = make_stepper(fabric, build_model(words, data.spec), words, objective)
        steps = [stepper.train(data.batch(k, slice(0, words.batch)), 0.1) for k in range(3)]
        found.append((steps, stepper.plain.state_dict()))
    (ours, weights), (theirs, others) = found
    for step, other in zip(ours, theirs, strict=True):
        assert step == pytest.approx(other, rel=1e-5)
    for name in weights:
        torch.testing.assert_close(weights[name], others[name], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("tie", [False, True])
def test_tied_weights_are_one(words, tie):
    """The read-out's weights are the embedding's, on elman's layers and on torch's."""
    config = replace(words, tie=tie, embedding=words.hidden)
    data = prepare(config)
    for baseline in (False, True):
        model = build_model(config, data.spec, baseline=baseline)
        assert (model.readout.linear.weight is model.embedding.weight) == tie
        batch = next(data.held_out())
        loss, _ = model(batch.inputs, None, batch.targets)
        loss.backward()
        alone = cross_entropy(model(batch.inputs)[0], batch.targets)
        torch.testing.assert_close(loss, alone)
        assert torch.equal(loss, alone) or not baseline


def test_tied_runs_resume(words, train, resume, interrupt_at):
    """To the bit, though the checkpoint has the weights once per name."""
    config = replace(words, tie=True, embedding=words.hidden, engine="reference")
    whole = train(config)
    interrupt_at(5)
    half = train(config)
    assert not half.complete
    again = resume(half.folder.path)
    assert again.result["valid_loss"] == whole.result["valid_loss"]


def test_all_weights_are_drawn_uniformly(words):
    """Also biases and embedding, within the range and over all of it."""
    model = build_model(replace(words, uniform=0.03), prepare(words).spec)
    for name, weight in model.state_dict().items():
        assert weight.abs().max() <= 0.03, name
        assert float(weight.std()) == pytest.approx(0.03 / math.sqrt(3), rel=0.3), name


def test_dropout_of_the_embedding(words):
    """Its share of values is dropped in training, none in validation."""
    data = prepare(words)
    model = build_model(replace(words, embedding_dropout=0.5), data.spec)
    seen = []
    model.recurrent.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    ids = next(data.held_out()).inputs
    model(ids)
    model.eval()(ids)
    assert (seen[0] == 0).float().mean() == pytest.approx(0.5, abs=0.1)
    assert not (seen[1] == 0).any()


def test_presets_are_other_defaults():
    """What is given stays; a length in steps or minutes takes the place of the epochs."""
    small = TextConfig.of({"preset": "small"})
    assert (small.level, small.hidden, small.embedding, small.bptt) == ("word", 200, 200, 20)
    assert (small.lr, small.clip, small.epochs) == (20.0, 0.25, 13)
    large = TextConfig.of({"preset": "large", "hidden": 50, "steps": 9})
    assert (large.hidden, large.embedding, large.steps, large.epochs) == (50, 1500, 9, None)
    assert TextConfig.of({"minutes": 1.0, "preset": "medium"}).epochs is None
    assert TextConfig.of({"level": "char"}) == TextConfig()


def test_epochs_are_walks_through_the_text(words, train):
    """The state begins anew with each."""
    outcome = train(replace(words, steps=None, epochs=2, batch=20))
    segments = prepare(replace(words, batch=20)).train.segments
    assert outcome.result["steps"] == 2 * segments


@pytest.mark.parametrize("name", ["valid", "validation", "val", "dev"])
@pytest.mark.parametrize("named", ["folder", "file"])
@pytest.mark.parametrize("test", [True, False])
def test_parts_by_name(tmp_path, name, named, test):
    """The training file or the folder is named; the others are found beside it."""
    for part in ("train", name, *(["test"] if test else [])):
        (tmp_path / f"wiki.{part}.tokens").write_text(f"{part} text\n")
    (tmp_path / "training.txt").write_text("no part of it")
    path = tmp_path / "wiki.train.tokens" if named == "file" else tmp_path
    found = load(str(path))
    assert (found.train, found.valid) == ("train text\n", f"{name} text\n")
    assert found.test == ("test text\n" if test else "")
    assert (found.train_files, found.valid_files) == (0, 0)


def test_several_data_sets_in_a_folder_are_not_parts(tmp_path):
    """Nobody knows which is meant, so files are split as those of any folder."""
    for name in ("a.train.txt", "a.valid.txt", "b.train.txt", "b.valid.txt"):
        (tmp_path / name).write_text("some text " * 9)
    found = load(str(tmp_path))
    assert found.train_files + found.valid_files == 4


def test_the_test_part_counts_for_the_digest(parts):
    """A resumed run predicts the same test text."""
    before = load(str(parts)).digest
    (parts / "x.test.txt").write_text("another one\n")
    assert load(str(parts)).digest != before


def test_texts_by_name(monkeypatch):
    """WikiText-2 comes through datasets."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingPackageError, match=r"pip install \"elman\[data\]\""):
        load("wikitext-2")
    parts = {part: {"text": [f" = {part} =\n", ""]} for part in ("train", "validation", "test")}
    fetched = []
    library = SimpleNamespace(load_dataset=lambda *names: fetched.append(names) or parts)
    monkeypatch.setitem(sys.modules, "datasets", library)
    found = load("wikitext-2")
    assert (found.train, found.valid) == (" = train =\n\n", " = validation =\n\n")
    assert found.test == " = test =\n\n"
    assert fetched == [("Salesforce/wikitext", "wikitext-2-v1")]


def test_a_sample_is_words(words, train):
    """With spaces and lines, without the sign for unknown words."""
    sample = train(words).result["sample"]
    known = {*prepare(words).vocabulary.tokens, ""}
    assert {word for line in sample.splitlines() for word in line.split(" ")} <= known
    assert "<eos>" not in sample
    assert "<unk>" not in sample


def test_what_is_told_of_words(words):
    """Numbers of words, not of characters."""
    data = prepare(words)
    count = 200 * 11 + 2
    assert f"{count:,} words to train on" in data.about()
    assert data.size.endswith("words")
    assert data.facts()["vocabulary"] == f"{len(data.vocabulary)} words"


def test_a_test_part_without_words_is_told_before_training(words):
    """What can be known at the beginning is not told after hours."""
    (Path(words.data) / "x.test.txt").write_text("one")
    with pytest.raises(RunError, match="too short to test on\n  text  1 words"):
        prepare(words)


def test_validation_has_few_logits_at_once(words, parts, monkeypatch):
    """However large the vocabulary: shorter segments, the same tokens and the same loss."""
    data = prepare(words)
    model = build_model(words, data.spec).eval()
    assert data.test is not None
    for stream, walk in ((data.valid, data.held_out), (data.test, data.test_batches)):
        found, few = [], 3 * len(stream.ids) * len(data.vocabulary)
        for most in (1 << 22, few):
            monkeypatch.setattr("elman.train.tasks.text.data.MOST_LOGITS", most)
            sizes = [batch.targets.numel() for batch in walk()]
            assert max(sizes) * len(data.vocabulary) <= most
            with torch.no_grad():
                found.append((evaluate(CLASSES, predictions(model, walk())), sum(sizes)))
        (whole, count), (cut, same) = found
        assert same == count > max(sizes)
        assert cut.loss == pytest.approx(whole.loss, rel=1e-6)
        assert cut.score == whole.score

"""The weights that did best in validation: kept through everything, and what a result is of."""

from __future__ import annotations

import dataclasses
import errno
import math
import shutil
from itertools import count

import pytest
import torch

import elman
from elman import files
from elman.errors import InputError, RunError
from elman.train.loop.objective import Score
from elman.train.loop.stepper import Stepper
from elman.train.run import checkpoint
from elman.train.run.checkpoint import Checkpoint, best_of, read_best, save_best
from elman.train.tasks.sequences.task import LABELS
from elman.train.tasks.text.vocabulary import CHARACTERS


@pytest.fixture
def finds(monkeypatch):
    """Let the validations to come find these losses (nats)."""

    def arrange(*losses):
        left = list(losses)
        monkeypatch.setattr(Stepper, "validate", lambda *_: Score(left.pop(0), 0.5))

    return arrange


@pytest.fixture
def short(small_config):
    """Validations after steps 5, 10 and 14, with checkpoints there."""
    return dataclasses.replace(small_config, checkpoint_every=5)


def weights_at(folder, step):
    """Those of a checkpoint."""
    tensors = checkpoint.read(folder.checkpoints / f"step-{step:09d}").tensors
    return {name: value for name, value in tensors.items() if name.startswith("model.")}


def same(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def test_a_result_is_of_the_best(short, train, finds, console):
    """Not of the last: its sample, loss and step; one folder, which loading takes unless told."""
    finds(3.0, 1.0, 2.0)
    outcome = train(short)
    folder, result = outcome.folder, outcome.result

    assert result["best_step"] == 10
    assert result["valid_loss"] == pytest.approx(1 / math.log(2))
    assert "of step 10 of 14" in console.file.getvalue()
    assert [path.name for path in folder.checkpoints.glob("best-*")] == ["best-000000010"]
    same(best_of(folder.checkpoints).weights, weights_at(folder, 10))
    run, last = elman.load(folder.path), elman.load(folder.path, weights="last")
    assert (run.step, last.step) == (10, 14)
    assert run.sample() == result["sample"] != last.sample()
    same({f"model.{n}": v for n, v in last.model.state_dict().items()}, weights_at(folder, 14))
    with pytest.raises(InputError, match="weights must be 'best' or 'last', got 'first'"):
        elman.load(folder.path, weights="first")


@pytest.mark.parametrize("lost", [0, 1], ids=["stopped", "killed"])
def test_a_resumed_run_knows_it(short, train, resume, finds, interrupt_at, lost):
    """Also where it goes on from before its best, which it finds again."""
    finds(3.0, 1.0)
    interrupt_at(12)
    folder = train(short).folder
    before = best_of(folder.checkpoints)
    assert before.step == 10
    for path in reversed(checkpoint.list_checkpoints(folder.checkpoints)) if lost else ():
        if len(checkpoint.list_checkpoints(folder.checkpoints)) > 1:
            shutil.rmtree(path)
    finds(*[1.0] * lost, 2.0)
    result = resume(folder.path).result

    assert result["best_step"] == 10
    same(best_of(folder.checkpoints).weights, before.weights)
    assert elman.load(folder.path).sample() == result["sample"]


def test_a_later_best_takes_its_place(short, train, resume, finds, interrupt_at):
    """After a stop as well; a tie does not, nor a loss that is no number."""
    finds(2.0)
    interrupt_at(7)
    folder = train(short).folder
    finds(math.nan, 2.0)
    assert resume(folder.path).result["best_step"] == 5
    finds(2.0, 1.0, 0.5)
    assert train(short).result["best_step"] == 14


def test_a_full_disk_costs_no_best(short, train, finds, monkeypatch, console):
    """Told, and written with the next checkpoint."""
    plain, calls = files.write_through, count()

    def full(path, content):
        if "best-" in str(path) and next(calls) == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(path, content)

    monkeypatch.setattr(files, "write_through", full)
    finds(1.0, 2.0, 3.0)
    folder = train(short).folder

    assert "the best weights of step 5 could not be written" in console.file.getvalue()
    assert best_of(folder.checkpoints).step == 5


def test_damage_is_told(short, train, resume, finds, interrupt_at, console):
    """Loading says what else there is; a run goes on, and its next validation is the best."""
    finds(1.0)
    interrupt_at(7)
    folder = train(short).folder
    (folder.checkpoints / "best-000000005" / checkpoint.TENSORS).write_bytes(b"")
    with pytest.raises(RunError, match=r"damaged(.|\n)*hint  elman.load\(.*weights=\"last\"\)"):
        elman.load(folder.path)
    assert elman.load(folder.path, weights="last").step == 7
    finds(3.0, 2.0)
    assert resume(folder.path).result["best_step"] == 14
    assert "a checkpoint is damaged" in console.file.getvalue()


def test_without_one(short, train, interrupt_at):
    """Before the first validation, and of a run of an older elman: the last weights."""
    interrupt_at(3)
    folder = train(short).folder
    assert elman.load(folder.path).step == 3


def test_one_that_goes_away_while_it_is_read(tmp_path, monkeypatch):
    """A training process has just found a better one: that is read."""
    points = [Checkpoint(step, {"model.W": torch.ones(step)}, {}, "") for step in (1, 2)]
    save_best(tmp_path, points[0])
    plain = checkpoint.read_object

    def better(path):
        if "best-000000001" in str(path):
            save_best(tmp_path, points[1])
        return plain(path)

    monkeypatch.setattr(checkpoint, "read_object", better)
    assert read_best(tmp_path).step == 2


@pytest.mark.parametrize(
    "words, found, other, better",
    [
        (CHARACTERS.labels, Score(1.0, 0.1), Score(2.0, 0.9), True),  # the loss is told first
        (CHARACTERS.labels, Score(2.0, 0.9), Score(2.0, 0.1), False),
        (LABELS, Score(2.0, 0.9), Score(1.0, 0.8), True),  # the accuracy is
        (LABELS, Score(1.0, 0.9), Score(2.0, 0.9), False),
        (LABELS, Score(math.nan, 0.9), Score(2.0, 0.1), False),
        (LABELS, Score(1.0, None), Score(2.0, 0.9), True),
    ],
)
def test_the_tasks_measure_decides(words, found, other, better):
    """What is told first; the loss where a score is unknown; no loss that is no number."""
    assert words.better(found, other) == better

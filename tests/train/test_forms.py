"""Checkpoints with right hashes that no run has written: refused in words, before they are used."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch

import elman
from elman.errors import RunError
from elman.train.run import checkpoint
from run_folders import changed, forge, small_run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that has a step to go from its last checkpoint."""
    folder = small_run(tmp_path_factory.mktemp("stopped"))
    (folder / "result.json").unlink()
    shutil.rmtree(sorted((folder / "checkpoints").glob("step-*"))[-1])
    forge(folder, lambda tensors, facts: None)
    return folder


@pytest.fixture
def folder(stopped, tmp_path):
    """A copy of it."""
    return shutil.copytree(stopped, tmp_path / "run")


def put(name, value):
    """Put another tensor in the place of one, or a function of it."""

    def change(tensors, facts):
        if name in tensors or not callable(value):
            tensors[name] = value(tensors[name]) if callable(value) else value

    return change


def lack(name):
    """Leave a tensor out."""
    return lambda tensors, facts: tensors.pop(name, None)


def say(name, value):
    """Put another value among the facts."""
    return lambda tensors, facts: facts.__setitem__(name, value)


def tell(name, value):
    """Put another value in the tally."""
    return lambda tensors, facts: facts.get("tally", {}).__setitem__(name, value)


MOMENT, WEIGHT = "optimizer.1.exp_avg", "model.recurrent.weight_hh_l0"
RANDOM = "random.cpu"
FORGED = [
    (put(MOMENT, lambda value: value[:1].clone()), f"{MOMENT} is float32"),
    (put(MOMENT, lambda value: torch.cat((value, value))), f"{MOMENT} is float32"),
    (put(MOMENT, lambda value: value.to(torch.uint8)), f"{MOMENT} is uint8"),
    (put(MOMENT, lambda value: value.double()), f"{MOMENT} is float64"),
    (put("optimizer.1.step", torch.zeros(2)), "optimizer.1.step is float32"),
    (put("optimizer.99.step", torch.zeros(())), "optimizer.99 is of no weight"),
    (put("optimizer.-1.step", torch.zeros(())), "optimizer.-1 is of no weight"),
    (put("optimizer.x", torch.zeros(())), "optimizer.x is of no weight"),
    (put("optimizer.1.more", torch.zeros(())), "optimizer.1.more is one too many"),
    (lack(MOMENT), f"{MOMENT} is missing"),
    (say("optimizer", {"1.exp_avg": 7.0}), f"{MOMENT} is a number"),
    (say("optimizer", {"1.exp_avg": []}), "optimizer.1.exp_avg: expected"),
    (put(WEIGHT, lambda value: value[1:].clone()), "recurrent.weight_hh_l0 is float32"),
    (put(WEIGHT, lambda value: value.to(torch.uint8)), "recurrent.weight_hh_l0 is uint8"),
    (put("model.more", torch.zeros(2)), "more is one too many"),
    (lack(WEIGHT), "recurrent.weight_hh_l0 is missing"),
    (put("more", torch.zeros(2)), "more is no part of a checkpoint"),
    (put(RANDOM, lambda value: value[:, :-1].clone()), f"{RANDOM} is uint8"),
    (put(RANDOM, lambda value: value.float()), f"{RANDOM} is float32"),
    (put(RANDOM, lambda value: value[0, 0].clone()), f"{RANDOM} is uint8"),
    (put(RANDOM, lambda value: value[:0].clone()), f"{RANDOM} is uint8"),
    (put(RANDOM, torch.zeros_like), "the random numbers"),
    (lack(RANDOM), f"{RANDOM} is missing"),
    (put("random.more", torch.zeros(1, 2, dtype=torch.uint8)), "random.more is"),
    (say("carried", "list"), "carried states, which are called 'list'"),
    (say("carried", "none"), "carried states, which are called 'none'"),
    (say("carried", 7), "carried: expected text"),
    (put("carried.0", lambda value: value[0, 0].clone()), "the carried state is [[4, 8]], not"),
    (put("carried.0", lambda value: value[..., :-1].clone()), "state is [[1, 1, 4, 7]], not"),
    (put("carried.0", lambda value: value[:, :, :-1].clone()), "state is [[1, 1, 3, 8]], not"),
    (put("carried.0", lambda value: value.double()), "carried.0 is float64"),
    (put("carried.1", torch.zeros(1, 1, 4, 8)), "2 carried states, which are called 'tensor'"),
    (put("carried.0", lambda value: value.to(torch.uint8)), "carried.0 is uint8"),
    (tell("step", 10**9), "step 1000000000 of 2"),
    (tell("step", -1), "tally.step: -1 is not in"),
    (tell("seconds", 0.0), "steps that took no time"),
    (tell("steps", 0), "more steps than its run"),
    (tell("seconds", "long"), "tally.seconds: expected a number"),
    (say("tally", None), "tally: expected an object"),
    (say("choices", [1]), "choices: expected an object"),
    (say("choices", {"recurrent.0": {"x": 7}}), "choices.recurrent.0.x: expected an object"),
]


@pytest.mark.parametrize("change, found", FORGED, ids=[row[1] for row in FORGED])
def test_forged_checkpoints(folder, resume, change, found):
    """What does not fit is named, before any of it is used: torch's fused optimizers would write
    past the end of a moment that is too small."""
    forge(folder, change)
    with pytest.raises(RunError, match="of another model") as refused:
        resume(folder)
    assert found in str(refused.value)


def test_what_is_not_forged(folder, resume):
    """The same way, with nothing changed."""
    assert resume(folder).complete


@pytest.mark.parametrize(
    "change, found",
    [
        (put(WEIGHT, lambda value: value[1:].clone()), "recurrent.weight_hh_l0 is float32"),
        (put(WEIGHT, lambda value: value.to(torch.uint8)), "recurrent.weight_hh_l0 is uint8"),
        (put(WEIGHT, lambda value: value.to(torch.float8_e5m2)), "weight_hh_l0 is float8_e5m2"),
        (put("model.more", torch.zeros(2)), "more is one too many"),
        (lack(WEIGHT), "recurrent.weight_hh_l0 is missing"),
    ],
)
def test_forged_weights(folder, change, found):
    """Of a model that is only loaded too."""
    forge(folder, change)
    for weights in ("best", "last"):
        with pytest.raises(RunError, match=r"of another model(.|\n)*") as refused:
            elman.load(folder, weights=weights)
        assert found in str(refused.value)


def test_best_weights_that_are_forged(folder, resume, console):
    """They are not what a run ends with."""

    def change(tensors, facts):
        if "score" in facts:
            tensors[WEIGHT] = tensors[WEIGHT][1:].clone()

    path = checkpoint.write_checkpoint(folder / "checkpoints", "best", best_of_first_step(folder))
    assert path.exists()
    forge(folder, change)
    assert resume(folder).complete
    assert "so    the best weights are those of a validation to come" in console.file.getvalue()


def best_of_first_step(folder):
    """A checkpoint of the best weights, of a step that has been."""
    shutil.rmtree(next((folder / "checkpoints").glob("best-*")))
    point = checkpoint.read_newest(folder / "checkpoints")[0]
    tensors = {name: value for name, value in point.tensors.items() if name.startswith("model.")}
    return dataclasses.replace(point, tensors=tensors, facts={"loss": 0.1, "score": 0.9})


@pytest.mark.parametrize("name", ["layers", "hidden", "embedding"])
def test_sizes_beyond_the_weights(folder, resume, name):
    """Refused before a model of these sizes is built, which would take all memory, or for ever."""
    changed(folder / "config.json", name, 10**9)
    for way in (elman.load, resume):
        with pytest.raises(RunError, match=f"{name} is 1000000000, and the weights are of"):
            way(folder)


def test_a_configuration_without_steps(folder, resume):
    """A run has them settled when it begins."""
    changed(folder / "config.json", "steps", None)
    with pytest.raises(RunError, match=r"config.json: steps: expected an integer, got None"):
        resume(folder)


@pytest.mark.parametrize(
    "name, content",
    [
        (checkpoint.TENSORS, b""),
        (checkpoint.TENSORS, b"no tensors at all"),
        (checkpoint.TENSORS, (1 << 62).to_bytes(8, "little")),
        (checkpoint.TENSORS, b"\2\0\0\0\0\0\0\0{}"),
        (checkpoint.METRICS, b"\xff\xfe"),
    ],
)
def test_other_contents_with_right_hashes(folder, resume, name, content):
    """What no run writes is damage."""
    (path,) = (folder / "checkpoints").glob("step-*")
    (path / name).write_bytes(content)
    facts = json.loads((path / checkpoint.FACTS).read_text())
    facts["sha256"][name] = checkpoint.sha256(content)
    (path / checkpoint.FACTS).write_text(json.dumps(facts))
    with pytest.raises(RunError, match=r"damaged|no checkpoint|of another model"):
        resume(folder)

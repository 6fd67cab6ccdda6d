"""A resumed run equals the uninterrupted one, bit for bit, wherever it stopped."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import elman
from elman.errors import RunError
from elman.train.run import checkpoint
from elman.train.run.folder import RunFolder
from runs import assert_equal_runs

DRAWN = {"zoneout": 0.2, "recurrent_dropout": 0.2, "weight_dropout": 0.2}
SGD = {"optimizer": "sgd", "lr": 0.3}
RUNS: dict[str, dict[str, Any]] = {
    "auto": {"engine": "auto"},
    "lstm": {"cell": "lstm", "engine": "aten"},
    "drawn": {"cell": "lstm", "engine": "reference", "bptt": 8, **DRAWN},
    "drawn, auto": {"cell": "lstm", "engine": "auto", "bptt": 8, **DRAWN},
    "momentum": {"momentum": 0.9, "schedule": "constant", **SGD},
    "nesterov": {"momentum": 0.5, "nesterov": True, "schedule": "linear", **SGD},
}


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_resumed_equals_uninterrupted(small_config, train, resume, interrupt_at, options):
    """Stopped between two checkpoints and two rows of metrics, twice, then carried to the end; with
    what is drawn and dropped, momentum, and the schedule where it was."""
    config = dataclasses.replace(small_config, **options)
    whole = train(config)
    assert whole.complete

    interrupt_at(7)
    stopped = train(config)
    assert not stopped.complete
    assert stopped.signal == signal.SIGINT
    interrupt_at(3)
    assert not resume(stopped.folder.path).complete
    resumed = resume(stopped.folder.path)

    assert resumed.complete
    assert_equal_runs(resumed.folder, whole.folder)
    assert resumed.folder.read("config") | {"data": ""} == config.to_json() | {"data": ""}


def test_options_of_these_runs_matter(small_config, train):
    """Whatever is drawn or updated otherwise gives another loss."""
    found = [
        train(dataclasses.replace(small_config, steps=4, **options)).result["valid_loss"]
        for options in (RUNS["drawn"], RUNS["drawn"] | dict.fromkeys(DRAWN, 0.0), SGD, {"lr": 0.3})
    ]
    assert len(set(found)) == len(found)


def test_resumes_without_the_tuning_cache(
    small_config, train, resume, interrupt_at, nothing_known, monkeypatch
):
    """The recorded choices count, not what a cache says now: neither none, nor a false one."""
    config = dataclasses.replace(small_config, engine="auto")
    whole = train(config)
    interrupt_at(6)
    stopped = train(config).folder.path
    choices = sorted((nothing_known / "tuning").glob("*.json"))
    falsified = [path.read_text().replace('"c"', '"aten"') for path in choices]
    for texts in ([], falsified):
        for path in choices:
            path.unlink(missing_ok=True)
        for path, text in zip(choices, texts, strict=False):
            path.write_text(text)
        for owner in ("kernels._kernels", "decisions._decided"):  # as in a new process
            monkeypatch.setattr(f"elman.tuning.{owner}", {})
        copy = RunFolder(shutil.copytree(stopped, stopped.with_name(f"copy-{len(texts)}")))
        assert resume(copy.path).complete
        assert_equal_runs(copy, whole.folder)


def test_same_seed_same_run_and_other_seed_other_run(small_config, train):
    """What is compared above depends on the seed, so that equality says something."""
    first, second = train(small_config), train(small_config)
    other = train(dataclasses.replace(small_config, seed=1))

    assert_equal_runs(first.folder, second.folder)
    assert first.result["valid_loss"] != other.result["valid_loss"]


def test_interrupt_says_how_to_go_on(small_config, train, interrupt_at, console):
    """Ctrl-C ends with a checkpoint of the very step and the command that resumes."""
    interrupt_at(6, signal.SIGTERM)
    stopped = train(small_config)

    point, _ = checkpoint.load_latest(stopped.folder.checkpoints)
    assert point.step == 6
    assert stopped.signal == signal.SIGTERM
    assert f"elman resume {stopped.folder.path}" in console.file.getvalue()


def test_run_without_a_checkpoint_starts_over(small_config, train, resume, console):
    """Killed before the first checkpoint: the stored configuration gives the same run."""
    whole = train(small_config)
    copy = shutil.copytree(whole.folder.path, whole.folder.path.with_name("copy"))
    for name in ("result.json", "metrics.csv"):
        (copy / name).unlink()
    shutil.rmtree(copy / "checkpoints")

    assert_equal_runs(resume(copy).folder, whole.folder)
    assert "no checkpoint yet" in console.file.getvalue()


@pytest.mark.parametrize("threads", [1, 2])
def test_ended_between_its_last_step_and_its_result(small_config, train, resume, threads):
    """What ran is recorded as by the uninterrupted run, though this process trained no step."""
    options = {"engine": "auto", "dropout": 0.0, "threads": threads}
    whole = train(dataclasses.replace(small_config, **options))
    copy = shutil.copytree(whole.folder.path, whole.folder.path.with_name("copy"))
    (copy / "result.json").unlink()

    resumed = resume(copy)

    assert_equal_runs(resumed.folder, whole.folder)
    assert resumed.result["choices"] == whole.result["choices"]


def test_damaged_checkpoint_gives_way_to_an_older_one(
    small_config, train, resume, interrupt_at, console
):
    """A newest checkpoint cut short is told and passed over."""
    whole = train(small_config)
    interrupt_at(11)
    stopped = train(small_config)
    newest = checkpoint.list_checkpoints(stopped.folder.checkpoints)[-1] / checkpoint.TENSORS
    newest.write_bytes(newest.read_bytes()[:-10])

    resumed = resume(stopped.folder.path)

    assert_equal_runs(resumed.folder, whole.folder)
    said = console.file.getvalue()
    assert "a checkpoint is damaged" in said
    assert "resumed at step 8 of 14" in said


def test_metrics_cut_in_the_middle_are_mended(small_config, train, resume, interrupt_at):
    """The checkpoint's copy of metrics.csv replaces a file cut short."""
    whole = train(small_config)
    interrupt_at(11)
    stopped = train(small_config)
    text = stopped.folder.metrics.read_text()
    stopped.folder.metrics.write_text(text[: len(text) // 2])

    assert_equal_runs(resume(stopped.folder.path).folder, whole.folder)


def test_complete_run_says_so(small_config, train, resume, console):
    """Resuming what is complete changes no file."""
    whole = train(small_config)
    before = {path: path.stat().st_mtime_ns for path in whole.folder.path.rglob("*.*")}

    again = resume(whole.folder.path)

    assert again.complete
    assert again.result == whole.result
    assert "complete" in console.file.getvalue()
    assert before == {path: path.stat().st_mtime_ns for path in whole.folder.path.rglob("*.*")}


def test_changed_text_is_refused(small_config, train, resume, interrupt_at, tmp_path):
    """A run does not go on with another text."""
    data = tmp_path / "text.txt"
    shutil.copy(small_config.data, data)
    interrupt_at(6)
    stopped = train(dataclasses.replace(small_config, data=str(data)))
    data.write_text(data.read_text().replace("fox", "cat", 1))

    with pytest.raises(
        RunError, match=r"the data have changed since the run began(.|\n)*characters"
    ):
        resume(stopped.folder.path)


def test_relative_data_resumes_from_elsewhere(
    small_config, train, resume, interrupt_at, tmp_path, monkeypatch
):
    """A path relative to where the run began is found from another folder."""
    monkeypatch.chdir(Path(small_config.data).parent)
    interrupt_at(6)
    stopped = train(dataclasses.replace(small_config, data=Path(small_config.data).name))
    monkeypatch.chdir(tmp_path)

    assert resume(stopped.folder.path).complete


def test_pins_the_recorded_choices(small_config, train, resume, interrupt_at, monkeypatch, console):
    """What the checkpoint recorded is what the modules are pinned to; reasons are told."""
    interrupt_at(6)
    stopped = train(small_config)
    point, _ = checkpoint.load_latest(stopped.folder.checkpoints)
    seen = []

    def pin(model, choices):
        seen.append(choices)
        return ["plan 12ab: the kernel is for another processor"]

    monkeypatch.setattr(elman.nn, "pin", pin)
    resume(stopped.folder.path)

    assert seen == [point.facts["choices"]]
    assert "plan 12ab: the kernel is for another processor" in console.file.getvalue()


def test_two_processes_cannot_train_in_one_run(small_config, train, resume, interrupt_at):
    """The second one is told, and touches nothing."""
    interrupt_at(6)
    stopped = train(small_config)

    with stopped.folder.lock(), pytest.raises(RunError, match="another process is training"):
        resume(stopped.folder.path)

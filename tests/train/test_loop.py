"""The loop as a whole: it learns, counts right, and bears a full disk and a diverging loss."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import linecache
import math
import os

import pytest
from rich.console import Console

from elman import files
from elman.errors import InputError, RunError
from elman.train.loop import loop, pace
from elman.train.loop.display import Display, clock
from elman.train.loop.metrics import read_metrics
from elman.train.loop.pace import settle
from elman.train.loop.stepper import Stepper
from elman.train.run import checkpoint
from elman.train.run import run as running
from elman.train.run.record import read_record, summarise
from elman.train.tasks.text.vocabulary import CHARACTERS


def test_learns_small_text_below_its_trigram(small_config, train):
    """A short run on repeated words ends below the trigram and far below the alphabet."""
    config = dataclasses.replace(
        small_config, hidden=64, embedding=16, dropout=0.0, batch=8, bptt=32, steps=260, lr=2e-2
    )
    result = train(config).result

    assert result["valid_loss"] < result["baseline"]["loss"] < math.log2(28)


@pytest.mark.parametrize("layers", [1, 2])
def test_cells_by_name_and_from_a_file(small_config, train, console, tmp_path, layers):
    """A cell of the library and one of the user's own file run through elman.Recurrent."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from elman import cell\n"
        "from elman.ops import sigmoid, tanh\n\n\n"
        '@cell(input="x[I]", state="h[H]", weights="W[H, I], U[H, I], R[H, H], b[H]")\n'
        "def leaky(x, h, W, U, R, b):\n"
        '    """A unit that forgets."""\n'
        "    f = sigmoid(U @ x + b)\n"
        "    return f * h + (1 - f) * tanh(W @ x + R @ h)\n"
    )
    for name in ("mgu", f"{mine}:leaky"):
        config = dataclasses.replace(
            small_config, cell=name, engine="reference", layers=layers, steps=3, bptt=5
        )
        assert train(config, comparing=True).complete
    assert "measuring the speed" not in console.file.getvalue()  # torch has no such cells
    assert "not compared with torch.nn" in console.file.getvalue()


def test_metrics_count_right(small_config, train):
    """Rows every 3 steps and at validations; characters and losses as they should be."""
    outcome = train(small_config)
    rows = read_metrics(outcome.folder.metrics)

    assert [row.step for row in rows] == [3, 5, 6, 9, 10, 12, 14]
    assert [row.step for row in rows if row.valid_loss is not None] == [5, 10, 14]
    assert rows[-1].items == 14 * 40 * 24
    assert rows[-1].valid_loss == outcome.result["valid_loss"]
    assert 0 < rows[-1].valid_score == outcome.result["valid_score"] < 1
    assert all(math.isfinite(row.grad_norm) and row.items_per_s > 0 for row in rows)


def test_result_and_facts_are_stored(small_config, train):
    """What a report needs lies in the folder as JSON."""
    outcome = train(small_config)
    config, facts = read_record(outcome.folder).config, outcome.folder.read("facts")

    assert config == dataclasses.replace(small_config, data=str(config.data))
    assert facts["baseline"]["loss"] > 0
    assert facts["loss"] == "bits per character"
    assert facts["machine"]["torch"]
    assert outcome.folder.read("result") == json.loads(json.dumps(outcome.result))
    assert len(outcome.result["sample"]) == 500
    assert outcome.result["train_seconds"] < outcome.result["total_seconds"]


def test_comparison_with_torch(small_config, train):
    """Both speeds, the ratio, and how close the outputs are; the run's end is not changed by it."""
    plain = train(small_config)
    compared = train(dataclasses.replace(small_config, minutes=0.01), comparing=True)
    speed = compared.result["speed"]

    assert speed["largest_logit_difference"] < 1e-4
    for name in ("elman", "torch"):
        assert 0 < speed["items_per_s"][name]["q1"] <= speed["items_per_s"][name]["q3"]
    assert speed["ratio"] > 0
    assert 0.0 <= speed["waited"] <= 1.0
    assert plain.result["sample"] == compared.result["sample"]


def test_minutes_fix_the_steps(small_config, train, monkeypatch):
    """Without --steps the number is measured, stored, and reached."""
    monkeypatch.setattr(loop, "NOISE", math.inf)
    outcome = train(dataclasses.replace(small_config, steps=None, minutes=0.005))
    stored = read_record(outcome.folder).config

    assert stored.steps >= 20
    assert outcome.result["steps"] == stored.steps


def test_steps_that_do_not_fit_are_left_out(small_config, train, monkeypatch, console):
    """Of a run with a duration, on a machine that becomes slower; its checkpoint knows, and the
    list of runs."""
    monkeypatch.setattr(
        running, "settle", lambda config, s, threads: settle(config, s / 9, threads)
    )
    outcome = train(dataclasses.replace(small_config, steps=None, minutes=0.04))
    record = read_record(outcome.folder)
    planned, done = record.config.steps, outcome.result["steps"]

    assert 2 * pace.LEAST_STEPS <= done < 0.9 * planned
    assert f"of {planned} steps fit into the time" in console.file.getvalue()
    point, _ = checkpoint.load_latest(outcome.folder.checkpoints)
    assert point.step == point.facts["tally"]["steps"] == done
    assert summarise(record, record.config).steps == done
    lr = read_metrics(outcome.folder.metrics)[-1].lr
    assert lr < small_config.lr / 10  # it has fallen to the schedule's end


def test_full_disk_on_the_way_costs_no_run(small_config, train, monkeypatch, console):
    """Checkpoints in the middle fail: told, and the run goes on to a good last one."""
    plain = files.write_through
    failed = []

    def full(path, content):
        if "step-000000004" in str(path) or "step-000000008" in str(path):
            failed.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(path, content)

    monkeypatch.setattr(files, "write_through", full)
    outcome = train(small_config)

    assert outcome.complete
    assert len(failed) == 2
    assert "the checkpoint of step 8 could not be written" in console.file.getvalue()
    assert "No space left on device" in console.file.getvalue()
    assert checkpoint.load_latest(outcome.folder.checkpoints)[0].step == 14


@pytest.mark.parametrize(
    "number, hint",
    [(errno.ENOSPC, "make room on the disk"), (errno.EACCES, "make the folder writable")],
)
def test_disk_at_the_end_is_an_error(number, hint, small_config, train, monkeypatch):
    """The last checkpoint must be there; the one before is as it was."""
    plain = files.write_through

    def refused(path, content):
        if "step-000000014" in str(path):
            raise OSError(number, os.strerror(number))
        plain(path, content)

    monkeypatch.setattr(files, "write_through", refused)
    told = rf"step 14 could not be written(.|\n)*{os.strerror(number)}"
    with pytest.raises(RunError, match=told) as error:
        train(small_config)
    assert f"{hint}; older checkpoints are as they were" in str(error.value)


def breaking(monkeypatch, steps) -> None:
    """Let the losses of some steps be no number."""
    plain = Stepper.train
    calls = []

    def step(self, *args):
        calls.append(args)
        loss, norm = plain(self, *args)
        return (float("nan"), norm) if len(calls) in steps else (loss, norm)

    monkeypatch.setattr(Stepper, "train", step)


def test_diverging_loss_is_told(small_config, train, monkeypatch):
    """A loss that is no number ends the run with the last checkpoint's name."""
    breaking(monkeypatch, {6})
    with pytest.raises(RunError, match=r"diverged at step 6(.|\n)*step-000000004(.|\n)*--lr"):
        train(small_config)


def test_a_loss_that_is_no_number_is_skipped(small_config, train, monkeypatch, console):
    """Where that is asked for: told, counted, and no part of the means."""
    breaking(monkeypatch, {3, 4, 5, 9})
    config = dataclasses.replace(small_config, on_nonfinite="skip", log_every=1)
    outcome = train(config)
    rows = read_metrics(outcome.folder.metrics)

    assert outcome.complete
    assert outcome.result["skipped"] == 4
    assert [row.step for row in rows] == [1, 2, 6, 7, 8, 10, 11, 12, 13, 14]
    assert all(math.isfinite(row.train_loss) for row in rows)
    said = console.file.getvalue()
    assert "step 3 skipped: loss nan bits per character, gradient norm" in said
    assert "4 steps were skipped" in said


def test_many_in_a_row_are_a_divergence(small_config, train, monkeypatch):
    """Who asks to skip does not wait for ever."""
    breaking(monkeypatch, range(2, 100))
    config = dataclasses.replace(small_config, on_nonfinite="skip", steps=60)
    with pytest.raises(RunError, match="diverged at step 22"):
        train(config)


@pytest.mark.parametrize("options", [{"precision": "7-true"}, {"accelerator": "abacus"}])
def test_unknown_precision_and_device(small_config, train, options):
    """What Fabric does not know is told with what was asked for."""
    with pytest.raises(InputError, match="this device or precision is not available"):
        train(dataclasses.replace(small_config, **options))


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_other_precisions(small_config, train, precision):
    """Fabric's precisions train and resume; the carried state keeps its dtype."""
    assert train(dataclasses.replace(small_config, precision=precision)).complete


def test_out_that_is_a_file(small_config, tmp_path, console):
    """A run folder cannot be made below a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="the run folder cannot be made"):
        running.start(small_config, tmp_path / "file", console)


def test_display_on_a_terminal_and_elsewhere():
    """A bar with loss, speed and time left on a terminal; plain lines now and then elsewhere."""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    bar = Display(terminal, CHARACTERS.labels)
    bar.start(0, 10)
    bar.update(4, 10, 2.5, 12345.0)
    bar.stop()
    assert "step 4/10" in terminal.file.getvalue()
    assert "2.500 bits/char, 12,345 characters/s" in terminal.file.getvalue()

    plain = Console(file=io.StringIO(), width=120)
    lines = Display(plain, CHARACTERS.labels)
    lines.start(0, 10)
    lines.update(3, 10, 2.5, 12345.0)
    assert plain.file.getvalue() == ""
    lines._spoke -= 60
    lines.update(4, 10, 2.5, 12345.0)
    assert plain.file.getvalue() == "step 4/10: 2.500 bits/char, 12,345 characters/s, 0:00 left\n"
    assert [clock(5), clock(65), clock(3665)] == ["0:05", "1:05", "1:01:05"]


def test_tensorboard_has_the_rows(small_config, train):
    """With --tensorboard the same numbers lie there too."""
    outcome = train(dataclasses.replace(small_config, tensorboard=True))
    assert list((outcome.folder.path / "tensorboard").glob("events.*"))


@pytest.mark.parametrize(
    "text, told",
    [
        ("import no_such_package_anywhere\n", ["at    mine.py:1: import", "ModuleNotFoundError"]),
        ("import math\nmath.sqrt(-1)\n", ["at    mine.py:2: math.sqrt(-1)", "ValueError"]),
        ("x = (\n", ["at    mine.py:1: x = (", "SyntaxError"]),
        ("import sys\n\nsys.exit(3)\n", ["at    mine.py:3: sys.exit(3)", "SystemExit: 3"]),
        ("from elman import cell, tanh\n", ["at    mine.py:1", "hint  from elman.ops import tanh"]),
    ],
)
def test_cell_file_that_does_not_run(small_config, train, tmp_path, text, told):
    """An error in the user's file is told with its line, before data are read or a folder made."""
    (tmp_path / "mine.py").write_text("1 / 0  # what another text of this file was\n")
    linecache.getline(str(tmp_path / "mine.py"), 1)
    (tmp_path / "mine.py").write_text(text)
    config = dataclasses.replace(
        small_config, cell=f"{tmp_path / 'mine.py'}:cell", data=str(tmp_path / "no such data")
    )
    with pytest.raises(RunError, match="the file of the cell does not run") as caught:
        train(config)
    assert all(words in str(caught.value) for words in told), str(caught.value)


def test_long_runs_save_by_the_clock(small_config, train, monkeypatch):
    """A checkpoint is due after a minute too, and changes nothing about the run."""
    plain = train(small_config)
    monkeypatch.setattr(loop, "CHECKPOINT_S", -1.0)
    saved = []
    monkeypatch.setattr(checkpoint, "save", lambda folder, point: saved.append(point.step))
    clocked = train(small_config)

    assert saved == list(range(15))
    assert clocked.result["valid_loss"] == plain.result["valid_loss"]


def test_a_choice_is_saved_when_it_is_made(small_config, train, monkeypatch):
    """After the first step and the first validation: no process that goes on chooses again."""
    saved = []
    monkeypatch.setattr(checkpoint, "save", lambda folder, point: saved.append(point))
    train(dataclasses.replace(small_config, engine="auto", checkpoint_every=100))

    assert [point.step for point in saved] == [0, 1, 5, 14]
    classes = [
        {shown.split()[4] for shown in point.facts["choices"]["recurrent.l0"]} for point in saved
    ]
    assert classes == [set(), {"train"}, {"train", "eval"}, {"train", "eval"}]

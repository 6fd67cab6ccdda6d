"""Checkpoints appear complete or not at all, and a damaged one is found out."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

import pytest
import torch

from elman import files
from elman.errors import RunError
from elman.train.run import checkpoint
from elman.train.run.checkpoint import Checkpoint, load_latest, read_best, save, save_best


def made(step: int) -> Checkpoint:
    """Make a checkpoint whose content tells its step."""
    tensors = {"model.W": torch.full((3, 2), float(step)), "random.cpu": torch.arange(step)}
    return Checkpoint(step, tensors, {"lr": 0.1 + step}, f"step\n{step}\n")


def same(left: Checkpoint, right: Checkpoint) -> bool:
    """Compare two checkpoints bit for bit."""
    tensors = left.tensors.keys() == right.tensors.keys() and all(
        torch.equal(value, right.tensors[name]) for name, value in left.tensors.items()
    )
    return tensors and (left.step, left.facts, left.metrics) == (
        right.step,
        right.facts,
        right.metrics,
    )


def test_round_trip_keeps_the_last_two(tmp_path):
    """What was saved last is loaded; older ones but one are gone."""
    for step in (0, 3, 10, 9):
        save(tmp_path, made(step))

    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == [
        "step-000000009",
        "step-000000010",
    ]
    loaded, complaints = load_latest(tmp_path)
    assert same(loaded, made(10))
    assert not complaints


def test_no_checkpoint(tmp_path):
    """An empty or missing folder holds none; that is no error."""
    assert load_latest(tmp_path / "none") == (None, [])


@pytest.mark.parametrize("name", [checkpoint.TENSORS, checkpoint.FACTS, checkpoint.METRICS])
@pytest.mark.parametrize("damage", ["cut", "emptied", "gone", "changed"])
def test_damage_is_found(tmp_path, name, damage):
    """Each kind of damage to each file: the older checkpoint is used and the reason told."""
    save(tmp_path, made(1))
    file = save(tmp_path, made(2)) / name
    content = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    elif damage == "changed":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    else:
        file.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")

    loaded, (complaint,) = load_latest(tmp_path)

    assert same(loaded, made(1))
    assert "a checkpoint is damaged" in complaint
    assert name in complaint


def test_all_damaged_is_an_error(tmp_path):
    """Nothing usable: an error, never a silent new start."""
    (save(tmp_path, made(1)) / checkpoint.TENSORS).unlink()
    with pytest.raises(RunError, match=r"no checkpoint(.|\n)*tensors\.safetensors"):
        load_latest(tmp_path)


def test_later_format_is_told(tmp_path):
    """A checkpoint of a later elman says so."""
    file = save(tmp_path, made(1)) / checkpoint.FACTS
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(RunError, match="format 2; this elman reads 1"):
        load_latest(tmp_path)


@pytest.mark.parametrize("call", range(8))
def test_full_disk_leaves_what_was(tmp_path, monkeypatch, call):
    """A write that fails at any point raises, and leaves older checkpoints and no scraps."""
    save(tmp_path, made(1))
    left = [call]

    def fsync(number):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fsync)
    with suppress(OSError):
        save(tmp_path, made(2))
        assert left[0] >= 0, "the error was swallowed"
    done = checkpoint.list_checkpoints(tmp_path)[-1].name.endswith("2")

    loaded, complaints = load_latest(tmp_path)
    assert same(loaded, made(2 if done else 1))
    assert not complaints
    assert not list(tmp_path.glob(".incomplete*"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork: the kill is told to a child process")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("call", range(8))
@pytest.mark.parametrize("save", [save, save_best], ids=["last", "best"])
def test_kill_anywhere_leaves_a_whole_checkpoint(tmp_path, save, call):
    """A process that dies at any point of a save leaves the old or the new one, whole."""
    save(tmp_path, made(1))
    save(tmp_path, made(2))
    child = os.fork()
    if child == 0:
        left = [call]
        plain = {name: getattr(os, name) for name in ("fsync", "rename")}

        def dying(name):
            def run(*args):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)
                return plain[name](*args)

            return run

        files.os.fsync, files.os.rename = dying("fsync"), dying("rename")
        save(tmp_path, made(3))
        os._exit(0)
    os.waitpid(child, 0)

    latest, complaints = load_latest(tmp_path)
    loaded = read_best(tmp_path) if save is save_best else latest

    assert any(same(loaded, made(step)) for step in (2, 3))
    assert not complaints
    assert not list(tmp_path.glob(".incomplete*"))
    save(tmp_path, made(4))
    assert same(read_best(tmp_path) if save is save_best else load_latest(tmp_path)[0], made(4))

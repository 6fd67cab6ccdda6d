"""Examples run, and say what their first lines promise."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch

from helpers import need_engine

EXAMPLES = Path(__file__).parents[1] / "examples"
PARTS = ("train", "test")


@pytest.mark.parametrize("field", ["neural", "hamiltonian", "adaptive"])
def test_neural_ode(field, monkeypatch, capsys):
    """A path at irregular times learned by engine c, by a loop, and, where steps are of a fixed
    size, by Newton's iteration on all of them: the same losses, falling."""
    need_engine("c")
    words = ["neural_ode.py", "--field", field, "--samples", "20", "--paths", "2", "--steps", "3"]
    monkeypatch.setattr(sys, "argv", words)
    threads = torch.get_num_threads()
    runpy.run_path(str(EXAMPLES / "neural_ode.py"), run_name="__main__")
    torch.set_num_threads(threads)
    told = capsys.readouterr().out
    ends = re.findall(r"loss ([\d.]+) -> ([\d.]+)", told)
    assert len(ends) == (2 if field == "adaptive" else 3)
    assert all(float(after) < float(before) for before, after in ends)
    apart = re.search(r"the same within (\S+)", told)
    assert apart
    assert float(apart[1]) < 1e-4


def test_a_hamiltonian_flow_keeps_its_energy():
    """Whatever the weights: after many steps the energy is what it was, and y is not."""
    example = runpy.run_path(str(EXAMPLES / "neural_ode.py"))
    net = example["model_of"]("hamiltonian").double()
    net.engine = "reference"
    W, b, u = (getattr(net, f"{name}_l0") for name in "Wbu")
    y = torch.tensor([[0.5, -0.3]], dtype=torch.float64)
    path = net(torch.full((200, 1), 0.05, dtype=torch.float64), y[None])[0]
    energy = torch.tanh(torch.cat((y[None], path)) @ W.T + b) @ u
    assert (energy - energy[0]).abs().max() < 1e-4 * (path - y).abs().max()


def test_adaptive_steps_follow_the_flow():
    """Over long times between samples, as near as the tolerance says; steps of a fixed size are
    ten times as far off."""
    example = runpy.run_path(str(EXAMPLES / "neural_ode.py"))
    start, gaps = torch.tensor([[1.5, -1.0], [0.2, 0.1]]).double(), torch.full((20, 2, 1), 0.8)

    def path(kind: str, parts: int) -> torch.Tensor:
        net = example["model_of"](kind).double()
        net.engine = "reference"
        times = (gaps / parts).repeat_interleave(parts, 0).double()
        with torch.no_grad():
            return example["compiled"](net)(start, times)[parts - 1 :: parts]

    want = path("neural", 50)
    adaptive, fixed = ((path(kind, 1) - want).abs().max() for kind in ("adaptive", "neural"))
    assert adaptive < 10 * example["TOLERANCE"]
    assert 10 * adaptive < fixed


def test_two_bodies(monkeypatch, capsys, tmp_path):
    """All ways print the same losses and distances from the same start; the picture is drawn."""
    need_engine("c")
    told = list[list[float]]()
    for way in ("scan", "deer", "loop"):
        words = ["two_bodies.py", "--way", way, "--paths=4", "--samples=24", "--steps=5"]
        words += ["--batch=3", f"--picture={tmp_path / 'bodies.png'}"]
        monkeypatch.setattr(sys, "argv", words)
        torch.manual_seed(0)
        runpy.run_path(str(EXAMPLES / "two_bodies.py"), run_name="__main__")
        text = capsys.readouterr().out
        losses = re.findall(r"loss (\S+)", text)
        distances = re.search(r"of the network +([\d.]+) at", text)
        assert distances
        assert len(losses) == 5
        told.append([float(value) for value in (*losses, distances[1])])
    assert told[0] == pytest.approx(told[2], rel=1e-3)
    assert told[1] == pytest.approx(told[2], rel=1e-3)
    assert (tmp_path / "bodies.png").stat().st_size > 1000


def test_true_paths_of_two_bodies():
    """They keep their energy, and their centre stays where it is."""
    example = runpy.run_path(str(EXAMPLES / "two_bodies.py"))
    path = example["drawn"](5, 100)
    energy = example["energy"](path)
    assert (energy - energy[:1]).abs().max() < 1e-4
    assert (path[..., :2] + path[..., 2:4]).abs().max() < 1e-4
    field = example["Energy"]().double()
    y = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    inner = field.second(torch.tanh(field.first(y)))
    (slope,) = torch.autograd.grad((torch.tanh(inner) @ field.last).sum(), y)
    torch.testing.assert_close(field(y), torch.cat((slope[:, 4:], -slope[:, :4]), -1))


@pytest.mark.parametrize("layers", ["elman", "torch"])
def test_rotating_images(layers, monkeypatch, capsys, tmp_path):
    """Blots that turn: R² of ten steps is printed, and the picture drawn."""
    need_engine("c")
    draw = np.random.default_rng(0)
    arrays = {f"x_{half}": draw.integers(0, 255, (6, 32, 32, 3), np.uint8) for half in PARTS}
    np.savez(tmp_path / "images.npz", **arrays)
    words = ["rotating_images.py", "--data", str(tmp_path / "images.npz"), "--layers", layers]
    words += ["--hidden=8", "--batch=4", "--steps=5", f"--picture={tmp_path / 'turned.png'}"]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(EXAMPLES / "rotating_images.py"), run_name="__main__")
    told = capsys.readouterr().out
    assert len(re.findall(r"loss \d", told)) == 5
    (prediction, repeated) = re.findall(r"R² of \w+ ?\w*  +(.+)", told)
    assert len(prediction.split()) == len(repeated.split()) == 10
    assert (tmp_path / "turned.png").stat().st_size > 1000


def test_images_turn_anticlockwise():
    """A blot at the right goes up; nine turns of ten degrees are one of ninety."""
    example = runpy.run_path(str(EXAMPLES / "rotating_images.py"))
    image = torch.zeros(1, 32, 32)
    image[0, 14:18, 26:30] = 1.0
    quarter = example["turned"](image, 90.0)
    torch.testing.assert_close(quarter, image.rot90(1, (1, 2)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("layers", ["elman", "torch"])
def test_connected_digits(layers, monkeypatch, capsys, tmp_path):
    """Tones for digits, recognised: the loss and the word error are printed to the end."""
    need_engine("c")
    arrays = {}
    for half, count in (("train", 40), ("test", 20)):
        digits = np.arange(count) % 2
        tones = [np.sin(np.arange(1600) * (0.4 + 0.9 * digit)) * 9000 for digit in digits]
        arrays |= {f"audio_{half}": np.concatenate(tones).astype(np.int16)}
        arrays |= {f"length_{half}": np.full(count, 1600), f"digit_{half}": digits}
        arrays |= {f"speaker_{half}": np.arange(count) // 20}
    np.savez(tmp_path / "tones.npz", **arrays)
    words = ["connected_digits.py", "--data", str(tmp_path / "tones.npz"), "--layers", layers]
    words += ["--hidden", "8", "--count", "1", "--batch", "4", "--steps", "10", "--test", "3"]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(EXAMPLES / "connected_digits.py"), run_name="__main__")
    told = capsys.readouterr().out
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", told)]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    assert len(re.findall(r"word error [\d.]+%", told)) == 10
    assert re.search(r"products at [\d.]+ GFLOP/s", told)


def test_edits_and_paths_of_a_recogniser():
    """Levenshtein's distance; repeats go, and blanks between equal digits keep them apart."""
    example = runpy.run_path(str(EXAMPLES / "connected_digits.py"))
    pairs = [([], [1, 2]), ([1, 2, 3], [1, 3]), ([1, 2], [2, 1]), ([4, 5, 6], [4, 5, 6])]
    assert [example["edits"](*pair) for pair in pairs] == [2, 1, 2, 0]
    steps = torch.tensor([10, 3, 3, 10, 3, 7, 7, 9])
    logs = torch.nn.functional.one_hot(steps, 11)[:, None].float()
    assert example["best_paths"](logs, torch.tensor([7])) == [[3, 3, 7]]


PROJECTS = [path for path in sorted((EXAMPLES / "projects").glob("*.py")) if path.stem != "compare"]


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.stem)
def test_projects(path, monkeypatch, capsys):
    """A project's model and the same on elman agree in float64, and both are timed."""
    words = [path.name, "--steps", "7", "--batch", "3", "--units", "8"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.syspath_prepend(str(path.parent))
    runpy.run_path(str(path), run_name="__main__")
    told = capsys.readouterr().out
    agreed = re.search(r"the output and (\d+) gradients agree within (\S+) in float64", told)
    assert agreed
    assert int(agreed[1]) >= 4
    assert float(agreed[2]) < 1e-10
    assert re.search(r"ms in a loop, [\d.]+ ms on elman, [\d.]+x", told)


def test_the_page_on_projects_shows_the_examples():
    """What it prints of a model before and after are lines of the scripts, and all scripts."""
    page = (EXAMPLES.parent / "docs" / "projects.md").read_text("utf-8")
    texts = {path.stem: path.read_text("utf-8").splitlines() for path in PROJECTS}
    blocks = re.findall(r"```python\n(.*?)\n```", page, re.DOTALL)
    assert len(blocks) > 2 * len(texts)
    for lines in (part.splitlines() for block in blocks for part in re.split(r"\n{2,}", block)):
        windows = (
            text[first : first + len(lines)]
            for text in texts.values()
            for first in range(len(text))
        )
        assert any(dedent("\n".join(window)).splitlines() == lines for window in windows), lines
    assert all(f"{name}.py`" in page for name in texts)

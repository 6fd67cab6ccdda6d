"""`elman bench`, as a user types it."""

from __future__ import annotations

import pytest
import torch

from elman import cells
from elman.cli._options import resolve_sizes


def test_a_cell_beside_its_loop(elman, monkeypatch, tmp_path):
    """Sizes by option or by name; the measurement's own text, and no file."""
    calls = []
    monkeypatch.setattr(
        "elman.cli.bench.measure",
        lambda *given, **options: (
            calls.append((given[0].name, *given[1:], options)) or "12 times as fast"
        ),
    )
    monkeypatch.setattr(torch, "set_num_threads", lambda count: calls.append(count))
    monkeypatch.chdir(tmp_path)
    code, said, _ = elman("bench", "ealstm", "--dim=H=32,I=8", "--dim", "S=3", "--steps=7")
    assert (code, said) == (0, "12 times as fast\n")
    usual = {"steps": 100, "batch": 32, "dtype": "float32", "training": True, "engine": "auto"}
    usual |= {"seconds": 2.0, "heads": 1}
    assert calls.pop() == ("ealstm", 8, 32, {**usual, "steps": 7, "H": 32, "I": 8, "S": 3})
    words = ("--hidden=5", "--no-training", "--engine=c", "--threads=1", "--seconds=3", "--heads=5")
    assert elman("bench", "gru", *words)[0] == 0
    changes = {"training": False, "engine": "c", "seconds": 3.0, "heads": 5}
    assert calls == [1, ("gru", 5, 5, usual | changes)]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "words, status, said",
    [
        (("lsmt",), 1, "hint lstm, "),
        (("gru", "--seconds=-1"), 2, "--seconds"),
        (("gru", "--steps=0"), 2, "--steps"),
        (("gru", "--quick"), 2, "No such option: --quick"),
        ((), 2, "Missing argument"),
    ],
)
def test_wrong_calls(elman, words, status, said):
    """A cell that there is not, and numbers that are none."""
    code, _, err = elman("bench", *words)
    assert code == status
    assert said in " ".join(err.replace("│", " ").split())


def test_a_step_module_beside_its_loop(elman, monkeypatch, tmp_path):
    """Of a file, by its class; heads and dims are a cell's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from torch.nn import GRUCell as Mine\n")
    words = ("--inputs=4", "--hidden=6", "--steps=5", "--batch=2", "--seconds=0")
    code, said, _ = elman("bench", "mine.py:Mine", *words, "--engine=reference")
    assert code == 0
    assert "GRUCell: T = 5, B = 2, H = 6, I = 4" in said
    assert "gradient of weight_hh" in said
    code, _, err = elman("bench", "mine.py:Mine", "--heads=2")
    assert (code, "a step module has no --heads" in err) == (2, True)
    code, _, err = elman("explain", "mine.py:Mine")
    assert (code, "'Mine' in the file is not a cell" in err) == (1, True)


def test_sizes_of_matrices_by_name():
    """Rows and columns of a state are those of the dims."""
    assert resolve_sizes(cells.gated_delta_net, 128, None, ["K=3,V=5"]) == (3, 5, {"K": 3, "V": 5})
    assert resolve_sizes(cells.gated_delta_net, 128, 7, ["V=5"]) == (7, 5, {"V": 5})
    assert resolve_sizes(cells.gated_delta_net, 6, None, None) == (6, 6, {})

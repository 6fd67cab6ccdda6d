"""The script that compares layers with their authors' implementations: tiny pairs stand in for
packages that tests do not install."""

from __future__ import annotations

import pytest
import torch

from benchmarks import studied
from benchmarks.peers import authors
from benchmarks.peers.authors import Pair
from benchmarks.rows import append_row, read_rows
from benchmarks.scripts import authors_layers
from benchmarks.scripts.authors_layers import Case
from elman import layers


def stand_in(engine: str, factor: float = 1.0) -> Pair:
    """A layer and its copy by other names, whose outputs are some times as large."""
    ours, other = (layers.GatedLinearAttention(8, num_heads=2, engine=engine) for _ in range(2))
    weights = {f"model.{name}": value for name, value in other.named_parameters()}

    def call(x, state):
        out, last = other(x, state)
        return factor * out, last

    return Pair(
        ours,
        weights,
        call,
        state=lambda last: last,
        x=torch.randn(authors.SMALL.T, authors.SMALL.B, 8),
        renamed=lambda named: {k.removeprefix("model."): v for k, v in named.items()},
    )


@pytest.fixture
def tiny(monkeypatch):
    """Two layers and one without its package, of torch's version."""
    cases = {
        "same": Case("GatedLinearAttention", "itself", ("torch",), stand_in, stand_in),
        "absent": Case("DeltaNet", "nothing", ("fla", "no_such_module"), stand_in),
        "other": Case("RWKV7", "1.01", ("torch",), lambda engine: stand_in(engine, 1.01)),
    }
    monkeypatch.setattr(authors_layers, "CASES", cases)
    monkeypatch.setattr(authors_layers, "find_spec", lambda name: name == "torch" or None)


def test_to_the_end(tiny, capsys, tmp_path, monkeypatch):
    """Rows of what agrees and what does not, a reason where a package is missing, the table."""
    out = tmp_path / "authors_layers.jsonl"
    with pytest.raises(SystemExit, match="1"):
        authors_layers.main(["--engine", "reference", "--out", str(out)])
    same, absent, other = capsys.readouterr().out.splitlines()
    assert f"(torch {torch.__version__}, 9 parameters, float32)" in same
    assert absent.endswith("skipped: pip install flash-linear-attention no_such_module")
    assert "DIFFERS most in" in other
    rows = read_rows(out)
    assert [*rows] == ["same", "other"]
    assert max(rows["same"][key] for key in ("outputs", "gradients", "state")) < 1e-6
    assert rows["other"]["outputs"] == pytest.approx(0.01 / 1.01, rel=1e-3)
    assert rows["other"]["gradients"] == pytest.approx(0.01 / 1.01, rel=1e-3)
    assert rows["other"]["state"] < 1e-6
    monkeypatch.setattr(studied, "RESULTS", tmp_path)
    assert studied.authors_layers().splitlines()[2].startswith("| `GatedLinearAttention` | itself;")
    authors_layers.main(["--engine", "reference", "--only", "same", "--seconds", "0.01"])
    assert "theirs " in capsys.readouterr().out


def test_times(monkeypatch, tmp_path):
    """Of usual sizes where there are some; what differs is not timed."""
    times = authors_layers.training_times(stand_in("reference"), 0.01)
    assert [*times] == ["theirs", "elman"]
    rows = tmp_path / "authors_layers.jsonl"
    append_row(rows, {"case": "a", "layer": "A", "other": "`a`", "seconds": times})
    append_row(rows, {"case": "b", "layer": "B", "other": "`b`"})
    monkeypatch.setattr(studied, "RESULTS", tmp_path)
    head, _, row = studied.times_of_authors_layers().splitlines()
    assert head.count("|") == row.count("|")
    assert row.startswith("| `A` | `a` |")
    with pytest.raises(AssertionError, match="outputs differ by"):
        authors_layers.training_times(stand_in("reference", 1.01), 0.01)


def test_names_that_are_mapped():
    """Qwen3-Next's joined matrices and Mamba-2's model load into ours."""
    size, H, K = authors.SMALL.size, authors.SMALL.heads, authors.SMALL.rows
    V = 2 * K
    ours = layers.GatedDeltaNet(size, num_heads=H, head_dim=K)
    joined = {
        "in_proj_qkvz.weight": torch.randn(H * 2 * (K + V), size),
        "in_proj_ba.weight": torch.arange(2.0 * H)[:, None].expand(-1, size),
        "conv1d.weight": torch.randn(H * (2 * K + V), 1, 4),
        "norm.weight": torch.ones(V),
        "out_proj.weight": torch.randn(size, H * V),
        "A_log": torch.zeros(H),
        "dt_bias": torch.zeros(H),
    }
    ours.load_state_dict(authors.qwen_names(H, K, V, joined))
    assert ours.b_proj.weight[:, 0].tolist() == [0, 2]  # of each head b, then a
    model = authors.StackModel("mamba2", 64, "reference")
    theirs = {
        f"backbone.layers.{k}.{name}": value
        for k, block in enumerate(model.stack.blocks)
        for name, value in (
            ("norm.weight", block.norm.weight),
            *((f"mixer.{name}", value) for name, value in block.layer.named_parameters()),
        )
    }
    theirs["backbone.norm_f.weight"] = model.stack.norm.weight
    theirs["backbone.embeddings.weight"] = model.embeddings.weight
    theirs["lm_head.weight"] = model.head.weight
    assert authors.mamba2_names(theirs).keys() == model.state_dict().keys()


def test_a_model_of_rwkv7_is_a_stream():
    """With the authors' names; parts give what one call gives."""
    torch.manual_seed(0)
    model = authors.Rwkv7Model(64, 2, "reference")
    authors.draw(dict(model.named_parameters()))
    names = model.state_dict().keys()
    assert {"blocks.0.ln0.bias", "blocks.1.att.v1", "blocks.1.ffn.x_k", "head.weight"} <= names
    symbols = torch.randint(authors.SYMBOLS, (6, 2))
    with torch.no_grad():
        want, last = model(symbols)
        first, state = model(symbols[:2])
        rest, state = model(symbols[2:], state)
    torch.testing.assert_close(torch.cat((first, rest)), want)
    torch.testing.assert_close(state, last)

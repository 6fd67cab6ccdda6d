"""PackedSequence and lengths: what runs, and what is refused; results are those of
``test_around.py`` and ``conformance/``."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import elman
from elman import cells
from elman.engines.packed_rows import packed_of
from elman.errors import InputError, ShapeError
from helpers import need_engine

UNSORTED = (4, 9, 1, 7, 7)


def test_its_own_engine_runs_it():
    """Nothing is left to torch's layers where engine c can run the cell."""
    need_engine("c")
    ours = elman.LSTM(5, 7, 2, bidirectional=True, proj_size=3)
    ours(torch.randn(9, 5, 5), lengths=UNSORTED)
    chosen = elman.nn.choices(ours)
    assert {c["engine"] for layer in chosen.values() for c in layer.values()} == {"c"}


@pytest.mark.parametrize(
    "lengths, error, match",
    [
        ([1, 2], ShapeError, r"lengths must be \[3\], one per sequence, got \[2\]"),
        ([1, 2, 3, 4], ShapeError, "hint  x is 3 sequences of 4 steps here: batch_first="),
        ([1, 2, 0], InputError, "between 1 and T = 4, got 0 to 2"),
        ([1, 2, 5], InputError, "between 1 and T = 4, got 1 to 5"),
        ([1.0, 2.0, 3.0], InputError, "integers, not torch.float32"),
    ],
)
def test_bad_lengths(lengths, error, match):
    """Told with what they must be."""
    for net in (elman.GRU(2, 3), elman.Recurrent(cells.mgu, 2, 3)):
        with pytest.raises(error, match=match):
            net(torch.randn(4, 3, 2), lengths=lengths)
    with pytest.raises(ShapeError, match="a batch of sequences"):
        elman.GRU(2, 3)(torch.randn(4), lengths=[1])
    packed = pack_padded_sequence(torch.randn(4, 3, 2), torch.tensor([4, 2, 1]))
    with pytest.raises(InputError, match="padded tensors: a PackedSequence"):
        elman.GRU(2, 3)(packed, lengths=[4, 2, 1])


def test_packed_inputs_that_do_not_fit():
    """One of two that is not packed, or otherwise, or of another size."""

    @elman.cell(input="x[I], m", state="h[H]", weights="W[H, I], R[H, H]")
    def reset(x, m, h, W, R):
        """A state that m sets back."""
        return elman.ops.tanh(W @ x + R @ (m * h))

    net, x, m = elman.Recurrent(reset, 5, 5), torch.randn(9, 5, 5), torch.rand(9, 5)
    rows, flags = (
        pack_padded_sequence(value, torch.tensor(UNSORTED), enforce_sorted=False)
        for value in (x, m)
    )
    with pytest.raises(InputError, match="either all inputs of reset are packed, or none"):
        net((rows, m))
    other = pack_padded_sequence(m, torch.tensor([9] * 5))
    with pytest.raises(ShapeError, match="differ in their lengths"):
        net((rows, other))
    with pytest.raises(ShapeError, match="packed input x"):
        net((flags, flags))


@pytest.mark.parametrize("engine", ["reference", "c", "deer"])
@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
def test_training_after_evaluation(engine, first):
    """What a first call keeps of lengths serves those that are differentiated, also twice."""
    need_engine(engine)
    ours = elman.GRU(5, 7, bidirectional=True, engine=engine, dtype=torch.float64)
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    packed_of.cache_clear()
    with first():
        want = ours(x, lengths=(4, 1, 3))[0]
    x.requires_grad_()
    out = ours(x, lengths=(4, 1, 3))[0]
    torch.testing.assert_close(out, want)
    (once,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert torch.autograd.grad(once.square().sum(), x)[0].any()

"""One step at a time equals the whole sequence; weights may change in between, however."""

from __future__ import annotations

import pytest
import torch

import elman
from elman import cells
from elman.errors import InputError
from helpers import Sizes, job_of, need, random_case

MADE = {
    "gru": lambda **o: elman.GRU(5, 7, **o),
    "lstm of two layers": lambda **o: elman.LSTM(5, 7, num_layers=2, **o),
    "residual": lambda **o: elman.Recurrent(cells.mgu, 5, 7, 2, residual=True, **o),
}


@pytest.mark.parametrize("engine", ["auto", "c", "reference"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_steps_are_the_sequence(name, batch_first, engine):
    """Outputs and the last state, batched and unbatched, without gradients."""
    if engine == "c":
        need("c", job_of(random_case(cells.gru, Sizes(2, 1, 3, 5))))
    module = MADE[name](batch_first=batch_first, engine=engine).double()
    for lead in ((), (1,), (3,)):
        x = torch.randn(6, *lead, 5, dtype=torch.float64)
        with torch.no_grad():
            whole = x.transpose(0, 1) if batch_first and lead else x
            out, last = module(whole)
            state, rows = None, []
            for now in x:
                row, state = module.step(now, state)
                rows.append(row)
        want = out.transpose(0, 1) if batch_first and lead else out
        torch.testing.assert_close(torch.stack(rows), want)
        torch.testing.assert_close(state, last)


@pytest.mark.parametrize("batch", [1, 3])
def test_changed_weights_are_seen(batch):
    """Also changes that torch does not count: an average of weights is written through data."""
    module = elman.GRU(5, 7)
    x = torch.randn(batch, 5)
    with torch.no_grad():
        before, _ = module.step(x)
        for weight in module.parameters():
            weight.data.mul_(0.5)
        after, _ = module.step(x)
        want, _ = module(x[None])
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, want[0])


def test_what_cannot_be_stepped():
    """Two directions, an axis too many, no tensor."""
    with pytest.raises(InputError, match="needs the whole sequence"):
        elman.GRU(5, 7, bidirectional=True).step(torch.randn(3, 5))
    with pytest.raises(InputError, match="the axis of time is left out"):
        elman.GRU(5, 7).step(torch.randn(1, 3, 5))
    with pytest.raises(InputError, match="x must be a tensor"):
        elman.Recurrent(cells.mgu, 5, 7).step("now")
    with pytest.raises(InputError, match=r"hint  torch.as_tensor\(x\)"):
        elman.GRU(5, 7).step(torch.randn(3, 5).numpy())

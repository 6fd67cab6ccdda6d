"""Cells with integers: the same bits in float32 and float64, on every engine."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings

import elman
from elman import cells
from elman.errors import InputError
from helpers import forced, need_engine
from kernels import cell_from
from library_sizes import DIMS
from products import every
from random_cells import Drawn, drawn_cells

T, B = 12, 3
OF_LIBRARY = [  # with states, and no matrix of each sample
    cells.gru, cells.lstm, cells.mingru, cells.rnn, cells.ligru, cells.cfc, cells.mgu, cells.lem,
    cells.rlif, cells.lif, cells.lru, cells.fastgrnn, cells.unicornn, cells.gru_layernorm,
    cells.lstm_layernorm, cells.mogrifier, cells.rhn, cells.s5, cells.lmu, cells.rglru,
]  # fmt: skip


def inputs_of(net: elman.Recurrent, steps: int = T, scale: float = 1.0):
    """Random inputs, as the module takes them."""
    source = torch.Generator().manual_seed(3)
    x = tuple(scale * torch.randn(steps, B, *s, generator=source) for s in net.runtime.input_sizes)
    return x if len(x) > 1 else x[0]


@torch.no_grad()
def outputs(net, x):
    """All outputs, as one tensor."""
    out = net(x)[0]
    return torch.cat([v.reshape(-1) for v in (out if isinstance(out, tuple) else (out,))])


def doubled(x):
    """x in float64."""
    return tuple(v.double() for v in x) if isinstance(x, tuple) else x.double()


def check_bits(net) -> None:
    """Compare engines bit for bit: on inputs as those that it was calibrated with, on some that
    are clipped, and with weights that grew."""
    net.calibrate(inputs_of(net))
    for scale, growth in ((1.0, 1.0), (30.0, 1.0), (1.0, 8.0)):
        with torch.no_grad():
            for weight in net.parameters():
                weight.mul_(growth)
            x = inputs_of(net, T, scale)
            with forced("reference"):
                single = outputs(net, x)
                double = outputs(elman.Recurrent.double(net), doubled(x))
                net.float()
            assert bool(single.isfinite().all())
            assert torch.equal(single.double(), double)
            net.engine = "c"
            assert torch.equal(outputs(net, x), single)
            net.engine = "auto"


@pytest.mark.parametrize("cell", every(3, OF_LIBRARY))
def test_cells_of_the_library(cell):
    """Each is near what it is in float32, and the same on all engines."""
    need_engine("c")
    torch.manual_seed(0)
    sizes = {"input_size": 6, "hidden_size": 6} | DIMS.get(cell.name, {})
    net = elman.Recurrent(cell, **sizes, quantize=8)
    plain = elman.Recurrent(cell, **sizes)
    plain.load_state_dict({k: v for k, v in net.state_dict().items() if "ranges" not in k})
    x = inputs_of(net)
    net.calibrate(x)
    if cell not in (cells.rlif, cells.lif):  # a spike is there, or is not
        off = (outputs(net, x) - outputs(plain, x)).pow(2).mean().sqrt()
        assert float(off / outputs(plain, x).pow(2).mean().sqrt()) < 0.15
    check_bits(net)


@settings(max_examples=12, derandomize=True, deadline=None, suppress_health_check=[*HealthCheck])
@given(drawn=drawn_cells())
def test_random_cells(drawn: Drawn):
    """Formulas nobody has written: those that have a form in integers are exact."""
    need_engine("c")
    torch.manual_seed(0)
    cell = cell_from(drawn.text)
    dims = {"P": drawn.P} if "P" in drawn.text.split("def ")[0] else {}
    try:
        net = elman.Recurrent(cell, drawn.I, drawn.H, **dims, quantize=8)
        net.calibrate(inputs_of(net))
    except InputError:
        assume(False)
    check_bits(net)

"""snnTorch's layers of leaky neurons: a layer's steps in one call instead of a step's layers.

    python examples/projects/snntorch_leaky.py

snnTorch 0.9, ``_neurons/leaky.py``; the network of its fifth tutorial: an image is shown at every
step, ``fc1``, ``lif1``, ``fc2``, ``lif2``. As each layer reads the layer below at the same step,
all steps of ``lif1`` may run before ``lif2`` begins.
"""

from __future__ import annotations

from typing import Any

import torch
from compare import compare, sizes
from torch import Tensor, nn

import elman
from elman.ops import spike

PIXELS, CLASSES, BETA, SLOPE = 784, 10, 0.5, 25.0


class Spike(torch.autograd.Function):
    """``surrogate.fast_sigmoid(slope=25)``."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        """1 where v > 0."""
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, *ds: Tensor) -> Tensor:
        """The surrogate's derivative."""
        (v,) = ctx.saved_tensors
        return ds[0] / (SLOPE * v.abs() + 1.0) ** 2


def leaky_step(current: Tensor, membrane: Tensor) -> tuple[Any, Tensor]:
    """``Leaky``: the threshold 1 is subtracted a step after the spike."""
    reset = (membrane > 1.0).to(membrane.dtype)
    membrane = BETA * membrane + current - reset
    return Spike.apply(membrane - 1.0), membrane


@elman.cell(input="x[H]", state="m[H]", output="s[H]")
def leaky(x, m):
    """The same as a cell; ``elman.cells.lif`` has the layer that makes the current in it."""
    m = BETA * m + x - (m > 1.0)
    return spike(m - 1.0, "fast_sigmoid", slope=SLOPE), m


class Before(nn.Module):
    """As it is."""

    def __init__(self, steps: int, units: int) -> None:
        super().__init__()
        self.steps = steps
        self.fc1, self.fc2 = nn.Linear(PIXELS, units), nn.Linear(units, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Spikes [T, B, classes] and the last membranes of images [B, pixels]."""
        mem1, mem2 = (x.new_zeros(len(x), fc.out_features) for fc in (self.fc1, self.fc2))
        spikes = []
        for _ in range(self.steps):
            spk1, mem1 = leaky_step(self.fc1(x), mem1)
            spk2, mem2 = leaky_step(self.fc2(spk1), mem2)
            spikes.append(spk2)
        return torch.stack(spikes), mem2


class After(nn.Module):
    """A call for each layer; the current of an image that stands still is computed once."""

    def __init__(self, steps: int, units: int) -> None:
        super().__init__()
        self.steps = steps
        self.fc1 = nn.Linear(PIXELS, units)
        self.lif1 = elman.Recurrent(leaky, units, units)
        options = {"beta": BETA, "surrogate": "fast_sigmoid"}
        self.lif2 = elman.Recurrent(elman.cells.lif, units, CLASSES, **options)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Before`."""
        spk1, _ = self.lif1(self.fc1(x).expand(self.steps, -1, -1))
        return self.lif2(spk1)


if __name__ == "__main__":
    T, B, H = sizes(__doc__, 100, 128, 1000)
    names = {"fc2.weight": "lif2.W_l0", "fc2.bias": "lif2.b_l0"}
    compare(
        Before(T, H),
        After(T, H),
        lambda weights: {names.get(name, name): weight for name, weight in weights.items()},
        2 * torch.rand(B, PIXELS),
    )

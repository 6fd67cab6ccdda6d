"""Spiking layers as snnTorch 0.9 has them (``_neurons/leaky.py`` and ``rleaky.py``).

The network of its fifth tutorial: an image is shown at every step, ``fc1``, a layer of leaky
neurons, ``fc2``, another one; the loop over steps calls all four. Membranes reset by subtraction a
step after the spike, the surrogate is ``fast_sigmoid(slope=25)``. With ``RLeaky`` the first layer's
spikes return through a matrix.

A spike that one rounding makes and another does not makes all that follows another sequence, so
weights, images and beta are short binary fractions: no sum of the first steps is rounded, and those
are compared.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import elman.nn
from benchmarks.cases import Case
from benchmarks.users.project import Project, Weights, example_of
from benchmarks.workloads.custom_cells import leaky, rleaky
from elman.cells import lif

SNN = example_of("snntorch_leaky")
CLASSES: int = SNN.CLASSES
BETA: float = SNN.BETA
EXACT = 10  # steps in which nothing is rounded
fire = SNN.Spike.apply  # 1 where v > 0; its derivative is that of a fast sigmoid


class LeakyLoop(nn.Module):
    """One step of leaky neurons, with or without a matrix from their spikes."""

    def __init__(self, size: int, recurrent: bool) -> None:
        super().__init__()
        self.recurrent = nn.Linear(size, size) if recurrent else None
        self.beta, self.threshold = torch.tensor(BETA), torch.tensor(1.0)

    def forward(self, current: Tensor, spikes: Tensor, membrane: Tensor) -> tuple[Tensor, Tensor]:
        """Spikes and membranes [B, H] of currents [B, H]."""
        reset = fire(membrane - self.threshold).detach()
        membrane = self.beta.clamp(0, 1) * membrane + current
        if self.recurrent is not None:
            membrane = membrane + self.recurrent(spikes)
        membrane = membrane - reset * self.threshold
        return fire(membrane - self.threshold), membrane


class SpikingLoop(nn.Module):
    """The tutorial's network, step by step."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.steps = case.T
        self.fc1, self.fc2 = nn.Linear(case.input_size, case.H), nn.Linear(case.H, CLASSES)
        self.lif1 = LeakyLoop(case.H, case.cell == "rleaky")
        self.lif2 = LeakyLoop(CLASSES, False)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Spikes [T, B, classes] of one image per sample, x [1, B, I]; and the last membranes."""
        (image,) = x
        spk1 = mem1 = image.new_zeros(len(image), self.fc1.out_features)
        spk2 = mem2 = image.new_zeros(len(image), CLASSES)
        outputs = []
        for _ in range(self.steps):
            spk1, mem1 = self.lif1(self.fc1(image), spk1, mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), spk2, mem2)
            outputs.append(spk2)
        return torch.stack(outputs), (mem1, mem2)


class Spiking(nn.Module):
    """The same on elman: the image's current once, all steps of a layer at a time; ``fc2`` is
    part of the second one."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.steps = case.T
        self.fc1 = nn.Linear(case.input_size, case.H)
        first = rleaky if case.cell == "rleaky" else leaky
        self.lif1 = elman.nn.Recurrent(first, case.H, case.H, beta=BETA)
        options = {"beta": BETA, "surrogate": "fast_sigmoid"}
        self.lif2 = elman.nn.Recurrent(lif, case.H, CLASSES, **options)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See :class:`SpikingLoop`."""
        current = self.fc1(x).expand(self.steps, -1, -1)
        spk1, last = self.lif1(current)
        spk2, mem2 = self.lif2(spk1)
        return spk2, (last[1] if isinstance(last, tuple) else last, mem2)


def _moved(weights: Weights) -> dict[str, Tensor]:
    names = {
        "lif1.recurrent.weight": "lif1.V_l0",
        "lif1.recurrent.bias": "lif1.c_l0",
        "fc2.weight": "lif2.W_l0",
        "fc2.bias": "lif2.b_l0",
    }
    return {names.get(name, name): weight for name, weight in weights.items()}


def _excited(name: str, weight: Tensor) -> Tensor:
    """Rounded; so much current that the second layer spikes, as it would after some training."""
    return (weight * 128).round() / (32 if name.startswith("fc2") else 128)


SPIKING = Project(
    {"loop": SpikingLoop},
    Spiking,
    moved=_moved,
    tamed=_excited,
    inputs=lambda x: (x[:1] * 8).round() / 8,
    outputs=lambda case: CLASSES,
    once=frozenset({"fc1.weight"}),
)
